"""Does a choice more ever make a plan dearer, or a restriction or more traffic ever make it cheaper?

300 random pairs, and 60 sweeps of twenty rates.

Each pair is a small random scenario planned by theory, and the same with one thing changed: a choice added or a
restriction added, the kinds of changes in turn. Of the two plans the one with more to choose from must cost no more
than the other, beyond the stated gap: that of its allocation (the solver's, with what preferring a simpler fleet
costs), and a thousandth. Half of the pairs plan with `search.simplicity=0`, half with 0.05. Pairs of which neither can
be planned are drawn again.

A sweep plans one such scenario, of few choices, at twenty rates that rise by 1 to 5 % each; the plan for a rate must
cost no more than any for a higher one, judged alike.

    python -m tests.studies.restrictions            # writes restrictions.csv, prints the violations and the worst
    python -m tests.studies.restrictions --sweeps   # writes rate_sweeps.csv, a row for each sweep

A run that was cut off goes on where it stopped.
"""

from __future__ import annotations

import argparse
import copy
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hardware_db import listed_prices, load_hardware
from planner.fleet import Plan, plan
from planner.scenario import load_scenario
from tests.studies.plans_hold import LENGTHS, MODELS, SKUS, USD_PER_GPU_HOUR
from tests.studies.rows import read_rows, write_rows

RESULTS = Path(__file__).with_suffix(".csv")
SWEEP_RESULTS = RESULTS.with_name("rate_sweeps.csv")
PAIRS, SWEEPS, RATES = 300, 60, 20
LEAST_VIOLATION = 1e-3
"""Share of the cost by which a plan with more to choose from may be dearer."""
DAY = "2026-11-21"
"""Day of the prices: the newest of the packaged list are of that month."""
FORMATS = {"bf16": "fp8", "fp8": "bf16"}
"""What is offered besides the formats of a scenario."""

Content = dict[str, Any]
Change = Callable[[np.random.Generator, Content], tuple[str, Content, Content]]
"""What is changed, in words; the scenario before, and after."""


def scenario(seed: int) -> Content:
    """A random scenario, small enough that theory plans it in a second or two."""
    rng = np.random.default_rng([19, seed])
    model, dtype = MODELS[rng.integers(len(MODELS))]
    large = "70b" in model
    own_prices = bool(rng.random() < 0.5)
    content: Content = {
        "name": f"random {seed}",
        "llm": model,
        "precision": {"weights": dtype, "activations": dtype, "kv_cache": dtype},
        "workload": {
            "rate_per_s": float(np.round(np.exp(rng.uniform(np.log(10.0), np.log(80.0 if large else 400.0))), 1)),
            "scv": float(rng.choice([1.0, 1.0, 4.0])),
            "lengths": LENGTHS[rng.integers(len(LENGTHS))],
            "drift": "none",
        },
        "slo": [
            {"metric": "ttft", "percentile": 0.95, "threshold_s": float(rng.choice([0.5, 1.0, 2.0, 4.0]))},
            {"metric": "tpot", "percentile": 0.95, "threshold_s": float(rng.choice([0.03, 0.05, 0.08]))},
        ],
        "search": {
            "skus": rng.choice(SKUS, size=int(rng.integers(2, 4)), replace=False).tolist(),
            "tp": [2, 4] if large else [1, 2],
            "max_running_requests": [64, 256],
            "max_batched_tokens": [1024, 4096],
            "simplicity": float(rng.choice([0.0, 0.05])),
        },
        "prices": {"as_of": DAY},
        "confidence": float(rng.choice([0.5, 0.9])),
    }
    if own_prices:
        content["prices"]["usd_per_gpu_hour"] = USD_PER_GPU_HOUR
    else:
        content["prices"]["granularity"] = str(rng.choice(["gpu", "instance"]))
    return content


def put(content: Content, **fields: Any) -> Content:
    """A copy with fields set; ``search__tp=[1]`` stands for search.tp."""
    new = copy.deepcopy(content)
    for path, value in fields.items():
        *places, last = path.split("__")
        inner = new
        for place in places:
            inner = inner.setdefault(place, {})
        inner[last] = value
    return new


def listed(content: Content, **fields: Any) -> Content:
    """A copy with listed prices in place of its own."""
    new = put(content, **fields)
    new["prices"].pop("usd_per_gpu_hour", None)
    return new


def sites(content: Content) -> list[tuple[str, str]]:
    """Providers and regions that sell some SKU of a scenario on demand."""
    hardware = load_hardware()
    skus = content["search"]["skus"]
    return sorted(
        {
            (price.provider, price.region)
            for sku in skus
            for price in listed_prices(hardware, sku, commitment="on_demand", min_confidence="medium")
        }
    )


# --- choices --------------------------------------------------------------------------------------------------------


def sku_added(rng: np.random.Generator, base: Content) -> tuple[str, Content, Content]:
    skus = base["search"]["skus"]
    new = str(rng.choice([sku for sku in SKUS if sku not in skus]))
    return f"search.skus + {new}", base, put(base, search__skus=[*skus, new])


def mode_added(rng: np.random.Generator, base: Content) -> tuple[str, Content, Content]:
    mode = str(rng.choice(["mixed", "disaggregated"]))
    return f"search.modes: {mode} -> both", put(base, search__modes=[mode]), base


def _list_grown(field: str, values: Sequence[int]) -> Change:
    def change(rng: np.random.Generator, base: Content) -> tuple[str, Content, Content]:
        before = sorted(rng.choice(values, size=2, replace=False).tolist())
        new = int(rng.choice([value for value in values if value not in before]))
        field_of = f"search__{field}"
        return f"search.{field} + {new}", put(base, **{field_of: before}), put(base, **{field_of: [*before, new]})

    return change


def format_added(_: np.random.Generator, base: Content) -> tuple[str, Content, Content]:
    other = FORMATS[base["precision"]["weights"]]
    formats = {"weights": other, "activations": other, "kv_cache": other}
    return f"search.precisions + {other}", base, put(base, search__precisions=[formats])


def kv_format_added(_: np.random.Generator, base: Content) -> tuple[str, Content, Content]:
    other = FORMATS[base["precision"]["kv_cache"]]
    return (
        f"search.precisions + kv {other}",
        base,
        put(base, search__precisions=[base["precision"] | {"kv_cache": other}]),
    )


def prefix_cache_added(rng: np.random.Generator, base: Content) -> tuple[str, Content, Content]:
    prefixes = {"tokens": int(rng.choice([64, 256])), "groups": int(rng.choice([1, 16]))}
    before = put(base, workload__prefixes=prefixes, search__prefix_cache=[False])
    return "search.prefix_cache + true", before, put(before, search__prefix_cache=[False, True])


def provider_added(_: np.random.Generator, base: Content) -> tuple[str, Content, Content]:
    before = listed(base)
    return "prices.providers_at_most 1 -> 2", before, put(before, prices__providers_at_most=2)


def commitment_added(_: np.random.Generator, base: Content) -> tuple[str, Content, Content]:
    before = listed(base)
    return "prices.commitments + reserved_1yr", before, put(before, prices__commitments=["on_demand", "reserved_1yr"])


def spot_added(_: np.random.Generator, base: Content) -> tuple[str, Content, Content]:
    before = listed(base, prices__spot={"interruptions_per_hour": 0.05, "recovery_s": 300})
    return "prices.commitments + spot", before, put(before, prices__commitments=["on_demand", "spot"])


def engine_added(rng: np.random.Generator, base: Content) -> tuple[str, Content, Content]:
    other = str(rng.choice(["sglang", "tensorrt-llm"]))
    return f"search.more_engines + {other}", base, put(base, search__more_engines=[other])


def pairs_of_skus(_: np.random.Generator, base: Content) -> tuple[str, Content, Content]:
    return "search.pair_skus false -> true", put(base, search__pair_skus=False), base


def owned_added(rng: np.random.Generator, base: Content) -> tuple[str, Content, Content]:
    sku = str(rng.choice(base["search"]["skus"]))
    return (
        f"prices.owned + {sku}",
        base,
        put(base, prices__owned={sku: {"capex_usd_per_gpu": 30_000.0, "watts": 1000.0}}),
    )


# --- restrictions ---------------------------------------------------------------------------------------------------


def one_provider(rng: np.random.Generator, base: Content) -> tuple[str, Content, Content]:
    before = listed(base)
    provider = str(rng.choice(sorted({provider for provider, _ in sites(base)})))
    return f"prices.provider={provider}", before, put(before, prices__provider=provider)


def one_region(rng: np.random.Generator, base: Content) -> tuple[str, Content, Content]:
    before = listed(base)
    places = sites(base)
    region = places[int(rng.integers(len(places)))][1]
    return f"prices.region={region}", before, put(before, prices__region=region)


def two_of_one_provider(rng: np.random.Generator, base: Content) -> tuple[str, Content, Content]:
    _, before, after = one_provider(rng, base)
    name = after["prices"]["provider"]
    return f"providers_at_most=2, then prices.provider={name}", put(before, prices__providers_at_most=2), after


def gpus_limited(rng: np.random.Generator, base: Content) -> tuple[str, Content, Content]:
    sku, most = str(rng.choice(base["search"]["skus"])), int(rng.choice([0, 1, 2, 4, 8]))
    return f"limits.gpus {sku} {most}", base, put(base, limits__gpus={sku: most})


def sku_removed(rng: np.random.Generator, base: Content) -> tuple[str, Content, Content]:
    sku = str(rng.choice(base["search"]["skus"]))
    return (
        f"search.skus - {sku}",
        base,
        put(base, search__skus=[other for other in base["search"]["skus"] if other != sku]),
    )


def sku_forbidden(rng: np.random.Generator, base: Content) -> tuple[str, Content, Content]:
    sku = str(rng.choice(base["search"]["skus"]))
    return f"limits.forbidden {sku}", base, put(base, limits__forbidden=[sku])


def by_instance(_: np.random.Generator, base: Content) -> tuple[str, Content, Content]:
    before = listed(base, prices__granularity="gpu")
    return "prices.granularity gpu -> instance", before, put(before, prices__granularity="instance")


def by_node(_: np.random.Generator, base: Content) -> tuple[str, Content, Content]:
    before = put(base, prices__granularity="gpu")
    return "prices.granularity gpu -> node", before, put(before, prices__granularity="node")


def target_tightened(rng: np.random.Generator, base: Content) -> tuple[str, Content, Content]:
    after, place, factor = copy.deepcopy(base), int(rng.integers(2)), float(rng.choice([0.5, 0.7, 0.9]))
    after["slo"][place]["threshold_s"] = round(factor * after["slo"][place]["threshold_s"], 6)
    return f"slo.{place}.threshold_s x {factor}", base, after


def percentile_raised(rng: np.random.Generator, base: Content) -> tuple[str, Content, Content]:
    after, place = copy.deepcopy(base), int(rng.integers(2))
    after["slo"][place]["percentile"] = 0.99
    return f"slo.{place}.percentile 0.95 -> 0.99", base, after


def target_added(_: np.random.Generator, base: Content) -> tuple[str, Content, Content]:
    after = copy.deepcopy(base)
    after["slo"].append({"metric": "e2e", "percentile": 0.95, "threshold_s": 30.0})
    return "slo + p95 e2e 30 s", base, after


def demand_raised(rng: np.random.Generator, base: Content) -> tuple[str, Content, Content]:
    factor = float(rng.choice([1.01, 1.1, 1.5]))
    return f"growth={factor:g}", base, put(base, growth=factor)


def price_raised(rng: np.random.Generator, base: Content) -> tuple[str, Content, Content]:
    prices = base["prices"].get("usd_per_gpu_hour") or USD_PER_GPU_HOUR
    before = put(base, prices__usd_per_gpu_hour=prices)
    sku, factor = str(rng.choice(base["search"]["skus"])), float(rng.choice([1.01, 1.1, 1.5]))
    dearer = {**prices, sku: round(factor * prices[sku], 4)}
    return f"price of {sku} x {factor:g}", before, put(before, prices__usd_per_gpu_hour=dearer)


def _limited(words: str, **fields: Any) -> Change:
    """Fields that only ever restrict."""
    return lambda _, base: (words, base, put(base, **fields))


def _moved(words: str, path: str, before: Any, after: Any) -> Change:
    """A field at its looser value, then at its tighter one."""
    return lambda _, base: (words, put(base, **{path: before}), put(base, **{path: after}))


CHOICES: Mapping[str, Change] = {
    "sku added": sku_added,
    "mode added": mode_added,
    "tp added": _list_grown("tp", (1, 2, 4, 8)),
    "batch limit added": _list_grown("max_running_requests", (16, 64, 128, 256, 512)),
    "chunk budget added": _list_grown("max_batched_tokens", (512, 1024, 2048, 4096, 8192)),
    "format added": format_added,
    "kv format added": kv_format_added,
    "prefix cache added": prefix_cache_added,
    "provider added": provider_added,
    "commitment added": commitment_added,
    "spot added": spot_added,
    "engine added": engine_added,
    "pairs of SKUs": pairs_of_skus,
    "owned added": owned_added,
}
RESTRICTIONS: Mapping[str, Change] = {
    "one provider": one_provider,
    "one region": one_region,
    "one provider of two": two_of_one_provider,
    "measured only": _limited("search.measured_only=true", search__measured_only=True),
    "GPUs limited": gpus_limited,
    "SKU removed": sku_removed,
    "SKU forbidden": sku_forbidden,
    "one SKU": _limited("limits.skus_at_most=1", limits__skus_at_most=1),
    "by instance": by_instance,
    "by server": by_node,
    "spare": _limited("limits.spare_replicas=1", limits__spare_replicas=1),
    "server may fail": _limited("limits.survives_node_loss=true", limits__survives_node_loss=True),
    "pools of two": _limited("limits.replicas_at_least=2", limits__replicas_at_least=2),
    "power": _limited("limits.power_kw=10", limits__power_kw=10.0),
    "budget": _limited("limits.budget_usd_per_hour=20", limits__budget_usd_per_hour=20.0),
    "target tightened": target_tightened,
    "percentile raised": percentile_raised,
    "target added": target_added,
    "demand raised": demand_raised,
    "price raised": price_raised,
    "confidence": _moved("confidence 0.5 -> 0.9", "confidence", 0.5, 0.9),
    "simplicity": _moved("search.simplicity 0 -> 0.05", "search__simplicity", 0.0, 0.05),
    "sure prices": lambda _, base: (
        "prices.min_confidence medium -> high",
        listed(base),
        listed(base, prices__min_confidence="high"),
    ),
}
CHANGES: Mapping[str, Change] = {**CHOICES, **RESTRICTIONS}
KINDS = list(CHANGES)


def pair(seed: int) -> tuple[str, str, Content, Content]:
    """The kind of change, what is changed, the scenario before and after."""
    kind = KINDS[seed % len(KINDS)]
    return (kind, *CHANGES[kind](np.random.default_rng([1919, seed]), scenario(seed)))


def planned(content: Content) -> Plan:
    """By theory."""
    return plan(load_scenario(content), simulate=False, alternatives=False)


def usd_and_gap(found: Plan) -> tuple[float, float]:
    """Cost [USD/h], inf where there is no plan, and the stated gap of its allocation."""
    if not found.feasible or found.allocation is None:
        return math.inf, 0.0
    return found.allocation.cost_usd_per_hour, found.allocation.gap or 0.0


def excess(looser: tuple[float, float], tighter_usd: float) -> float:
    """By what share the plan with more to choose from is dearer, its stated gap granted.

    >>> round(excess((110.0, 0.05), 100.0), 3)
    0.045
    """
    least = looser[0] * (1.0 - looser[1])
    if math.isinf(tighter_usd):
        return -1.0
    return math.inf if math.isinf(least) else least / tighter_usd - 1.0


def row(seed: int) -> Mapping[str, Any]:
    """One pair, planned and judged."""
    kind, words, first, second = pair(seed)
    before, after = usd_and_gap(planned(first)), usd_and_gap(planned(second))
    looser, tighter = (after, before) if kind in CHOICES else (before, after)
    by = excess(looser, tighter[0])
    return {
        "seed": seed,
        "change": "choice" if kind in CHOICES else "restriction",
        "kind": kind,
        "what": words,
        "simplicity": first["search"]["simplicity"],
        "confidence": first["confidence"],
        "before_usd_per_hour": _rounded(before[0], 4),
        "after_usd_per_hour": _rounded(after[0], 4),
        "before_gap": _rounded(before[1], 6),
        "after_gap": _rounded(after[1], 6),
        "excess": "" if math.isinf(before[0]) and math.isinf(after[0]) else _rounded(by, 5),
        "violated": by > LEAST_VIOLATION,
    }


def _rounded(value: float, digits: int) -> float | str:
    return "none" if math.isinf(value) else round(value, digits)


def sweep(seed: int) -> list[Content]:
    """One scenario at rising rates."""
    rng = np.random.default_rng([1920, seed])
    base = scenario(100_000 + seed)
    search = base["search"]
    search["skus"], search["tp"] = search["skus"][:2], search["tp"][: 1 + seed % 2]
    search["max_running_requests"], search["max_batched_tokens"] = [256], [2048]
    factor, first = 1.0 + float(rng.uniform(0.01, 0.05)), base["workload"]["rate_per_s"] / 2.0
    return [put(base, workload__rate_per_s=round(first * factor**place, 3)) for place in range(RATES)]


def sweep_row(seed: int) -> Mapping[str, Any]:
    """One sweep, planned and judged."""
    contents = sweep(seed)
    base, rates = contents[0], [content["workload"]["rate_per_s"] for content in contents]
    search, costs = base["search"], [usd_and_gap(planned(content)) for content in contents]
    falls = [excess(low, high[0]) for place, low in enumerate(costs) for high in costs[place + 1 :]]
    return {
        "seed": seed,
        "llm": base["llm"],
        "skus": " ".join(search["skus"]),
        "simplicity": search["simplicity"],
        "confidence": base["confidence"],
        "rates_per_s": " ".join(f"{rate:g}" for rate in rates),
        "usd_per_hour": " ".join(str(_rounded(usd, 4)) for usd, _ in costs),
        "greatest_gap": _rounded(max(gap for _, gap in costs), 5),
        "excess": "" if all(math.isinf(usd) for usd, _ in costs) else _rounded(max(falls), 5),
        "violated": max(falls) > LEAST_VIOLATION,
    }


def main() -> None:
    """Plan until there are enough pairs, and write one row each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--sweeps", action="store_true", help="rate sweeps in place of pairs")
    options = parser.parse_args()
    if options.sweeps:
        sweeps: list[Mapping[str, Any]] = list(read_rows(SWEEP_RESULTS))
        while len(judged(sweeps)) < SWEEPS:
            sweeps.append(sweep_row(len(sweeps)))
            write_rows(SWEEP_RESULTS, sweeps)
        found = [one["seed"] for one in sweeps if is_violated(one)]
        print(f"{len(judged(sweeps))} sweeps of {RATES} rates, {len(found)} with a fall in cost: {found}")
        return
    rows: list[Mapping[str, Any]] = list(read_rows(RESULTS))
    while len(judged(rows)) < options.pairs:
        rows.append(row(len(rows)))
        write_rows(RESULTS, rows)
        if is_violated(rows[-1]):
            print(rows[-1], flush=True)
    print(summary(rows), flush=True)


def judged(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those of which one plan at least was found."""
    return [one for one in rows if one["excess"] != ""]


def is_violated(one: Mapping[str, Any]) -> bool:
    """As written or as read."""
    return str(one["violated"]) == "True"


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """The counts, and the worst."""
    pairs = judged(rows)
    violated = [one for one in pairs if is_violated(one)]
    worst = max(pairs, key=lambda one: math.inf if one["excess"] == "none" else float(one["excess"]))
    changed = [one for one in pairs if one["before_usd_per_hour"] != one["after_usd_per_hour"]]
    return (
        f"{len(pairs)} pairs ({len(rows)} drawn), {len(changed)} with another cost: {len(violated)} violated; "
        f"worst {worst['excess']}: seed {worst['seed']}, {worst['what']}, "
        f"{worst['before_usd_per_hour']} -> {worst['after_usd_per_hour']} USD/h"
    )


if __name__ == "__main__":
    main()
