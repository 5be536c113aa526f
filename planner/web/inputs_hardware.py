"""Of the sidebar: SKUs, modes, providers, commitments, prices, engine and search."""

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
    sellers_without_regions,
    with_own_hardware,
)
from planner.core import InputError, PlannerError, money, number_of
from planner.scenario import ScenarioPrices
from planner.search import Mode
from planner.supply import Granularity, OwnedGpus, offered_prices, read_prices
from planner.web import components, session

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
MAX_PRICE_UPLOAD_BYTES = 20_000_000
"""Largest price list that is read: SkyPilot's catalog of AWS, the largest of them."""
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
TYPICAL_INTERRUPTIONS_PER_HOUR, TYPICAL_RECOVERY_S = 0.05, 600.0
"""First values of the spot terms: assumptions, to be replaced by what the provider publishes."""


def show() -> None:
    """All hardware inputs."""
    hardware = hardware_here()
    own = [sku["id"] for sku in session.value("own_hardware.skus") or []]
    listed = {price.sku for price in hardware.prices}
    chosen = session.value("search.skus")
    known = [*own, *sorted(hardware.skus, key=lambda sku: (sku not in listed, sku))]
    st.multiselect(
        "SKUs",
        list(dict.fromkeys([*known, *chosen])),
        format_func=lambda sku: sku if sku in listed or sku in own else f"{sku} (no listed price)",
        help="Only these are considered. The tab Hardware shows all of them, and adds your own.",
        **session.bind_field("skus", "search.skus"),
    )
    st.multiselect(
        "Ways of serving",
        list(MODES),
        help="; ".join(MODES.values()),
        **session.bind_field("modes", "search.modes"),
    )
    price_inputs(hardware, chosen)
    engine_inputs(hardware)


def hardware_here() -> HardwareDb:
    """The packaged database with what the scenario brings along; without that where it cannot be read."""
    try:
        return with_own_hardware(load_hardware(), OwnHardware.model_validate(session.value("own_hardware") or {}))
    except ValueError:  # the page names it in its own place
        return load_hardware()


# --- prices -----------------------------------------------------------------------------------------------------------


def price_inputs(hardware: HardwareDb, skus: list[str]) -> None:
    """Provider, commitment, and own prices."""
    providers = sorted({price.provider for price in hardware.prices} | {session.value("prices.provider")} - {None})
    st.selectbox(
        "Provider",
        [ANY, *providers],
        help="Whose prices apply. Any: the lowest listed price of each SKU.",
        **session.bind(
            "provider",
            session.value("prices.provider") or ANY,
            lambda name: {"prices.provider": None if name == ANY else name, "prices.region": None},
        ),
    )
    provider, region = session.value("prices.provider"), session.value("prices.region")
    listed = {price.region for price in hardware.prices if provider in (None, price.provider)}
    sells_anywhere = provider is None or provider in sellers_without_regions(hardware)
    areas = [
        area
        for area in area_names(hardware)
        if sells_anywhere or any(seller == provider for seller, _ in regions_in(hardware, area))
    ]
    regions = [*areas, *sorted(((listed - ANYWHERE) | {region}) - {None, *areas})]
    st.selectbox(
        "Region",
        [ANY_REGION, *regions],
        help="Where GPUs are rented: an area of the world, or a region as its provider calls it. Of sellers whose "
        "price holds in all their regions, those count that are listed in the region too; in an area also those of "
        "which no region is known: the plan then says what to check.",
        **session.bind(
            "region", region or ANY_REGION, lambda name: {"prices.region": None if name == ANY_REGION else name}
        ),
    )
    if provider is None:
        st.number_input(
            "Providers at most",
            1,
            10,
            help="1: everything from one provider and region. More: pools that share nothing may be elsewhere.",
            **session.bind_field("providers-at-most", "prices.providers_at_most"),
        )
    else:
        rdma_input(provider)
    st.selectbox(
        "Bought as",
        list(GRANULARITIES),
        format_func=GRANULARITIES.__getitem__,
        **session.bind_field("granularity", "prices.granularity"),
    )
    commitments = sorted({price.commitment for price in hardware.prices} | set(session.value("prices.commitments")))
    st.multiselect(
        "Commitment",
        commitments,
        format_func=lambda name: name.replace("_", " "),
        help="Purchase options that may be used; of several, the cheapest mix is found.",
        **session.bind("commitments", session.value("prices.commitments"), _commitment_changes),
    )
    if "spot" in session.value("prices.commitments"):
        spot_inputs()
    with st.popover("Your own prices", icon=":material/payments:", width="stretch"):
        st.caption("USD per GPU and hour. Empty: the lowest listed price.")
        for sku in skus:
            own_price_input(sku, hardware)
        components.upload(
            "or drop a price list",
            ["csv", "gz"],
            "price-file",
            MAX_PRICE_UPLOAD_BYTES,
            partial(read_price_file, skus),
            "CSV: a catalog of SkyPilot, or a table with the columns sku and usd_per_gpu_hour, and as far as they "
            "matter provider, region, commitment. The SKUs chosen above have these prices only.",
        )
        if session.value("own_hardware.prices"):
            st.button("Back to the listed prices", on_click=_drop_prices, key="drop-prices", icon=":material/delete:")
    with st.popover("GPUs you own", icon=":material/warehouse:", width="stretch"):
        st.caption("Paid whether used or not: their price over the years, and electricity. Empty: none.")
        for sku in skus:
            owned_inputs(sku)


def _commitment_changes(names: list[str]) -> session.Changes:
    """The changes of chosen commitments; spot comes with its terms."""
    changes: dict[str, Any] = {"prices.commitments": names}
    if "spot" in names and session.value("prices.spot") is None:
        terms = {"interruptions_per_hour": TYPICAL_INTERRUPTIONS_PER_HOUR, "recovery_s": TYPICAL_RECOVERY_S}
        changes["prices.spot"] = {**terms, "probability": 0.99}
    return changes


def spot_inputs() -> None:
    """Interruptions and recovery of spot capacity."""
    left, right = st.columns(2)
    left.number_input(
        "Interruptions per hour",
        0.0001,
        60.0,
        format="%g",
        help="Of one instance. An assumption until you enter your provider's figure.",
        **session.bind_field("spot-interruptions", "prices.spot.interruptions_per_hour"),
    )
    right.number_input(
        "Recovery (s)",
        1.0,
        1e6,
        format="%g",
        help="From an interruption until a replacement serves. An assumption until you enter your own.",
        **session.bind_field("spot-recovery", "prices.spot.recovery_s"),
    )


def own_price_input(sku: str, hardware: HardwareDb) -> None:
    """The visitor's own price of one SKU; empty: as listed."""
    own: Mapping[str, float] = session.value("prices.usd_per_gpu_hour") or {}
    st.number_input(
        sku,
        value=None,
        min_value=0.01,
        step=0.05,
        format="%.2f",
        placeholder=price_in_words(listed_price(sku, hardware)),
        **session.bind(f"price-{sku}", own.get(sku), partial(_own_price_changes, sku)),
    )


def rdma_input(provider: str) -> None:
    """What lies between the servers of a provider; empty: as it is stated."""
    rdma: Mapping[str, float] = session.value("prices.rdma_gbps_per_gpu") or {}
    st.number_input(
        "RDMA between its servers (Gbit/s a GPU)",
        value=None,
        min_value=1.0,
        step=100.0,
        format="%g",
        placeholder="as the provider states it",
        help="What your contract has. Replicas that span servers, and pools that hand KV caches from one server to "
        "another, are planned only where the network between these is known.",
        **session.bind("rdma", rdma.get(provider), partial(_rdma_changes, provider)),
    )


def _rdma_changes(provider: str, gbps: float | None) -> session.Changes:
    known = {**(session.value("prices.rdma_gbps_per_gpu") or {}), provider: gbps}
    return {"prices.rdma_gbps_per_gpu": {name: rate for name, rate in known.items() if rate is not None}}


def _own_price_changes(sku: str, usd: float | None) -> session.Changes:
    prices = {**(session.value("prices.usd_per_gpu_hour") or {}), sku: usd}
    return {"prices.usd_per_gpu_hour": {name: price for name, price in prices.items() if price is not None}}


def owned_inputs(sku: str) -> None:
    """How many of a SKU are there already, and what they cost; other fields of them stand in the file."""
    owned = (session.value("prices.owned") or {}).get(sku)
    st.number_input(
        f"{sku} owned",
        value=None,
        min_value=0,
        step=8,
        placeholder="none",
        **session.bind(
            f"owned-{sku}", None if owned is None else owned["count"], partial(_owned_changes, sku, "count")
        ),
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


def _drop_prices() -> None:
    session.change({"own_hardware": {**session.value("own_hardware"), "prices": []}})


def listed_price(sku: str, hardware: HardwareDb) -> Price | None:
    """The lowest listed price of a SKU under the scenario's policy, own prices aside."""
    policy = {**session.value("prices"), "usd_per_gpu_hour": {}}
    try:
        return next(iter(offered_prices(sku, ScenarioPrices.model_validate(policy), hardware)), None)
    except PlannerError:
        return None
    except ValueError:  # an invalid policy, which the page reports elsewhere
        return None


def price_in_words(price: Price | None) -> str:
    """A listed price with its source, in a few words."""
    if price is None:
        return "no listed price"
    return f"{money(price.usd_per_gpu_hour)} ({price.provider}, {price.retrieved_on.isoformat()})"


# --- engines ----------------------------------------------------------------------------------------------------------


def engine_inputs(hardware: HardwareDb) -> None:
    """Engine, two of its settings, and degrees of parallelism."""
    with st.expander("Engine and search"):
        st.selectbox(
            "Engine",
            list(hardware.engines),
            format_func=lambda name: f"{hardware.engines[name].name} {hardware.engines[name].version}",
            **session.bind_field("engine", "search.engine"),
        )
        st.number_input(
            "Memory fraction",
            value=None,
            min_value=0.01,
            max_value=1.0,
            step=0.01,
            placeholder="the engine's own",
            help="Share of GPU memory that the engine may take, as it reads it (--gpu-memory-utilization of vLLM, "
            "--mem-fraction-static of SGLang, free_gpu_memory_fraction of TensorRT-LLM). Empty: the engine's own.",
            **session.bind_field("memory-fraction", "search.memory_fraction"),
        )
        st.checkbox(
            "No CUDA graphs (eager)",
            help="Every kernel of a step is launched by itself (--enforce-eager of vLLM): slower steps, and no memory "
            "for captured graphs.",
            **session.bind_field("eager", "search.eager"),
        )
        for key, path, label, options in (
            ("tp", "search.tp", "Tensor-parallel degrees (none: as the model needs)", [1, 2, 4, 8, 16]),
            ("pp", "search.pp", "Pipeline-parallel degrees (none: as the model needs)", [1, 2, 4, 8]),
            ("ep", "search.ep", "Expert-parallel degrees (none: as the model needs)", [1, 2, 4, 8, 16, 32, 64]),
            ("batch", "search.max_running_requests", "Batch limits", [16, 32, 64, 128, 256, 512, 1024]),
            ("chunk", "search.max_batched_tokens", "Chunk budgets (tokens)", [512, 1024, 2048, 4096, 8192, 16384]),
        ):
            known = sorted({*options, *session.value(path)})
            st.multiselect(label, known, **session.bind_field(key, path))
