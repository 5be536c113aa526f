"""How far percentiles and E2E are off, of runs whose group no engine constant was fitted to.

    python -m tests.studies.percentiles AMD.csv [--write docs/studies/accuracy.md]

Of the reference data only AMD's runs have more than a mean or median TTFT and TPOT. Every run is played with the
constants that its group had no part in (`tests.studies.left_out/costs-sglang.json`) and held against its figures; the
TTFT and TPOT of the same runs stand beside them, to be compared with the runs left out in `left_out-sglang.csv`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from calibration import scoreboard
from calibration.serving.accuracy import score_of
from calibration.serving.engine_fit import Trial
from calibration.serving.measured_runs import MeasuredFigure, ServingPoint, Statistic
from calibration.serving.predict import Prediction, ReplayedRun, replayed
from hardware_db import EngineCosts, load_hardware
from planner.core import Metric, PlannerError
from tests.calibration.serving.points import read_serving_points
from tests.studies.rows import read_rows, table_lines, write_between

LEFT_OUT = Path(__file__).parent / "left_out"
ENGINE = "sglang"
BEGIN, END = "<!-- percentiles -->", "<!-- /percentiles -->"


def costs_without(model: str, sku: str) -> dict[str, float]:
    """The constants that were fitted without a group."""
    found = json.loads((LEFT_OUT / f"costs-{ENGINE}.json").read_text(encoding="utf-8"))["left_out"]
    return dict(found[f"{model} @ {sku}"])


def played(point: ServingPoint, costs: EngineCosts) -> Prediction:
    """A run with constants that its group had no part in, TTFT and TPOT as figures too."""
    try:
        result = replayed(Trial(point, ReplayedRun.of(point, load_hardware())).run_with(costs))
    except PlannerError as error:
        return Prediction(point, reason=str(error))
    seen = [
        result.distribution(figure.metric).mean_s
        if figure.percentile is None
        else result.distribution(figure.metric).quantile_s(figure.percentile)
        for figure in point.figures
    ]
    return Prediction(point, result.ttft.mean_s, result.tpot.mean_s, figures_s=tuple(seen))


def with_all_figures(point: ServingPoint) -> ServingPoint:
    """The point with its TTFT and TPOT among its figures."""
    percentile = 0.5 if point.statistic is Statistic.MEDIAN else None
    own = [(Metric.TTFT, point.mean_ttft_s), (Metric.TPOT, point.mean_tpot_s)]
    more = [MeasuredFigure(metric=m, percentile=percentile, value_s=value) for m, value in own if value]
    order = list(Metric)
    figures = sorted((*more, *point.figures), key=lambda f: (order.index(f.metric), f.percentile or 0.0))
    return point.model_copy(update={"figures": tuple(figures)})


def predictions(points: Iterable[ServingPoint]) -> list[Prediction]:
    """Every run of the engine without speculation."""
    db = load_hardware()
    done = []
    for point in points:
        if point.engine == ENGINE and point.sku in db.skus and not point.draft_tokens:
            costs = db.engines[ENGINE].costs_on(db.skus[point.sku])
            without = costs.model_copy(update=costs_without(*point.group))
            done.append(played(with_all_figures(point), without))
    return done


def table(done: Sequence[Prediction]) -> str:
    """By SKU and percentile, as Markdown; means stand in the tables of the runs left out."""
    rows = []
    for sku in sorted({each.point.sku for each in done}):
        own = [each for each in done if each.point.sku == sku]
        for name in (one for one in scoreboard.figure_names(own) if not one.endswith(" mean")):
            errors = score_of((each.figure_error(name), each.tpot_s is not None) for each in own)
            if errors is not None:
                runs = f"{errors.runs}" if errors.predicted == errors.runs else f"{errors.predicted} of {errors.runs}"
                sizes = ((errors.median, ""), (errors.p90, ""), (errors.bias, "+"))
                rows.append([sku, name, runs, *(f"{100 * x:{s}{'.0f' if abs(x) >= 0.1 else '.2g'}}" for x, s in sizes)])
    return "\n".join(table_lines(("SKU", "figure", "runs", "median %", "p90 %", "bias %"), rows))


def compared(done: Sequence[Prediction]) -> str:
    """How the constants used here compare with those of the runs left out: median ratio of predicted means."""
    known = {row["source_id"]: row for row in read_rows(LEFT_OUT / f"left_out-{ENGINE}.csv")}
    lines = []
    for metric in ("tpot", "ttft"):
        pairs = [(getattr(each, f"{metric}_s"), known[each.point.id][f"{metric}_s"]) for each in done if each.tpot_s]
        ratios = [here / float(there) for here, there in pairs if there]
        if ratios:
            low, middle, high = np.quantile(ratios, (0.1, 0.5, 0.9))
            lines.append(f"{metric}: {middle:.3f} of those left out ({low:.3f} to {high:.3f} in 80 % of {len(ratios)})")
    return "; ".join(lines)


def main() -> None:
    """Play the runs, print the table, and write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("points", type=Path)
    parser.add_argument("--write", type=Path)
    arguments = parser.parse_args()
    done = predictions(read_serving_points(arguments.points))
    made = table(done)
    print(made)
    print(compared(done))
    if arguments.write is not None:
        write_between(arguments.write, BEGIN, END, made)


if __name__ == "__main__":
    main()
