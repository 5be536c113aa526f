"""The tab *Check*: what a running fleet measures of itself beside its plan, and the plan that knows it."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import streamlit as st

from hardware_db import HardwareDb
from planner.analysis import RunningFleet, ServedTraffic, WhatIf, changes, compare_running_fleet
from planner.core import InputError, PlannerError
from planner.fleet import Plan, PlannedDeployment, PlanRequest, Progress
from planner.report import running_fleet as running_report
from planner.report import what_if as what_if_report
from planner.scenario import full_content, measured_changes, scenario_of_text
from planner.serving import MeasuredSteps
from planner.traffic import ServerMetrics, read_metrics
from planner.web import bounds, components, results, session
from planner.web.results import Page
from planner.workload import Slo

MAX_METRICS_BYTES = 20_000_000
"""Largest upload, all files together: a day by five minutes of some hundred series for ten replicas. A choice."""
UPLOAD, INTERVAL, SERVICE = "check-files", "check-interval", "check-service"
INTERVAL_LABEL = "Seconds between scrapes"
FILES = "check-read"
"""Of the state of a visit: names and contents of the files, which stay when another tab is open."""
COMMAND = """curl -sG http://prometheus:9090/api/v1/query_range \\
  --data-urlencode 'query={__name__=~"vllm:.*"}' \\
  -d start=2026-11-20T00:00:00Z -d end=2026-11-21T00:00:00Z -d step=300 > day.json"""
HINTS = {
    "planned": "As the plan has it, at the planned traffic (predicted).",
    "90 % interval": "Where the mean lies with 90 % probability, uncertain as step times are.",
    "at measured traffic": "The same prediction with rate, lengths and prefix hits as the servers measured them.",
    "measured": "By the servers, from when they receive a request.",
    "finding": "As planned: inside the interval. Explained by the traffic: inside once the traffic is as measured.",
    "likeliest": "What alone, taken as measured, moves the plan furthest towards the measurement.",
    "measured / planned": "1 is as planned.",
    "as planned": "Whether the two are alike.",
    "at most": "Threshold of the target (given).",
    "met": "Whether the fleet as it runs keeps the target, as far as the servers say.",
    "quantity": "Of the traffic or of the servers.",
    "mean of": "Which latency.",
    "unit": "Of the values in this row.",
}


@dataclass(frozen=True)
class Upload:
    """What was uploaded.

    Attributes:
        metrics: read from it.
        key: tells it from any other upload.
    """

    metrics: ServerMetrics
    key: str


def show(page: Page) -> None:
    """Upload, comparison, and what would change."""
    st.caption("A plan is a prediction. Give what its fleet measures of itself, and see what differs, and why.")
    if not page.plan.feasible:
        st.info("No feasible fleet yet, so there is nothing to hold measurements against.")
        return
    _show_upload()
    served = _service(page.plan)
    try:
        watched = _watched()
        if watched is not None:
            running = _compared(page, served, watched)
            _show_comparison(page, running)
            _show_next_plan(page, running, watched)
    except PlannerError as error:
        st.error(components.plain(str(error)))


# --- what is given ----------------------------------------------------------------------------------------------------


def _show_upload() -> None:
    left, right = st.columns([3, 1], gap="large")
    with left:
        st.file_uploader(
            "Metrics of the servers (vLLM, SGLang, TensorRT-LLM, Dynamo)",
            type=["json", "txt", "prom"],
            accept_multiple_files=True,
            max_upload_size=components.whole_megabytes(MAX_METRICS_BYTES),
            key=UPLOAD,
            on_change=_keep_files,
            help="Answers of Prometheus (JSON), or one or two scrapes of /metrics in the order of their names; of "
            "every replica of one model. Read in memory, for this visit only.",
        )
        kept = st.session_state.get(FILES) or ()
        if kept:
            st.caption(components.plain("Read: " + ", ".join(name for name, _ in kept)))
    with right:
        st.number_input(
            INTERVAL_LABEL,
            min_value=1,
            value=None,
            step=60,
            placeholder="as the files say",
            key=INTERVAL,
            help="Between two scrapes, or from the start of the servers to the only one. Answers of Prometheus say it.",
        )
    if not kept:
        with st.expander("How to get them", icon=":material/terminal:"):
            st.code(COMMAND, language="bash", wrap_lines=True)
            st.markdown("The same on the command line: `planner check plan.json day.json --recalibrate`")


def _keep_files() -> None:
    files = st.session_state[UPLOAD]
    st.session_state[FILES] = tuple(sorted((file.name, file.getvalue()) for file in files))


def _watched() -> Upload | None:
    """What the files say; None where there are none. Raises InputError."""
    kept: Sequence[tuple[str, bytes]] = st.session_state.get(FILES) or ()
    if not kept:
        return None
    size = sum(len(content) for _, content in kept)
    if size > MAX_METRICS_BYTES:
        bound = f"have {size:,} bytes, more than {MAX_METRICS_BYTES:,}"
        raise InputError("files", f"{len(kept)} files", bound, "ask for fewer series, or a longer step")
    interval_s = st.session_state.get(INTERVAL)
    digest = hashlib.sha256(repr(interval_s).encode())
    for name, content in kept:
        digest.update(repr((name, len(content))).encode() + content)
    key = digest.hexdigest()
    known = st.session_state.get("check-watched")
    if known is None or known.key != key:
        known = Upload(_metrics(kept, interval_s), key)
        st.session_state["check-watched"] = known
    return known


def _metrics(files: Sequence[tuple[str, bytes]], interval_s: float | None) -> ServerMetrics:
    """What the files say; of a missing time between them by the label that it has here. Raises InputError."""
    try:
        return read_metrics(*(_page(*file) for file in files), interval_s=interval_s)
    except InputError as error:
        if error.field == "interval_s":
            raise InputError(INTERVAL_LABEL, error.value, error.bound, error.fix) from None
        raise


def _page(name: str, content: bytes) -> io.StringIO:
    """A file as text that knows its name."""
    try:
        page = io.StringIO(content.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise InputError("metrics", name, "is no text", "give JSON of Prometheus, or the text of /metrics") from None
    page.name = name
    return page


def _service(plan: Plan) -> tuple[PlannedDeployment, ...]:
    """The deployments of one model, chosen where there are several."""
    names = list(dict.fromkeys(one.service for one in plan.deployments))
    chosen = names[0]
    if len(names) > 1:
        chosen = components.choose_one("Model", names, SERVICE, help="Which one was watched.")
    return tuple(one for one in plan.deployments if one.service == chosen)


# --- beside the plan --------------------------------------------------------------------------------------------------


def _compared(page: Page, served: Sequence[PlannedDeployment], watched: Upload) -> RunningFleet:
    compute = partial(_compare, tuple(served), watched.metrics, dict(page.request.measured_steps))
    place = (served[0].service, page.plan.simulated)
    return results.compute_once(("check", page.key, place, watched.key), compute, "Comparing")


def _compare(
    served: Sequence[PlannedDeployment], metrics: ServerMetrics, known: Mapping[str, MeasuredSteps], _: Progress
) -> RunningFleet:
    slo: Slo = served[0].slo
    return compare_running_fleet([ServedTraffic(one.deployment, one.workload) for one in served], slo, metrics, known)


def _show_comparison(page: Page, running: RunningFleet) -> None:
    st.markdown(f"**{components.plain(running_report.headline(running))}**")
    for place, table in enumerate(running_report.tables(running)):
        components.table(table, f"check-{place}", HINTS)
    st.download_button(
        "Report as Markdown",
        running_report.markdown(page.request.name, running),
        file_name="check.md",
        mime="text/markdown",
        icon=":material/download:",
        key="check-markdown",
    )
    if running.measured_steps is not None:
        st.markdown("**Step times**")
        components.bullets(running_report.step_time_lines(running))
    if running.notes:
        st.markdown("**Read with care**")
        components.bullets(running.notes)


# --- the plan that knows it -------------------------------------------------------------------------------------------


def _show_next_plan(page: Page, running: RunningFleet, watched: Upload) -> None:
    st.subheader("What would change?")
    if len({one.service for one in page.plan.deployments}) > 1:
        st.info(
            "The plan is of several models: `planner check plan.json day.json --recalibrate` plans them again together."
        )
        return
    learned = measured_changes(running, watched.metrics, page.request.measured_steps)
    name = f"recalibrate-{watched.key[:12]}"
    if not results.is_requested(name, page):
        words = " and ".join(learned)
        results.request_button(
            f"Plan again with {words}", name, page, "Two plans by theory, each as long as the first."
        )
        return
    steps, content = [], page.content
    for label, fields in learned.items():
        content = _normal({**content, **fields})
        request = results.request_of(json.dumps(content, sort_keys=True))
        bounds.check(content, request)
        steps.append((label, request))
    compute = partial(_plan_again, page.request, tuple(steps), page.hardware, page.plan)
    key = ("recalibrated", page.key, page.plan.simulated, watched.key)
    found = results.compute_once(key, compute, "Planning again")
    st.markdown(f"**{components.plain(what_if_report.headline(found))}**")
    for place, table in enumerate(what_if_report.tables(found)):
        components.table(table, f"recalibrated-{place}")
    st.button(
        "Use as the scenario",
        key="check-use",
        on_click=session.replace_scenario,
        args=(content,),
        type="primary",
        icon=":material/check:",
        help="Writes traffic and step times as measured into the scenario. Undo takes it back.",
    )


def _normal(content: Mapping[str, Any]) -> dict[str, Any]:
    """A scenario with every field, as the widgets show it."""
    return full_content(scenario_of_text(json.dumps(content)))


def _plan_again(
    before: PlanRequest, steps: Sequence[tuple[str, PlanRequest]], hardware: HardwareDb, plan: Plan, progress: Progress
) -> WhatIf:
    return changes.what_if(before, steps, results.replanner(plan, hardware, progress))
