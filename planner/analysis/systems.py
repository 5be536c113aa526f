"""The serving systems of the literature as choices: each makes of a mixed deployment the one it would run.

A system changes how the same GPUs are used (schedule, KV memory, router, roles, drafts), never how many there are; it
takes what is `Given` and returns a `Variant`, or raises an `InputError` that says why it does not apply. Numbers taken
from publications stand here with their source, none of them fitted to a latency. `System.theory` tells how
`planner.evaluate` stands to it: a closed form, or an approximation with what it leaves out. The simulator plays all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from planner.core import InputError, UnknownNameError, preset_rows, rebuilt
from planner.engine import (
    Batching,
    KvAllocation,
    LoraAdapters,
    Order,
    Preemption,
    Schedule,
    Speculation,
    drafting_of,
    require_room,
)
from planner.llm import LlmSpec, acceptance_of_gain, active_parameters, embedding_parameters, lm_head_weights
from planner.serving import Deployment, Performance, Pool, Role, Router, evaluate
from planner.workload import Slo, Workload

VLLM_WATERMARK = 0.01
"""Share of KV blocks kept free on admission: `watermark` of vLLM's block manager (Kwon et al., SOSP 2023)."""
SARATHI_MAX_BATCHED_TOKENS = 512
"""Chunk budget: the smaller of the two, 512 and 2048, that Sarathi-Serve is run with (Agrawal et al., OSDI 2024)."""
SARATHI_LARGE_MAX_BATCHED_TOKENS = 2048
"""The larger of the two."""
DRAFT_TOKENS = 5
"""Guesses per step for drafters that take a number: `num_speculative_tokens` of the examples in vLLM's docs."""
TOKENS_PER_STEP = {"draft-model": 2.29, "medusa": 2.32, "eagle": 3.57, "ngram": 1.74, "lookahead": 1.65}
"""Mean tokens per decoding step of Vicuna-7B over six tasks, greedy: Spec-Bench (Xia et al., Findings of ACL 2024,
arXiv 2401.07851; leaderboard: SpS, Medusa, EAGLE, PLD, Lookahead)."""
DRAFT_WEIGHT_RATIO = 68e6 / 6.74e9
"""Weights of the draft model of that SpS figure (Vicuna-68M) over those of its target (Vicuna-7B)."""
MTP_ACCEPTANCE = 0.85
"""Lower end of the acceptance of the second token (DeepSeek-V3 technical report, arXiv 2412.19437, section 5.4.3)."""
GRAMMAR_MASK_S = 50e-6
"""One grammar mask over a vocabulary of 128 k on one core [s]: mean over JSONSchemaBench (LLGuidance documentation)."""
SCHEMA_FAILURE_SHARE = 0.3894
"""Share of answers that break their JSON schema without a grammar: GPT-4o on SchemaBench is right in 61.06 % (Lu et
al. 2025, arXiv 2502.18878)."""
DEFAULT_ADAPTERS = LoraAdapters(adapters=100, rank=16, slots=16, skew=1.0)
"""A hundred tenants with Zipf popularity, rank 16 as is vLLM's default, room for 16 at once: an assumption."""


@dataclass(frozen=True)
class Variant:
    """A deployment and its traffic as a system changes them.

    Attributes:
        deployment: on the same GPUs.
        workload: the same traffic; more of it where answers have to be asked for again.
        useful_share: share of the answers that are kept.
        note: what was chosen for it, or empty.
    """

    deployment: Deployment
    workload: Workload
    useful_share: float = 1.0
    note: str = ""


@dataclass(frozen=True)
class Given:
    """The start of every system.

    Attributes:
        deployment: of one mixed pool.
        workload: its traffic.
        slo: targets, if any.
    """

    deployment: Deployment
    workload: Workload
    slo: Slo | None

    @property
    def pool(self) -> Pool:
        """The one pool of a mixed deployment."""
        if self.deployment.is_disaggregated:
            bound = "a comparison starts from a mixed pool"
            raise InputError("deployment", self.deployment.summary, bound, "give a mixed one")
        return self.deployment.pools[0]

    def changed(self, router: Router | None = None, note: str = "", **changes: object) -> Variant:
        """The deployment with another router, or other values in its configuration."""
        pool = self.pool
        config = rebuilt(pool.config, **changes) if changes else pool.config
        new = Pool(role=Role.MIXED, config=config, replicas=pool.replicas, router=router or pool.router)
        return Variant(Deployment(pools=(new,), transfer=self.deployment.transfer), self.workload, note=note)

    def with_schedule(self, router: Router | None = None, **changes: object) -> Variant:
        """The deployment with some fields of its schedule changed, and perhaps another router."""
        own = self.pool.config.schedule.model_dump()
        return self.changed(router, own_schedule=Schedule(**{**own, **changes}))

    def schedule_as_written(self, **fields: object) -> Schedule:
        """The schedule of a paper; of the given one it keeps which steps are replayed as captured graphs."""
        return Schedule(**{"captured_decodes": self.pool.config.schedule.captured_decodes, **fields})

    @property
    def whole_prompt_tokens(self) -> int:
        """A chunk budget into which every prompt fits as a whole."""
        return max(self.pool.config.max_batched_tokens, int(self.workload.lengths.inputs.max()))


def _refusal(name: str, bound: str, fix: str) -> InputError:
    return InputError("system", name, bound, fix)


# --- batching and memory --------------------------------------------------------------------------------------------


def as_given(given: Given) -> Variant:
    """As it is configured."""
    return given.changed()


def contiguous(given: Given, **changes: object) -> Variant:
    """Whole prompts in KV memory set aside for the longest request, as many sequences as that leaves room for.

    The longest request is what a server without paging would be configured to take.
    """
    config, longest = given.pool.config, given.workload.lengths.max_total
    roomy = rebuilt(config, max_batched_tokens=given.whole_prompt_tokens)
    slots = min(config.max_running_requests, require_room(roomy, longest).kv_capacity_tokens // longest)
    asked = {"whole_prompts": True, "kv": KvAllocation.CONTIGUOUS, "longest_tokens": longest, **changes}
    return given.changed(
        note=f"room for {longest:,} tokens in one piece for each of {slots:,} sequences per replica",
        max_batched_tokens=given.whole_prompt_tokens,
        own_schedule=given.schedule_as_written(**asked),
        max_running_requests=slots,
    )


def vllm(given: Given, *, preemption: Preemption) -> Variant:
    """Paged memory, whole prompts before decodes, preemption of the youngest."""
    schedule = given.schedule_as_written(
        mixed_steps=False,
        whole_prompts=True,
        reserve_outputs=False,
        watermark=VLLM_WATERMARK,
        on_preemption=preemption,
    )
    return given.changed(own_schedule=schedule, max_batched_tokens=given.whole_prompt_tokens)


def sarathi(given: Given, *, max_batched_tokens: int) -> Variant:
    """Chunks of prompts beside the decodes, up to a budget of tokens per step."""
    schedule = given.schedule_as_written(reserve_outputs=False, watermark=VLLM_WATERMARK)
    return given.changed(own_schedule=schedule, max_batched_tokens=max_batched_tokens)


# --- disaggregation -------------------------------------------------------------------------------------------------


def disaggregated(given: Given) -> Variant:
    """Prefill and decode pools of the same replicas, in the ratio that theory finds best at this rate.

    Best: stable, then the largest share of requests within all targets (without targets: shortest mean E2E).
    """
    pool = given.pool
    if pool.replicas < 2:
        raise _refusal("disaggregated", "needs two replicas, one for each role", "give --replicas 2 or more")
    splits = [
        Deployment(
            pools=(
                Pool(role=Role.PREFILL, config=pool.config, replicas=count, router=pool.router),
                Pool(role=Role.DECODE, config=pool.config, replicas=pool.replicas - count, router=pool.router),
            ),
            transfer=given.deployment.transfer,
        )
        for count in range(1, pool.replicas)
    ]
    best = max(splits, key=lambda split: _preference(evaluate(split, given.workload), given.slo))
    prefill, decode = best.pools
    ratio = f"{prefill.replicas} prefill : {decode.replicas} decode"
    return Variant(best, given.workload, note=f"{ratio}, the best of {len(splits)} splits by theory at this rate")


def _preference(performance: Performance, slo: Slo | None) -> tuple[float, ...]:
    """Larger is better; of unstable splits the one whose fuller pool is least overloaded."""
    overload = max(pool.utilisation for pool in performance.pools)
    attained = 0.0 if slo is None or not performance.stable else performance.attainment(slo)
    return (float(performance.stable), attained, -performance.e2e.mean_s if performance.stable else -overload)


# --- order, routers, prefixes ---------------------------------------------------------------------------------------


def with_order(given: Given, *, order: Order, preempts: bool = False) -> Variant:
    """Another order of admission. Raises InputError where all requests would be alike to it."""
    if order is Order.PRIORITY and len({kind.priority for kind in given.workload.classes}) < 2:
        raise _refusal("priority", "all requests have one priority", "give the classes different priorities")
    if order is Order.FAIR_SHARE and len(given.workload.classes) < 2:
        raise _refusal("fair-share", "there is one class of requests, nobody to share with", "give several classes")
    return given.with_schedule(order=order, preempts=preempts)


def with_router(given: Given, *, router: Router) -> Variant:
    """Another router. Raises InputError with one replica."""
    if given.pool.replicas < 2:
        raise _refusal(router.value, "there is one replica, so nothing to route", "give --replicas 2 or more")
    return given.changed(router)


def with_prefix_cache(given: Given) -> Variant:
    """Shared prefixes kept, requests sent where theirs is. Raises InputError where none are shared."""
    if all(kind.prefixes is None for kind in given.workload.classes):
        raise _refusal("prefix-cache", "prompts share no prefixes", "give the classes prefixes")
    return given.with_schedule(Router.PREFIX_AFFINITY, prefix_cache=True)


# --- speculation, grammars, adapters --------------------------------------------------------------------------------


def speculation_of_gain(draft_tokens: int, tokens_per_step: float, draft_cost: float | None) -> Speculation:
    """Speculation with the acceptance that gives a mean gain (`planner.llm.acceptance_of_gain`).

    A tree of guesses (Medusa, EAGLE) is taken as the chain of the same gain; it verifies more tokens than that.
    Raises InputError unless 1 < tokens_per_step < draft_tokens + 1.

    >>> round(speculation_of_gain(3, 2.952, 0.0).acceptance, 3)
    0.8
    """
    acceptance = acceptance_of_gain(draft_tokens, tokens_per_step)
    return Speculation(draft_tokens=draft_tokens, acceptance=acceptance, draft_cost=draft_cost)


def eagle_draft_cost(llm: LlmSpec) -> float:
    """Weights that an EAGLE draft reads over those of a decode step: one layer and the head over all layers and head.

    The drafter is one decoder layer under the model's own head (Li et al., ICML 2024, arXiv 2401.15077, section 3);
    taken as the mean layer, with the experts that one token visits.

    >>> from planner.llm import load_llm
    >>> round(eagle_draft_cost(load_llm("llama-3.1-8b")), 3)  # (0.218 + 0.525) / (6.979 + 0.525) billion weights
    0.099
    """
    layers, head = active_parameters(llm) - embedding_parameters(llm), lm_head_weights(llm)
    return (layers / llm.num_layers + head) / (layers + head)


def with_drafter(given: Given, *, drafter: str) -> Variant:
    """A drafter of a published gain. Raises InputError where nothing is decoded."""
    costs = {"draft-model": DRAFT_WEIGHT_RATIO, "eagle": eagle_draft_cost(given.pool.config.llm)}
    speculation = speculation_of_gain(DRAFT_TOKENS, TOKENS_PER_STEP[drafter], costs.get(drafter, 0.0))
    return _with_speculation(given, speculation)


def with_mtp(given: Given) -> Variant:
    """The model's own module drafts one token. Raises InputError where it has none."""
    llm = given.pool.config.llm
    if llm.mtp is None:
        raise _refusal("mtp", f"{llm.id} has no multi-token-prediction module", "choose another drafter, such as eagle")
    return _with_speculation(given, Speculation(draft_tokens=1, acceptance=MTP_ACCEPTANCE))


def _with_speculation(given: Given, speculation: Speculation) -> Variant:
    if given.workload.lengths.outputs.max() <= 1:
        raise _refusal("speculative", "every request has one output token", "give requests that decode")
    drafting = drafting_of(speculation, given.pool.config.llm)
    note = f"{speculation.draft_tokens} guesses, the first right with {drafting.accepted[0]:.2f}"
    return given.changed(note=f"{note}: {drafting.tokens_per_step:.2f} tokens per step", speculation=speculation)


def with_grammar(given: Given) -> Variant:
    """A grammar mask for every sequence and step."""
    note = f"one mask of {1e6 * GRAMMAR_MASK_S:.0f} us per sequence and step, on the host and not overlapped"
    return given.changed(note=note, mask_s=GRAMMAR_MASK_S)


def with_retries(given: Given) -> Variant:
    """No grammar, and what breaks its schema asked for again."""
    again = given.workload.at_rate(given.workload.rate_per_s / (1.0 - SCHEMA_FAILURE_SHARE))
    note = f"{100 * SCHEMA_FAILURE_SHARE:.0f} % of the answers are asked for again"
    return Variant(given.changed().deployment, again, useful_share=1.0 - SCHEMA_FAILURE_SHARE, note=note)


def with_adapters(given: Given) -> Variant:
    """Adapters for many tenants: those configured, else `DEFAULT_ADAPTERS`."""
    lora = given.pool.config.lora or DEFAULT_ADAPTERS
    note = f"{lora.adapters} adapters of rank {lora.rank}, {lora.held} at once in GPU memory"
    return given.changed(note=note, lora=lora)


# --- the catalogue --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class System:
    """A way to serve, by name.

    Attributes:
        name: as the command line takes it.
        citation: who described it.
        summary: what it is, in a sentence.
        theory: how the theory stands to it.
        change: what it makes of what is given; raises InputError where it does not apply.
    """

    name: str
    citation: str
    summary: str
    theory: str
    change: Callable[[Given], Variant]

    def variant(self, deployment: Deployment, workload: Workload, slo: Slo | None) -> Variant:
        """A mixed deployment under a workload as this system runs it. Raises InputError where it does not apply."""
        return self.change(Given(deployment, workload, slo))


def chosen_systems(names: Iterable[str | System]) -> tuple[System, ...]:
    """The systems of these names, in this order. Raises InputError: none, one twice, or an unknown name.

    >>> [system.name for system in chosen_systems(["orca", "sarathi"])]
    ['orca', 'sarathi']
    """
    systems = []
    for name in names:
        if not isinstance(name, System) and name not in SYSTEMS:
            raise UnknownNameError("systems", name, SYSTEMS)
        systems.append(name if isinstance(name, System) else SYSTEMS[name])
    given = [system.name for system in systems]
    if not given or len(set(given)) < len(given):
        raise InputError("systems", given, "must be one or more different systems", "name each once")
    return tuple(systems)


_CHANGES: Mapping[str, Callable[[Given], Variant]] = {
    "engine": as_given,
    "static": partial(contiguous, mixed_steps=False, batching=Batching.STATIC),
    "orca": contiguous,
    "vllm": partial(vllm, preemption=Preemption.RECOMPUTE),
    "vllm-swap": partial(vllm, preemption=Preemption.SWAP),
    "sarathi": partial(sarathi, max_batched_tokens=SARATHI_MAX_BATCHED_TOKENS),
    "sarathi-2048": partial(sarathi, max_batched_tokens=SARATHI_LARGE_MAX_BATCHED_TOKENS),
    "disaggregated": disaggregated,
    "prefix-cache": with_prefix_cache,
    "sjf": partial(with_order, order=Order.SHORTEST_FIRST),
    "priority": partial(with_order, order=Order.PRIORITY),
    "priority-preemptive": partial(with_order, order=Order.PRIORITY, preempts=True),
    "fair-share": partial(with_order, order=Order.FAIR_SHARE),
    "round-robin": partial(with_router, router=Router.ROUND_ROBIN),
    "random": partial(with_router, router=Router.RANDOM),
    "power-of-two": partial(with_router, router=Router.POWER_OF_TWO),
    "jsq": partial(with_router, router=Router.LEAST_REQUESTS),
    "least-tokens": partial(with_router, router=Router.LEAST_TOKENS),
    "mtp": with_mtp,
    "draft-model": partial(with_drafter, drafter="draft-model"),
    "medusa": partial(with_drafter, drafter="medusa"),
    "eagle": partial(with_drafter, drafter="eagle"),
    "ngram": partial(with_drafter, drafter="ngram"),
    "lookahead": partial(with_drafter, drafter="lookahead"),
    "constrained": with_grammar,
    "retry": with_retries,
    "multi-lora": with_adapters,
}
"""What each system of `systems.csv` makes of a deployment."""


def _system(name: str, summary: str, theory: str, citation: str) -> System:
    change = _CHANGES[name]
    return System(name, citation, summary.format(**getattr(change, "keywords", {})), theory, change)


SYSTEMS = {row["name"]: _system(**row) for row in preset_rows("systems.csv")}
"""By name."""
DEFAULT_SYSTEMS = ("static", "orca", "vllm", "sarathi", "disaggregated")
"""Compared when none is named: the steps that serving took."""
