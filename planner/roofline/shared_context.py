"""Latent attention where GPUs share out the tokens of a context (decode context parallelism).

Decodes gather their queries and merge their outputs, whatever prompts are in the step; prompts gather the cached rows
that they expand.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self

from planner.core import Constants, FloatArray, vectorized
from planner.roofline.arithmetic import Number, corrected_s, p_norm
from planner.roofline.gpu import CalibratedGpu
from planner.roofline.kernel_forms import CollectiveForm
from planner.roofline.operators import (
    Collective,
    Driver,
    Operator,
    OperatorWork,
    PromptKernel,
    PromptOperator,
    PromptWork,
    where_any,
)
from planner.roofline.shape import Load

ON_THE_LINK = CollectiveForm(start_s=0.0, link_efficiency=1.0, order=1.0)
"""Form of a collective that nobody measured: its bytes at the bandwidth of the link."""


@dataclass(frozen=True)
class _OverSomeTokens(Operator):
    """An operator over some of the tokens that another is over.

    Attributes:
        each: the other, of one layer.
    """

    each: Operator

    @classmethod
    def of(cls, each: Operator) -> Self:
        """The same in as many layers."""
        return cls(each.family, each.dtype, each.count, Driver.SHAPE, replace(each, count=1.0))

    @property
    def fit_keys(self) -> tuple[str, ...]:
        """Those of the operator."""
        return self.each.fit_keys


@dataclass(frozen=True)
class OfDecodes(_OverSomeTokens):
    """An operator over the tokens of decodes alone, those of prompts left out."""

    @property
    def launches(self) -> float:
        """Its kernels over all layers."""
        return self.count * self.each.launches

    @property
    def link_bytes_per_s(self) -> float:
        """Bandwidth of its links, endless for an operator without [bytes/s]."""
        return float(getattr(self.each, "link_bytes_per_s", math.inf))

    def work(self, load: Load) -> OperatorWork:
        """Of the operator."""
        return self.each.work(_decodes_of(load))

    def kernel_s(self, load: Load, gpu: CalibratedGpu) -> Number | None:
        """Of the operator; nothing without decodes."""
        seconds = self.each.kernel_s(_decodes_of(load), gpu)
        return None if seconds is None else where_any(load.decodes, seconds)


def _decodes_of(load: Load) -> Load:
    return replace(load, tokens=load.decodes * load.queries)


@dataclass(frozen=True)
class CachedRows:
    """Cached rows on their way to the GPUs that hold others.

    Attributes:
        row_bytes: that cross the link of a GPU for each cached token [bytes].
        link_bytes_per_s: bandwidth of that link per direction [bytes/s].
    """

    row_bytes: float
    link_bytes_per_s: float


@vectorized(CachedRows, CollectiveForm)
def gathered_cache_s(
    row: Constants, table: FloatArray, chunks: float, _new: float, _past: float, cached: float
) -> float:
    """Time [s] of the all-gather of what prompts find cached in one layer: `collective_s` of these rows.

    Args:
        row: size of a row, its link, and coefficients of the collective.
        table: of the correction.
        chunks: sequences that bring new tokens, any shape.
        cached: tokens that each has cached.

    Returns:
        Duration, shape of `chunks`; 0 where nothing is cached [s].

    >>> rows = CachedRows(row_bytes=1152 * 7 / 8, link_bytes_per_s=450e9)  # bf16, 8 GPUs
    >>> f"{float(gathered_cache_s(1.0, 8192.0, 0.0, 1e5, rows, ON_THE_LINK)):.3e}"  # 100.8 MB at 450 GB/s
    '2.240e-04'
    """
    payload_bytes = chunks * cached * row.row_bytes
    ideal = payload_bytes / row.link_bytes_per_s
    took = corrected_s(table, p_norm(row.order, row.start_s, ideal / row.link_efficiency), ideal, payload_bytes, 1.0)
    return took if payload_bytes > 0.0 else 0.0


@dataclass(frozen=True)
class GatheredCache(_OverSomeTokens, PromptOperator):
    """Cached rows of prompts, gathered from the GPUs that share out a context.

    Attributes:
        each: the all-gather, with the values of one token; of one layer.
    """

    each: Collective

    @property
    def link_bytes_per_s(self) -> float:
        """Bandwidth of its links [bytes/s]."""
        return self.each.link_bytes_per_s

    @property
    def _row_bytes(self) -> float:
        return self.each.values * self.each.bytes_per_value * self.each.ideal_share

    @property
    def prompt_work(self) -> PromptWork:
        """A GPU reads the rows that it sends, and writes those that it gets."""
        return PromptWork(window_bytes=2.0 * self._row_bytes)

    def work(self, load: Load) -> OperatorWork:
        """And sent."""
        return replace(super().work(load), link_bytes=load.chunks * load.cached * self._row_bytes)

    def prompt_kernel(self, gpu: CalibratedGpu) -> PromptKernel:
        """`gathered_cache_s`."""
        form = gpu.form(CollectiveForm, *self.fit_keys) or ON_THE_LINK
        return PromptKernel(gathered_cache_s, (CachedRows(self._row_bytes, self.link_bytes_per_s), form))
