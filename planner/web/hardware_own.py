"""Of the tab *Hardware*: the visitor's own GPUs and calibrations, entered or uploaded, as part of the scenario."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from datetime import date
from typing import Any

import streamlit as st

import planner
from hardware_db import Calibration, Fact, GpuSku, Kind, sku_words
from planner.core import InputError, money, number_of, percent
from planner.fleet import hardware_for
from planner.scenario import QUANTITIES, Content, SkuQuantity, peak_quantities, shown_value, user_hardware
from planner.web import components, fields, inputs_hardware, session
from planner.web.results import Page

MAIN_FACTS = ("hbm_capacity_bytes", "hbm_bandwidth_bytes_per_s", "scale_up.bandwidth_bytes_per_s", "node.gpus")
"""Facts shown at once; the others are behind a click."""
COLUMNS = 4


def show(page: Page) -> None:
    """The list of own hardware, then inputs that add to it."""
    own_hardware_list(page)
    st.markdown("**Edit a GPU, or add one**")
    sku_editor(page)
    left, right = st.columns(2)
    with left:
        upload_sku(page)
    with right:
        upload_calibration(page)


# --- own hardware -----------------------------------------------------------------------------------------------------


def own_hardware_list(page: Page) -> None:
    """Own GPUs and calibrations, each with a button that removes it."""
    own = page.hardware.own
    if not (own.skus or own.calibrations):
        st.caption("Only packaged GPUs and calibrations are in use. What you add here becomes part of this scenario.")
    for sku in own.skus:
        text = f"{sku.name} ({sku.id}): {entered_in_words(sku, page)}"
        _own_hardware_row(text, f"sku-{sku.id}", user_hardware.changes_without_sku, sku.id)
    for calibration in own.calibrations:
        text = f"Calibration of {sku_words(calibration.sku)}: {calibration_in_words(calibration)}"
        name = f"calibration-{calibration.sku}"
        _own_hardware_row(text, name, user_hardware.changes_without_calibration, calibration.sku)


def _own_hardware_row(text: str, key: str, without: Callable[[Content, str], user_hardware.Changes], name: str) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(components.plain(text), width="stretch")
        st.button(
            **fields.widget("hardware-own-remove", key=f"remove-{key}"),
            on_click=lambda: session.change(without(session.content(), name)),
        )


def entered_in_words(sku: GpuSku, page: Page) -> str:
    """Facts entered for a GPU, its price, and whether it is searched."""
    clauses = [
        f"{quantity.name} {quantity.text(fact.value)} {quantity.unit} ({fact.note or 'new'})"
        for quantity, fact in user_hardware.facts_of(sku)
        if isinstance(fact, Fact) and fact.source == user_hardware.ENTERED
    ]
    price = page.request.prices.usd_per_gpu_hour.get(sku.id)
    clauses.append(f"${money(price)} per GPU-hour" if price is not None else "no price of its own")
    if sku.id not in page.request.search.skus:
        clauses.append("not searched")
    return "; ".join(clauses)


def calibration_in_words(calibration: Calibration) -> str:
    """Stack, day, kernels and errors of a calibration."""
    kernels = calibration.kernels
    errors = sorted(fit.median_error for fit in kernels.values())
    samples = sum(fit.samples for fit in kernels.values())
    return (
        f"{calibration.stack}, {calibration.fitted_on.isoformat()}, {number_of(len(kernels), 'kernel')} from "
        f"{number_of(samples, 'measurement')}, median error of a kernel {percent(errors[0])} to {percent(errors[-1])}"
    )


# --- entering a GPU ---------------------------------------------------------------------------------------------------


def sku_editor(page: Page) -> None:
    """The numbers of a GPU in input fields; *Use it* puts the result into the scenario."""
    names = list(page.hardware.skus)
    used = next(iter([*page.plan.gpus, *page.request.search.skus]))
    base = page.hardware.skus[st.selectbox(**fields.widget("own-base"), options=names, index=names.index(used))]
    mark = f"{base.id}-{zlib.crc32(base.model_dump_json().encode()):x}"
    is_own = base in page.hardware.own.skus
    with st.form(f"own-{mark}", border=True):
        sku_id, name, usd, searched = _identity_inputs(page, base, mark, is_own)
        shown = _fact_inputs(base, mark)
        done = st.form_submit_button("Use it", type="primary", icon=":material/check:")
    if done:
        with components.errors_in_place():
            sku = user_hardware.edited_sku(base, sku_id, name, shown, date.fromisoformat(session.today()))
            use_sku(page, sku, usd, searched=searched)


def _identity_inputs(page: Page, base: GpuSku, mark: str, is_own: bool) -> tuple[str, str, float | None, bool]:
    """Id, name, price and whether it is searched."""
    columns = st.columns(COLUMNS, vertical_alignment="bottom")
    free = base.id if is_own else user_hardware.free_id(base.id, list(page.hardware.skus))
    sku_id = columns[0].text_input(**fields.widget("hardware-own-id", key=f"own-id-{mark}"), value=free)
    name = columns[1].text_input("Name", base.name if is_own else f"{base.name}, mine", key=f"own-name-{mark}")
    usd = columns[2].number_input(
        **fields.widget("hardware-own-price-per-gpu-hour", key=f"own-usd-{mark}"), value=_starting_price(page, base)
    )
    searched = columns[3].checkbox("Plans may use it", value=True, key=f"own-searched-{mark}")
    return sku_id.strip(), name.strip(), usd, searched


def _starting_price(page: Page, sku: GpuSku) -> float | None:
    """Price that the scenario pays for a GPU: its own, else the cheapest listed one."""
    own = page.request.prices.usd_per_gpu_hour.get(sku.id)
    listed = None if own is not None else inputs_hardware.listed_price(sku.id, page.hardware)
    return own if listed is None else listed.usd_per_gpu_hour


def _fact_inputs(base: GpuSku, mark: str) -> dict[str, float]:
    """Values by path, in human units."""
    others = [quantity for quantity in QUANTITIES if quantity.path not in MAIN_FACTS]
    first = [*peak_quantities(base), *(quantity for quantity in QUANTITIES if quantity.path in MAIN_FACTS)]
    values = _number_inputs(base, first, mark)
    with st.expander("Links, server, power, cache"):
        values |= _number_inputs(base, others, mark)
    return values


def _number_inputs(base: GpuSku, quantities: list[SkuQuantity], mark: str) -> dict[str, float]:
    """Number inputs in rows; a fact that is not known starts empty and stays so until it is given."""
    values: dict[str, float] = {}
    for index, quantity in enumerate(quantities):
        if index % COLUMNS == 0:
            columns = st.columns(COLUMNS)
        value = columns[index % COLUMNS].number_input(
            quantity.label, key=f"own-{quantity.path}-{mark}", help=quantity.meaning, **_input_range(base, quantity)
        )
        if value is not None:
            values[quantity.path] = float(value)
    return values


def _input_range(base: GpuSku, quantity: SkuQuantity) -> dict[str, Any]:
    """Start, smallest value, step and format of a number input."""
    start = shown_value(base, quantity)
    if not quantity.is_fact:
        return {"min_value": 1, "value": None if start is None else int(start), "step": 1}
    step = 10.0 ** math.floor(math.log10((start or 1.0) / 3.0))
    return {"min_value": 0.0, "value": start, "step": step, "format": "%g", "placeholder": "not known"}


def use_sku(page: Page, sku: GpuSku, usd: float | None, *, searched: bool) -> None:
    """Put a GPU into the scenario and draw the page again. Raises InputError where a plan could not use it."""
    has_price = any(price.sku == sku.id for price in page.hardware.prices)
    if usd is None and searched and not has_price:
        bound = f"no price is listed for {sku.id}"
        raise InputError(
            "Price [$ per GPU-hour]", None, bound, "give what a GPU-hour costs you, if only as an estimate"
        )
    _apply_if_plannable(user_hardware.changes_with_sku(session.content(), sku, usd, searched=searched))


def _apply_if_plannable(changes: user_hardware.Changes) -> None:
    """Change the scenario if it can be planned with afterwards. Raises InputError, and then leaves it as it is."""
    hardware_for(planner.load_scenario(session.with_changes(session.content(), changes), from_outside=True))
    session.change(changes)
    st.rerun()


# --- uploads ----------------------------------------------------------------------------------------------------------


def upload_sku(page: Page) -> None:
    """A SKU file of the hardware database's format."""
    files = components.uploaded_files("own-sku-file", user_hardware.MAX_SKU_BYTES)
    with components.errors_in_place():
        for name, content in components.require_small(files, user_hardware.MAX_SKU_BYTES):
            sku = user_hardware.sku_of_toml(content, name)
            st.caption(components.plain(sku_in_words(sku)))
            label, start = "Its price [$ per GPU-hour]", _starting_price(page, sku)
            usd = st.number_input(label, 0.001, value=start, step=0.05, key=f"own-file-usd-{sku.id}")
            if st.button("Use this GPU", key="own-sku-use", type="primary"):
                use_sku(page, sku, usd, searched=True)


def sku_in_words(sku: GpuSku) -> str:
    """The main numbers of a GPU and how many of them are assumed."""
    facts = [fact for _, fact in user_hardware.facts_of(sku) if isinstance(fact, Fact)]
    assumed = sum(fact.kind is Kind.ASSUMED for fact in facts)
    numbers = ", ".join(
        f"{quantity.name} {quantity.text(fact.value)} {quantity.unit}"
        for quantity, fact in user_hardware.facts_of(sku)
        if isinstance(fact, Fact) and (quantity.path in MAIN_FACTS or quantity.path.startswith("peak"))
    )
    return f"{sku.name} ({sku.id}): {numbers}. {len(facts)} facts, {assumed} of them assumed."


def upload_calibration(page: Page) -> None:
    """A calibration as ``python -m calibration`` writes it."""
    files = components.uploaded_files("own-calibration-file", user_hardware.MAX_CALIBRATION_BYTES)
    with components.errors_in_place():
        for name, content in components.require_small(files, user_hardware.MAX_CALIBRATION_BYTES):
            calibration = user_hardware.calibration_of_json(content, name)
            stacks = ", ".join(other.stack for other in page.hardware.calibrations if other.sku == calibration.sku)
            replaced = f"It replaces {stacks}." if stacks else "There are no measurements on that GPU so far."
            st.caption(
                components.plain(f"{sku_words(calibration.sku)}: {calibration_in_words(calibration)}. {replaced}")
            )
            if st.button("Use this calibration", key="own-calibration-use", type="primary"):
                _apply_if_plannable(user_hardware.changes_with_calibration(session.content(), calibration))
