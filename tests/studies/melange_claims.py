"""What Mélange says of its fleets and request sizes, as predicates that the published tables and ours are both put to.

`python -m tests.studies.melange_claims` prints the tables of docs/studies/melange.md from the committed results of
tests/studies/melange.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tests.studies import melange
from tests.studies.melange import DATASETS, INPUTS, MAIN, OUTPUTS, PRICES, SKUS, TRAFFIC_PER_S, Case, Cases, Rates
from tests.studies.rows import table_lines

# ------------------------------------------------------------------------------------------------ fleets


def at(cases: Cases, dataset: str, slo_ms: int, *rates: int) -> list[Case]:
    """Cases of a data set and SLO, at some rates or at all."""
    return [cases[dataset, slo_ms, rate] for rate in rates or TRAFFIC_PER_S]


def usd(case: Case, sku: str) -> float:
    """Cost of one SKU alone [USD/h]; infinite where it cannot serve the data."""
    return case.alone_usd_per_hour.get(sku, math.inf)


def cheap_alone_wins(cases: Cases, slo_ms: int, *rates: int) -> bool:
    """L4-only and A10G-only both cost less than A100-only and H100-only on Arena."""
    return all(
        max(usd(case, "l4"), usd(case, "a10g")) < min(usd(case, "a100"), usd(case, "h100"))
        for case in at(cases, "arena", slo_ms, *rates)
    )


def a100_not_dearer(cases: Cases, dataset: str) -> bool:
    """A100-only costs no more than H100-only at either SLO."""
    return all(usd(case, "a100") <= usd(case, "h100") for slo in (40, 120) for case in at(cases, dataset, slo))


def cheap_stays_close(cases: Cases) -> bool:
    """On Arena at 120 ms the better of L4-only and A10G-only costs at most a quarter more than A100-only."""
    return all(min(usd(c, "l4"), usd(c, "a10g")) <= 1.25 * usd(c, "a100") for c in at(cases, "arena", 120))


def tight_slo_hurts_cheap(cases: Cases) -> bool:
    """On Arena L4-only and A10G-only cost more, in multiples of the mix, at 40 ms than at 120 ms."""
    return all(
        usd(tight, sku) / tight.usd_per_hour > usd(loose, sku) / loose.usd_per_hour
        for tight, loose in zip(at(cases, "arena", 40), at(cases, "arena", 120), strict=True)
        for sku in ("l4", "a10g")
    )


def mean_share(cases: Cases, dataset: str, slo_ms: int, *skus: str) -> float:
    """Share of the mix's cost that goes to these SKUs, mean over the rates."""
    return float(np.mean([case.cost_share(*skus) for case in at(cases, dataset, slo_ms)]))


def moves_up_when_tight(cases: Cases, dataset: str, *up: str) -> bool:
    """These SKUs take a larger share of the mix's cost at 40 ms than at 120 ms."""
    return mean_share(cases, dataset, 40, *up) > mean_share(cases, dataset, 120, *up)


def h100_wins_when_tight(cases: Cases) -> bool:
    """On PubMed at 40 ms H100-only costs less than A100-only from 2 requests/s on."""
    return all(usd(case, "h100") < usd(case, "a100") for case in at(cases, "pubmed", 40, 2, 4, 8, 16, 32))


def cheap_in_the_mix(cases: Cases, dataset: str, slo_ms: int, *rates: int) -> bool:
    """The mix holds L4 or A10G at every one of these rates."""
    return all(case.mix["l4"] + case.mix["a10g"] > 0 for case in at(cases, dataset, slo_ms, *rates))


def mix_beats_all(cases: Cases) -> bool:
    """From 4 requests/s on the mix is cheaper than any single SKU."""
    chosen = (case for dataset in DATASETS for slo in (40, 120) for case in at(cases, dataset, slo, 4, 8, 16, 32))
    return all(case.usd_per_hour < min(case.alone_usd_per_hour.values()) for case in chosen)


def greatest_is_idle_h100(cases: Cases, dataset: str) -> bool:
    """At 120 ms no saving is greater than that against H100-only at 1 request/s."""
    savings_found = [case.saving(sku) for case in at(cases, dataset, 120) for sku in case.alone_usd_per_hour]
    return cases[dataset, 120, 1].saving("h100") >= max(savings_found) - 1e-9


@dataclass(frozen=True)
class FleetClaim:
    """A sentence of sec. 6.2 about fleets."""

    name: str
    holds: Callable[[Cases], bool]


FLEET_CLAIMS = (
    FleetClaim("Arena, 120 ms, 1 and 2/s: L4-only and A10G-only cheapest", lambda c: cheap_alone_wins(c, 120, 1, 2)),
    FleetClaim("Arena, 40 ms, 1/s: L4-only and A10G-only cheapest", lambda c: cheap_alone_wins(c, 40, 1)),
    FleetClaim("Arena, 120 ms: the better of L4-only and A10G-only within 25 % of A100-only", cheap_stays_close),
    FleetClaim("Arena: L4-only and A10G-only cost more against the mix at 40 ms than at 120 ms", tight_slo_hurts_cheap),
    FleetClaim("Arena, 120 ms: L4 or A10G in every mix", lambda c: cheap_in_the_mix(c, "arena", 120)),
    FleetClaim(
        "Arena: more A100 and H100 in the mix at 40 ms", lambda c: moves_up_when_tight(c, "arena", "a100", "h100")
    ),
    FleetClaim("Arena: A100-only never dearer than H100-only", lambda c: a100_not_dearer(c, "arena")),
    FleetClaim(
        "PubMed, 120 ms: A100-only cheaper than H100-only at every rate",
        lambda c: all(usd(case, "a100") < usd(case, "h100") for case in at(c, "pubmed", 120)),
    ),
    FleetClaim("PubMed, 40 ms: H100-only cheaper than A100-only from 2/s on", h100_wins_when_tight),
    FleetClaim("PubMed: more H100 in the mix at 40 ms", lambda c: moves_up_when_tight(c, "pubmed", "h100")),
    FleetClaim("Mixed: A100-only never dearer than H100-only", lambda c: a100_not_dearer(c, "mixed")),
    FleetClaim(
        "Mixed, both SLOs: L4 or A10G in the mix from 2/s on",
        lambda c: all(cheap_in_the_mix(c, "mixed", slo, 2, 4, 8, 16, 32) for slo in (40, 120)),
    ),
    FleetClaim(
        "Arena and Mixed: the greatest saving is against H100-only at 1/s",
        lambda c: greatest_is_idle_h100(c, "arena") and greatest_is_idle_h100(c, "mixed"),
    ),
    FleetClaim("From 4/s on the mix is cheaper than any single SKU, everywhere", mix_beats_all),
)

# ------------------------------------------------------------------------------------------------ request sizes


def per_usd(rates: Rates, sku: str, input_tokens: int, output_tokens: int) -> float:
    """Tokens per dollar: (input + output) x rate / price [1/USD]."""
    rate = float(rates[sku][INPUTS.index(input_tokens), OUTPUTS.index(output_tokens)])
    return (input_tokens + output_tokens) * rate * 3600.0 / PRICES[sku]


def winner(rates: Rates, input_tokens: int, output_tokens: int) -> str:
    """The SKU with most tokens per dollar; empty when none serves this size."""
    best = max(SKUS, key=lambda sku: per_usd(rates, sku, input_tokens, output_tokens))
    return best if per_usd(rates, best, input_tokens, output_tokens) > 0.0 else ""


def over(rates: Rates, sku: str, other: str, input_tokens: int, output_tokens: int) -> float:
    """Tokens per dollar of one SKU over those of another."""
    low = per_usd(rates, other, input_tokens, output_tokens)
    return per_usd(rates, sku, input_tokens, output_tokens) / low if low > 0.0 else math.inf


def a100_gains_with_size(rates: Rates) -> bool:
    """A100 over A10G rises from each size with as many inputs as outputs to the next."""
    ratios = [over(rates, "a100", "a10g", tokens, tokens) for tokens in OUTPUTS]
    return all(later > earlier for earlier, later in pairwise(ratios))


def dearer_with_size(rates: Rates) -> bool:
    """The mean price of the winners rises from the third of buckets with fewest tokens to that with most."""
    sizes = sorted(((i, o) for i in INPUTS for o in OUTPUTS), key=sum)
    prices = [PRICES[winner(rates, *size)] for size in sizes if winner(rates, *size)]
    third = len(prices) // 3
    return float(np.mean(prices[:third])) < float(np.mean(prices[-third:]))


@dataclass(frozen=True)
class SizeClaim:
    """A sentence of sec. 4 about tokens per dollar; `value` is the figure it is about."""

    name: str
    published: str
    value: Callable[[Rates, Rates], float]
    holds: Callable[[Rates, Rates], bool]


def _least_a100_lead(tight: Rates) -> float:
    return min(over(tight, "a100", "a10g", i, o) for i in INPUTS for o in OUTPUTS)


SIZE_CLAIMS = (
    SizeClaim(
        "loose: A10G over A100 at 25 in, 25 out (fig. 3a)",
        "up to 2.6",
        lambda loose, _: over(loose, "a10g", "a100", 25, 25),
        lambda loose, _: over(loose, "a10g", "a100", 25, 25) > 1.0,
    ),
    SizeClaim(
        "loose: A100 over A10G at 2000 in, 2000 out (fig. 3a)",
        "up to 1.5",
        lambda loose, _: over(loose, "a100", "a10g", 2000, 2000),
        lambda loose, _: over(loose, "a100", "a10g", 2000, 2000) > 1.0,
    ),
    SizeClaim(
        "loose: A100's lead over A10G grows with the size (fig. 3a)",
        "yes",
        lambda loose, _: math.nan,
        lambda loose, _: a100_gains_with_size(loose),
    ),
    SizeClaim(
        "loose: SKUs that are best at some size (fig. 5)",
        "4",
        lambda loose, _: float(len(_winners(loose))),
        lambda loose, _: _winners(loose) == set(SKUS),
    ),
    SizeClaim(
        "loose: larger requests are best served by dearer GPUs (fig. 5)",
        "yes",
        lambda loose, _: math.nan,
        lambda loose, _: dearer_with_size(loose),
    ),
    SizeClaim(
        "40 ms: least lead of A100 over A10G at any size (fig. 7)",
        "above 1, up to 2",
        lambda _, tight: _least_a100_lead(tight),
        lambda _, tight: _least_a100_lead(tight) > 1.0,
    ),
    SizeClaim(
        "1000 in, 250 out, 1/s: A10G-only over A100-only in cost (fig. 9)",
        "below 1",
        lambda loose, _: _small_service(loose),
        lambda loose, _: _small_service(loose) < 1.0,
    ),
)


def _winners(rates: Rates) -> set[str]:
    return {winner(rates, i, o) for i in INPUTS for o in OUTPUTS} - {""}


def _small_service(rates: Rates) -> float:
    demand = np.zeros((len(INPUTS), len(OUTPUTS)))
    demand[INPUTS.index(1000), OUTPUTS.index(250)] = 1.0
    counts = {sku: melange.alone(rates[sku], demand) for sku in ("a10g", "a100")}
    return PRICES["a10g"] * (counts["a10g"] or math.inf) / (PRICES["a100"] * (counts["a100"] or math.inf))


# ------------------------------------------------------------------------------------------------ tables


def size_claim_table() -> Iterator[str]:
    """Every claim about request sizes, put to our rates."""
    loose, tight = (melange.read_rates()[MAIN, slo_ms] for slo_ms in (120, 40))
    rows = ([claim.name, claim.published, _verdict(claim, loose, tight)] for claim in SIZE_CLAIMS)
    return table_lines(["request sizes (sec. 4)", "theirs", MAIN], rows)


def _verdict(claim: SizeClaim, loose: Rates, tight: Rates) -> str:
    figure = claim.value(loose, tight)
    return ("yes" if claim.holds(loose, tight) else "**no**") + ("" if math.isnan(figure) else f", {figure:.2g}")


def saving_table() -> Iterator[str]:
    """Savings by data set and SLO: least and most over rates and SKUs, and against the cheapest single SKU."""
    both = (melange.published_cases(), melange.our_cases())
    rows = ([f"{d}, {slo} ms", *_savings_of(both, d, slo)] for d in DATASETS for slo in (120, 40))
    kinds = ("saving against single SKUs, %", "mean against the cheapest of them, %")
    return table_lines(["data, SLO", *(f"{kind}: {whose}" for kind in kinds for whose in ("theirs", "ours"))], rows)


def _savings_of(both: Iterable[Cases], dataset: str, slo_ms: int) -> list[str]:
    chosen = [at(cases, dataset, slo_ms) for cases in both]
    every = [[100 * case.saving(sku) for case in cases for sku in case.alone_usd_per_hour] for cases in chosen]
    best = [float(np.mean([100 * case.saving(case.best_alone) for case in cases])) for cases in chosen]
    return [*(f"{min(found):.0f} to {max(found):.0f}" for found in every), *(f"{mean:.0f}" for mean in best)]


def count_ratios(ours: Cases, theirs: Cases, sku: str, rate_per_s: int) -> list[float]:
    """GPUs of a single-SKU fleet over theirs, in the cases of this rate that both can serve."""
    keys = [key for key in theirs if key[2] == rate_per_s and sku in theirs[key].alone_usd_per_hour]
    return [usd(ours[key], sku) / usd(theirs[key], sku) for key in keys if sku in ours[key].alone_usd_per_hour]


def sweep_ratio(slo_ms: int) -> float:
    """A100 over A10G in tokens per dollar at 64 in, 64 out; infinite where A10G cannot."""
    rates = melange.read_sweep()[slo_ms]
    low = rates["a10g"] / PRICES["a10g"]
    return rates["a100"] / PRICES["a100"] / low if low > 0.0 else math.inf


def documented_tables() -> tuple[Iterator[str], ...]:
    """Tables of the document."""
    return size_claim_table(), saving_table()


if __name__ == "__main__":
    for lines in documented_tables():
        print("\n".join(lines), end="\n\n")
