"""One replica: its configuration, and how long any step takes.

A replica is a group of GPUs of one SKU serving one model with one engine loop. What fits into its memory is in
`planner.engine.memory`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from pydantic import Field

from hardware_db import Calibration, EngineCosts, EngineProfile, GpuSku
from planner.core import Frozen, InputError
from planner.engine.scheduler import LoraAdapters, Schedule, Speculation
from planner.engine.step_times import StepTime, StepTimer, build_timer
from planner.llm import LlmSpec, Precision
from planner.roofline import Parallelism, StepShape, compute_dtype

SERVED_SKEW = 0.8
"""Exponent of the popularity of experts in serving: of 0, 0.5, 0.8 and 1.01 the one that meets TPOT of DeepSeek-R1 on
H200 and Qwen3-235B-A22B on H100 best (docs/studies/accuracy.md)."""


class ReplicaConfig(Frozen):
    """Everything that decides how fast one replica is and how much it holds.

    `max_running_requests` is vLLM's max_num_seqs, `max_batched_tokens` its max_num_batched_tokens (chunk budget), both
    of the whole replica (all attention ranks together). `own_schedule` None is the engine's. `expert_skew` is the
    exponent of a power law of the experts' popularity, 0 for all alike; None is `SERVED_SKEW` with a calibration and 0
    without, whose times are bounds. `lora` are adapters on top of the model; `mask_s` is the time a step waits for the
    grammar mask of each constrained sequence (constrained decoding).
    """

    llm: LlmSpec
    sku: GpuSku
    engine: EngineProfile
    precision: Precision = Precision()
    parallelism: Parallelism = Parallelism()
    max_running_requests: int = Field(default=256, ge=1, le=65_536)
    max_batched_tokens: int = Field(default=8192, ge=16, le=1_048_576)
    calibration: Calibration | None = None
    speculation: Speculation | None = None
    own_schedule: Schedule | None = Field(default=None, description="instead of the engine's")
    memory_fraction: float | None = Field(default=None, gt=0, le=1, description="instead of the engine's")
    expert_skew: float | None = Field(default=None, ge=0.0, le=4.0)
    lora: LoraAdapters | None = None
    mask_s: float = Field(default=0.0, ge=0.0, le=1.0, description="host time per decoding sequence and step [s]")

    @property
    def label(self) -> str:
        """E.g. ``h100-sxm TP2``."""
        return f"{self.sku.id} {self.parallelism.label}"

    @cached_property
    def schedule(self) -> Schedule:
        """How steps are filled: as given, else as the engine does."""
        engine = self.engine
        return self.own_schedule or Schedule(
            mixed_steps=engine.mixed_steps,
            whole_prompts=engine.whole_prompts,
            reserve_outputs=engine.reserves_outputs,
        )

    @property
    def costs(self) -> EngineCosts:
        """What the engine adds to its kernels; nothing to uncalibrated ones, whose times are bounds."""
        return self.engine.costs_on(self.sku) if self.calibration is not None else EngineCosts()

    @property
    def skew(self) -> float:
        """Exponent of the experts' popularity."""
        if self.expert_skew is not None:
            return self.expert_skew
        return SERVED_SKEW if self.calibration is not None else 0.0

    @cached_property
    def timer(self) -> StepTimer:
        """Step times of this replica."""
        return build_timer(
            self.llm,
            self.sku,
            self.precision,
            self.parallelism,
            self.calibration,
            self.costs,
            self.speculation,
            self.skew,
        )

    @cached_property
    def assumptions(self) -> tuple[str, ...]:
        """What this configuration takes for granted, in plain words."""
        notes = []
        if self.calibration is None:
            notes.append(f"{self.sku.id}: uncalibrated: operators at 100 % of their roofline, no launch or host time")
        elif self.calibration.sku != self.sku.id:
            notes.append(f"{self.sku.id}: not measured: shares of peak as fitted on {self.calibration.sku}")
        dtype = compute_dtype(self.precision.activations, self.sku)
        if dtype is not self.precision.activations.arithmetic:
            notes.append(
                f"{self.sku.id}: no {self.precision.activations} matrix units, {self.precision.weights} weights are "
                f"dequantised and multiplied in {dtype}"
            )
        return tuple(notes)


def step_time(
    replica: ReplicaConfig,
    decode_contexts: Sequence[int] = (),
    chunks: Sequence[tuple[int, int]] = (),
) -> StepTime:
    """Duration of one step that advances decodes and prompt chunks together, itemised [s].

    Args:
        replica: the replica.
        decode_contexts: per decoding sequence, the tokens it attends to, its own new token included (>= 1).
        chunks: per prompt chunk (new_tokens >= 1, past_tokens >= 0).

    Raises:
        InputError: an empty step, or counts out of range.
    """
    return replica.timer.step_time(step_shape(decode_contexts, chunks))


def step_shape(decode_contexts: Sequence[int], chunks: Sequence[tuple[int, int]]) -> StepShape:
    """The sums a step time depends on, from the sequences in the step.

    Args:
        decode_contexts: per decoding sequence, the tokens it attends to, its own new token included (>= 1).
        chunks: per prompt chunk (new_tokens >= 1, past_tokens >= 0).

    Returns:
        Sequences, chunks and tokens of one step.

    Raises:
        InputError: an empty step, or counts out of range.
    """
    if not decode_contexts and not chunks:
        raise InputError("step", "empty", "needs at least one decode or one chunk", "give decode_contexts or chunks")
    if any(context < 1 for context in decode_contexts):
        raise InputError("decode_contexts", min(decode_contexts), "must be >= 1 token")
    if any(new < 1 or past < 0 for new, past in chunks):
        raise InputError("chunks", list(chunks)[:4], "need new_tokens >= 1 and past_tokens >= 0")
    return StepShape(
        decodes=float(len(decode_contexts)),
        decode_context=float(sum(decode_contexts)),
        chunk_tokens=float(sum(new for new, _ in chunks)),
        chunk_pairs=float(sum(new * past + new * (new + 1) / 2 for new, past in chunks)),
        chunk_context=float(sum(new + past for new, past in chunks)),
        chunks=float(len(chunks)),
    )
