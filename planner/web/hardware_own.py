"""GPUs and calibrations of a visitor's own: entered, uploaded, listed, removed. They are part of the scenario."""

from __future__ import annotations

import math
import zlib
from datetime import date
from typing import Any

import streamlit as st

import planner
from hardware_db import Calibration, Fact, GpuSku, Kind
from planner.core import InputError, PlannerError, counted, money, percent
from planner.fleet import hardware_for
from planner.scenario import QUANTITIES, Quantity, peak_quantities, shown_value, user_hardware
from planner.web import components, inputs_hardware, session
from planner.web.results import Page
from planner.web.uploads import content, megabytes

MAIN = ("hbm_capacity_bytes", "hbm_bandwidth_bytes_per_s", "scale_up.bandwidth_bytes_per_s", "node.gpus")
"""Facts that are seen at once; the others are one click away."""
COLUMNS = 4


def show(page: Page) -> None:
    """What there is, then the ways to bring more."""
    listed(page)
    st.markdown("**Edit a GPU, or add one**")
    editor(page)
    left, right = st.columns(2)
    with left:
        upload_sku(page)
    with right:
        upload_calibration(page)


# --- what there is ----------------------------------------------------------------------------------------------------


def listed(page: Page) -> None:
    """Own GPUs and calibrations, each with a way to give it up."""
    own = page.hardware.own
    if not (own.skus or own.calibrations):
        st.caption("Only packaged GPUs and calibrations are in use. What you add here stays in this scenario.")
    for sku in own.skus:
        _listed(f"{sku.name} ({sku.id}): {differences(sku, page)}", f"sku-{sku.id}", _drop_sku, sku.id)
    for one in own.calibrations:
        said = f"Calibration of {one.sku}: {calibration_in_words(one)}"
        _listed(said, f"calibration-{one.sku}", _drop_calibration, one.sku)


def _listed(said: str, key: str, drop: Any, name: str) -> None:  # noqa: ANN401
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(components.plain(said), width="stretch")
        st.button("Remove", key=f"remove-{key}", on_click=drop, args=(name,), icon=":material/delete:")


def _drop_sku(sku: str) -> None:
    session.change(user_hardware.changes_without_sku(session.content(), sku))


def _drop_calibration(sku: str) -> None:
    session.change(user_hardware.changes_without_calibration(session.content(), sku))


def differences(sku: GpuSku, page: Page) -> str:
    """What was entered for a GPU, and its price."""
    said = [
        f"{quantity.name} {quantity.text(fact.value)} {quantity.unit} ({fact.note or 'new'})"
        for quantity, fact in user_hardware.facts_of(sku)
        if isinstance(fact, Fact) and fact.source == user_hardware.ENTERED
    ]
    price = page.request.prices.usd_per_gpu_hour.get(sku.id)
    said.append(f"${money(price)} per GPU-hour" if price is not None else "no price of its own")
    if sku.id not in page.request.search.skus:
        said.append("not searched")
    return "; ".join(said)


def calibration_in_words(one: Calibration) -> str:
    """Stack, day, kernels and errors of a calibration."""
    errors = sorted(fit.median_error for fit in one.kernels.values())
    samples = sum(fit.samples for fit in one.kernels.values())
    return (
        f"{one.stack}, {one.fitted_on.isoformat()}, {counted(len(one.kernels), 'kernel')} from "
        f"{counted(samples, 'measurement')}, median error of a kernel {percent(errors[0])} to {percent(errors[-1])}"
    )


# --- entering a GPU ---------------------------------------------------------------------------------------------------


def editor(page: Page) -> None:
    """Numbers of a GPU to start from, in fields; *Use it* puts the result into the scenario."""
    names = list(page.hardware.skus)
    used = next(iter([*page.plan.gpus, *page.request.search.skus]))
    base = page.hardware.skus[
        st.selectbox("Start from", names, index=names.index(used), key="own-base", help="Any GPU there is.")
    ]
    mark = f"{base.id}-{zlib.crc32(base.model_dump_json().encode()):x}"
    is_own = base in page.hardware.own.skus
    with st.form(f"own-{mark}", border=True):
        sku_id, name, usd, searched = _names(page, base, mark, is_own)
        shown = _facts(base, mark)
        done = st.form_submit_button("Use it", type="primary", icon=":material/check:")
    if done:
        use_entered(page, base, sku_id, name, shown, usd, searched=searched)


def _names(page: Page, base: GpuSku, mark: str, is_own: bool) -> tuple[str, str, float | None, bool]:
    """Id, name, price and whether it is searched."""
    columns = st.columns(COLUMNS, vertical_alignment="bottom")
    free = base.id if is_own else user_hardware.free_id(base.id, list(page.hardware.skus))
    sku_id = columns[0].text_input(
        "Id",
        free,
        key=f"own-id-{mark}",
        help="Lower case, digits, - and dots. With the id of a packaged GPU yours stands in its place.",
    )
    name = columns[1].text_input("Name", base.name if is_own else f"{base.name}, mine", key=f"own-name-{mark}")
    usd = columns[2].number_input(
        "Price [$ per GPU-hour]",
        min_value=0.001,
        value=_price(page, base),
        step=0.05,
        key=f"own-usd-{mark}",
        placeholder="as listed",
        help="Of one GPU. It starts at what the GPU it comes from costs. Emptied: listed prices apply, if any.",
    )
    searched = columns[3].checkbox("Plans may use it", value=True, key=f"own-searched-{mark}")
    return sku_id.strip(), name.strip(), usd, searched


def _price(page: Page, sku: GpuSku) -> float | None:
    """What the scenario pays for a GPU: its own price, else the cheapest listed one."""
    own = page.request.prices.usd_per_gpu_hour.get(sku.id)
    found = None if own is not None else inputs_hardware.listed_price(sku.id, page.hardware)
    return own if found is None else found.usd_per_gpu_hour


def _facts(base: GpuSku, mark: str) -> dict[str, float]:
    """Values by path, in human units."""
    others = [quantity for quantity in QUANTITIES if quantity.path not in MAIN]
    first = [*peak_quantities(base), *(quantity for quantity in QUANTITIES if quantity.path in MAIN)]
    found = _fields(base, first, mark)
    with st.expander("Links, server, power, cache"):
        found |= _fields(base, others, mark)
    return found


def _fields(base: GpuSku, quantities: list[Quantity], mark: str) -> dict[str, float]:
    """Number inputs in rows; a fact that is not known starts empty and stays so until it is given."""
    found: dict[str, float] = {}
    for place, quantity in enumerate(quantities):
        if place % COLUMNS == 0:
            columns = st.columns(COLUMNS)
        value = columns[place % COLUMNS].number_input(
            quantity.label, key=f"own-{quantity.path}-{mark}", help=quantity.meaning, **_range(base, quantity)
        )
        if value is not None:
            found[quantity.path] = float(value)
    return found


def _range(base: GpuSku, quantity: Quantity) -> dict[str, Any]:
    """Start, smallest value, step and format of a number input."""
    start = shown_value(base, quantity)
    if not quantity.is_fact:
        return {"min_value": 1, "value": None if start is None else int(start), "step": 1}
    step = 10.0 ** math.floor(math.log10((start or 1.0) / 3.0))
    return {"min_value": 0.0, "value": start, "step": step, "format": "%g", "placeholder": "not known"}


def use_entered(
    page: Page, base: GpuSku, sku_id: str, name: str, shown: dict[str, float], usd: float | None, *, searched: bool
) -> None:
    """Put what was entered into the scenario, or say why not."""
    try:
        sku = user_hardware.edited(base, sku_id, name, shown, date.fromisoformat(session.today()))
        use_sku(page, sku, usd, searched=searched)
    except PlannerError as error:
        st.error(components.plain(str(error)))


def use_sku(page: Page, sku: GpuSku, usd: float | None, *, searched: bool) -> None:
    """Put a GPU into the scenario and draw the page again. Raises InputError where a plan could not use it."""
    has_price = any(price.sku == sku.id for price in page.hardware.prices)
    if usd is None and searched and not has_price:
        bound = f"no price is listed for {sku.id}"
        raise InputError(
            "Price [$ per GPU-hour]", None, bound, "give what a GPU-hour costs you, also if it is an estimate"
        )
    _use(user_hardware.changes_with_sku(session.content(), sku, usd, searched=searched))


def _use(changes: user_hardware.Changes) -> None:
    """Change the scenario if it can be planned with afterwards. Raises InputError, and then leaves it as it is."""
    hardware_for(planner.load_scenario(session.changed(session.content(), changes)))
    session.change(changes)
    st.rerun()


# --- uploads ----------------------------------------------------------------------------------------------------------


def upload_sku(page: Page) -> None:
    """A SKU file of the hardware database's format."""
    file = st.file_uploader(
        "Or upload a GPU as TOML",
        type="toml",
        key="own-sku-file",
        max_upload_size=megabytes(user_hardware.MAX_SKU_BYTES),
        help="The format of the packaged ones: hardware_db/README.md has an example. At most 100 kB; kept in memory.",
    )
    if file is None:
        return
    try:
        sku = user_hardware.sku_of_toml(content(file, user_hardware.MAX_SKU_BYTES), file.name)
        st.caption(components.plain(sku_in_words(sku)))
        usd = st.number_input(
            "Its price [$ per GPU-hour]", 0.001, value=_price(page, sku), step=0.05, key=f"own-file-usd-{sku.id}"
        )
        if st.button("Use this GPU", key="own-sku-use", type="primary"):
            use_sku(page, sku, usd, searched=True)
    except PlannerError as error:
        st.error(components.plain(str(error)))


def sku_in_words(sku: GpuSku) -> str:
    """The main numbers of a GPU and how many of them are assumed."""
    facts = [fact for _, fact in user_hardware.facts_of(sku) if isinstance(fact, Fact)]
    assumed = sum(fact.kind is Kind.ASSUMED for fact in facts)
    numbers = ", ".join(
        f"{quantity.name} {quantity.text(fact.value)} {quantity.unit}"
        for quantity, fact in user_hardware.facts_of(sku)
        if isinstance(fact, Fact) and (quantity.path in MAIN or quantity.path.startswith("peak"))
    )
    return f"{sku.name} ({sku.id}): {numbers}. {len(facts)} facts, {assumed} of them assumed."


def upload_calibration(page: Page) -> None:
    """A calibration as ``python -m calibration`` writes it."""
    file = st.file_uploader(
        "Upload a calibration as JSON",
        type="json",
        key="own-calibration-file",
        max_upload_size=megabytes(user_hardware.MAX_CALIBRATION_BYTES),
        help="What `python -m calibration` writes on the GPU itself: kernels, intervals, errors. At most 5 MB.",
    )
    if file is None:
        return
    try:
        one = user_hardware.calibration_of_json(content(file, user_hardware.MAX_CALIBRATION_BYTES), file.name)
        st.caption(components.plain(f"{one.sku}: {calibration_in_words(one)}. {_replaced(page, one)}"))
        if st.button("Use this calibration", key="own-calibration-use", type="primary"):
            _use(user_hardware.changes_with_calibration(session.content(), one))
    except PlannerError as error:
        st.error(components.plain(str(error)))


def _replaced(page: Page, one: Calibration) -> str:
    """What a calibration would stand in for."""
    there = [other.stack for other in page.hardware.calibrations if other.sku == one.sku]
    return f"It stands in place of {', '.join(there)}." if there else "Nothing was measured on that GPU so far."
