"""The section *Memory of one server* of the tab *Roofline*: memory of a GPU as it starts, or why it does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import streamlit as st

from calibration import StartupLog, log_table, memory_of_log, read_startup_log
from hardware_db import HardwareDb, sku_words
from planner.charts import server_memory_chart, server_memory_rows
from planner.core import PlannerError, Table, percent, rebuilt
from planner.engine import (
    ReplicaConfig,
    StartFix,
    StartUp,
    formats_of,
    formats_table,
    memory,
    memory_headline,
    memory_parts,
    memory_tables,
    request_limit,
    start_up,
    start_up_probability,
)
from planner.llm import LlmSpec, Precision, checkpoints_of, format_words
from planner.report import glossary
from planner.roofline import Parallelism
from planner.web import components, fields, results
from planner.web.components import MetricCard
from planner.web.results import Page
from planner.workload import Workload

MAX_TP = 16
"""Most GPUs that layers are split over here: two servers. A choice."""
INPUT_WIDTH_PX, GPU_WIDTH_PX, FORMAT_WIDTH_PX = 160, 240, 336
"""Widths of the inputs: two in a row on a phone; of the ones with names of GPUs and of checkpoints."""
ENGINES_OWN = "engine's"
"""Where a limit is left to the engine."""
HINTS = glossary.hints_of("memory")


CHOSEN_LIMITS = ("memory_fraction", "max_request_tokens", "max_running_requests", "max_batched_tokens")
"""Limits of a replica that the inputs decide, beside its GPU, format and split; the rest is the plan's."""
NUMBERS = ("memory_fraction", "max_request_tokens", "max_running_requests", "max_batched_tokens", "at_tokens")
"""Fields with a number input."""


@dataclass(frozen=True)
class ShownServer:
    """The server that the section starts from.

    Attributes:
        llm: the model.
        skus: ids of GPUs to choose from, the first one at first.
        engine: id of its profile.
        parallelism: of the replica.
        precision: number formats.
        limits: `CHOSEN_LIMITS` by name; None leaves one to the engine.
        eager: no captured graphs.
        mean_tokens: of a request of the traffic, input and output [tokens].
        planned: the replica of the plan; None without a plan.
    """

    llm: LlmSpec
    skus: tuple[str, ...]
    engine: str
    parallelism: Parallelism
    precision: Precision
    limits: Mapping[str, float | None]
    eager: bool
    mean_tokens: int
    planned: ReplicaConfig | None = None

    def settings(self, hardware: HardwareDb) -> dict[str, Any]:
        """Arguments of `memory`, but for model, GPU and format."""
        return {
            **{name: getattr(self.parallelism, name) for name in ("tp", "pp", "dp", "ep")},
            "engine": self.engine,
            "engine_version": None if self.planned is None else self.planned.engine_version,
            **self.limits,
            "eager": self.eager,
            "hardware": hardware,
        }

    def started(self, hardware: HardwareDb) -> StartUp:
        """How it starts, on the first of its GPUs. Raises PlannerError."""
        return self.as_planned(memory(self.llm, self.skus[0], precision=self.precision, **self.settings(hardware)))

    def as_planned(self, found: StartUp) -> StartUp:
        """The same with what else the plan gives its replica: drafts, adapters, a schedule."""
        if self.planned is None:
            return found
        config, own = found.replica, self.planned.own_schedule
        if self.eager != (self.planned.schedule.captured_decodes == 0):
            own = self.planned.schedule.model_copy(update={"captured_decodes": config.schedule.captured_decodes})
        names = ("sku", "engine_version", "parallelism", "precision", *CHOSEN_LIMITS)
        changes = {name: getattr(config, name) for name in names}
        return start_up(rebuilt(self.planned, **changes, own_schedule=own, calibration=None))


def planned_server(page: Page, config: ReplicaConfig, workload: Workload) -> ShownServer:
    """The replica of a pool, told the limits that exports write.

    Args:
        page: the page.
        config: of the pool.
        workload: that is routed to it.
    """
    lengths = workload.lengths
    limits = {name: getattr(config, name) for name in CHOSEN_LIMITS}
    return ShownServer(
        config.llm,
        _sku_ids(page, config.engine.id, config.sku.id),
        config.engine.id,
        config.parallelism,
        config.precision,
        limits | {"max_request_tokens": request_limit(config, lengths.max_total).tokens},
        config.schedule.captured_decodes == 0,
        round(lengths.mean_input + lengths.mean_output),
        config,
    )


def unplanned_server(page: Page) -> ShownServer:
    """Where there is no fleet: the model on the first GPU of the search, on as few GPUs of it as it starts on."""
    request, search = page.request, page.request.search
    lengths = request.workload.lengths
    given = {"memory_fraction": search.memory_fraction, "max_request_tokens": request.max_request_tokens}
    server = ShownServer(
        request.llm,
        _sku_ids(page, search.engine, search.skus[0]),
        search.engine,
        Parallelism(),
        request.precision,
        dict.fromkeys(CHOSEN_LIMITS) | given,
        search.eager,
        round(lengths.mean_input + lengths.mean_output),
    )
    for tp in sorted(search.tp) or _tp_options(1):
        wider = replace(server, parallelism=Parallelism(tp=tp))
        try:
            config = wider.started(page.hardware).replica
            longest = request_limit(config, lengths.max_total).tokens
            told = replace(wider, limits={**wider.limits, "max_request_tokens": longest})
            if told.started(page.hardware).starts:
                return told
        except PlannerError:
            continue
    return server


def _sku_ids(page: Page, engine: str, first: str) -> tuple[str, ...]:
    """GPUs that an engine runs on: the first one, those of the search, then all others."""
    vendors = page.hardware.engines[engine].vendors
    there = [sku.id for sku in page.hardware.skus.values() if not vendors or sku.vendor in vendors]
    return tuple(dict.fromkeys((first, *(sku for sku in page.request.search.skus if sku in there), *sorted(there))))


def _tp_options(planned: int) -> list[int]:
    return sorted({planned, *(2**power for power in range(MAX_TP.bit_length()))})


# --- the section ------------------------------------------------------------------------------------------------------


def show(page: Page, server: ShownServer) -> None:
    """The section; errors stand in the place of what cannot be shown."""
    shown = (server.llm.id, server.skus, server.engine, server.parallelism, server.precision)
    mark = results.name_of((*shown, tuple(server.limits.values()), server.eager, server.mean_tokens))
    keys = {name: f"memory-{name}-{mark}" for name in ("sku", "parallelism.tp", "precision", *NUMBERS, "eager")}
    chosen, at_tokens = _choose(server, keys)
    with components.errors_in_place():
        _show_found(chosen.started(page.hardware), at_tokens, keys)
    _show_formats(page, chosen)
    _show_log(page, chosen)


def _choose(server: ShownServer, keys: Mapping[str, str]) -> tuple[ShownServer, int]:
    """The server as the inputs have it, and the length at which the largest batch is asked for.

    Args:
        server: that the inputs start from.
        keys: of the inputs by the name that a `StartFix` gives them.
    """
    formats, split = _formats(server), server.parallelism
    begin = {"sku": server.skus[0], "parallelism.tp": split.tp, "precision": 0, "eager": server.eager}
    for field, value in (begin | dict(server.limits) | {"at_tokens": server.mean_tokens}).items():
        st.session_state.setdefault(keys[field], value)
    planned = " (planned)" if server.planned is not None else ""
    longest = server.llm.max_context_tokens
    with st.container(horizontal=True):
        sku = st.selectbox(
            **fields.widget("roofline-memory-gpu-of-the-server", key=keys["sku"]),
            options=server.skus,
            format_func=lambda name: f"{sku_words(name)}{planned if name == server.skus[0] else ''}",
            width=GPU_WIDTH_PX,
        )
        place = st.selectbox(
            **fields.widget("roofline-memory-format", key=keys["precision"]),
            options=range(len(formats)),
            format_func=lambda place: formats[place][0],
            width=FORMAT_WIDTH_PX,
        )
        tp = st.selectbox(
            **fields.widget("roofline-memory-gpus-per-layer-tp", key=keys["parallelism.tp"]),
            options=_tp_options(split.tp),
            width=INPUT_WIDTH_PX,
        )
        given: dict[str, Any] = {}
        for field in NUMBERS:
            of_model = {"max_value": longest, "placeholder": f"{longest:,}"} if field == "max_request_tokens" else {}
            options: dict[str, Any] = {"min_value": 1, "placeholder": ENGINES_OWN, **of_model}
            options |= fields.widget(f"memory-{field}", key=keys[field], width=INPUT_WIDTH_PX)
            given[field] = st.number_input(value=None, persist_state="session", **options)
    eager = components.switch("Eager (no captured graphs)", keys["eager"], "vLLM's enforce_eager.")
    tp = tp or split.tp
    whole = split.ep > 1 and split.ep == split.tp * split.dp
    at_tokens = given.pop("at_tokens") or server.mean_tokens
    chosen = replace(
        server,
        skus=(sku or server.skus[0],),
        parallelism=split.model_copy(update={"tp": tp, "ep": tp * split.dp if whole else split.ep}),
        precision=formats[place or 0][1],
        limits=given,
        eager=eager,
    )
    return chosen, at_tokens


def _formats(server: ShownServer) -> list[tuple[str, Precision]]:
    """Names and number formats to choose from, the server's first."""
    own, first = server.precision, "as planned" if server.planned is not None else "as chosen"
    cache = f", {own.kv_cache.value.upper()} KV cache" if own.kv_cache != server.llm.native_precision.kv_cache else ""
    found = [(f"{format_words(server.llm, own)}{cache} ({first})", own)]
    for checkpoint in checkpoints_of(server.llm):
        where = f"{checkpoint.repository}{', made on loading' if checkpoint.made_on_load else ''}"
        found.append((f"{format_words(server.llm, checkpoint.precision)}: {where}", checkpoint.precision))
    return found


# --- what a GPU holds -------------------------------------------------------------------------------------------------


def _show_found(found: StartUp, at_tokens: int, keys: Mapping[str, str]) -> None:
    headline = components.plain(memory_headline(found))
    if found.starts:
        st.markdown(f"**{headline}**")
    else:
        st.warning(headline, icon=":material/block:")
        _show_fixes(found.fixes, keys)
    parts, cache = memory_tables(found, at_tokens)
    components.metric_cards(metric_cards(found, at_tokens, cache), "memory")
    rows = server_memory_rows(memory_parts(found), found.seen_bytes)
    config = found.replica
    picture = server_memory_chart(
        rows, f"{config.llm.id} on {config.words}{'' if found.starts else ': does not start'}."
    )
    components.chart(picture, rows, f"Memory of one GPU of {config.words}", "memory-picture")
    # Without the bars of the terminal, which the picture draws.
    bare = components.with_columns(parts, lambda place: bool(parts.columns[place]))
    components.table(bare, "memory-parts", HINTS)
    components.table(cache, "memory-cache", HINTS)


def _show_fixes(fixes: Sequence[StartFix], keys: Mapping[str, str]) -> None:
    """Each as a button that sets the input it is about."""
    if not fixes:
        st.caption("No change of one setting makes it start: another GPU or format may.")
        return
    st.markdown("**Each of these makes it start**")
    with st.container(horizontal=True):
        for fix in fixes:
            value = fix.value if fix.field == "memory_fraction" else int(fix.value)
            st.button(
                components.plain(fix.words),
                key=f"memory-fix-{fix.field}",
                on_click=partial(st.session_state.__setitem__, keys[fix.field], value),
                icon=":material/build:",
            )


def metric_cards(found: StartUp, at_tokens: int, cache: Table) -> list[MetricCard]:
    """The server in four numbers.

    Args:
        found: how it starts.
        at_tokens: length of the requests of the largest batch [tokens].
        cache: the second of `memory_tables`, whose words explain the numbers.
    """
    words, many = (str(row[0]) for row in cache.rows[:2])
    longest = found.replica.longest_tokens
    return [
        MetricCard.named("card-roofline-memory-starts-with", percent(start_up_probability(found)), "probability"),
        MetricCard(
            "Tokens of KV cache",
            f"{found.kv_tokens:,}",
            f"Tokens that the KV cache of the server holds. In the log of {found.replica.engine.name}: {words}.",
            words,
        ),
        MetricCard(
            "Longest requests at once",
            f"{found.concurrency:,.2f}",
            f"How many requests of {longest:,} tokens fit in the cache at once. In the log: {many}.",
            f"of {longest:,} tokens",
        ),
        MetricCard.named(
            "card-roofline-memory-largest-batch", f"{found.batch_of(at_tokens):,}", f"of {at_tokens:,} tokens each"
        ),
    ]


# --- formats and logs -------------------------------------------------------------------------------------------------


def _show_formats(page: Page, chosen: ShownServer) -> None:
    """Every checkpoint of the model on the same server; worked out once it is looked at."""
    folded = st.expander("All formats side by side", key=f"memory-formats-{chosen.llm.id}", on_change="rerun")
    if not folded.open:
        return
    found = formats_of(chosen.llm, chosen.skus[0], **chosen.settings(page.hardware))
    shown = [(name, one if isinstance(one, PlannerError) else chosen.as_planned(one)) for name, one in found]
    with folded:
        components.table(formats_table(shown), "memory-formats", HINTS, numbered_notes=True)


def _show_log(page: Page, chosen: ShownServer) -> None:
    """A start-up log beside the prediction for the server that it is of."""
    files = components.uploaded_files("memory-log", components.MAX_UPLOAD_BYTES, kept=True)
    with components.errors_in_place():
        for name, content in components.require_small(files, components.MAX_UPLOAD_BYTES):
            said = read_startup_log(content.decode("utf-8", errors="replace"))
            found = memory_of_log(said, chosen.llm, chosen.skus[0], **_beside(chosen, said, page.hardware))
            st.caption(components.plain(log_words(name, said, found)))
            components.table(log_table(found, said), "memory-log-table", HINTS)


def _beside(chosen: ShownServer, said: StartupLog, hardware: HardwareDb) -> dict[str, Any]:
    """Settings that a log does not say of its server: the format, and how it is split where the log is silent."""
    split: dict[str, Any] = {} if said.tp is not None else {"tp": chosen.parallelism.tp}
    if (said.tp or chosen.parallelism.tp) == chosen.parallelism.tp:
        split["ep"] = chosen.parallelism.ep
    return {"precision": chosen.precision, "hardware": hardware, **split}


def log_words(name: str, said: StartupLog, found: StartUp) -> str:
    """The server of a log, its prediction, and how the start ended."""
    of = " ".join(word for word in (said.engine, said.version) if word)
    model = f" with {said.model}" if said.model else ""
    config = found.replica
    ended = f" {said.reason}" if said.reason else ""
    return f"{name}: {of}{model}. Predicted: {config.llm.id} on {config.words}, in the format chosen above.{ended}"
