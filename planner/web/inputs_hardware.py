"""Hardware: which SKUs, from whom, under which commitment, at which price, in which modes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import streamlit as st

from hardware_db import HardwareDb, Price, load_hardware
from planner.core import PlannerError, money
from planner.scenario import ScenarioPrices
from planner.search import Mode
from planner.supply import offered_prices
from planner.web import session

ANY = "Any provider"
MODES = {
    Mode.MIXED.value: "mixed: every replica does prefill and decode",
    Mode.DISAGGREGATED.value: "disaggregated: a pool for each, KV cache sent between",
}
TYPICAL_INTERRUPTIONS_PER_HOUR, TYPICAL_RECOVERY_S = 0.05, 600.0
"""Where spot capacity starts from: assumptions, to be replaced by what the provider publishes."""


def show() -> None:
    """All of it."""
    hardware = load_hardware()
    own = [sku["id"] for sku in session.value("own_hardware.skus") or []]
    listed = {price.sku for price in hardware.prices}
    chosen = session.value("search.skus")
    known = [*own, *sorted(hardware.skus, key=lambda sku: (sku not in listed, sku))]
    st.multiselect(
        "SKUs",
        list(dict.fromkeys([*known, *chosen])),
        format_func=lambda sku: sku if sku in listed or sku in own else f"{sku} (no listed price)",
        help="The only ones considered. The Hardware tab shows all, and adds your own.",
        **session.field("skus", "search.skus"),
    )
    st.multiselect(
        "Ways of serving",
        list(MODES),
        help="; ".join(MODES.values()),
        **session.field("modes", "search.modes"),
    )
    price_inputs(hardware, chosen)
    engine_inputs(hardware)


# --- prices -----------------------------------------------------------------------------------------------------------


def price_inputs(hardware: HardwareDb, skus: list[str]) -> None:
    """Provider, commitment, and own prices."""
    providers = sorted({price.provider for price in hardware.prices})
    st.selectbox(
        "Provider",
        [ANY, *providers],
        help="Whose prices apply; any: the cheapest listed one of each SKU.",
        **session.bound(
            "provider",
            session.value("prices.provider") or ANY,
            lambda name: {"prices.provider": None if name == ANY else name},
        ),
    )
    commitments = sorted({price.commitment for price in hardware.prices} | set(session.value("prices.commitments")))
    st.multiselect(
        "Commitment",
        commitments,
        format_func=lambda name: name.replace("_", " "),
        help="Ways of buying that may be used; of several the cheapest mix is found.",
        **session.bound("commitments", session.value("prices.commitments"), _committed),
    )
    if "spot" in session.value("prices.commitments"):
        spot_inputs()
    with st.popover("Your own prices", icon=":material/payments:", width="stretch"):
        st.caption("USD per GPU and hour. An empty field stands for the cheapest listed price.")
        for sku in skus:
            own_price(sku, hardware)


def _committed(names: list[str]) -> session.Changes:
    """Commitments; spot capacity needs its terms."""
    changes: dict[str, Any] = {"prices.commitments": names}
    if "spot" in names and session.value("prices.spot") is None:
        terms = {"interruptions_per_hour": TYPICAL_INTERRUPTIONS_PER_HOUR, "recovery_s": TYPICAL_RECOVERY_S}
        changes["prices.spot"] = {**terms, "probability": 0.99}
    return changes


def spot_inputs() -> None:
    """What spot capacity is worth."""
    left, right = st.columns(2)
    left.number_input(
        "Interruptions per hour",
        0.0001,
        60.0,
        format="%g",
        help="Of one instance. Assumed until you give your provider's figure.",
        **session.field("spot-interruptions", "prices.spot.interruptions_per_hour"),
    )
    right.number_input(
        "Recovery (s)",
        1.0,
        1e6,
        format="%g",
        help="From an interruption until a replacement serves. Assumed until you give your own.",
        **session.field("spot-recovery", "prices.spot.recovery_s"),
    )


def own_price(sku: str, hardware: HardwareDb) -> None:
    """The price of one SKU; empty: as listed."""
    own: Mapping[str, float] = session.value("prices.usd_per_gpu_hour") or {}
    st.number_input(
        sku,
        value=None,
        min_value=0.01,
        step=0.05,
        format="%.2f",
        placeholder=cited(listed_price(sku, hardware)),
        **session.bound(f"price-{sku}", own.get(sku), partial(_priced, sku)),
    )


def _priced(sku: str, usd: float | None) -> session.Changes:
    prices = {**(session.value("prices.usd_per_gpu_hour") or {}), sku: usd}
    return {"prices.usd_per_gpu_hour": {name: price for name, price in prices.items() if price is not None}}


def listed_price(sku: str, hardware: HardwareDb) -> Price | None:
    """The cheapest price that is listed for a SKU under the scenario's policy, own prices aside."""
    policy = {**session.value("prices"), "usd_per_gpu_hour": {}}
    try:
        return next(iter(offered_prices(sku, ScenarioPrices.model_validate(policy), hardware)), None)
    except PlannerError:
        return None
    except ValueError:  # a policy that the page complains of elsewhere
        return None


def cited(price: Price | None) -> str:
    """Where a listed price comes from, in a few words."""
    if price is None:
        return "no listed price"
    return f"{money(price.usd_per_gpu_hour)} ({price.provider}, {price.retrieved_on.isoformat()})"


# --- engines ----------------------------------------------------------------------------------------------------------


def engine_inputs(hardware: HardwareDb) -> None:
    """Engine and degrees of parallelism."""
    with st.expander("Engine and search"):
        st.selectbox(
            "Engine",
            list(hardware.engines),
            format_func=lambda name: f"{hardware.engines[name].name} {hardware.engines[name].version}",
            **session.field("engine", "search.engine"),
        )
        for key, path, label, options in (
            ("tp", "search.tp", "Tensor-parallel degrees", [1, 2, 4, 8, 16]),
            ("batch", "search.max_running_requests", "Batch limits", [16, 32, 64, 128, 256, 512, 1024]),
            ("chunk", "search.max_batched_tokens", "Chunk budgets (tokens)", [512, 1024, 2048, 4096, 8192, 16384]),
        ):
            known = sorted({*options, *session.value(path)})
            st.multiselect(label, known, **session.field(key, path))
