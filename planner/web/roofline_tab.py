"""The tab *Roofline*: what a step waits for, and if another batch or another GPU would help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter

import streamlit as st

from hardware_db import sku_words
from planner.charts import PlannedPool, Row, reasons, replicas, rooflines, steps
from planner.core import Columns, Table, number_of, percent, rough_share, significant
from planner.engine import ReplicaConfig
from planner.fleet import Progress
from planner.report import glossary
from planner.roofline import Bound, compute_dtype
from planner.search import PoolOnSku, on_sku
from planner.serving import PoolModel, Role
from planner.web import components, fields, results, roofline_memory
from planner.web.components import MetricCard
from planner.web.results import Page

ROOF_WIDTH_PX = 325
"""Width of one roof among several, three in a row on a wide page."""
BOUND_WORDS = {
    Bound.COMPUTE: "its arithmetic units",
    Bound.MEMORY: "its memory bandwidth",
    Bound.LINK: "the links between GPUs",
    Bound.OVERHEAD: "the serving engine",
}
"""Resources that a step waits for, in words."""
HINTS = glossary.hints_of("roofline")


def show(page: Page) -> None:
    """The tab: one section at a time."""
    chosen = components.choose_one(**fields.widget("roofline-section"), options=list(SECTIONS))
    SECTIONS[chosen](page)


def _show_memory(page: Page) -> None:
    """Memory of a GPU of one server, of the plan or, without one, of the model on the first GPU of the search."""
    if not page.plan.feasible:
        roofline_memory.show(page, roofline_memory.unplanned_server(page))
        return
    chosen = _choose_pool(page)
    planned = roofline_memory.planned_server(page, chosen.pool.config, chosen.planned.workload)
    roofline_memory.show(page, planned)


def _show_replica(page: Page) -> None:
    """Resources that steps wait for, and the same on every GPU."""
    if not page.plan.feasible:
        st.info("There is no fleet whose steps could be shown. What would help is listed above.")
        return
    with st.container(horizontal=True):
        chosen = _choose_pool(page)
        fitted = _replicas_on_skus(page, chosen)
        replica = _choose_sku(chosen, fitted)
        running = _choose_batch(chosen)
    rows = replicas.sku_rows(fitted, running)
    best = gpu_verdict(rows, chosen.pool.config.sku.id, chosen.pool.role)
    if replica.model is None:
        st.warning(
            components.plain(
                f"The same replica does not fit on {replica.sku}: {_reason_alone(replica.reason)}. Choose another GPU."
            )
        )
        components.bullets([best] if best else [])
    else:
        _show_steps(replica.model, chosen, running, best)
    _show_gpus(page, chosen, fitted, rows, running)


SECTIONS = {"Steps": _show_replica, "Memory of one server": _show_memory}


def _reason_alone(reason: str) -> str:
    """Why something does not fit, without the name of the replica in front."""
    return reason.rsplit(": ", maxsplit=1)[-1]


# --- choices ----------------------------------------------------------------------------------------------------------


def pools_of(page: Page) -> list[PlannedPool]:
    """Every pool of the plan, the one with the most GPUs first."""
    return sorted(reasons.pools_of(page.plan), key=lambda chosen: -chosen.pool.gpus)


def _choose_pool(page: Page) -> PlannedPool:
    pools = pools_of(page)
    if len(pools) == 1:
        return pools[0]
    index = st.selectbox(
        **fields.widget("roofline-pool", key=f"roofline-pool-{'-'.join(pool.name for pool in pools)}"),
        options=range(len(pools)),
        format_func=lambda index: pools[index].name,
    )
    return pools[index or 0]


def _choose_sku(chosen: PlannedPool, fitted: Sequence[PoolOnSku]) -> PoolOnSku:
    own = chosen.pool.config.sku.id
    names = [replica.sku for replica in fitted]
    sku = st.selectbox(
        **fields.widget("roofline-gpu", key=f"roofline-sku-{chosen.name}"),
        options=names,
        index=names.index(own),
        format_func=lambda name: f"{name} (planned)" if name == own else name,
    )
    return next(replica for replica in fitted if replica.sku == (sku or own))


def _choose_batch(chosen: PlannedPool) -> float:
    """Sequences of the decode step: at first the planned mean; a prefill pool has no such choice."""
    if chosen.pool.role is Role.PREFILL:
        return 1.0
    planned = max(1, round(chosen.running))
    batch = st.number_input(
        **fields.widget("roofline-requests-in-the-decode-step", key=f"roofline-batch-{chosen.name}-{planned}"),
        value=planned,
    )
    return float(batch)


def _replicas_on_skus(page: Page, chosen: PlannedPool) -> tuple[PoolOnSku, ...]:
    """The pool on every SKU of the search, its own first."""
    own = chosen.pool.config.sku.id
    skus = tuple(dict.fromkeys((own, *page.request.search.skus)))

    def compute(progress: Progress) -> tuple[PoolOnSku, ...]:
        fitted = []
        for sku in skus:
            progress(sku)
            lengths, calibrated = chosen.planned.workload.lengths, page.request.search.calibrated
            fitted.append(on_sku(chosen.pool, lengths, sku, page.hardware, calibrated=calibrated))
        return tuple(fitted)

    key = ("roofline on every SKU", page.key, page.plan.simulated, chosen.name, chosen.planned.option.name)
    return results.compute_once(key, compute, "Timing the replica on every GPU")


# --- what a step waits for, and another batch -------------------------------------------------------------------------


def _show_steps(model: PoolModel, chosen: PlannedPool, running: float, best: str) -> None:
    config, role = model.pool.config, model.pool.role
    shapes = rooflines.steps_of(model.pool, running, model.costs)
    by_step = {name: steps.step_rows(model, shape) for name, shape in shapes.items()}
    components.bullets([*verdict(model, by_step, running), *([best] if best else [])])
    components.metric_cards(_metric_cards(model, running), "roofline")
    for number, (name, rows) in enumerate(by_step.items()):
        parts = f"Parts of a {steps.step_phrase(name)} on {config.words}"
        with st.expander(components.plain(parts), expanded=number == 0):
            components.chart(steps.step_chart(rows, name, config.words), rows, parts, f"roofline-step-{number}")
    points = rooflines.roofline_rows(config, shapes)
    components.chart(
        rooflines.roofline(config, shapes), points, f"Operators on the roof of {config.words}", "roofline-points"
    )
    sweep = steps.batch_rows(model, running)
    planned = chosen.running if config.sku.id == chosen.pool.config.sku.id else 0.0
    marks = steps.batch_marks(model, planned, running)
    name = f"Batch sweep of {config.words}"
    times = steps.batch_time_chart(sweep, marks, config.words, role, chosen.planned.slo)
    tokens = steps.batch_throughput_chart(sweep, marks, config.words, role)
    with st.expander("Time and tokens at every batch"):
        components.chart(times, sweep, name, "roofline-batch-time")
        components.chart(tokens, sweep, f"{name}, tokens", "roofline-batch-tokens")


def verdict(model: PoolModel, by_step: Mapping[str, Sequence[Row]], running: float) -> list[str]:
    """The answer in sentences: what each step waits for, what would shorten it, and what twice the batch would do.

    Args:
        model: the pool.
        by_step: rows of `steps.step_rows` by the name of the step.
        running: sequences of the decode step.
    """
    lines = []
    for name, rows in by_step.items():
        bound = next(iter(steps.bound_shares(rows)))
        meaning = reasons.BOUND_MEANINGS[bound]
        lines.append(f"On {model.pool.config.words} {waiting_in_words(name, rows)}: {meaning}.")
    if model.pool.role is Role.PREFILL:
        return lines
    now, twice = steps.decode_row(model, running), steps.decode_row(model, 2.0 * running)
    longer = twice["step_ms"] / now["step_ms"] - 1.0
    more = twice["tokens_per_s_per_gpu"] / now["tokens_per_s_per_gpu"] - 1.0
    text = f"Twice the batch would take {percent(longer)} longer and give {percent(more)} more tokens per second"
    return [*lines, text + (" (decode steps alone)." if twice["fits"] else ", but its KV cache does not fit.")]


def waiting_in_words(name: str, rows: Sequence[Row]) -> str:
    """Time of a step and what it waits for, as a clause; arguments as `steps.step_chart`."""
    (bound, share), *rest = steps.bound_shares(rows).items()
    also = ", ".join(
        f"{_share(other_share)} for {BOUND_WORDS[other]}" for other, other_share in rest if other_share >= 0.01
    )
    took = f"a {steps.step_phrase(name)} takes {significant(rows[-1]['end_ms'])} ms"
    return f"{took} and waits mostly for {BOUND_WORDS[bound]} ({_share(share)}{f'; {also}' if also else ''})"


def _share(share: float) -> str:
    """A share of a step in whole percents: operators are not known any better."""
    return rough_share(share, 0.005, 0.0)


def gpu_verdict(rows: Sequence[Row], own: str, role: Role) -> str:
    """Which SKU has the shortest step, in words; arguments as `sku_table`, `own` the id of the planned SKU."""
    field, step = ("prefill_ms", "prefill step") if role is Role.PREFILL else ("decode_ms", "decode step")
    there = [row for row in rows if row[field] is not None]
    mine = next((row for row in there if row["sku"] == own), None)
    best = min(there, key=lambda row: row[field], default=None)
    if mine is None or best is None or len(rows) == 1:
        return ""
    if best is mine:
        return f"No other GPU of the search has a shorter {step} than {sku_words(own)} (prices aside)."
    saved = 1.0 - best[field] / mine[field]
    text = (
        f"Of the GPUs of the search {sku_words(best['sku'])} has the shortest {step}: {significant(best[field])} ms, "
    )
    return f"{text}{percent(saved)} less than {sku_words(own)} (prices aside)."


def _metric_cards(model: PoolModel, running: float) -> list[MetricCard]:
    config = model.pool.config
    source = f"Predicted; kernel times: {replicas.timed_by(config)}."

    def step_card(label: str, row: Row, hint: str) -> MetricCard:
        low, high = row["low_ms"], row["high_ms"]
        ends = f"{interval_text(low, high)} ms (90 %)" if has_width(low, high) else ""
        hint = f"{HINTS[f'{label} [ms]']} {hint}{source} The interval is that of its kernels' fits."
        return MetricCard(label, f"{significant(row['step_ms'])} ms", hint, ends)

    cards = []
    if model.pool.role is not Role.PREFILL:
        row = steps.decode_row(model, running)
        tokens, hint = significant(row["tokens_per_s_per_gpu"]), f"{HINTS['Tokens/s per GPU']} {source}"
        cards.append(step_card("Decode step", row, ""))
        cards.append(MetricCard("Output tokens/s per GPU", tokens, hint, "decode steps alone"))
    if model.pool.role is not Role.DECODE:
        most = config.max_batched_tokens
        cards.append(step_card("Prefill step", steps.prefill_row(model, most), f"Here {number_of(most, 'token')}. "))
    dtype = compute_dtype(config.precision.activations, config.sku)
    rows = rooflines.ridge_rows([config.sku], {dtype: config.precision.weights})
    least = next(row["compute_bound_tokens"] for row in rows if row["dtype"] == dtype.value)
    hint = f"{HINTS['Compute-bound from [tokens]']} {config.precision.weights} weights, {dtype} arithmetic."
    return [*cards, MetricCard("Weights compute-bound from", number_of(round(least), "token"), hint, "in one step")]


def interval_text(low_ms: float, high_ms: float) -> str:
    """Both ends of an interval as text [ms]."""
    return f"{significant(low_ms)} to {significant(high_ms)}"


def has_width(low: float, high: float) -> bool:
    """True if an interval is more than a point, that is, something was measured."""
    return high > low * (1.0 + 1e-9)


# --- another GPU ------------------------------------------------------------------------------------------------------


def _show_gpus(
    page: Page, chosen: PlannedPool, fitted: Sequence[PoolOnSku], rows: Sequence[Row], running: float
) -> None:
    own = chosen.pool.config
    split = own.parallelism.label
    with st.expander("The same replica on every GPU"):
        if memory := replicas.memory_rows(fitted):
            picture, label = replicas.memory_chart(memory, own.sku.id, split), f"Memory of one GPU of a {split} replica"
            components.chart(picture, memory, label, "roofline-memory")
        components.table(sku_table(rows, own, chosen.pool.role, running), "roofline-skus", HINTS)
    _show_roofs(chosen, fitted, rows, running)
    with st.expander("Where the roof of each GPU bends"):
        _show_ridges(page, own, fitted)


def _show_ridges(page: Page, own: ReplicaConfig, fitted: Sequence[PoolOnSku]) -> None:
    """Peaks and bandwidths, of the planned number format or of every one."""
    every = st.toggle(**fields.widget("roofline-formats"))
    skus = [page.hardware.skus[replica.sku] for replica in fitted]
    ridges: list[Row] = []
    for sku in skus:
        planned = compute_dtype(own.precision.activations, sku)
        sku_ridges = rooflines.ridge_rows([sku], {planned: own.precision.weights})
        ridges += [row for row in sku_ridges if every or row["dtype"] == planned.value]
    components.table(ridge_table(ridges), "roofline-ridges", HINTS)


def _show_roofs(chosen: PlannedPool, fitted: Sequence[PoolOnSku], rows: Sequence[Row], running: float) -> None:
    """The same steps under the roof of every SKU that they fit on."""
    models = {replica.sku: replica.model for replica in fitted if replica.model is not None}
    if len(models) < 2:
        return
    own = chosen.pool.config.sku.id
    names = {sku: sku_words(sku) + " (planned)" * (sku == own) for sku in models}
    configs = {names[sku]: model.pool.config for sku, model in models.items()}
    points = {
        names[sku]: rooflines.roofline_rows(model.pool.config, rooflines.steps_of(model.pool, running, model.costs))
        for sku, model in models.items()
    }
    subtitles = {names[row["sku"]]: roof_in_words(row) for row in rows if row["sku"] in names}
    pictures = rooflines.rooflines_side_by_side(configs, points, subtitles)
    with st.expander("The same steps under the roof of every GPU"), st.container(horizontal=True):
        for number, (name, picture) in enumerate(pictures.items()):
            with st.container(width=ROOF_WIDTH_PX):
                components.chart(picture, points[name], f"Operators on the roof of {name}", f"roofline-roof-{number}")


def roof_in_words(row: Row) -> tuple[str, str]:
    """Times of the steps of a row of `replicas.sku_rows`, and what the first of them waits for, in two lines."""
    named = (("decode", row["decode_ms"]), ("prefill", row["prefill_ms"]))
    took = ", ".join(f"{name} {significant(ms)} ms" for name, ms in named if ms is not None)
    kind = "decode " if all(ms is not None for _, ms in named) else ""
    return took, f"{kind}waits for {row['waits_for']} ({_share(row['waits_share'])})"


def sku_table(rows: Sequence[Row], own: ReplicaConfig, role: Role, running: float) -> Table:
    """Rows of `replicas.sku_rows` as a table; columns that a role has no use for are left out."""
    main = "Prefill step [ms]" if role is Role.PREFILL else "Decode step [ms]"
    other = ("Prefill step [ms]",) if role is Role.MIXED else ()
    columns = ("GPU", main, "90 % interval [ms]", *other)
    columns += ("Waits for", "Tokens/s per GPU", "Requests at once", "Kernel times")
    cells = []
    note = "The same model, number formats, parallelism and limits on every GPU, prices aside."
    for row in rows:
        low, high, fits = row["low_ms"], row["high_ms"], row["waits_for"] is not None
        shown = {
            "GPU": sku_words(row["sku"]) + " (planned)" * (row["sku"] == own.sku.id),
            "Decode step [ms]": _number_cell(row["decode_ms"]),
            "90 % interval [ms]": interval_text(low, high) if fits and has_width(low, high) else "-",
            "Prefill step [ms]": _number_cell(row["prefill_ms"]),
            "Waits for": f"{row['waits_for']} ({_share(row['waits_share'])})" if fits else "-",
            "Tokens/s per GPU": _number_cell(row["tokens_per_s_per_gpu"]),
            "Requests at once": _number_cell(row["requests"]),
            "Kernel times": row["timed_by"] if fits else "does not fit",
        }
        cells.append(tuple(shown[name] for name in columns))
        note += f" {sku_words(row['sku'])} does not fit: {_reason_alone(row['reason'])}." if row["reason"] else ""
    what = f"a decode step of {number_of(round(running), 'request')}" if role is not Role.PREFILL else "a prefill step"
    return Table(f"The same {own.parallelism.label} replica on every GPU: {what}", columns, tuple(cells), note)


def _number_cell(value: float | None) -> str:
    return "-" if value is None else significant(float(value))


def ridge_table(rows: Sequence[Row]) -> Table:
    """Rows of `rooflines.ridge_rows` as a table."""
    columns: Columns[Row] = {
        "GPU": lambda row: sku_words(row["sku"]),
        "Number format": itemgetter("dtype"),
        "Weights stored as": itemgetter("weights"),
        "Peak [TFLOP/s]": lambda row: significant(row["peak_flops_per_s"] / 1e12, 4),
        "Bandwidth [TB/s]": lambda row: significant(row["bandwidth_bytes_per_s"] / 1e12),
        "Ridge [FLOP/byte]": lambda row: significant(row["ridge_flops_per_byte"]),
        "Compute-bound from [tokens]": lambda row: f"{row['compute_bound_tokens']:,.0f}",
        "Kind": itemgetter("peak_kind"),
        "Read on": itemgetter("peak_retrieved_on"),
    }
    both = {"Source of the peak": itemgetter("peak_source"), "Source of the bandwidth": itemgetter("bandwidth_source")}
    one_source = all(row["peak_source"] == row["bandwidth_source"] for row in rows)
    sources = {"Source": itemgetter("peak_source")} if one_source else both
    note = "Below the ridge work waits for memory, above it for compute."
    return Table.of("Where the roof of each GPU bends", rows, {**columns, **sources}, note)
