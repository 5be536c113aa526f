"""What Mélange says of its fleets and request sizes, as predicates that the published tables and ours are both put to.

`python -m tests.studies.melange_claims` prints the tables of docs/studies/melange.md from the committed results of
tests/studies/melange.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tests.studies import melange
from tests.studies.melange import DATASETS, INPUTS, MAIN, OUTPUTS, PRICES, SKUS, TRAFFIC_PER_S, Case, Cases, Rates

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


def mixture(fleet: dict[str, int]) -> str:
    """E.g. ``2 L4 + 1 A100``."""
    return " + ".join(f"{count} {sku.upper()}" for sku, count in fleet.items() if count)


def savings(case: Case) -> str:
    """In percent against each single SKU."""
    parts = [f"{100 * case.saving(sku):.0f}" if sku in case.alone_usd_per_hour else "–" for sku in SKUS]
    return " / ".join(parts)


def yes(truth: bool) -> str:
    """In a word."""
    return "yes" if truth else "**no**"


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """Lines of a Markdown table."""
    names = list(heads)
    yield f"| {' | '.join(names)} |"
    yield "|---" * len(names) + "|"
    for cells in rows:
        yield f"| {' | '.join(cells)} |"


def fleet_table() -> Iterator[str]:
    """Every case: theirs and ours."""
    theirs, ours = melange.published_cases(), melange.our_cases()
    keys = sorted(ours, key=lambda key: (DATASETS.index(key[0]), -key[1], key[2]))
    saves = "saves % over L4 / A10G / A100 / H100"
    heads = ["data, SLO, rate"]
    heads += [f"{what}: {whose}" for what in ("mix", saves, "cheapest alone") for whose in ("theirs", "ours")]
    return table(heads, ([_case_name(key), *_side_by_side(theirs[key], ours[key])] for key in keys))


def _case_name(key: tuple[str, int, int]) -> str:
    return f"{key[0]}, {key[1]} ms, {key[2]}/s"


def _side_by_side(one: Case, other: Case) -> Iterator[str]:
    for show in (lambda case: mixture(case.mix), savings, lambda case: case.best_alone.upper()):
        yield show(one)
        yield show(other)


def fleet_claim_table(names: Sequence[str]) -> Iterator[str]:
    """Every claim about fleets, put to the published tables and to variants."""
    cases = [melange.published_cases(), *(melange.our_cases(name) for name in names)]
    rows = ([claim.name, *(yes(claim.holds(one)) for one in cases)] for claim in FLEET_CLAIMS)
    return table(["fleets (sec. 6.2, App. C)", "theirs", *names], rows)


def size_claim_table(names: Sequence[str]) -> Iterator[str]:
    """Every claim about request sizes, put to variants."""
    rates = [(melange.read_rates()[name, 120], melange.read_rates()[name, 40]) for name in names]
    rows = ([claim.name, claim.published, *(_verdict(claim, *pair) for pair in rates)] for claim in SIZE_CLAIMS)
    return table(["request sizes (sec. 4)", "theirs", *names], rows)


def _verdict(claim: SizeClaim, loose: Rates, tight: Rates) -> str:
    figure = claim.value(loose, tight)
    return yes(claim.holds(loose, tight)) + ("" if math.isnan(figure) else f", {figure:.2g}")


def agreement_table() -> Iterator[str]:
    """How often the cheapest single SKU and the main SKU of the mix are theirs; how far counts and savings are off."""
    names = [*melange.variants(), *melange.SPREADS]
    found = [agreement(melange.our_cases(name)) for name in names]
    rows = ([label, *(one[label] for one in found)] for label in found[0])
    return table([f"of {len(melange.published_cases())} cases", *names], rows)


def agreement(ours: Cases) -> dict[str, str]:
    """Figures of `agreement_table`."""
    theirs = melange.published_cases()
    found = {
        "cheapest single SKU the same": str(sum(ours[k].best_alone == theirs[k].best_alone for k in theirs)),
        "SKU with most of the mix's cost the same": str(sum(ours[k].main_sku == theirs[k].main_sku for k in theirs)),
    }
    for sku in SKUS:
        label = f"{sku.upper()}-only: cases that both serve; GPUs at 32/s over theirs; our saving less theirs, mean"
        found[label] = _single(ours, theirs, sku)
    return found


def _single(ours: Cases, theirs: Cases, sku: str) -> str:
    both = [key for key in theirs if sku in theirs[key].alone_usd_per_hour and sku in ours[key].alone_usd_per_hour]
    if not both:
        return "0"
    sizes = count_ratios(ours, theirs, sku, 32)
    gap = float(np.mean([ours[key].saving(sku) - theirs[key].saving(sku) for key in both]))
    return f"{len(both)}; {min(sizes):.2f} to {max(sizes):.2f}; {100 * gap:+.0f} points"


def saving_table() -> Iterator[str]:
    """Savings by data set and SLO: least and most over rates and SKUs, and against the cheapest single SKU."""
    both = (melange.published_cases(), melange.our_cases())
    rows = ([f"{d}, {slo} ms", *_savings_of(both, d, slo)] for d in DATASETS for slo in (120, 40))
    kinds = ("saving against single SKUs, %", "mean against the cheapest of them, %")
    return table(["data, SLO", *(f"{kind}: {whose}" for kind in kinds for whose in ("theirs", "ours"))], rows)


def _savings_of(both: Iterable[Cases], dataset: str, slo_ms: int) -> list[str]:
    chosen = [at(cases, dataset, slo_ms) for cases in both]
    every = [[100 * case.saving(sku) for case in cases for sku in case.alone_usd_per_hour] for cases in chosen]
    best = [float(np.mean([100 * case.saving(case.best_alone) for case in cases])) for cases in chosen]
    return [*(f"{min(found):.0f} to {max(found):.0f}" for found in every), *(f"{mean:.0f}" for mean in best)]


def count_ratios(ours: Cases, theirs: Cases, sku: str, rate_per_s: int) -> list[float]:
    """GPUs of a single-SKU fleet over theirs, in the cases of this rate that both can serve."""
    keys = [key for key in theirs if key[2] == rate_per_s and sku in theirs[key].alone_usd_per_hour]
    return [usd(ours[key], sku) / usd(theirs[key], sku) for key in keys if sku in ours[key].alone_usd_per_hour]


def level_diagnosis() -> list[str]:
    """Claims that fail even when every SKU's rates are brought to the published level.

    One factor per SKU, from single-SKU fleets for Arena at 120 ms and 32/s. It uses the answer, so it predicts nothing:
    it tells what the ratio of large to small GPUs explains from what it does not.
    """
    ours, theirs = melange.our_cases()["arena", 120, 32], melange.published_cases()["arena", 120, 32]
    factors = {sku: usd(ours, sku) / usd(theirs, sku) for sku in SKUS}
    cases = {}
    for slo_ms in (40, 120):
        rates = {sku: factors[sku] * grid for sku, grid in melange.read_rates()[MAIN, slo_ms].items()}
        for dataset in DATASETS:
            for traffic in TRAFFIC_PER_S:
                cases[dataset, slo_ms, traffic] = _case(rates, dataset, slo_ms, traffic)
    return [claim.name for claim in FLEET_CLAIMS if not claim.holds(cases)]


def _case(rates: Rates, dataset: str, slo_ms: int, traffic: int) -> Case:
    demand = traffic * melange.shares(dataset)
    mix = melange.cheapest(rates, demand)
    assert mix is not None
    counts = {sku: melange.alone(grid, demand) for sku, grid in rates.items()}
    alone = {sku: PRICES[sku] * count for sku, count in counts.items() if count is not None}
    return Case(dataset, slo_ms, traffic, mix, alone)


def sweep_table() -> Iterator[str]:
    """Fig. 6: A100 over A10G in tokens per dollar, by SLO."""
    slos = list(melange.read_sweep())
    row = ["A100 over A10G, tokens per dollar", *(f"{sweep_ratio(slo_ms):.2f}" for slo_ms in slos)]
    return table(["64 in, 64 out, TPOT up to", *(f"{slo_ms} ms" for slo_ms in slos)], [row])


def sweep_ratio(slo_ms: int) -> float:
    """A100 over A10G in tokens per dollar at 64 in, 64 out; infinite where A10G cannot."""
    rates = melange.read_sweep()[slo_ms]
    low = rates["a10g"] / PRICES["a10g"]
    return rates["a100"] / PRICES["a100"] / low if low > 0.0 else math.inf


def schedule_table() -> Iterator[str]:
    """Simulated rates over those of theory, for the schedule of theory and for that of vLLM 0.2.7."""
    played = (melange.CHUNKED_PLAYED, melange.PREFILL_FIRST_PLAYED)
    rows = ([f"{name}, {sku.upper()}", *_played_over_theory(name, sku)] for name in played for sku in SKUS)
    return table(["at 120 ms, over theory", *(f"{i} in, {o} out" for i, o in melange.CHECKED)], rows)


def _played_over_theory(name: str, sku: str) -> list[str]:
    theory, played = melange.read_rates()[MAIN, 120][sku], melange.read_rates()[name, 120][sku]
    cells = [(INPUTS.index(i), OUTPUTS.index(o)) for i, o in melange.CHECKED]
    return [f"{played[cell] / theory[cell]:.2f}" for cell in cells]


def winners_table(slo_ms: int) -> Iterator[str]:
    """Most tokens per dollar by size."""
    rates = melange.read_rates()[MAIN, slo_ms]
    rows = ([str(i), *(winner(rates, i, o).upper() or "–" for o in OUTPUTS)] for i in INPUTS)
    return table([f"{slo_ms} ms: input tokens up to", *(f"{o} out" for o in OUTPUTS)], rows)


def documented_tables() -> tuple[Iterator[str], ...]:
    """Tables of the document."""
    return size_claim_table([MAIN]), saving_table()


def further_tables() -> tuple[Iterator[str], ...]:
    """Tables that the document leaves out."""
    names = list(melange.variants())
    claims = size_claim_table(names), fleet_claim_table([*names, *melange.SPREADS])
    winners = winners_table(120), winners_table(40)
    return *claims, agreement_table(), fleet_table(), *winners, sweep_table(), schedule_table()


def main() -> None:
    """Print all tables, and what the level of the rates does not explain."""
    for lines in (*documented_tables(), *further_tables()):
        print("\n".join(lines), end="\n\n")
    print("At the published levels these fail:", *level_diagnosis(), sep="\n")


if __name__ == "__main__":
    main()
