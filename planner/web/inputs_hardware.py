"""Of the sidebar: SKUs; providers, commitments and prices; modes, engine and search."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from datetime import date
from functools import partial
from typing import Any

import streamlit as st

from hardware_db import (
    ANYWHERE,
    HardwareDb,
    OwnHardware,
    Price,
    area_names,
    load_hardware,
    regions_in,
    sku_words,
    with_own_hardware,
)
from planner.core import InputError, PlannerError, money, number_of
from planner.scenario import ScenarioPrices
from planner.search import Mode
from planner.supply import Granularity, OwnedGpus, offered_prices, read_prices
from planner.web import components, fields, session

ANY, ANY_REGION = "Any provider", "Any region"
GRANULARITIES = {
    Granularity.INSTANCE.value: "Instances, as the provider sells them",
    Granularity.NODE.value: "Whole servers",
    Granularity.GPU.value: "Single GPUs",
}
FIRST_CAPEX_USD = 30_000.0
"""Price of a GPU of one's own that is set first [USD]. A choice, to be changed beside it."""
MODES = {
    Mode.MIXED.value: "mixed: every replica does prefill and decode",
    Mode.DISAGGREGATED.value: "disaggregated: a pool for each, KV cache sent between",
}
MAX_KEPT_PRICES = 200
"""Most prices of an upload that a scenario keeps, the cheapest. A choice."""
OWNED_FIELDS = {
    "capex_usd_per_gpu": ("USD each", 0.0, "With its share of server and network; 0: written off."),
    "years": ("over years", 0.1, "Of depreciation."),
    "usd_per_kwh": ("USD per kWh", 0.0, "Of electricity."),
    "watts": ("Watts each", 1.0, "At the wall, server included. Empty: its TDP."),
    "pue": ("PUE", 1.0, "Power of the building over that of the servers."),
    "other_usd_per_gpu_hour": ("other USD/h", 0.0, "Space, staff and maintenance, per GPU and hour."),
}
"""Of GPUs that are owned, what makes their cost: label, least value, meaning."""
TYPICAL_SPOT = {"interruptions_per_hour": 0.05, "recovery_s": 600.0, "probability": 0.99}
"""First values of the spot terms: assumptions, to be replaced by what the provider publishes."""
CHOICES = {
    "search.tp": (1, 2, 4, 8, 16),
    "search.pp": (1, 2, 4, 8),
    "search.ep": (1, 2, 4, 8, 16, 32, 64),
    "search.max_running_requests": (16, 32, 64, 128, 256, 512, 1024),
    "search.max_batched_tokens": (512, 1024, 2048, 4096, 8192, 16384),
}
"""Values offered for the lists of the search; those of the scenario are added."""


def _hardware() -> HardwareDb:
    """The packaged hardware with the scenario's own."""
    try:
        return with_own_hardware(load_hardware(), OwnHardware.model_validate(session.value("own_hardware") or {}))
    except ValueError:  # the page names it in its own place
        return load_hardware()


def show() -> None:
    """The SKUs that are considered."""
    hardware = _hardware()
    own = [sku["id"] for sku in session.value("own_hardware.skus") or []]
    listed = {price.sku for price in hardware.prices}
    chosen = session.value("search.skus")
    known = [*own, *sorted(hardware.skus, key=lambda sku: (sku not in listed, sku)), *chosen]
    st.multiselect(
        options=list(dict.fromkeys(known)),
        format_func=lambda sku: sku_words(sku) + " (no listed price)" * (sku not in listed and sku not in own),
        **fields.bound("search.skus"),
    )


# --- prices -----------------------------------------------------------------------------------------------------------


def price_words() -> str:
    """Seller, commitments, and GPUs that are owned, in a few words."""
    prices = session.value("prices")
    owned = sum(one["count"] for one in (prices["owned"] or {}).values())
    terms = [name.replace("_", " ") for name in prices["commitments"]]
    said = [prices["provider"] or ANY, prices["region"], *terms, "own prices" if prices["usd_per_gpu_hour"] else ""]
    return ", ".join(filter(None, [*said, f"{owned} owned" if owned else ""])).lower()


def price_inputs() -> None:
    """Provider, commitment, and own prices."""
    hardware, skus = _hardware(), session.value("search.skus")
    provider, region = session.value("prices.provider"), session.value("prices.region")
    providers = sorted({price.provider for price in hardware.prices} | ({provider} if provider else set()))
    _select_or_any("prices.provider", ANY, providers, {"prices.region": None})
    _select_or_any("prices.region", ANY_REGION, _regions(hardware, provider, region))
    if provider is None:
        fields.number("prices.providers_at_most")
    else:
        path = "prices.rdma_gbps_per_gpu"
        fields.number(path, bind=_bind_entry(path, path, provider))
    st.selectbox(
        options=list(GRANULARITIES), format_func=GRANULARITIES.__getitem__, **fields.bound("prices.granularity")
    )
    path, chosen = "prices.commitments", session.value("prices.commitments")
    st.multiselect(
        options=sorted({price.commitment for price in hardware.prices} | set(chosen)),
        format_func=lambda name: name.replace("_", " "),
        **fields.bound(path, session.bind(path, chosen, _commitment_changes)),
    )
    if "spot" in chosen:
        left, right = st.columns(2)
        fields.number("prices.spot.interruptions_per_hour", left)
        fields.number("prices.spot.recovery_s", right)
    with st.popover(fields.FIELDS["prices.usd_per_gpu_hour"].label, icon=":material/payments:", width="stretch"):
        _own_prices(hardware, skus)
    with st.popover(fields.FIELDS["prices.owned"].label, icon=":material/warehouse:", width="stretch"):
        st.caption("Paid whether used or not: their price over the years, and electricity. Empty: none.")
        for sku in skus:
            owned_inputs(sku)


def _select_or_any(path: str, any_of_them: str, options: Sequence[str], besides: session.Changes | None = None) -> None:
    """One of some names, or any; another choice makes the changes `besides` too."""
    bind = session.bind(
        path,
        session.value(path) or any_of_them,
        lambda name: {path: None if name == any_of_them else name, **(besides or {})},
    )
    st.selectbox(options=[any_of_them, *options], **fields.bound(path, bind))


def _regions(hardware: HardwareDb, provider: str | None, region: str | None) -> list[str]:
    """Areas of the world in which a provider sells, then its regions."""
    listed = {price.region for price in hardware.prices if provider in (None, price.provider)}
    areas = [
        area
        for area in area_names(hardware)
        if provider is None or any(seller == provider for seller, _ in regions_in(hardware, area))
    ]
    named = listed - ANYWHERE | ({region} if region else set())
    return [*areas, *sorted(name for name in named if name == region or name.lower() not in areas)]


def _commitment_changes(names: list[str]) -> session.Changes:
    """The changes of chosen commitments; spot comes with its terms."""
    changes: dict[str, Any] = {"prices.commitments": names}
    if "spot" in names and session.value("prices.spot") is None:
        changes["prices.spot"] = TYPICAL_SPOT
    return changes


def _bind_entry(key: str, path: str, name: str) -> dict[str, Any]:
    """Binding of a number to one entry of a mapping; an empty number takes the entry out."""

    def changes(given: float | None) -> session.Changes:
        entries = {**(session.value(path) or {}), name: given}
        return {path: {entry: number for entry, number in entries.items() if number is not None}}

    return session.bind(key, (session.value(path) or {}).get(name), changes)


def _own_prices(hardware: HardwareDb, skus: list[str]) -> None:
    """The visitor's own price of each SKU, empty where it is as listed, or a whole price list."""
    st.caption("USD per GPU and hour. Empty: the lowest listed price.")
    for sku in skus:
        st.number_input(
            components.plain(sku_words(sku)),
            value=None,
            min_value=0.01,
            step=0.05,
            format="%.2f",
            placeholder=price_in_words(listed_price(sku, hardware)),
            **_bind_entry(f"price-{sku}", "prices.usd_per_gpu_hour", sku),
        )
    components.upload("price-file", partial(read_price_file, skus))
    if session.value("own_hardware.prices"):
        without = {"own_hardware": {**session.value("own_hardware"), "prices": []}}
        icon = ":material/delete:"
        st.button("Back to the listed prices", on_click=session.change, args=(without,), key="drop-prices", icon=icon)


def owned_inputs(sku: str) -> None:
    """How many of a SKU are there already, and what they cost; other fields of them stand in the file."""
    owned = (session.value("prices.owned") or {}).get(sku)
    count = None if owned is None else owned["count"]
    bound = session.bind(f"owned-{sku}", count, partial(_owned_changes, sku, "count"))
    st.number_input(
        components.plain(f"{sku_words(sku)} owned"), value=None, min_value=0, step=8, placeholder="none", **bound
    )
    if owned is None:
        return
    columns = [*st.columns(3), *st.columns(3)]
    for column, (field, (label, least, meaning)) in zip(columns, OWNED_FIELDS.items(), strict=True):
        given = None if owned.get(field) is None else float(owned[field])
        bound = session.bind(f"owned-{sku}-{field}", given, partial(_owned_changes, sku, field))
        placeholder = "TDP" if field == "watts" else None
        column.number_input(label, least, value=None, format="%g", help=meaning, placeholder=placeholder, **bound)


def _owned_changes(sku: str, field: str, given: float | None) -> session.Changes:
    """GPUs of one's own with another number, or none."""
    owned = dict(session.value("prices.owned") or {})
    if field == "count" and not given:
        owned.pop(sku, None)
    else:
        first = OwnedGpus(capex_usd_per_gpu=FIRST_CAPEX_USD).model_dump(mode="json")
        new = {**owned.get(sku, first), field: given}
        owned[sku] = {name: value for name, value in new.items() if value is not None or name in ("count", "watts")}
    return {"prices.owned": owned}


def read_price_file(skus: Sequence[str], name: str, raw: bytes) -> str:
    """An uploaded price list becomes the prices of the chosen SKUs; what was found. Raises InputError."""
    today = session.value("prices.as_of") or session.today()
    found = read_prices(
        io.BytesIO(raw), name, retrieved_on=date.fromisoformat(str(today)), source_url=f"upload: {name[:200]}"
    )
    of_chosen = (price for price in found.prices if price.sku in skus)
    kept = sorted(of_chosen, key=lambda price: price.usd_per_gpu_hour)[:MAX_KEPT_PRICES]
    if not kept:
        listed = ", ".join(sorted({price.sku for price in found.prices})) or "none that is known"
        raise InputError("prices", name, f"has no price of the SKUs chosen, but of {listed}", "choose SKUs it has")
    own = dict(session.value("own_hardware") or {})
    session.change({"own_hardware": {**own, "prices": [price.model_dump(mode="json") for price in kept]}})
    of = ", ".join(sorted({price.sku for price in kept}))
    return "; ".join([f"{name}: {found.format}, {number_of(len(kept), 'price')} of {of}", *found.notes])


def listed_price(sku: str, hardware: HardwareDb) -> Price | None:
    """The lowest listed price of a SKU under the scenario's policy, own prices aside."""
    policy: Mapping[str, Any] = {**session.value("prices"), "usd_per_gpu_hour": {}}
    try:
        return next(iter(offered_prices(sku, ScenarioPrices.model_validate(policy), hardware)), None)
    except (PlannerError, ValueError):  # an invalid policy, which the page reports elsewhere
        return None


def price_in_words(price: Price | None) -> str:
    """A listed price with its source, in a few words."""
    if price is None:
        return "no listed price"
    return f"{money(price.usd_per_gpu_hour)} ({price.provider}, {price.retrieved_on.isoformat()})"


# --- engines ----------------------------------------------------------------------------------------------------------


def engine_inputs() -> None:
    """Ways of serving, engine, two of its settings, and degrees of parallelism."""
    st.multiselect(options=list(MODES), **fields.bound("search.modes") | {"help": "; ".join(MODES.values())})
    engines = {name: f"{engine.name} {engine.version}" for name, engine in _hardware().engines.items()}
    with st.expander("Engine and search"):
        st.selectbox(options=list(engines), format_func=engines.__getitem__, **fields.bound("search.engine"))
        fields.number("search.memory_fraction")
        st.checkbox(**fields.bound("search.eager"))
        for path, options in CHOICES.items():
            st.multiselect(options=sorted({*options, *session.value(path)}), **fields.bound(path))
