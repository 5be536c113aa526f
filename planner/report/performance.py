"""Tables of one performance beside its latencies: its classes of requests, and how sure simulated percentiles are."""

from __future__ import annotations

from planner.core import Metric, Table, duration, percent, significant, unit
from planner.serving import Performance

CLASS_PERCENTILES = (0.5, 0.99)
CONFIDENCE_PERCENTILES = (0.5, 0.9, 0.95, 0.99)


def class_table(performance: Performance) -> tuple[Table, ...]:
    """Latencies of each class of requests; no table where there is one class or none are told apart."""
    if len(performance.classes) < 2:
        return ()
    metrics = (Metric.TTFT, Metric.TPOT, Metric.E2E)
    rows = []
    for one in performance.classes:
        distributions = {Metric.TTFT: one.ttft, Metric.TPOT: one.tpot, Metric.E2E: one.e2e}
        cells = (duration(distributions[metric].quantile_s(p), metric) for metric in metrics for p in CLASS_PERCENTILES)
        attained = "-" if one.attainment is None else percent(one.attainment)
        rows.append((one.name, significant(one.rate_per_s), *cells, attained))
    names = (f"{metric.upper()} p{100 * p:g} [{unit(metric)}]" for metric in metrics for p in CLASS_PERCENTILES)
    columns = ("class", "requests/s", *names, "own targets met")
    return (Table("Classes of requests", columns, tuple(rows)),)


def confidence_table(performance: Performance) -> tuple[Table, ...]:
    """95 % intervals of simulated percentiles; no table for theory or where the run is too short for any."""
    rows = []
    for metric in performance.samples_s:
        cells = tuple(_interval(performance, metric, percentile) for percentile in CONFIDENCE_PERCENTILES)
        if set(cells) != {"-"}:
            rows.append((f"{metric.upper()} [{unit(metric)}]", *cells))
    if not rows:
        return ()
    columns = ("metric", *(f"p{100 * percentile:g}" for percentile in CONFIDENCE_PERCENTILES))
    note = "95 % confidence by batch means; -: too few requests beyond that percentile."
    return (Table("Sampling error of the simulated percentiles", columns, tuple(rows), note),)


def _interval(performance: Performance, metric: Metric, percentile: float) -> str:
    found = performance.confidence_s(metric, percentile)
    return "-" if found is None else " to ".join(duration(end, metric) for end in found)
