"""The tab *Check*: measurements of a running fleet beside its plan, and the plan that knows them."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import streamlit as st

from hardware_db import HardwareDb
from planner.analysis import RunningFleet, ServedTraffic, WhatIf, compare_running_fleet, what_if
from planner.core import InputError, PlannerError
from planner.fleet import Plan, PlannedDeployment, PlanRequest, Progress
from planner.launch import served_models
from planner.report import glossary
from planner.report import running_fleet as running_report
from planner.report import what_if as what_if_report
from planner.scenario import full_content, measured_changes, scenario_of_text
from planner.serving import MeasuredSteps
from planner.traffic import ServerMetrics, models_in_metrics, read_metrics
from planner.web import bounds, components, fields, results, session
from planner.web.results import Page

INTERVAL, LONGEST, SHOWN = "check-interval", "check-longest", "check-shown"
NOT_WATCHED = "not watched"
INPUT_WIDTH_PX = 235
"""Of the inputs beside the files: two in a row on a tablet, as the metrics above."""
COMMAND = """curl -sG http://prometheus:9090/api/v1/query_range \\
  --data-urlencode 'query={__name__=~"vllm:.*"}' \\
  -d start=2026-11-20T00:00:00Z -d end=2026-11-21T00:00:00Z -d step=300 > day.json"""
HINTS = glossary.hints_of("check")
T = TypeVar("T")
Watched = tuple[str, RunningFleet, ServerMetrics]
"""A model of the plan: its service, how it runs, and the metrics that say so."""


@dataclass(frozen=True)
class Upload:
    """The uploaded files.

    Attributes:
        metrics: read from it, by service of the plan.
        key: tells it from any other upload.
    """

    metrics: Mapping[str, ServerMetrics]
    key: str


def show(page: Page) -> None:
    """Upload, comparison, and what would change."""
    st.caption("A plan is a prediction. Give what its fleet measures of itself, and see what differs, and why.")
    if not page.plan.feasible:
        st.info("No feasible fleet yet, so there is nothing to hold measurements against.")
        return
    files = _show_upload()
    with components.errors_in_place():
        upload = _upload(page.plan, files)
        if upload is not None and upload.metrics:
            watched = _compared(page, upload)
            _show_comparison(page, watched)
            _show_next_plan(page, watched, upload)


# --- what is given ----------------------------------------------------------------------------------------------------


def _show_upload() -> components.Files:
    kept = components.uploaded_files("check-files", components.MAX_UPLOAD_BYTES, kept=True, several=True)
    if kept:
        st.caption(components.plain("Read: " + ", ".join(name for name, _ in kept)))
    with st.container(horizontal=True):
        st.number_input(**fields.widget(INTERVAL), value=None, width=INPUT_WIDTH_PX)
        st.number_input(**fields.widget("check-longest-input-tokens", key=LONGEST), width=INPUT_WIDTH_PX)
    if not kept:
        with st.expander("How to get them", icon=":material/terminal:"):
            st.code(COMMAND, language="bash", wrap_lines=True)
            st.markdown("The same on the command line: `planner check plan.json day.json --recalibrate`")
    return kept


def _upload(plan: Plan, files: components.Files) -> Upload | None:
    """Metrics in the files of every model of the plan that is watched; None without files. Raises InputError."""
    kept = components.require_small(files, components.MAX_UPLOAD_BYTES)
    if not kept:
        return None
    digest = hashlib.sha256()
    for name, content in kept:
        digest.update(repr((name, len(content))).encode() + content)
    chosen = _chosen_models(
        plan, _once("check-models", digest.hexdigest(), lambda: models_in_metrics(*(_page(*file) for file in kept)))
    )
    options = {"interval_s": st.session_state.get(INTERVAL), "max_tokens": st.session_state.get(LONGEST)}
    digest.update(repr((chosen, options)).encode())
    read = partial(_metrics, kept, chosen, options)
    return Upload(_once("check-watched", digest.hexdigest(), read), digest.hexdigest())


def _once(place: str, key: str, compute: Callable[[], T]) -> T:
    """A result that a visit keeps until its key changes."""
    known = st.session_state.get(place)
    if known is None or known[0] != key:
        known = st.session_state[place] = (key, compute())
    found: T = known[1]
    return found


def _chosen_models(plan: Plan, found: Sequence[tuple[str, str]]) -> dict[str, tuple[str, str]]:
    """By service of the plan, the engine and the model of the metrics that watch it; those that nothing does left out.

    A model is recognised by the name under which the exports serve it. Where that is not everything there is to say,
    one is asked.
    """
    services = list(dict.fromkeys(one.service for one in plan.deployments))
    if len(services) == len(found) == 1:
        return {services[0]: found[0]}
    several = len({engine for engine, _ in found}) > 1
    options = {
        f"{model} ({engine})" if several and model else model or engine: (engine, model) for engine, model in found
    }
    chosen: dict[str, tuple[str, str]] = {}
    try:
        served = served_models(plan)
    except PlannerError:  # no export of this fleet, which can be watched all the same
        served = dict.fromkeys(services, "")
    with st.container(horizontal=True):
        for service in services:
            names = [NOT_WATCHED, *options]
            known = [name for name, (_, model) in options.items() if model.lower() == served[service].lower() != ""]
            name = st.selectbox(
                components.plain(service),
                names,
                index=names.index(known[0]) if known else 0,
                key=f"check-model-{results.name_of((service, tuple(found)))}",
                persist_state="session",
                help="Which model of the metrics it is. Recognised by the name under which the exports serve it.",
            )
            if name in options:
                chosen[service] = options[name]
    if not chosen:
        st.info("None of the metrics is recognised as a model of the plan. Say above which is which.")
    return chosen


def _metrics(
    files: Sequence[tuple[str, bytes]], chosen: Mapping[str, tuple[str, str]], options: Mapping[str, Any]
) -> dict[str, ServerMetrics]:
    """By service what the files say; of a missing time between them by the label it has here. Raises InputError."""
    try:
        return {
            service: read_metrics(*(_page(*file) for file in files), engine=engine, model=model or None, **options)
            for service, (engine, model) in chosen.items()
        }
    except InputError as error:
        if error.field == "interval_s":
            raise InputError(fields.WIDGETS[INTERVAL]["label"], error.value, error.bound, error.fix) from None
        raise


def _page(name: str, content: bytes) -> io.StringIO:
    """A file as text that knows its name."""
    try:
        page = io.StringIO(content.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise InputError("metrics", name, "is no text", "give JSON of Prometheus, or the text of /metrics") from None
    page.name = name
    return page


# --- beside the plan --------------------------------------------------------------------------------------------------


def _compared(page: Page, upload: Upload) -> list[Watched]:
    """Every model that is watched beside its plan, in the order of the plan."""
    found: list[Watched] = []
    for service, metrics in upload.metrics.items():
        served = tuple(one for one in page.plan.deployments if one.service == service)
        compute = partial(_compare, served, metrics, dict(page.request.measured_steps))
        key = ("check", page.key, service, page.plan.simulated, upload.key)
        found.append((service, results.compute_once(key, compute, "Comparing"), metrics))
    return found


def _compare(
    served: Sequence[PlannedDeployment], metrics: ServerMetrics, known: Mapping[str, MeasuredSteps], _: Progress
) -> RunningFleet:
    traffic = [ServedTraffic(one.deployment, one.workload) for one in served]
    return compare_running_fleet(traffic, served[0].slo, metrics, known)


def _show_comparison(page: Page, watched: Sequence[Watched]) -> None:
    alone = page.request.has_one_model
    _, running, _ = watched[0]
    if alone:
        st.markdown(f"**{components.plain(running_report.headline(running))}**")
    else:
        components.bullets([f"{name}: {running_report.headline(running)}" for name, running, _ in watched])
    if len(watched) > 1:
        shown = components.choose_one("Model", [name for name, _, _ in watched], SHOWN)
        _, running, _ = next(one for one in watched if one[0] == shown)
    components.tables(running_report.tables(running), "check", HINTS)
    pages = [
        running_report.report(running, page.request.name if alone else name, alone).markdown
        for name, running, _ in watched
    ]
    st.download_button(**fields.widget("check-markdown"), data="\n".join(pages))
    if running.measured_steps is not None:
        st.markdown("**Step times**")
        components.bullets(running_report.step_time_lines(running, alone))
    if running.notes:
        st.markdown("**Read with care**")
        components.bullets(running.notes)


# --- the plan that knows it -------------------------------------------------------------------------------------------


def _show_next_plan(page: Page, watched: Sequence[Watched], upload: Upload) -> None:
    st.subheader("What would change?")
    learned = measured_changes(page.request, watched)
    name = f"recalibrate-{upload.key[:12]}"
    label = f"Plan again with {' and '.join(learned)}"
    if not results.requested(label, name, page, "Two plans by theory, each as long as the first."):
        return
    steps, content = [], page.content
    for label, measured in learned.items():
        changed = session.with_changes(content, measured)
        content = full_content(scenario_of_text(json.dumps(changed)))  # with every field, as the widgets show it
        request = results.request_of(json.dumps(content, sort_keys=True))
        bounds.check(content, request)
        steps.append((label, request))
    compute = partial(_plan_again, page.request, tuple(steps), page.hardware, page.plan)
    key = ("recalibrated", page.key, page.plan.simulated, upload.key)
    found = results.compute_once(key, compute, "Planning again")
    st.markdown(f"**{components.plain(what_if_report.headline(found))}**")
    components.tables(what_if_report.tables(found), "recalibrated")
    st.button(**fields.widget("check-use"), on_click=session.replace_scenario, args=(content,))


def _plan_again(
    before: PlanRequest, steps: Sequence[tuple[str, PlanRequest]], hardware: HardwareDb, plan: Plan, progress: Progress
) -> WhatIf:
    return what_if(before, steps, results.replanner(plan, hardware, progress))
