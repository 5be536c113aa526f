"""Step times of a replica: operators composed, tabulated where they depend on one number, evaluated where on more.

A step takes

    kernels as the engine runs them + draft steps + host time

with kernels the sum of the operators' seconds from `planner.roofline` at one GPU's load, and the engine's costs as
`hardware_db.EngineCosts` says. The operators are those of all layers: each of pp stages has 1/pp of them and runs pp
micro-batches of 1/pp of the sequences.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from hardware_db.schema import Calibration, EngineCosts, GpuSku
from planner.errors import InputError
from planner.kernels import at_least
from planner.llm import LlmSpec, Precision
from planner.roofline import (
    Bound,
    Driver,
    Family,
    Load,
    Operator,
    Parallelism,
    Silicon,
    StepShape,
    draft_operators,
    operator_seconds,
    step_operators,
)
from planner.roofline.operators import LatentDecode, driven
from planner.tabulated import BOUNDS, Curve, Surface, curves_of, decode_surface, operator_items

FloatArray = NDArray[np.float64]
Number = FloatArray | float
T = TypeVar("T")


@dataclass(frozen=True)
class StepTime:
    """Duration of one step, itemised.

    Attributes:
        total_s: wall time of the step [s].
        family_s: seconds per operator family.
        bound_s: seconds spent waiting for each resource.
    """

    total_s: float
    family_s: dict[Family, float]
    bound_s: dict[Bound, float]

    @property
    def bound(self) -> Bound:
        """The resource that takes most of the step."""
        return max(self.bound_s, key=lambda bound: self.bound_s[bound])


@dataclass(frozen=True, eq=False)
class StepTimer:
    """Step times of one replica; build with `step_timer`.

    Attributes:
        silicon: GPU and calibration.
        parallelism: how the replica is split.
        curves: of the operators that depend on one number, by what it is.
        decoding: of the operators that depend on more, for decodes.
        prompting: the same operators, evaluated for each step with prompts.
        costs: what the engine adds. launches: kernels of a step. latent_layers: layers of latent attention.
        queries: tokens per decoding sequence and step.
        draft: timer of one draft step, and how many a step takes.
    """

    silicon: Silicon
    parallelism: Parallelism
    curves: dict[Driver, Curve]
    decoding: Surface
    prompting: tuple[Operator, ...]
    costs: EngineCosts
    launches: float = 0.0
    latent_layers: float = 0.0
    queries: float = 1.0
    draft: StepTimer | None = None
    drafts: int = 0

    def with_costs(self, costs: EngineCosts) -> StepTimer:
        """The same kernels under another engine's costs. A draft pays those of a step of decodes, not the host's."""
        draft = self.draft
        if draft is not None:
            own = EngineCosts(stretch=costs.stretch, gap_s=costs.gap_s, latent_s=costs.latent_s)
            draft = replace(draft, costs=own)
        return replace(self, costs=costs, draft=draft)

    def prompts_s(self, shape: StepShape) -> FloatArray:
        """Time [s] the attention of each step's prompts takes on its own, shape (...steps)."""
        return np.asarray(self._prompts_s(Load.of(_arrays(shape), self.parallelism, self.queries)))

    def times_s(self, shape: StepShape, prompts_s: FloatArray | None = None) -> FloatArray:
        """Duration [s] of each step, shape (...steps); `prompts_s` when it is known already."""
        load = Load.of(_arrays(shape), self.parallelism, self.queries)
        total = sum((curve.at(driven(load, d), curve.total_s) for d, curve in self.curves.items()), np.zeros(()))
        total = total + self.decoding.at(load.decodes, load.context, self.decoding.total_s)
        if prompts_s is not None:
            total = total + prompts_s * (load.chunks > 0.0)
        elif np.any(load.chunks):
            total = total + self._prompts_s(load)
        total = np.asarray(self._served_s(total, load, self._roof_s(load)))
        if self.draft is not None:
            total = total + self.drafts * self.draft.times_s(_drafted(shape)) * (np.asarray(shape.decodes) > 0)
        return np.asarray(total + self._host_s(load))

    def step_s(
        self,
        decodes: float,
        decode_context: float,
        chunk_tokens: float = 0.0,
        chunk_pairs: float = 0.0,
        chunk_context: float = 0.0,
        chunks: float = 0.0,
    ) -> float:
        """Duration [s] of one step in plain floats; arguments as in `StepShape`."""
        shape = StepShape(
            float(decodes),
            float(decode_context),
            float(chunk_tokens),
            float(chunk_pairs),
            float(chunk_context),
            float(chunks),
        )
        load = Load.of(shape, self.parallelism, self.queries)
        total = 0.0
        for driver, curve in self.curves.items():
            total += curve.one_s(driven(load, driver))  # type: ignore[arg-type]
        total += self.decoding.one_s(load.decodes, load.context)  # type: ignore[arg-type]
        if chunks:
            total += float(self._prompts_s(load))
        total = float(self._served_s(total, load, self._roof_s(load)))
        if self.draft is not None and decodes:
            total += self.drafts * self.draft.step_s(decodes, decode_context)
        return float(total + self._host_s(load))

    def decode_s(self, decodes: float, context: float) -> float:
        """Duration [s] of a step of decodes only; `context` is summed over them."""
        return self.step_s(decodes, context)

    def bounds_s(self, shape: StepShape) -> FloatArray:
        """Seconds spent waiting for each resource, shape (len(Bound), ...steps)."""
        return self._items(shape)[1]

    def itemised(self, shape: StepShape) -> StepTime:
        """One step, itemised by family and by bound."""
        family_s, bound_s = self._items(shape)
        return StepTime(
            float(bound_s.sum()),
            {family: float(seconds) for family, seconds in family_s.items()},
            {bound: float(bound_s[index]) for index, bound in enumerate(BOUNDS)},
        )

    def _items(self, shape: StepShape) -> tuple[dict[Family, FloatArray], FloatArray]:
        load = Load.of(_arrays(shape), self.parallelism, self.queries)
        family_s: dict[Family, FloatArray] = {}
        bound_s = np.zeros((len(BOUNDS), *np.shape(load.tokens)))
        for driver, curve in self.curves.items():
            at = driven(load, driver)
            for family, values in curve.family_s.items():
                family_s[family] = family_s.get(family, 0.0) + curve.at(at, values)
            for index in range(len(BOUNDS)):
                bound_s[index] += curve.at(at, curve.bound_s[index])
        for family, table in self.decoding.family_s.items():
            family_s[family] = family_s.get(family, 0.0) + self.decoding.at(load.decodes, load.context, table)
        for index in range(len(BOUNDS)):
            bound_s[index] += self.decoding.at(load.decodes, load.context, self.decoding.bound_s[index])
        for operator in self.prompting:
            seconds, split, _ = operator_items(operator, _prompts_of(load), self.silicon)
            some = np.asarray(load.chunks) > 0.0
            family_s[operator.family] = family_s.get(operator.family, 0.0) + seconds * some
            bound_s += split * some
        kernels = bound_s.sum(axis=0)
        served = np.asarray(self._served_s(kernels, load, self._roof_s(load)))
        if self.draft is not None:
            some = np.asarray(shape.decodes) > 0
            drafted, waits = self.draft._items(_drafted(shape))
            for family, seconds in drafted.items():
                family_s[family] = family_s.get(family, 0.0) + self.drafts * seconds * some
            bound_s += self.drafts * waits * some
        bound_s[BOUNDS.index(Bound.OVERHEAD)] += served - kernels + self._host_s(load)
        return family_s, bound_s

    def _prompts_s(self, load: Load) -> Number:
        """Time of the prompts' attention [s]."""
        prompts = _prompts_of(load)
        total: Number = sum(
            (operator_seconds(operator, prompts, self.silicon, math.inf) for operator in self.prompting), 0.0
        )
        there: Any = load.chunks > 0.0
        kept: Number = total * there
        return kept

    def _roof_s(self, load: Load) -> Number:
        """The rooflines of a step of decodes [s]; what kernels that overlap cannot beat."""
        if self.costs.gap_s >= 0.0:
            return 0.0
        total = self.decoding.at(np.asarray(load.decodes), np.asarray(load.context), self.decoding.roof_s)
        for driver, curve in self.curves.items():
            total = total + curve.at(np.asarray(driven(load, driver)), curve.roof_s)
        return total

    def _served_s(self, kernels_s: Number, load: Load, roof_s: Number) -> Number:
        """Kernels as an engine runs them: replayed as a graph, or launched one by one where there are long prompts."""
        costs = self.costs
        between = costs.gap_s * self.launches + costs.latent_s * self.latent_layers
        replayed = at_least(costs.stretch * kernels_s + between, roof_s)
        host = costs.launch_s * self.launches + costs.latent_prompt_s * self.latent_layers
        launched = at_least(costs.prompt_stretch * kernels_s, host)
        by_one: Any = (load.chunks > 0.0) * (load.tokens > costs.captured_tokens)
        served: Number = by_one * launched + (1.0 - by_one) * replayed
        return served

    def _host_s(self, load: Load) -> Number:
        return self.costs.step_s + self.costs.sequence_s * load.decodes


def _arrays(shape: StepShape) -> StepShape:
    fields = np.broadcast_arrays(
        shape.decodes,
        shape.decode_context,
        shape.chunk_tokens,
        shape.chunk_pairs,
        shape.chunk_context,
        shape.chunks,
    )
    return StepShape(*(np.asarray(field, dtype=np.float64) for field in fields))


def _drafted(shape: StepShape) -> StepShape:
    return StepShape(shape.decodes, shape.decode_context)


def _prompts_of(load: Load) -> Load:
    """A load without its decodes."""
    return replace(load, decodes=load.decodes * 0.0)


def build_timer(
    llm: LlmSpec,
    sku: GpuSku,
    precision: Precision,
    parallelism: Parallelism,
    calibration: Calibration | None,
    costs: EngineCosts,
    draft_tokens: int = 0,
    skew: float = 0.0,
) -> StepTimer:
    """The step times of a model on a split of GPUs; the same object for the same arguments.

    Raises InputError when heads do not split over tp, or there is nothing to draft with.
    """
    return _built(_Same(llm), _Same(sku), precision, parallelism, _Same(calibration), costs, draft_tokens, skew)


class _Same(Generic[T]):
    """An argument compared by identity: records of hundreds of numbers cost more to hash than they save."""

    def __init__(self, it: T) -> None:
        self.it = it

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.it is other.it

    def __hash__(self) -> int:
        return id(self.it)


@lru_cache(maxsize=512)
def _built(
    model: _Same[LlmSpec],
    gpu: _Same[GpuSku],
    precision: Precision,
    parallelism: Parallelism,
    fits: _Same[Calibration | None],
    costs: EngineCosts,
    draft_tokens: int,
    skew: float,
) -> StepTimer:
    llm, sku = model.it, gpu.it
    silicon = Silicon(sku, fits.it)
    operators = step_operators(llm, sku, precision, parallelism, skew)
    if not draft_tokens:
        return _composed(operators, silicon, parallelism).with_costs(costs)
    drafting = draft_operators(llm, sku, precision, parallelism, skew)
    if not drafting:
        raise InputError("speculation", llm.id, "has no multi-token-prediction layer to draft with", "remove it")
    draft = _composed(drafting, silicon, parallelism)
    timer = _composed(operators, silicon, parallelism, 1.0 + draft_tokens)
    return replace(timer, draft=draft, drafts=draft_tokens).with_costs(costs)


def _composed(
    operators: Sequence[Operator], silicon: Silicon, parallelism: Parallelism, queries: float = 1.0
) -> StepTimer:
    """Kernels alone: the engine's costs come on top."""
    prompting = tuple(operator for operator in operators if operator.driver is Driver.SHAPE)
    return StepTimer(
        silicon,
        parallelism,
        curves_of(operators, silicon),
        decode_surface(prompting, silicon, queries),
        prompting,
        EngineCosts(),
        _launches(operators),
        sum(operator.count for operator in prompting if isinstance(operator, LatentDecode)),
        queries,
    )


def _launches(operators: Sequence[Operator]) -> float:
    """Kernels of a step: prefill and decode attention are one launch each, whichever a step needs."""
    return sum(operator.launches for operator in operators)
