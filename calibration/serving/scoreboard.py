"""Every run of a points file predicted, and the errors as rows, tables, Markdown and a CSV of details.

Answers: how far the planner is off, where it was fitted and where not. `planner validate` shows what is here.
"""

from __future__ import annotations

import csv
import io
import math
import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from calibration.serving.accuracy import (
    FITTED,
    HELD_OUT,
    METRIC_NAMES,
    AccuracyRow,
    Score,
    ServingClass,
    by_group,
    is_fitted,
    mode_of,
    score,
    score_of,
    serving_class,
)
from calibration.serving.measured_runs import RefusedRun, ServingPoint, WorkerSettings
from calibration.serving.predict import Prediction, predict
from hardware_db import HardwareDb, load_hardware, read_calibration
from planner.core import InputError, Metric, Table, UnknownNameError, number_of, percent, write_whole

BEGIN, END = "<!-- scoreboard -->", "<!-- /scoreboard -->"
"""Marks in a Markdown file between which `write_between_marks` writes."""
MAX_SHOWN_FAILURES = 20
"""Runs without a prediction that are listed one by one."""
CHUNKS_PER_PROCESS = 32
"""Portions of the runs per process: small enough for all to end together. Affects speed only."""
ALL_GROUPS = "all groups, fitted too"
EVERY_GROUP_FITTED = "every group was fitted to"
LEFT_OUT = "the table under *Leaving one group out* in docs/studies/accuracy.md"
"""Where groups that nothing was fitted to are judged."""


@dataclass(frozen=True)
class Scoreboard:
    """Predictions, each with True if its group was fitted to, in one order."""

    predictions: tuple[Prediction, ...]
    fitted: tuple[bool, ...]

    def held_out(self) -> list[Prediction]:
        """Those whose group the engine constants were not fitted to."""
        return [prediction for prediction, fitted in zip(self.predictions, self.fitted, strict=True) if not fitted]

    def failures(self) -> list[Prediction]:
        """Those without a prediction."""
        return [prediction for prediction in self.predictions if prediction.tpot_s is None]


# --- predicting -----------------------------------------------------------------------------------------------------


def hardware_with(calibrations: str | Path | None = None) -> HardwareDb:
    """The hardware database, with the calibrations (``*.json``) of a folder in place of the packaged ones.

    Raises InputError when the folder has none, or for one that cannot be read.
    """
    db = load_hardware()
    if calibrations is None:
        return db
    files = sorted(Path(calibrations).glob("*.json"))
    if not files:
        raise InputError("--calibrations", str(calibrations), "no .json files in it", "give a folder of calibrations")
    return db.model_copy(update={"calibrations": tuple(read_calibration(file) for file in files)})


def predict_all(
    points: Sequence[ServingPoint | RefusedRun],
    calibrations: str | Path | None = None,
    jobs: int = 1,
    progress: Callable[[str], None] = lambda stage: None,
) -> Scoreboard:
    """Predictions of all points, in `jobs` processes, the same whatever their number. Raises InputError."""
    if jobs < 1:
        raise InputError("--jobs", jobs, "must be >= 1", "give a number of processes")
    db = hardware_with(calibrations)
    done: list[Prediction] = []
    for prediction in _predictions(points, db, calibrations, min(jobs, len(points))):
        done.append(prediction)
        progress(f"predicted {len(done)} of {len(points)} runs")
    return Scoreboard(tuple(done), tuple(is_fitted(point, db) for point in points))


def _predictions(
    points: Sequence[ServingPoint | RefusedRun], db: HardwareDb, calibrations: str | Path | None, jobs: int
) -> Iterator[Prediction]:
    if jobs <= 1:
        yield from (predict(point, db) for point in points)
        return
    job = partial(_predict_in_process, calibrations)
    spawning = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=spawning) as pool:
        yield from pool.map(job, points, chunksize=max(1, len(points) // (CHUNKS_PER_PROCESS * jobs)))


_DATABASES: dict[str | Path | None, HardwareDb] = {}
"""The database each process has read, so that its step tables are built once."""


def _predict_in_process(calibrations: str | Path | None, point: ServingPoint | RefusedRun) -> Prediction:
    if calibrations not in _DATABASES:
        _DATABASES[calibrations] = hardware_with(calibrations)
    return predict(point, _DATABASES[calibrations])


def select_points(
    points: Sequence[ServingPoint | RefusedRun],
    engine: str | None = None,
    model: str | None = None,
    sku: str | None = None,
    mode: str | None = None,
) -> tuple[ServingPoint | RefusedRun, ...]:
    """Points of an engine, a model (part of its name is enough), a SKU, a mode. Raises UnknownNameError for none."""
    kept = tuple(points)
    for option, wanted, value_of in (
        ("--engine", engine, lambda point: point.engine),
        ("--sku", sku, lambda point: point.sku),
        ("--mode", mode, mode_of),
    ):
        if wanted is not None:
            known = {value_of(point) for point in kept}
            if wanted not in known:
                raise UnknownNameError(option, wanted, known)
            kept = tuple(point for point in kept if value_of(point) == wanted)
    if model is not None:
        named = tuple(point for point in kept if model.lower() in point.model.lower())
        if not named:
            raise UnknownNameError("--model", model, {point.model for point in kept})
        kept = named
    return kept


# --- in words and tables --------------------------------------------------------------------------------------------


def headline(board: Scoreboard) -> str:
    """How many runs there are, how many have a prediction, and how many lie in held-out groups."""
    runs, failed = len(board.predictions), len(board.failures())
    covered = percent(1.0 - failed / runs)
    held_out = len(board.held_out())
    rest = f"{held_out:,} in groups that nothing was fitted to" if held_out else EVERY_GROUP_FITTED
    return f"{number_of(runs, 'run')}, {covered} with a prediction; {rest}."


def score_rows(board: Scoreboard) -> tuple[AccuracyRow, ...]:
    """Errors of held-out runs by class, of all runs, then of every group in each metric, where any were measured."""
    rows: list[AccuracyRow | None] = []
    for kind in ServingClass:
        held_out = [prediction for prediction in board.held_out() if serving_class(prediction.point) is kind]
        rows += [_row(held_out, metric, kind.value, part=HELD_OUT) for metric in METRIC_NAMES]
    rows += [_row(board.predictions, metric, ALL_GROUPS) for metric in METRIC_NAMES]
    fitted = dict(zip(map(id, board.predictions), board.fitted, strict=True))
    for metric in METRIC_NAMES:
        for key, group in by_group(board.predictions).items():
            days = sorted({prediction.point.measured_on for prediction in group} - {""}) or [""]
            model = key.model.rsplit("/", 1)[-1].removesuffix("-Instruct").removesuffix("-FP8")
            mode = "disagg." if key.mode == "disaggregated" else key.mode
            named = {
                "engine": key.engine,
                "model": f"{model} {key.precision}".strip(),
                "sku": key.sku,
                "mode": f"{mode} {key.speculation}".strip(),
                "part": FITTED if fitted[id(group[0])] else HELD_OUT,
                "measured_from": days[0],
                "measured_to": days[-1],
            }
            rows.append(_row(group, metric, serving_class(group[0].point).value, **named))
    return tuple(row for row in rows if row is not None)


def _row(predictions: Sequence[Prediction], metric: str, kind: str, **named: str) -> AccuracyRow | None:
    """None where nothing was measured."""
    errors = score(predictions, metric)
    if errors is None:
        return None
    bias = errors.bias if errors.predicted else None
    names = dict.fromkeys(("engine", "model", "sku", "mode", "part"), "") | named
    return AccuracyRow(kind=kind, metric=METRIC_NAMES[metric], **{**names, **asdict(errors), "bias": bias})


def tables(board: Scoreboard) -> tuple[Table, ...]:
    """Totals of the classes over held-out groups, if there are any, and of all; then every group in each metric; then
    further percentiles and means, where some were measured.
    """
    rows = score_rows(board)
    return _totals(board, rows), *(_groups(rows, metric) for metric in METRIC_NAMES.values()), *figure_tables(board)


def failures(board: Scoreboard) -> tuple[str, ...]:
    """Runs without a prediction, with the reason."""
    failed = board.failures()
    lines = [f"{prediction.point.id}: {prediction.reason}" for prediction in failed[:MAX_SHOWN_FAILURES]]
    if len(failed) > MAX_SHOWN_FAILURES:
        lines.append(f"{len(failed) - MAX_SHOWN_FAILURES} more; --details lists them all")
    return tuple(lines)


_SCORE_COLUMNS = ("runs", "median %", "p90 %", "MAPE %", "bias %")


def _score_cells(errors: Score | AccuracyRow) -> tuple[str, ...]:
    """Runs (predicted of measured, where some are not) and errors in percent."""
    runs = f"{errors.runs}" if errors.predicted == errors.runs else f"{errors.predicted} of {errors.runs}"
    sizes = (percent(size) for size in (errors.median, errors.p90, errors.mape))
    shown = (*sizes, percent(math.nan if errors.bias is None else errors.bias, signed=True))
    return (runs, *(text.removesuffix(" %") for text in shown))


def _totals(board: Scoreboard, rows: Sequence[AccuracyRow]) -> Table:
    cells = tuple((row.kind, row.metric, *_score_cells(row)) for row in rows if not row.is_group)
    title = "Totals over held-out groups"
    note = "Only groups that no engine constant was fitted to, but for the last lines."
    if not board.held_out():
        title = "Totals over all groups"
        note = f"No group is held out: {EVERY_GROUP_FITTED}; {LEFT_OUT} says how far others are off."
    note += " A run without a prediction counts as 100 % error; runs are then shown as predicted of measured. "
    note += "Bias is of predicted runs."
    return Table(title, ("class", "metric", *_SCORE_COLUMNS), cells, note)


def _groups(rows: Sequence[AccuracyRow], metric: str) -> Table:
    groups = (row for row in rows if row.is_group and row.metric == metric)
    cells = tuple((row.engine, row.model, row.sku, row.mode, row.part, *_score_cells(row)) for row in groups)
    return Table(f"{metric} by group", ("engine", "model", "SKU", "mode", "group", *_SCORE_COLUMNS), cells)


def figure_tables(board: Scoreboard) -> tuple[Table, ...]:
    """Percentiles and means beside the mean TTFT and TPOT, by class; nothing where none was measured."""
    rows = []
    for kind in ServingClass:
        of_class = [each for each in board.predictions if serving_class(each.point) is kind]
        for name in figure_names(of_class):
            errors = score_of((each.figure_error(name), each.tpot_s is not None) for each in of_class)
            if errors is not None:
                rows.append((kind.value, name, *_score_cells(errors)))
    if not rows:
        return ()
    note = "No engine constant was fitted to these figures."
    return (Table("Percentiles and E2E", ("class", "figure", *_SCORE_COLUMNS), tuple(rows), note),)


def figure_names(predictions: Iterable[Prediction]) -> list[str]:
    """Further figures that were measured, by metric and percentile."""
    found = {figure.name: figure for prediction in predictions for figure in prediction.point.figures}
    order = list(Metric)
    return sorted(found, key=lambda name: (order.index(found[name].metric), found[name].percentile or 0.0))


def markdown(board: Scoreboard) -> str:
    """The scoreboard as Markdown, without a heading of its own."""
    sections = [headline(board), *(_markdown_table(table) for table in tables(board))]
    lines = failures(board)
    if lines:
        sections.append("### Runs without a prediction\n\n" + "\n".join(f"- {_escaped(line)}" for line in lines))
    return "\n\n".join(sections)


def _markdown_table(table: Table) -> str:
    rules = ["---:" if numeric else "---" for numeric in table.numeric]
    lines = ["| " + " | ".join(map(_escaped, cells)) + " |" for cells in (table.columns, rules, *table.rows)]
    return "\n\n".join([f"### {table.title}", "\n".join(lines), *([table.note] if table.note else [])])


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def write_between_marks(path: str | Path, text: str) -> None:
    """Replace what lies between the marks of a Markdown file. Raises InputError when it has none."""
    before, after = text_around_marks(path)
    try:
        write_whole(path, f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")
    except OSError as error:
        raise InputError("--write", str(path), f"cannot be written: {error.strerror}", "choose another file") from None


def text_around_marks(path: str | Path) -> tuple[str, str]:
    """The text before and after a scoreboard. Raises InputError where a file cannot be read or has no marks."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        bound = f"cannot be read ({type(error).__name__})"
        raise InputError("--write", str(path), bound, "give a Markdown file with the two marks") from None
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise InputError("--write", str(path), f"has no {BEGIN} ... {END}", "put both marks where the tables go")
    return before, after


# --- details --------------------------------------------------------------------------------------------------------


def details_csv(board: Scoreboard) -> str:
    """One line per run: what it was, what was measured and predicted, how it was played, what was not known."""
    lines = [
        _detail_row(prediction, fitted) for prediction, fitted in zip(board.predictions, board.fitted, strict=True)
    ]
    out = io.StringIO()
    columns: list[str] = max((list(line) for line in lines), key=len, default=[])
    writer = csv.DictWriter(out, fieldnames=columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()


def _detail_row(prediction: Prediction, fitted: bool) -> dict[str, object]:
    point = prediction.point
    asked, played = ({}, {}) if isinstance(point, RefusedRun) else (_asked_cells(point), _played_cells(point))
    return {
        "source_id": point.id,
        "measured_on": point.measured_on,
        "settings_id": point.settings_id,
        "engine": point.engine,
        "model": point.model,
        "sku": point.sku,
        "precision": point.precision,
        "class": serving_class(point).value,
        "group": "fitted" if fitted else "held out",
        **asked,
        "measured_ttft_ms": _ms(point.mean_ttft_s),
        "predicted_ttft_ms": _ms(prediction.ttft_s),
        "ttft_low_ms": _ms(_bound(prediction, Metric.TTFT, 0)),
        "ttft_high_ms": _ms(_bound(prediction, Metric.TTFT, 1)),
        "ttft_error": _rounded(prediction.ttft_error),
        "measured_tpot_ms": _ms(point.mean_tpot_s),
        "predicted_tpot_ms": _ms(prediction.tpot_s),
        "tpot_low_ms": _ms(_bound(prediction, Metric.TPOT, 0)),
        "tpot_high_ms": _ms(_bound(prediction, Metric.TPOT, 1)),
        "tpot_error": _rounded(prediction.tpot_error),
        "measured_output_tokens_per_s": _rounded(prediction.measured_output_rate_per_s),
        "predicted_output_tokens_per_s": _rounded(prediction.output_rate_per_s),
        "output_rate_error": _rounded(prediction.output_rate_error),
        **played,
        "reason": prediction.reason,
    }


def _asked_cells(point: ServingPoint) -> dict[str, object]:
    """Requests that the client sent."""
    return {
        "input_tokens": point.input_tokens,
        "output_tokens": point.output_tokens,
        "range_ratio": point.range_ratio,
        "range_top": point.range_top,
        "concurrency": point.concurrency,
        "request_rate_per_s": point.request_rate_per_s,
        "requests": point.requests,
    }


def _played_cells(point: ServingPoint) -> dict[str, object]:
    """Settings that the run was played with, and those that were not stated."""
    return {
        "servers": "; ".join(map(_server, point.servers)),
        "draft_tokens": point.draft_tokens,
        "kv_cache": str(point.kv_cache),
        "moe_backend": point.moe_backend,
        **point.schedule.model_dump(),
        "unknown": " ".join(point.unknown),
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(1e3 * seconds, 4)


def _bound(prediction: Prediction, metric: Metric, side: int) -> float | None:
    """One end of a mean's 90 % interval [s]; None without a prediction or a calibration."""
    interval = prediction.intervals_s.get(metric)
    return None if interval is None else interval[side]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 5)


def _server(server: WorkerSettings) -> str:
    memory = "" if server.memory_fraction is None else f", memory {server.memory_fraction:g}"
    limits = f"{server.max_batched_tokens} tokens, {server.max_running_requests} requests"
    return f"{server.workers} x {server.parallelism.label}: {limits}{memory}"
