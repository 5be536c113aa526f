"""Step times of a replica: operators composed, tabulated where they depend on one number, evaluated where on more.

A step takes

    kernels as the engine runs them + draft steps + host time

with kernels the sum of the operators' seconds from `planner.roofline` at one GPU's load, and the engine's costs as
`hardware_db.EngineCosts` says. In a pipeline a step is one round of the pp micro-batches in flight, each with 1/pp of
the decodes and chunks of its own. All of them pass every stage, so that the round takes pp times what the slowest stage
takes for the busiest of them; a stage has the operators of its own layers, the first the embedding, the last the head
and the model's own drafts. Where the stages are alike that is what a micro-batch takes through all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from typing import NamedTuple

import numpy as np

from hardware_db import Calibration, EngineCosts, GpuSku, SpareLayers
from planner.core import FloatArray, Keyed, with_knots
from planner.engine.drafting import drafting_of
from planner.engine.lookup import (
    BOUNDS,
    CONTEXTS,
    DECODES,
    TOKENS,
    Curve,
    LookupTable,
    Surface,
    curves_of,
    decode_surface,
    exchange_curves,
    operator_time,
)
from planner.engine.scheduler import Speculation
from planner.engine.step_tables import (
    NO_TABLES,
    OF_GROUP_TOKENS,
    StepTables,
    decode_seconds,
    step_seconds,
    times_of_steps,
)
from planner.llm import DraftSpec, LlmSpec, Precision, pipeline_stages
from planner.roofline import (
    NO_FUSION,
    Bound,
    CalibratedGpu,
    Driver,
    Fusion,
    LatentDecode,
    Load,
    Number,
    Operator,
    OperatorFamily,
    Parallelism,
    StepShape,
    draft_operators,
    driving_tokens,
    prompt_attention,
    step_operators,
)


@dataclass(frozen=True)
class StepTime:
    """Duration of one step, itemised.

    Attributes:
        total_s: wall time of the step [s].
        family_s: seconds per operator family.
        bound_s: seconds spent waiting for each resource.
    """

    total_s: float
    family_s: dict[OperatorFamily, float]
    bound_s: dict[Bound, float]

    @property
    def bound(self) -> Bound:
        """The resource that takes most of the step."""
        return max(self.bound_s, key=lambda bound: self.bound_s[bound])


@dataclass(frozen=True, eq=False)
class StepTimer:
    """Step times of one replica (`ReplicaConfig.timer`).

    Attributes:
        gpu: GPU and calibration.
        parallelism: how the replica is split.
        curves: of the operators that depend on one number, by what it is.
        decode_table: of the operators that depend on more, for decodes.
        shape_operators: the same operators, evaluated for each step with prompts.
        costs: what the engine adds.
        launches: kernels of a step.
        pieces: launches of a step that is replayed piece by piece: attention, and a graph between two of it.
        latent_layers: layers of latent attention.
        parted_layers: those whose kernels were measured one by one, not as a whole.
        queries: tokens per decoding sequence and step.
        draft: timer of what drafts add after the model's pass; None without speculation, or where drafts are free.
        draft_steps: how many of those a step takes.
        others: of pipeline stages that are slower than this one in some steps.
        captured: most sequences of an attention rank in a step of decodes that is replayed as a graph.
        captured_tokens: most tokens of one in a step with prompts that is replayed piece by piece.
        exchange: of experts' tokens, as `exchange_curves`.
        overlaps: True if the engine runs two halves of a step alternately where that hides the exchange.
    """

    gpu: CalibratedGpu
    parallelism: Parallelism
    curves: dict[Driver, Curve]
    decode_table: Surface
    shape_operators: tuple[Operator, ...]
    costs: EngineCosts
    launches: float = 0.0
    pieces: float = 0.0
    latent_layers: float = 0.0
    parted_layers: float = 0.0
    queries: float = 1.0
    draft: StepTimer | None = None
    draft_steps: float = 0.0
    others: tuple[StepTimer, ...] = ()
    captured: float = math.inf
    captured_tokens: float = 0.0
    exchange: FloatArray = field(default_factory=lambda: np.zeros((2, TOKENS.size)))
    overlaps: bool = False

    def with_costs(self, costs: EngineCosts) -> StepTimer:
        """The same kernels under another engine's costs. A draft pays those of a step of decodes, not the host's."""
        draft = self.draft
        if draft is not None:
            kept = {name: getattr(costs, name) for name in ("stretch", "gap_s", "latent_s")}
            own = EngineCosts().model_copy(update=kept)
            draft = replace(draft, costs=own)
        return replace(self, costs=costs, draft=draft, others=tuple(one.with_costs(costs) for one in self.others))

    def prompts_s(self, shape: StepShape) -> FloatArray:
        """Time [s] the attention of each step's prompts takes on its own, shape (...steps)."""
        return np.asarray(self._own_s(_arrays(shape), math.nan, 0.0)[1])

    def times_s(self, shape: StepShape, prompts_s: FloatArray | None = None) -> FloatArray:
        """Duration [s] of each step, shape (...steps); `prompts_s` where it is known already."""
        steps = _arrays(shape)
        drafts_s = self.draft_steps * self.draft.times_s(_without_chunks(steps)) if self.draft is not None else 0.0
        total: FloatArray = self._own_s(steps, math.nan if prompts_s is None else prompts_s, drafts_s)[0]
        for other in self.others:
            total = np.maximum(total, other.times_s(steps))
        return total

    def _own_s(self, steps: StepShape, prompts_s: Number, drafts_s: Number) -> FloatArray:
        """Of this stage, of which prompts' attention, shape (2, ...steps) [s]; drafts come with decodes only."""
        fields = steps.decodes, steps.decode_context, steps.chunk_tokens, steps.chunk_pairs, steps.chunk_context
        contents = np.empty((8, *np.shape(steps.decodes)))
        for place, content in enumerate((*fields, steps.chunks, prompts_s, drafts_s * (steps.decodes > 0.0))):
            contents[place] = content
        return times_of_steps(self._tables, contents.reshape(8, -1)).reshape(2, *contents.shape[1:])

    def step_s(
        self,
        decodes: float,
        decode_context: float,
        chunk_tokens: float = 0.0,
        chunk_pairs: float = 0.0,
        chunk_context: float = 0.0,
        chunks: float = 0.0,
        prompts_s: float = math.nan,
    ) -> float:
        """Duration [s] of one step in plain floats; arguments as in `StepShape` and `times_s`."""
        if not chunks and not chunk_tokens:
            return self.decode_s(decodes, decode_context)
        decoding = float(decodes), float(decode_context)
        prompts = float(chunk_tokens), float(chunk_pairs), float(chunk_context), float(chunks)
        seconds = step_seconds(self._tables, *decoding, *prompts, prompts_s, self._drafts_s(*decoding))
        return max([seconds, *(other.step_s(*decoding, *prompts) for other in self.others)])

    def decode_s(self, decodes: float, context: float) -> float:
        """Duration [s] of a step of decodes only; `context` is summed over them."""
        decoding = float(decodes), float(context)
        seconds = decode_seconds(self._tables, *decoding, self._drafts_s(*decoding))
        return max([seconds, *(other.decode_s(*decoding) for other in self.others)])

    def _drafts_s(self, decodes: float, context: float) -> float:
        return self.draft_steps * self.draft.decode_s(decodes, context) if self.draft and decodes else 0.0

    @property
    def tables(self) -> tuple[StepTables, StepTables, float] | None:
        """Tables of the model, of a draft, and how many of these a step takes, for compiled code to time any step.

        None where it takes more than that.
        """
        draft = self.draft
        if self.others or (draft is not None and (draft.others or draft.draft)):
            return None
        return self._tables, NO_TABLES if draft is None else draft._tables, self.draft_steps

    @cached_property
    def _tables(self) -> StepTables:
        costs, split, checks_drafts = self.costs, self.parallelism, self.queries > 1.0
        kinds: list[Callable[[LookupTable], FloatArray]] = [lambda table: table.total_s]
        if costs.gap_s < 0.0:
            kinds.append(lambda table: table.roof_s)
        curves = np.stack([_curves_of(self, seconds_of) for seconds_of in kinds], axis=1)
        attention, corrections = prompt_attention(self.shape_operators, self.gpu)
        return StepTables(
            dp=float(split.dp),
            shares=float(split.dp * split.pp),
            queries=float(self.queries),
            pcp=float(split.pcp),
            stretch=float(costs.stretch),
            prompt_stretch=float(costs.prompt_stretch),
            between_s=float(costs.gap_s * self.launches + costs.latent_s * self.parted_layers),
            eager_s=float(costs.launch_s * self.launches + costs.latent_launch_s * self.latent_layers),
            pieces_s=float(costs.launch_s * self.pieces),
            captured_decodes=float(self.captured),
            captured_tokens=float(self.captured_tokens),
            host_s=float(costs.step_s + costs.draft_s * checks_drafts),
            sequence_s=float(costs.sequence_s + costs.draft_sequence_s * checks_drafts),
            kinds=len(kinds),
            has_group=bool(curves[OF_GROUP_TOKENS].any()),
            tokens=TOKENS,
            curves=curves,
            surfaces=np.array([with_knots(DECODES, CONTEXTS, of(self.decode_table)) for of in kinds]),
            attention=attention,
            corrections=corrections,
            overlaps=bool(self.overlaps and self.exchange.any()),
            exchange=self.exchange,
        )

    @cached_property
    def _one_batch(self) -> StepTimer:
        """The same without overlap of two halves."""
        return replace(self, overlaps=False)

    def bounds_s(self, shape: StepShape) -> FloatArray:
        """Seconds spent waiting for each resource, shape (len(Bound), ...steps)."""
        return self._items(shape, by_family=False)[1]

    def bound(self, shape: StepShape) -> Bound:
        """The resource that takes most of one step."""
        return BOUNDS[int(np.argmax(self.bounds_s(shape)))]

    def step_time(self, shape: StepShape) -> StepTime:
        """One step, itemised by family and by bound."""
        family_s, bound_s = self._items(shape)
        return StepTime(
            float(bound_s.sum()),
            {family: float(seconds) for family, seconds in family_s.items()},
            {bound: float(bound_s[index]) for index, bound in enumerate(BOUNDS)},
        )

    def _items(
        self, shape: StepShape, *, by_family: bool = True
    ) -> tuple[dict[OperatorFamily, FloatArray], FloatArray]:
        """Seconds of each step by family (none where they are not wanted), and by bound."""
        steps = _arrays(shape)
        load = Load.of(steps, self.parallelism, self.queries)
        family_s: dict[OperatorFamily, FloatArray] = {}
        bound_s = np.zeros((len(BOUNDS), *np.shape(load.tokens)))
        tables: list[tuple[LookupTable, Callable[[FloatArray], FloatArray]]] = [
            (curve, partial(curve.at, driving_tokens(load, driver))) for driver, curve in self.curves.items()
        ]
        tables.append((self.decode_table, partial(self.decode_table.at, load.decodes, load.context)))
        for table, at in tables:
            for family, values in table.family_s.items() if by_family else ():
                family_s[family] = family_s.get(family, 0.0) + at(values)
            for index in table.bounds:
                bound_s[index] += at(table.bound_s[index])
        prompts = replace(load, decodes=load.decodes * 0.0)
        for operator in self.shape_operators if np.any(load.chunks) else ():
            time = operator_time(operator, prompts, self.gpu)
            has_chunks = np.asarray(load.chunks) > 0.0
            if by_family:
                family_s[operator.family] = family_s.get(operator.family, 0.0) + time.total_s * has_chunks
            bound_s += time.bound_s * has_chunks
        overhead_s = (own_s := self._own_s(steps, math.nan, 0.0)[0]) - bound_s.sum(axis=0)
        if self._tables.overlaps:
            saved_s = self._one_batch._own_s(steps, math.nan, 0.0)[0] - own_s
            hidden_s = np.minimum(saved_s, np.interp(load.tokens, TOKENS, self.exchange[0]))
            bound_s[BOUNDS.index(Bound.LINK)] -= hidden_s
            overhead_s += hidden_s
            exchange_s = family_s.get(OperatorFamily.EXPERT_EXCHANGE, 0.0)
            family_s |= {OperatorFamily.EXPERT_EXCHANGE: exchange_s - hidden_s} if by_family else {}
        if self.draft is not None:
            has_decodes = np.asarray(shape.decodes) > 0
            draft_family_s, draft_bound_s = self.draft._items(_without_chunks(shape), by_family=by_family)
            for family, seconds in draft_family_s.items():
                family_s[family] = family_s.get(family, 0.0) + self.draft_steps * seconds * has_decodes
            bound_s += self.draft_steps * draft_bound_s * has_decodes
        bound_s[BOUNDS.index(Bound.OVERHEAD)] += overhead_s
        for other in self.others:
            family_s, bound_s = _slower_of((family_s, bound_s), other._items(shape, by_family=by_family))
        return family_s, bound_s


def _slower_of(
    one: tuple[dict[OperatorFamily, FloatArray], FloatArray], other: tuple[dict[OperatorFamily, FloatArray], FloatArray]
) -> tuple[dict[OperatorFamily, FloatArray], FloatArray]:
    """Seconds by family and by bound of the slower of two stages, step by step."""
    is_slower = other[1].sum(axis=0) > one[1].sum(axis=0)
    families = {
        family: np.where(is_slower, other[0].get(family, 0.0), one[0].get(family, 0.0))
        for family in {**one[0], **other[0]}
    }
    return families, np.where(is_slower, other[1], one[1])


def _arrays(shape: StepShape) -> StepShape:
    """The same steps with all fields as arrays of one shape."""
    given = (
        shape.decodes,
        shape.decode_context,
        shape.chunk_tokens,
        shape.chunk_pairs,
        shape.chunk_context,
        shape.chunks,
    )
    fields = [np.asarray(field, dtype=np.float64) for field in given]
    return StepShape(*(fields if len({field.shape for field in fields}) == 1 else np.broadcast_arrays(*fields)))


def _without_chunks(shape: StepShape) -> StepShape:
    """The decodes of a step."""
    return StepShape(shape.decodes, shape.decode_context)


def build_timer(
    llm: LlmSpec,
    sku: GpuSku,
    precision: Precision,
    parallelism: Parallelism,
    calibration: Calibration | None,
    costs: EngineCosts,
    speculation: Speculation | None = None,
    skew: float = 0.0,
    spare: SpareLayers = SpareLayers.BEFORE_LAST,
    captured: float = math.inf,
    captured_tokens: float = 0.0,
    overlaps: bool = False,
    fusion: Fusion = NO_FUSION,
) -> StepTimer:
    """The step times of a model on a split of GPUs; the same object for the same arguments.

    A draft passes over the tokens of the step, prompts included, and once more over a token of each sequence for every
    further guess; one whose parts are unknown takes `Speculation.draft_cost` of a step of the same decodes each.

    Args:
        llm: model.
        sku: GPU.
        precision: number formats.
        parallelism: how the replica is split.
        calibration: fits of the GPU's kernels; None = operators on their rooflines.
        costs: what the engine adds.
        speculation: how tokens are drafted; its acceptance plays no part here.
        skew: exponent of the experts' popularity, 0 = all alike.
        spare: pipeline stages that have one layer more, where layers do not divide evenly.
        captured: most sequences of an attention rank in a step of decodes that is replayed as a graph.
        captured_tokens: most tokens of one in a step with prompts that is replayed piece by piece.
        overlaps: True if the engine runs two halves of a step alternately.
        fusion: what the engine does in kernels beside.

    Returns:
        A function of steps [s].

    Raises:
        InputError: heads do not split over tp, or there is nothing to draft with.
    """
    found = drafting_of(speculation, llm) if speculation is not None else None
    tokens, cost, draft = (found.draft_tokens, found.cost, found.draft) if found else (0, None, None)
    records = (Keyed(llm, id(llm)), Keyed(sku, id(sku)), Keyed(calibration, id(calibration)), Keyed(draft, id(draft)))
    asked = _Asked(*records, precision, parallelism, tokens, cost, skew, spare, fusion)
    return _cached_timer(asked, costs, captured, captured_tokens, overlaps)


class _Asked(NamedTuple):
    """What decides the kernels of a replica."""

    model: Keyed[LlmSpec]
    device: Keyed[GpuSku]
    fits: Keyed[Calibration | None]
    drafter: Keyed[DraftSpec | None]
    precision: Precision
    parallelism: Parallelism
    draft_tokens: int
    draft_cost: float | None
    skew: float
    spare: SpareLayers
    fusion: Fusion


@lru_cache(maxsize=512)
def _cached_timer(
    asked: _Asked, costs: EngineCosts, captured: float, captured_tokens: float, overlaps: bool
) -> StepTimer:
    with_graphs = partial(replace, captured=captured, captured_tokens=captured_tokens, overlaps=overlaps)
    return _slowest([with_graphs(timer.with_costs(costs)) for timer in _kernels(asked)])


@lru_cache(maxsize=512)
def _kernels(asked: _Asked) -> tuple[StepTimer, ...]:
    """Timers of the different pipeline stages without an engine's costs."""
    llm, sku, drafter = asked.model.value, asked.device.value, asked.drafter.value
    split, precision, skew, fusion = asked.parallelism, asked.precision, asked.skew, asked.fusion
    gpu, rounds, draft_cost = CalibratedGpu(sku, asked.fits.value), split.pp, asked.draft_cost
    drafting = draft_operators(drafter, sku, precision, split, skew, fusion) if drafter is not None else None
    timers = []
    for stage in dict.fromkeys(pipeline_stages(llm, rounds, asked.spare)):
        operators = _repeated(step_operators(llm, sku, precision, split, skew, stage, fusion), rounds)
        first = _repeated(drafting.first, rounds) if drafting and stage.last else []
        timer = _kernel_timer([*operators, *first], gpu, split, 1.0 + asked.draft_tokens)
        if draft_cost is not None:
            plain = _kernel_timer(operators, gpu, split) if draft_cost else None
            timer = replace(timer, draft=plain, draft_steps=asked.draft_tokens * draft_cost)
        elif drafting and stage.last:
            later = _repeated(drafting.layers, rounds * (asked.draft_tokens - 1)) if asked.draft_tokens > 1 else []
            draft = _kernel_timer([*later, *_repeated(drafting.head, rounds * asked.draft_tokens)], gpu, split)
            timer = replace(timer, draft=draft, draft_steps=1.0)
        timers.append(timer)
    return tuple(timers)


def _repeated(operators: Sequence[Operator], times: int) -> list[Operator]:
    """The operators of a stage for every micro-batch in flight, and of a draft for every guess."""
    return [replace(operator, count=operator.count * times) for operator in operators]


MUCH_SLOWER = 1.001
"""A pipeline stage is looked at if some step takes it longer than any other by this factor. A choice: affects speed."""
_LOOKED_AT = StepShape(
    decodes=np.array([1.0, 32.0, 256.0, 2048.0] * 3 + [0.0, 0.0, 64.0, 64.0]),
    decode_context=np.array([1.0, 32.0, 256.0, 2048.0] * 3 + [0.0, 0.0, 64.0, 64.0])
    * np.array([500.0] * 4 + [8_000.0] * 4 + [128_000.0] * 4 + [0.0, 0.0, 4_000.0, 64_000.0]),
    chunk_tokens=np.array([0.0] * 12 + [512.0, 8192.0, 2048.0, 2048.0]),
    chunk_pairs=np.array([0.0] * 12 + [512.0 * 256.5, 8192.0 * 4096.5, 2048.0 * 1024.5, 2048.0 * 61_024.5]),
    chunk_context=np.array([0.0] * 12 + [512.0, 8192.0, 2048.0, 62_048.0]),
    chunks=np.array([0.0] * 12 + [1.0] * 4),
)
"""Steps that stages are compared by: few and many decodes, short and long contexts, prompts alone and beside them."""


def _slowest(timers: Sequence[StepTimer]) -> StepTimer:
    """The timer of a pipeline: of the stage that is slowest on the whole, with those that are slower in some steps."""
    if len(timers) == 1:
        return timers[0]
    times_s = [timer.times_s(_LOOKED_AT) for timer in timers]
    longest_s = np.maximum.reduce(times_s)
    order = sorted(range(len(timers)), key=lambda stage: -float((times_s[stage] / longest_s).sum()))
    kept = order[:1]
    for stage in order[1:]:
        if np.any(times_s[stage] > MUCH_SLOWER * np.maximum.reduce([times_s[other] for other in kept])):
            kept.append(stage)
    return replace(timers[kept[0]], others=tuple(timers[stage] for stage in kept[1:]))


def _merged(operators: Sequence[Operator]) -> tuple[Operator, ...]:
    """Operators that differ in nothing but their layers as one: those of a draft are often the model's own."""
    layers: dict[Operator, float] = {}
    for operator in operators:
        alike = replace(operator, count=1.0)
        layers[alike] = layers.get(alike, 0.0) + operator.count
    return tuple(replace(alike, count=count) for alike, count in layers.items())


def _kernel_timer(
    operators: Sequence[Operator], gpu: CalibratedGpu, parallelism: Parallelism, queries: float = 1.0
) -> StepTimer:
    """Kernels alone: the engine's costs come on top."""
    shape_operators = _merged([operator for operator in operators if operator.driver is Driver.SHAPE])
    return StepTimer(
        gpu=gpu,
        parallelism=parallelism,
        curves=curves_of(operators, gpu),
        decode_table=decode_surface(shape_operators, gpu, queries),
        shape_operators=shape_operators,
        costs=EngineCosts(),
        # Prefill and decode attention are one launch each, whichever a step needs.
        launches=sum(operator.launches for operator in operators),
        # Of these one kernel serves both, and a graph lies between two layers: as many launches.
        pieces=sum(operator.launches for operator in shape_operators),
        latent_layers=sum(one.count for one in shape_operators if isinstance(one, LatentDecode)),
        parted_layers=sum(one.count for one in shape_operators if isinstance(one, LatentDecode) and one.in_parts(gpu)),
        exchange=exchange_curves(operators, gpu),
        queries=queries,
    )


def _curves_of(timer: StepTimer, seconds_of: Callable[[LookupTable], FloatArray]) -> FloatArray:
    """Seconds over `TOKENS` by driver, shape (4, knots).

    Lines over the same number are one line: group tokens are tokens where these are in one part.
    """
    by_driver = {driver: seconds_of(curve) for driver, curve in timer.curves.items()}
    zeros = np.zeros_like(TOKENS)
    drivers = (Driver.TOKENS, Driver.ROWS, Driver.GROUP_TOKENS)
    tokens, rows, group = (by_driver.get(driver, zeros) for driver in drivers)
    if timer.parallelism.shards == 1:
        tokens, group = tokens + group, zeros
    return np.array([tokens, rows, group, tokens + rows])
