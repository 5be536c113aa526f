"""Snippets of a scenario made from what was read: `workload`, `profile`, `prices`, as YAML with origins in comments.

A snippet goes into a scenario as it is; `planner plan my.yaml` reads the whole. Nothing but what the reader returned
goes in: what it left out or assumed stands above it in comments. What a running fleet measured of itself is given as
changes of the scenario that it was planned from.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml

from planner.analysis import RunningFleet, learned_steps
from planner.core import InputError, one_line
from planner.fleet import PlanRequest
from planner.supply import PriceList
from planner.traffic import MIN_CELLS, UNRECORDED, RecognisedTrace, ServerMetrics, Trace, describe
from planner.workload import RateDrift, TokenLengths, measured_drift

Snippet = dict[str, Any]
"""Fields of a scenario as plain data."""

MAX_CELLS = 2000
"""As many cells of lengths as a scenario takes."""
DEFAULT_CELLS = 400
"""Cells unless stated otherwise: a page or so of a scenario, and percentiles of lengths within some percent."""
MAX_DRIFT_WINDOWS = 1000
"""Most windows of a drift that are written: an hour by 5 s is 720, a day by 2 minutes too."""
DRIFT_DIGITS = 4
"""Significant digits of its factors."""
MOST_LOGGED = 0.999
"""Largest logged share of cached tokens that is written: something of a prompt is always computed."""
MAX_SHOWN = 30
"""Unknown GPUs that are named one by one."""
DIGITS = 10
"""Significant digits of rates and weights that are written, and decimals of an SCV."""
MEAN, PEAK = "mean", "peak"


def trace_snippet(recognised: RecognisedTrace, rate_per_s: float | None = None, cells: int = DEFAULT_CELLS) -> Snippet:
    """The `workload` of a trace: its rate or another [1/s], drift, SCV without it, lengths in at most `cells` cells.

    Raises InputError where the trace tells no arrivals and no rate is given, or for `cells` out of range.

    >>> found = RecognisedTrace(Trace.from_arrays([0, 1, 3], [100, 200, 300], [10, 20, 30]), "CSV")
    >>> made = trace_snippet(found)["workload"]
    >>> made["rate_per_s"], made["lengths"]["cells"][0]
    (0.6666666667, [100, 10, 1.0])
    """
    if not MIN_CELLS <= cells <= MAX_CELLS:
        raise InputError("cells", cells, f"must lie between {MIN_CELLS} and {MAX_CELLS}", f"give e.g. {DEFAULT_CELLS}")
    workload: Snippet = {}
    if recognised.lengths_only:
        if rate_per_s is None:
            raise InputError("rate", None, "the file does not say when requests arrived", "give a rate [1/s]")
        workload["rate_per_s"] = _rounded(rate_per_s)
    else:
        workload |= arrivals_snippet(recognised.trace, rate_per_s)
    workload |= {"lengths": cells_snippet(recognised.trace.lengths(cells))}
    return {"workload": workload | _prefix_snippet(recognised)}


def arrivals_snippet(trace: Trace, rate_per_s: float | None = None, windows: int = MAX_DRIFT_WINDOWS) -> Snippet:
    """`rate_per_s`, `scv` and, where there is one, `drift` of a trace, as it is or brought to a rate [1/s].

    The drift is read in windows of which there are at most `windows`. Raises InputError unless the arrivals span time.
    """
    recorded = None if rate_per_s is None else trace.recorded().at_rate(rate_per_s)
    process = trace.arrivals() if recorded is None else recorded.process
    offsets_s = trace.arrival_s if recorded is None else recorded.offsets_s
    drift = measured_drift(offsets_s, process.source, most_windows=windows) or process.drift
    arrivals = {
        "rate_per_s": _rounded(process.rate_per_s),
        "scv": round(process.scv, DIGITS),  # 0 of a metronome, and not what rounding leaves
    }
    return arrivals | _drift_snippet(drift, windows)


def replay_snippet(recognised: RecognisedTrace, file: str, rate_per_s: float | None = None) -> Snippet:
    """A `workload` that replays the trace from `file`, where `trace_csv` was written to.

    Raises InputError where the trace tells no arrivals.
    """
    if recognised.lengths_only:
        raise InputError("replay", file, "the file does not say when requests arrived", "plan with a rate instead")
    recognised.trace.recorded()
    workload: Snippet = {"replay": file} | _prefix_snippet(recognised)
    return {"workload": workload if rate_per_s is None else workload | {"rate_per_s": _rounded(rate_per_s)}}


def trace_csv(trace: Trace) -> str:
    """A trace as `planner.traffic.read_trace` reads it, its times from its start; of areas from the midnight before.

    >>> print(trace_csv(Trace.from_arrays([0, 1.5], [100, 200], [10, 20])))
    arrival_s,input_tokens,output_tokens
    0,100,10
    1.5,200,20
    <BLANKLINE>
    """
    from_s = 0.0 if trace.areas is None else 3600.0 * trace.starts_at_hours
    times = [f"{time_s:.12g}" for time_s in (trace.arrival_s + from_s).tolist()]
    columns = {"arrival_s": times, "input_tokens": trace.input_tokens, "output_tokens": trace.output_tokens}
    if trace.areas is not None:
        columns["area"] = trace.areas
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([list(columns), *zip(*columns.values(), strict=True)])
    return text.getvalue()


def metrics_snippet(
    metrics: ServerMetrics, rate: str | float = MEAN, *, profile: bool = False, week: bool = False
) -> Snippet:
    """The `workload` of a server's metrics, and with `profile` (or `week`) the `profile` of its day (or week).

    Args:
        metrics: as read.
        rate: ``mean``, ``peak``, a percentile of the rates of all steps such as ``p95``, or a rate [1/s]. Around the
            mean the workload has the drift of the steps, any other rate is taken as steady.
        profile: with the factors of every hour of the day; the rate is then their mean.
        week: the same of the week.

    Raises InputError for another `rate`, for one that is not the mean beside a profile, and as `ServerMetrics` does.
    """
    snippet: Snippet = {}
    if profile or week:
        if rate != MEAN:
            raise InputError("rate", rate, "a profile stands on the mean rate", "leave one of them out")
        measured = metrics.profile(week=week)
        rate_per_s = measured.mean_per_s
        factors = [_rounded(factor) for factor in measured.profile.factors]
        snippet["profile"] = {"factors": factors, "period_hours": 1.0, "source": measured.profile.source}
    else:
        rate_per_s = _rate(metrics, rate)
    drift = _drift_snippet(metrics.drift) if rate == MEAN and not snippet else {}
    lengths = cells_snippet(metrics.lengths)
    return {"workload": {"rate_per_s": _rounded(rate_per_s), "scv": 1.0, **drift, "lengths": lengths}} | snippet


def prices_snippet(prices: PriceList, region: str | None = None) -> Snippet:
    """`prices` with the cheapest on-demand price of each SKU (in a region).

    Raises InputError where none is on demand there.
    """
    cheapest = prices.cheapest(region=region)
    if not cheapest:
        places = sorted({price.region for price in prices.prices})
        bound = "no on-demand price there"
        raise InputError("region", region, bound, f"use one of: {', '.join(places[:12])}")
    return {"prices": {"usd_per_gpu_hour": {sku: _rounded(p.usd_per_gpu_hour) for sku, p in cheapest.items()}}}


def snippet_text(snippet: Mapping[str, Any], comments: Iterable[str] = ()) -> str:
    """A snippet as YAML below its comments, each on one line.

    >>> print(snippet_text({"workload": {"rate_per_s": 2.0}}, ["from a log"]))
    # from a log
    workload: {rate_per_s: 2.0}
    <BLANKLINE>
    """
    header = "".join(f"# {one_line(comment)}\n" for comment in comments)
    return header + yaml.safe_dump(dict(snippet), sort_keys=False, width=120, default_flow_style=None)


def trace_comments(recognised: RecognisedTrace, rate_per_s: float | None = None) -> list[str]:
    """Format, figures and notes of a trace, and the rate [1/s] it was brought to, if any."""
    notes = list(recognised.notes)
    if rate_per_s is not None:
        notes = [note for note in notes if not note.startswith(UNRECORDED)]
        before = f"{UNRECORDED}: " if recognised.lengths_only else ""
        notes.append(f"{before}planned at {rate_per_s:.4g} requests/s, as asked")
    return [recognised.format, *(f"{label}: {value}" for label, value in describe(recognised)), *notes]


def metrics_comments(metrics: ServerMetrics) -> list[str]:
    """Measurements of a server, to compare a plan with, and the assumptions made."""
    lines = [f"{metrics.engine} metrics{f' of {metrics.model}' if metrics.model else ''}"]
    lines.append(
        f"requests finished: {metrics.requests:,.0f}" + (f" in {metrics.span_s:,.0f} s" if metrics.span_s else "")
    )
    if metrics.edges_s.size > 2:
        lines.append(f"rate: mean {metrics.rate_per_s():.4g}/s, highest of {metrics.finished.size} steps "
                    f"{metrics.rate_per_s(1.0):.4g}/s")  # fmt: skip
    for word, value in (("running", metrics.mean_running), ("waiting", metrics.mean_waiting)):
        lines += [] if value is None else [f"requests {word}: {value:.3g} on average"]
    for latency in metrics.latencies:
        quantiles = ", ".join(f"p{100 * p:g} {seconds * 1e3:.4g} ms" for p, seconds in latency.quantiles_s)
        lines.append(
            f"measured {latency.metric.value.upper()}: mean {latency.mean_s * 1e3:.4g} ms, {quantiles} ({latency.name})"
        )
    if metrics.prefix_share is not None:
        lines.append(f"input tokens found in the prefix cache: {metrics.prefix_share:.1%}")
    return [*lines, *metrics.notes]


def prices_comments(prices: PriceList, region: str | None = None) -> list[str]:
    """Format of a price list, the offer behind each price of the snippet, and what was left out."""
    lines = [f"{prices.format}, {len(prices.prices):,} prices"]
    for sku, price in prices.cheapest(region=region).items():
        offer = " ".join(word for word in (price.provider, price.instance_type, price.region) if word)
        lines.append(f"{sku}: {offer}, {price.retrieved_on.isoformat()}, {price.source_url}")
    lines += [f"no SKU known for {name}: {rows:,} rows left out" for name, rows in prices.unknown[:MAX_SHOWN]]
    if len(prices.unknown) > MAX_SHOWN:
        lines.append(f"no SKU known for {len(prices.unknown) - MAX_SHOWN:,} others")
    return [*lines, *prices.notes]


def _rate(metrics: ServerMetrics, rate: str | float) -> float:
    if rate == MEAN:
        return metrics.rate_per_s()
    if rate == PEAK:
        return metrics.rate_per_s(1.0)
    is_percentile = isinstance(rate, str) and rate.startswith("p")
    try:
        number = float(str(rate).removeprefix("p"))
    except ValueError:
        fix = "write mean, peak, a percentile such as p95, or requests/s"
        raise InputError("rate", rate, "is none", fix) from None
    if not is_percentile and not 0.0 < number < float("inf"):
        raise InputError("rate", rate, "must be > 0 requests/s", "give a rate [1/s]")
    return metrics.rate_per_s(number / 100.0) if is_percentile else number


def _drift_snippet(drift: RateDrift | None, windows: int = MAX_DRIFT_WINDOWS) -> Snippet:
    """`drift` where there is one, in at most so many windows."""
    if drift is None:
        return {}
    written = drift.coarser(windows)
    factors = [float(f"{factor:.{DRIFT_DIGITS}g}") for factor in written.factors]
    source = one_line(written.source)[:200]
    return {"drift": {"window_s": _rounded(written.window_s), "factors": factors, "source": source}}


def _prefix_snippet(recognised: RecognisedTrace) -> Snippet:
    """Share of the prompts that caches find: by size where blocks tell it, else as a server logged it."""
    if recognised.reuse is not None:
        reuse = recognised.reuse
        return {
            "prefix_reuse": {
                "rate_per_s": _rounded(reuse.rate_per_s),
                "cache_tokens": [_rounded(size) for size in reuse.cache_tokens],
                "replicas": list(reuse.replicas),
                "shares": [list(row) for row in reuse.shares],
                "source": one_line(reuse.source)[:200],
            }
        }
    if recognised.logged_share and recognised.prefix_share:
        return {"prefix_hit_rate": float(f"{min(recognised.prefix_share, MOST_LOGGED):.{DRIFT_DIGITS}g}")}
    return {}


def cells_snippet(lengths: TokenLengths) -> Snippet:
    """Lengths as a scenario writes them, cell by cell."""
    weights = [_rounded(weight) for weight in lengths.weights]
    cells = zip(lengths.input_tokens, lengths.output_tokens, weights, strict=True)
    return {"cells": [list(cell) for cell in cells], "source": one_line(lengths.source)[:200]}


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def measured_changes(
    request: PlanRequest, watched: Sequence[tuple[str, RunningFleet, ServerMetrics]]
) -> dict[str, dict[str, Any]]:
    """By what it is, fields of the scenario with their new values: traffic, and step times where they are inferred.

    Of a scenario with one model its step times go by SKU; of several models each has its own (`learned_steps`). The
    traffic of a cascade in sequence is what its small model got; which share of it goes on stays as the scenario has
    it, since the quality of the answers was measured at that share.

    Args:
        request: that the fleet was planned from.
        watched: name of the service, its comparison and the metrics that it rests on, for every model watched.

    Raises:
        InputError: a cascade with a router before it, or whose small model was not watched: its stream is not known.
    """
    places = {request.main.name: "", **{one.name: f"services.{at}." for at, one in enumerate(request.services)}}
    if request.cascade is not None:
        small = request.cascade.small.name
        if request.cascade.routed or small not in [name for name, _, _ in watched]:
            bound = "a router cuts its stream in two" if request.cascade.routed else f"{small} was not watched"
            fix = "plan again with --set and the step times of each model"
            raise InputError("cascade", small, f"{bound}, so what comes in is not known", fix)
        del places[request.main.name]
        places[small] = ""
    traffic = {
        f"{places[name]}workload": metrics_snippet(metrics)["workload"]
        for name, _, metrics in watched
        if name in places
    }
    changes: dict[str, dict[str, Any]] = {"traffic as measured": traffic}
    fleets = [running for _, running, _ in watched]
    learned = learned_steps(fleets)
    if request.has_one_model:
        learned = {one.sku: one.measured_steps for one in fleets if one.measured_steps is not None}
    if learned:
        known = {**request.measured_steps, **learned}
        changes["step times as measured"] = {"measured_steps": {key: one.model_dump() for key, one in known.items()}}
    return changes
