"""Of the tab *Compare*: a fleet of the visitor's own under the traffic and targets of the page, beside the plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import streamlit as st

from hardware_db import HardwareDb, sku_words
from planner.charts import fleets
from planner.core import PlannerError, money, percent, significant
from planner.fleet import DEFAULT_RUNNING, DEFAULT_TOKENS, PlanRequest, Progress, deployment_in_words, plan_of_given
from planner.report import plan_summary
from planner.scenario import SAME, PlanSide, change_of_cost
from planner.serving import Role
from planner.web import components
from planner.web.results import Page, compute_once

MIXED, SEPARATE = "Mixed", "Prefill and decode"
ROLES = {MIXED: (Role.MIXED,), SEPARATE: (Role.PREFILL, Role.DECODE)}
ASKED = "own-fleet-asked"
"""Key of the fleet that was tried last, in the state of the visit."""
SPLIT_HELP = (
    "Degrees of tensor (TP), pipeline (PP), data (DP) and expert parallelism (EP); type another, e.g. TP1 DP8 EP8"
)
MOST_REPLICAS, MOST_TOKENS, MOST_RUNNING = 4096, 131_072, 16_384
"""Bounds of what is typed in. Choices: beyond every fleet and setting of an engine that is known."""
SPLITS = ("TP1", "TP2", "TP4", "TP8")
"""Splits to choose from besides that of the plan; others are typed in."""


@dataclass(frozen=True)
class OwnPool:
    """A pool as it was typed in.

    Attributes:
        role: of its replicas.
        sku: id.
        split: degrees of a replica, e.g. ``TP1 DP4 EP4``.
        replicas: how many.
        max_running_requests: batch limit.
        max_batched_tokens: chunk budget.
    """

    role: Role
    sku: str
    split: str
    replicas: int
    max_running_requests: int
    max_batched_tokens: int

    @property
    def words(self) -> str:
        """As plans name it."""
        limits = f"c{self.max_batched_tokens} b{self.max_running_requests}"
        return f"{self.replicas} x {self.sku} {self.split.strip()} {limits} {self.role}"


def show(page: Page) -> None:
    """The form, and the answer for the fleet that was tried last."""
    st.caption(
        "A fleet that you run or have in mind, under the traffic and targets of this page: does it hold, with which "
        "probability, up to which rate, and what would it cost? Model and engine are those of the scenario; formats, "
        "caches and drafts that it leaves open are those with which the fleet serves most."
    )
    mode = components.choose_one("Pools", list(ROLES), "own-fleet-mode")
    with st.form("own-fleet", border=True):
        pools = [_pool_inputs(page, role) for role in ROLES[mode]]
        if st.form_submit_button("Try it", icon=":material/play_arrow:"):
            st.session_state[ASKED] = tuple(pools)
    asked: tuple[OwnPool, ...] | None = st.session_state.get(ASKED)
    if asked is None:
        return
    compute = partial(tried_side, page.request, asked, page.hardware)
    _show_side(page, compute_once(("own fleet", page.key, asked), compute, "Trying your fleet"))


def _pool_inputs(page: Page, role: Role) -> OwnPool:
    """One line of inputs; at first those of the plan's own pool of that role, else of its first one."""
    like = next((pool for pool in page.plan.pools if pool.role is role), next(iter(page.plan.pools), None))
    skus = list(page.hardware.skus)
    sku = like.config.sku.id if like else page.request.search.skus[0]
    split = like.config.parallelism.label if like else SPLITS[0]
    choices = list(dict.fromkeys((split, *SPLITS)))
    key, name = f"own-fleet-{role.value}", "" if role is Role.MIXED else f"{role.value.capitalize()}: "
    with st.container(horizontal=True, vertical_alignment="bottom"):
        chosen_sku = st.selectbox(
            f"{name}GPU", skus, index=skus.index(sku), format_func=sku_words, key=f"{key}-sku", width=200
        )
        chosen_split = st.selectbox(
            "Split of a replica", choices, key=f"{key}-split", width=150, help=SPLIT_HELP, accept_new_options=True
        )
        replicas = _number("Replicas", f"{key}-replicas", like.replicas if like else 1, MOST_REPLICAS)
        running = like.config.max_running_requests if like else DEFAULT_RUNNING
        tokens = like.config.max_batched_tokens if like else DEFAULT_TOKENS
        running = _number("Batch limit", f"{key}-running", running, MOST_RUNNING, "Requests of a replica, max_num_seqs")
        tokens = _number("Chunk budget", f"{key}-tokens", tokens, MOST_TOKENS, "Tokens of a step")
    return OwnPool(role, chosen_sku, chosen_split or SPLITS[0], replicas, running, tokens)


def _number(label: str, key: str, value: int, most: int, hint: str | None = None) -> int:
    return int(st.number_input(label, 1, most, min(value, most), key=key, width=130, help=hint))


def tried_side(
    request: PlanRequest, pools: Sequence[OwnPool], hardware: HardwareDb, progress: Progress = lambda _: None
) -> PlanSide:
    """These pools under a request, as one side of a comparison; what is refused is a side with the reason."""
    try:
        deployment = deployment_in_words(" + ".join(pool.words for pool in pools), request, hardware)
        tried = plan_of_given(request, deployment, hardware, progress)
    except PlannerError as error:
        return PlanSide("your fleet", request, None, str(error))
    return PlanSide("your fleet", request, tried)


# --- showing ----------------------------------------------------------------------------------------------------------


def _show_side(page: Page, side: PlanSide) -> None:
    if side.plan is None:
        st.info(components.plain(side.refusal))
        return
    reference = PlanSide("the plan", page.request, page.plan) if page.plan.feasible else None
    st.markdown(f"**{components.plain(headline(side, reference))}**")
    components.table(plan_summary.target_table(side.plan), "own-fleet-targets")
    if side.plan.warnings:
        components.bullets(side.plan.warnings)
    components.chart(fleets.fleet_picture(side.plan), fleets.fleet_rows(side.plan), "your fleet", "own-fleet-picture")


def headline(side: PlanSide, reference: PlanSide | None) -> str:
    """Verdict on the fleet: targets, probability, largest rate, and its cost beside the plan."""
    tried = side.plan
    if tried is None or tried.cost is None:
        return side.refusal
    (planned,) = tried.deployments
    most = f"{significant(planned.sustained_per_s)} requests/s by theory"
    missed = [check.target.name for check in tried.targets if not check.met]
    if not planned.predicted.stable:
        demand = f"{significant(planned.workload.rate_per_s)} requests/s"
        holds = f"does not keep up with {demand}; it meets the targets up to {most}"
    elif missed:
        holds = f"misses {', '.join(missed)}; it meets the targets up to {most}"
    else:
        found = tried.confidence
        sure = f" with a probability of {found.words} ({percent(found.asked)} asked)" if found else ""
        holds = f"meets every target{sure}, up to {most}"
    text = f"{planned.deployment.summary} {holds}. It costs {money(tried.cost.usd_per_month)} USD per month"
    change = change_of_cost(side, reference)
    if not change:
        return f"{text}."
    return f"{text}, as the plan does." if change == SAME else f"{text}, {change} against the plan."
