"""The same request under other commitments, and what else the GPUs of a plan could cost.

`alternative_purchases` names the commitments that a request could be bought under, `planned_offer` plans it under one.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from hardware_db import STALE_PRICE_DAYS, HardwareDb, is_cited, listed_prices
from planner.analysis.headline import fleet_words
from planner.core import HOURS_PER_MONTH, InputError, rebuilt
from planner.fleet import Corrections, Plan, PlanRequest, Progress
from planner.fleet import plan as make_plan
from planner.supply import SPOT, SpotTerms, is_committed, offered_prices

USUAL_COMMITMENTS = ("on_demand", "reserved_1yr", "reserved", SPOT)
"""In the order people ask for them; the others follow by name. Affects order only."""


@dataclass(frozen=True)
class PurchaseAlternative:
    """Commitments that a plan may be bought under together.

    Attributes:
        commitments: as price lists name them, e.g. ``("reserved_1yr",)``.
        priced: SKUs of the search with a price under one of them.
        unpriced: SKUs of the search without.
    """

    commitments: tuple[str, ...]
    priced: tuple[str, ...]
    unpriced: tuple[str, ...]

    @property
    def name(self) -> str:
        """In words.

        >>> PurchaseAlternative(("on_demand", "reserved_1yr"), (), ()).name
        'on demand or reserved 1 yr'
        """
        return " or ".join(commitment_words(commitment) for commitment in self.commitments)


@dataclass(frozen=True)
class PurchaseOffer:
    """Cost of the fleet that is planned under some commitments (by theory).

    Attributes:
        alternative: the commitments.
        usd_per_month: mean over the horizon; None where there is no fleet.
        rate_per_s: served, mean over the horizon [1/s].
        fleet: GPUs in words.
        reason: why there is none; empty where there is one.
    """

    alternative: PurchaseAlternative
    usd_per_month: float | None
    rate_per_s: float
    fleet: str
    reason: str = ""


def commitment_words(commitment: str) -> str:
    """A commitment as a person writes it.

    >>> commitment_words("reserved_1yr"), commitment_words("reserved_7_30d"), commitment_words("on_demand")
    ('reserved 1 yr', 'reserved 7 to 30 d', 'on demand')
    """
    known = {"reserved_1yr": "reserved 1 yr", "reserved_7_30d": "reserved 7 to 30 d"}
    return known.get(commitment, commitment.replace("_", " "))


def alternative_purchases(request: PlanRequest, hardware: HardwareDb) -> tuple[PurchaseAlternative, ...]:
    """Every commitment under which a SKU of the search has a price, on demand first; the request's own among them.

    With a demand profile also each reservation together with on demand: reserved GPUs for what is always needed, the
    others for the peak. An own price counts under every commitment, because it replaces all listed ones.
    """
    known = {price.commitment for price in hardware.prices if price.sku in request.search.skus}
    order = [*(name for name in USUAL_COMMITMENTS if name in known), *sorted(known.difference(USUAL_COMMITMENTS))]
    sets: list[tuple[str, ...]] = [(name,) for name in order]
    if request.profile is not None and "on_demand" in known:
        sets += [("on_demand", name) for name in order if is_committed(name)]
    own = request.prices.commitments
    if own not in sets:
        sets.insert(0, own)
    alternatives = [_alternative(request, hardware, commitments) for commitments in sets]
    return tuple(each for each in alternatives if each.priced or each.commitments == own)


def _alternative(request: PlanRequest, hardware: HardwareDb, commitments: tuple[str, ...]) -> PurchaseAlternative:
    placeholder = SpotTerms(interruptions_per_hour=1.0, recovery_s=1.0)  # whether there is a price hangs on no terms
    policy = rebuilt(request.prices, commitments=commitments, spot=request.prices.spot or placeholder)
    skus = tuple(dict.fromkeys(request.search.skus))
    priced = tuple(sku for sku in skus if offered_prices(sku, policy, hardware))
    return PurchaseAlternative(commitments, priced, tuple(sku for sku in skus if sku not in priced))


def with_commitments(request: PlanRequest, commitments: tuple[str, ...], spot: SpotTerms | None = None) -> PlanRequest:
    """The request under other commitments; `spot` is what spot capacity is worth where the request does not say."""
    return rebuilt(request, prices=rebuilt(request.prices, commitments=commitments, spot=request.prices.spot or spot))


def planned_offer(
    request: PlanRequest,
    hardware: HardwareDb,
    alternative: PurchaseAlternative,
    spot: SpotTerms | None = None,
    progress: Progress | None = None,
    corrections: Corrections | None = None,
) -> PurchaseOffer:
    """The fleet under other commitments, planned by theory; none where spot is needed and its terms are not given.

    `corrections` are those of the plan it is compared with.
    """
    bought = with_commitments(request, alternative.commitments, spot)
    try:
        plan = make_plan(bought, hardware, progress, simulate=False, alternatives=False, corrections=corrections)
    except InputError as error:
        return PurchaseOffer(alternative, None, 0.0, "", str(error))
    return offer_from_plan(plan, alternative)


def offer_from_plan(plan: Plan, alternative: PurchaseAlternative) -> PurchaseOffer:
    """A plan that was made under these commitments, as an offer."""
    if plan.cost is None or plan.allocation is None:
        reason = plan.diagnosis[0] if plan.diagnosis else "no fleet meets the targets"
        return PurchaseOffer(alternative, None, 0.0, "", reason)
    fleet = fleet_words(plan)
    return PurchaseOffer(alternative, plan.cost.usd_per_month, plan.allocation.rate_per_s, fleet)


# --- what else the same GPUs could cost -------------------------------------------------------------------------------


@dataclass(frozen=True)
class PriceRange:
    """The same GPUs at other listed prices.

    Attributes:
        lowest_usd_per_hour: every SKU at its cheapest listed price of the same commitment.
        highest_usd_per_hour: every SKU at its dearest.
        offers: prices that were compared.
    """

    lowest_usd_per_hour: float
    highest_usd_per_hour: float
    offers: int

    @property
    def usd_per_month(self) -> tuple[float, float]:
        """Both ends by the month of 730 hours."""
        return self.lowest_usd_per_hour * HOURS_PER_MONTH, self.highest_usd_per_hour * HOURS_PER_MONTH


def price_range(plan: Plan, hardware: HardwareDb) -> PriceRange | None:
    """Cost of the GPUs of a plan at the cheapest and at the dearest price listed for them.

    Equation: sum over purchases of USD/h times other price / price paid. Prices of the same SKU and commitment count
    that the policy allows (provider, region, confidence) and that are not older than `STALE_PRICE_DAYS`; GPUs of one's
    own and own prices stay as they are. None where nothing is bought at a listed price, or none is young enough.
    """
    policy = plan.request.prices
    low = high = 0.0
    offers = 0
    for purchase in plan.bought:
        price, usd = purchase.price, list[float]()
        if price is not None and purchase.sku not in policy.usd_per_gpu_hour and price.usd_per_gpu_hour > 0.0:
            listed = listed_prices(
                hardware,
                purchase.sku,
                commitment=price.commitment,
                provider=policy.provider,
                region=policy.region,
                min_confidence=policy.min_confidence,
                not_before=policy.day - timedelta(days=STALE_PRICE_DAYS),
            )
            usd = [each.usd_per_gpu_hour for each in listed if is_cited(each) and each.usd_per_gpu_hour > 0.0]
        offers += len(usd)
        paid = price.usd_per_gpu_hour if price is not None and usd else 1.0
        low += purchase.usd_per_hour * min(usd, default=paid) / paid
        high += purchase.usd_per_hour * max(usd, default=paid) / paid
    return PriceRange(low, high, offers) if offers else None
