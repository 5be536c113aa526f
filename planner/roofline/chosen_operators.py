"""Latent attention over the keys a sparse index chose, and the index, where whole modules of it were measured.

Without such fits they are timed as `planner.roofline.attention_operators` does, kernel by kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hardware_db import Dtype
from planner.llm import BYTES_PER_VALUE
from planner.roofline.arithmetic import Number
from planner.roofline.attention_operators import IndexScores, LatentDecode, LatentPrefill
from planner.roofline.chosen_kernels import (
    ChosenHeads,
    chosen_decode_index_s,
    chosen_decode_s,
    chosen_prefill_index_s,
    chosen_prefill_s,
)
from planner.roofline.gpu import CalibratedGpu
from planner.roofline.kernel_forms import ChosenDecodeForm, ChosenPrefillForm
from planner.roofline.shape import Load

PromptSeconds = Callable[[Any, Any, Any], Any]
"""Seconds of the kernels of one layer from (chunks, new, past), floats or arrays, chunks > 0."""


def _keys(kernel: str, kv_cache: Dtype) -> tuple[str, ...]:
    """Fits of modules over a cache of this format, else over one of 16 bit."""
    cache = "fp8" if BYTES_PER_VALUE[kv_cache] < BYTES_PER_VALUE[Dtype.BF16] else "bf16"
    return tuple(dict.fromkeys((f"{kernel}/{cache}", f"{kernel}/bf16")))


def _masked(count: Number, seconds: Number) -> Number:
    """The seconds where there is anything to do, else 0."""
    there: Any = count > 0.0
    masked: Number = seconds * there
    return masked


@dataclass(frozen=True)
class ChosenPrefill(LatentPrefill):
    """Latent attention of prompt chunks whose queries attend to chosen keys."""

    @property
    def fit_keys(self) -> tuple[str, ...]:
        """Modules, else kernels of latent attention."""
        return (*_keys("chosen_prefill", self.kv_cache), *super().fit_keys)

    def prompt_seconds(self, gpu: CalibratedGpu) -> PromptSeconds | None:
        """`chosen_prefill_s`; None where no module was measured."""
        form = gpu.form(ChosenPrefillForm, *_keys("chosen_prefill", self.kv_cache))
        if form is None:
            return None
        cached, peaks = BYTES_PER_VALUE[self.kv_cache], gpu.peaks(self.dtype)
        shape = ChosenHeads(self.heads, self.kv_rank, self.rope_dim, self.top_k, cached)
        return lambda chunks, new, past: chosen_prefill_s(chunks, new, past, shape, form, peaks)

    def kernel_s(self, load: Load, gpu: CalibratedGpu) -> Number | None:
        """`chosen_prefill_s`, else as `LatentPrefill`."""
        seconds = self.prompt_seconds(gpu)
        if seconds is None:
            return super().kernel_s(load, gpu)
        return _masked(load.chunks, seconds(load.chunks, load.new, load.past))


@dataclass(frozen=True)
class ChosenDecode(LatentDecode):
    """Latent attention of decodes that attend to chosen keys."""

    @property
    def fit_keys(self) -> tuple[str, ...]:
        """Modules, else kernels of latent attention."""
        return (*_keys("chosen_decode", self.kv_cache), *super().fit_keys)

    def measured_whole(self, gpu: CalibratedGpu) -> bool:
        """Whether modules were measured, so that nothing between their kernels is missing."""
        return gpu.first_key(*_keys("chosen_decode", self.kv_cache)) is not None

    def kernel_s(self, load: Load, gpu: CalibratedGpu) -> Number | None:
        """`chosen_decode_s`, else as `LatentDecode`."""
        form = gpu.form(ChosenDecodeForm, *_keys("chosen_decode", self.kv_cache))
        if form is None:
            return super().kernel_s(load, gpu)
        cached, peaks = BYTES_PER_VALUE[self.kv_cache], gpu.peaks(self.dtype)
        shape = ChosenHeads(self.heads, self.kv_rank, self.rope_dim, self.top_k, cached)
        seconds = chosen_decode_s(load.decodes * load.queries, load.context, shape, form, peaks)
        return _masked(load.decodes, seconds)


@dataclass(frozen=True)
class ChoosingIndex(IndexScores):
    """The index of latent attention over a cache of a format, whose modules it was measured in."""

    kv_cache: Dtype = Dtype.BF16

    @property
    def fit_keys(self) -> tuple[str, ...]:
        """Modules, else kernels of the index."""
        return (*_keys("chosen_prefill", self.kv_cache), *super().fit_keys)

    def prompt_seconds(self, gpu: CalibratedGpu) -> PromptSeconds | None:
        """`chosen_prefill_index_s`; None where no module was measured."""
        form = gpu.form(ChosenPrefillForm, *_keys("chosen_prefill", self.kv_cache))
        if form is None or gpu.first_key(*_keys("chosen_decode", self.kv_cache)) is None:
            return None
        sizes, peaks = (self.heads, self.head_dim), gpu.peaks(self.dtype)
        return lambda chunks, new, past: chosen_prefill_index_s(chunks, new, past, *sizes, form, peaks)

    def kernel_s(self, load: Load, gpu: CalibratedGpu) -> Number | None:
        """`chosen_prefill_index_s` and `chosen_decode_index_s`, else as `IndexScores`."""
        prompts = self.prompt_seconds(gpu)
        form = gpu.form(ChosenDecodeForm, *_keys("chosen_decode", self.kv_cache))
        if prompts is None or form is None:
            return super().kernel_s(load, gpu)
        decodes_s = chosen_decode_index_s(load.decodes, load.context, self.head_dim, form, gpu.peaks(self.dtype))
        prompts_s = prompts(load.chunks, load.new, load.past)
        return _masked(load.chunks, prompts_s) + _masked(load.decodes, decodes_s)
