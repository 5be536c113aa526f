"""Parts of a scenario made of what was read: `workload`, `profile` and `prices`, as YAML with their origin in comments.

A fragment is put into a scenario as it is; `planner plan my.yaml` reads the whole. Nothing but what the reader returned
goes in: what it left out or assumed stands above it in comments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from planner.core import InputError
from planner.supply import PriceList
from planner.traffic import MIN_CELLS, RecognisedTrace, ServerMetrics, Trace, describe
from planner.workload import TokenLengths

Fragment = dict[str, Any]

MOST_CELLS = 2000
"""As many cells of lengths as a scenario takes."""
CELLS = 400
"""Cells unless asked for otherwise: a page or so of a scenario, and percentiles of lengths within some percent."""
SHOWN = 30
"""Unknown GPUs that are named one by one."""
DIGITS = 10
"""Significant digits of rates and weights that are written."""
MEAN, PEAK = "mean", "peak"


def trace_fragment(found: RecognisedTrace, rate_per_s: float | None = None, cells: int = CELLS) -> Fragment:
    """The `workload` of a trace: its rate or another [1/s], the SCV of its gaps, its lengths in at most `cells` cells.

    Raises InputError where the trace tells no arrivals and no rate is given, or for `cells` out of range.

    >>> found = RecognisedTrace(Trace.from_arrays([0, 1, 3], [100, 200, 300], [10, 20, 30]), "CSV")
    >>> made = trace_fragment(found)["workload"]
    >>> made["rate_per_s"], made["lengths"]["cells"][0]
    (0.6666666667, [100, 10, 1.0])
    """
    if not MIN_CELLS <= cells <= MOST_CELLS:
        raise InputError("cells", cells, f"must lie between {MIN_CELLS} and {MOST_CELLS}", f"give e.g. {CELLS}")
    workload: Fragment = {}
    if found.lengths_only:
        if rate_per_s is None:
            raise InputError("rate", None, "the file does not say when requests arrived", "give a rate [1/s]")
        workload["rate_per_s"] = _short(rate_per_s)
    else:
        arrivals = found.trace.arrivals(rate_per_s)
        workload |= {"rate_per_s": _short(arrivals.rate_per_s), "scv": _short(arrivals.scv)}
    return {"workload": workload | {"lengths": _cells(found.trace.lengths(cells))}}


def replay_fragment(found: RecognisedTrace, file: str, rate_per_s: float | None = None) -> Fragment:
    """A `workload` that replays the trace from `file`, where `trace_csv` was written to.

    Raises InputError where the trace tells no arrivals.
    """
    if found.lengths_only:
        raise InputError("replay", file, "the file does not say when requests arrived", "plan with a rate instead")
    workload: Fragment = {"replay": file}
    return {"workload": workload if rate_per_s is None else workload | {"rate_per_s": _short(rate_per_s)}}


def trace_csv(trace: Trace) -> str:
    """A trace as `planner.traffic.trace.read_trace` reads it.

    >>> print(trace_csv(Trace.from_arrays([0, 1.5], [100, 200], [10, 20])))
    arrival_s,input_tokens,output_tokens
    0,100,10
    1.5,200,20
    <BLANKLINE>
    """
    rows = zip(trace.arrival_s.tolist(), trace.input_tokens.tolist(), trace.output_tokens.tolist(), strict=True)
    lines = (f"{time:.12g},{given},{made}\n" for time, given, made in rows)
    return "arrival_s,input_tokens,output_tokens\n" + "".join(lines)


def metrics_fragment(
    metrics: ServerMetrics, rate: str | float = MEAN, *, profile: bool = False, week: bool = False
) -> Fragment:
    """The `workload` of a server's metrics, and with `profile` (or `week`) the `profile` of its day (or week).

    Args:
        metrics: as read.
        rate: ``mean``, ``peak``, a percentile of the rates of all steps such as ``p95``, or a rate [1/s].
        profile: with the factors of every hour of the day; the rate is then their mean.
        week: the same of the week.

    Raises InputError for another `rate`, for one that is not the mean beside a profile, and as `ServerMetrics` does.
    """
    fragment: Fragment = {}
    if profile or week:
        if rate != MEAN:
            raise InputError("rate", rate, "a profile stands on the mean rate", "leave one of them out")
        measured = metrics.profile(week=week)
        found = measured.mean_per_s
        factors = [_short(factor) for factor in measured.profile.factors]
        fragment["profile"] = {"factors": factors, "period_hours": 1.0, "source": measured.profile.source}
    else:
        found = _rate(metrics, rate)
    lengths = _cells(metrics.lengths)
    return {"workload": {"rate_per_s": _short(found), "scv": 1.0, "lengths": lengths}} | fragment


def prices_fragment(prices: PriceList, region: str | None = None) -> Fragment:
    """`prices` with the cheapest on-demand price of each SKU (in a region).

    Raises InputError where none is on demand there.
    """
    cheapest = prices.cheapest(region=region)
    if not cheapest:
        places = sorted({price.region for price in prices.prices})
        bound = "no on-demand price there"
        raise InputError("region", region, bound, f"use one of: {', '.join(places[:12])}")
    return {"prices": {"usd_per_gpu_hour": {sku: _short(p.usd_per_gpu_hour) for sku, p in cheapest.items()}}}


def fragment_text(fragment: Mapping[str, Any], comments: Iterable[str] = ()) -> str:
    """A fragment as YAML below its comments, each on one line.

    >>> print(fragment_text({"workload": {"rate_per_s": 2.0}}, ["from a log"]))
    # from a log
    workload: {rate_per_s: 2.0}
    <BLANKLINE>
    """
    said = "".join(f"# {_one_line(comment)}\n" for comment in comments)
    return said + yaml.safe_dump(dict(fragment), sort_keys=False, width=120, default_flow_style=None)


def trace_comments(found: RecognisedTrace) -> list[str]:
    """Format, figures and notes of a trace."""
    return [found.format, *(f"{label}: {value}" for label, value in describe(found)), *found.notes]


def metrics_comments(metrics: ServerMetrics) -> list[str]:
    """What a server measured, to compare a plan with, and what was assumed."""
    said = [f"{metrics.engine} metrics{f' of {metrics.model}' if metrics.model else ''}"]
    said.append(
        f"requests finished: {metrics.requests:,.0f}" + (f" in {metrics.span_s:,.0f} s" if metrics.span_s else "")
    )
    if metrics.edges_s.size > 2:
        said.append(f"rate: mean {metrics.rate_per_s():.4g}/s, highest of {metrics.finished.size} steps "
                    f"{metrics.rate_per_s(1.0):.4g}/s")  # fmt: skip
    for word, value in (("running", metrics.mean_running), ("waiting", metrics.mean_waiting)):
        said += [] if value is None else [f"requests {word}: {value:.3g} on average"]
    for one in metrics.latencies:
        shown = ", ".join(f"p{100 * p:g} {seconds * 1e3:.4g} ms" for p, seconds in one.quantiles_s)
        said.append(f"measured {one.metric.value.upper()}: mean {one.mean_s * 1e3:.4g} ms, {shown} ({one.name})")
    if metrics.prefix_share is not None:
        said.append(f"input tokens found in the prefix cache: {metrics.prefix_share:.1%}")
    return [*said, *metrics.notes]


def prices_comments(prices: PriceList, region: str | None = None) -> list[str]:
    """Format of a price list, the offer behind each price of the fragment, and what was left out."""
    said = [f"{prices.format}, {len(prices.prices):,} prices"]
    for sku, price in prices.cheapest(region=region).items():
        offer = " ".join(part for part in (price.provider, price.instance_type, price.region) if part)
        said.append(f"{sku}: {offer}, {price.retrieved_on.isoformat()}, {price.source_url}")
    said += [f"no SKU known for {name}: {rows:,} rows left out" for name, rows in prices.unknown[:SHOWN]]
    if len(prices.unknown) > SHOWN:
        said.append(f"no SKU known for {len(prices.unknown) - SHOWN:,} others")
    return [*said, *prices.notes]


def _rate(metrics: ServerMetrics, rate: str | float) -> float:
    if not isinstance(rate, str):
        if not 0.0 < rate < float("inf"):
            raise InputError("rate", rate, "must be > 0 requests/s", "give a rate [1/s]")
        return rate
    if rate == MEAN:
        return metrics.rate_per_s()
    if rate == PEAK:
        return metrics.rate_per_s(1.0)
    number = _number(rate.removeprefix("p"))
    if number is None:
        raise InputError("rate", rate, "is none", "write mean, peak, a percentile such as p95, or requests/s")
    return metrics.rate_per_s(number / 100.0) if rate.startswith("p") else _rate(metrics, number)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _cells(lengths: TokenLengths) -> Fragment:
    weights = [_short(weight) for weight in lengths.weights]
    cells = zip(lengths.input_tokens, lengths.output_tokens, weights, strict=True)
    return {"cells": [list(cell) for cell in cells], "source": _one_line(lengths.source)[:200]}


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _one_line(text: str) -> str:
    """Text without line breaks and control characters, which would end a comment."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
