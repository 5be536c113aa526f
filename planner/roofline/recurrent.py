"""Linear attention and state space, which keep a state instead of a cache: kernel forms and their operator.

Forms, coefficients and their conventions as in `planner.roofline.kernels`. The kernels are those of the gated delta net
(Yang, Kautz & Hatamizadeh 2024, arXiv:2412.06464): a short convolution, then a scan over chunks of a prompt (Yang et
al. 2024, arXiv:2406.06484, sec. 4) or, in decoding, one update of the state.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.core import Constants, FloatArray, vectorized
from planner.roofline.arithmetic import Number, corrected_s, p_norm
from planner.roofline.gpu import CalibratedGpu
from planner.roofline.kernel_forms import GpuPeaks, RecurrentDecodeForm, RecurrentPrefillForm
from planner.roofline.operators import OperatorWork, PromptKernel, PromptOperator, PromptWork, where_any
from planner.roofline.shape import Load

STATE_BYTES = 4.0
"""Bytes per value of a recurrent state, kept in 32 bit."""
CHANNEL_BYTES = 2.0
"""Bytes per value of what goes through the convolution and comes out of the state: 16 bit in all engines."""
RECURRENCE_CHUNK = 64.0
"""Tokens a chunked linear-attention kernel treats at once (Yang et al. 2024, arXiv:2406.06484, sec. 4)."""
SHARED_KERNELS = ("mamba2",)
"""Recurrences that all engines run by one set of kernels: the scan and update of mamba_ssm in Triton (``ssd_combined``,
``selective_state_update``), in vLLM under ``mamba/ops``, in SGLang under ``attention/mamba/ops``."""
UPDATE_FLOPS = 8.0
"""FLOPs per state value of one update: decay, delta, update and read-out."""


@dataclass(frozen=True)
class RecurrentHeads:
    """The heads of a recurrence on one GPU.

    Attributes:
        heads: value heads on this GPU.
        key_dim: key channels of a head's state.
        value_dim: value channels of a head's state.
        channels: that go through the short convolution: queries, keys and values (state space: x, B and C).
    """

    heads: float
    key_dim: float
    value_dim: float
    channels: float

    @property
    def state_bytes(self) -> float:
        """One sequence's state, read and written once [bytes]."""
        return 2.0 * STATE_BYTES * self.heads * self.key_dim * self.value_dim

    @property
    def token_bytes(self) -> float:
        """Least traffic of a token: its channels in, its heads' values out [bytes]."""
        return CHANNEL_BYTES * (self.channels + self.heads * self.value_dim)

    @property
    def passed_bytes(self) -> float:
        """The same through a convolution of its own, which writes the channels that the scan reads [bytes]."""
        return self.token_bytes + 2.0 * CHANNEL_BYTES * self.channels

    @property
    def scan_flops(self) -> float:
        """FLOPs of a prompt's token: 4 per state value between chunks, 4 c (key + value) a head within one of c."""
        within = RECURRENCE_CHUNK * (self.key_dim + self.value_dim)
        return 4.0 * self.heads * (self.key_dim * self.value_dim + within)

    @property
    def update_flops(self) -> float:
        """FLOPs of a decoded token."""
        return UPDATE_FLOPS * self.heads * self.key_dim * self.value_dim


@vectorized(RecurrentHeads, RecurrentPrefillForm, GpuPeaks)
def recurrent_prefill_s(row: Constants, table: FloatArray, chunks: float, new: float) -> float:
    """Time [s] of prompts through a recurrence (means over the chunks are allowed).

    ``start + p_norm(compute + memory, new token_s)`` with

        compute = chunks new scan_flops / (e_c peak)
        memory  = chunks (state_bytes + new passed_bytes) / (e_m bandwidth)

    The chunks of one sequence follow one another, so that few sequences and heads wait for the chain ``new token_s``.
    Compute and memory add up, since convolution and scan run one after the other. Corrected over new and chunks heads.

    Args:
        row: heads and their states, coefficients, and peaks of the GPU in 16 bit.
        table: of the correction.
        chunks: sequences that bring new tokens, any shape.
        new: tokens each brings.

    Returns:
        Duration, shape of `chunks` [s].

    >>> form = RecurrentPrefillForm(1e-5, compute_efficiency=0.5, memory_efficiency=0.5, order=20.0, token_s=5e-8)
    >>> shape, gpu = RecurrentHeads(8.0, 128.0, 128.0, 1536.0), GpuPeaks(1e15, 4e12, 132.0)
    >>> f"{recurrent_prefill_s(1.0, 8192.0, shape, form, gpu):.6f}"  # the chain: 1e-5 + 8192 * 5e-8
    '0.000420'
    """
    flops_s = chunks * new * row.scan_flops / row.flops_per_s
    moved_s = chunks * (row.state_bytes + new * row.passed_bytes) / (row.memory_efficiency * row.bytes_per_s)
    took = row.start_s + p_norm(row.order, flops_s / row.compute_efficiency + moved_s, new * row.token_s)
    ideal = max(flops_s, chunks * (row.state_bytes + new * row.token_bytes) / row.bytes_per_s)
    return corrected_s(table, took, ideal, new, chunks * row.heads)


@vectorized(RecurrentHeads, RecurrentDecodeForm, GpuPeaks)
def recurrent_decode_s(row: Constants, _table: FloatArray, sequences: float, queries: float) -> float:
    """Time [s] of the updates of each sequence's state.

    ``p_norm(start, sequences ((1 + queries) / 2 state_bytes + queries passed_bytes) / (e_m bandwidth))``

    A state is read once and written after every query, since the queries beyond the first are guesses that may be taken
    back.

    Args:
        row: heads and their states, coefficients, and peaks of the GPU in 16 bit.
        sequences: that decode, any shape.
        queries: of each: 1, more with speculation.

    Returns:
        Duration, shape of `sequences` [s].

    >>> form = RecurrentDecodeForm(start_s=6e-6, memory_efficiency=0.8, order=1.0)
    >>> shape, gpu = RecurrentHeads(8.0, 128.0, 128.0, 1536.0), GpuPeaks(1e15, 4e12, 132.0)
    >>> f"{recurrent_decode_s(64.0, 1.0, shape, form, gpu):.7f}"  # 6e-6 + 64 * (1048576 + 11264) / 3.2e12
    '0.0000272'
    """
    moved = (1.0 + queries) * row.state_bytes / 2.0 + queries * row.passed_bytes
    return p_norm(row.order, row.start_s, sequences * moved / (row.memory_efficiency * row.bytes_per_s))


@dataclass(frozen=True)
class Recurrence(PromptOperator):
    """Short convolution and linear attention or state space: a state of heads x key x value channels, no cache.

    Decoding reads the state once per sequence and writes it after every token: 8 FLOPs per state value (decay, delta,
    update, read-out). Prompts go through in chunks of c = 64 tokens: 4 FLOPs per state value and token between chunks
    and 4 c (key + value) within one (Yang et al. 2024, arXiv:2406.06484); their state is read and written once, since
    it can stay on the chip between chunks.

    Attributes:
        shape: heads and their states on this GPU.
        kernel: whose kernels time it: gated_delta, kda, mamba2.
    """

    shape: RecurrentHeads
    kernel: str = "gated_delta"

    @property
    def fit_keys(self) -> tuple[str, ...]:
        """Kernels of prompts; those of the gated delta net stand in for others, whose state moves alike: where engines
        share them the quickest engine's, else the engine's own.
        """
        return self._keys("recurrent_prefill")

    @property
    def decode_keys(self) -> tuple[str, ...]:
        """Kernels of decodes, likewise."""
        return self._keys("recurrent_decode")

    def _keys(self, form: str) -> tuple[str, ...]:
        common = ("common",) if self.kernel in SHARED_KERNELS else ()
        return tuple(dict.fromkeys(f"{form}/{name}" for name in (self.kernel, *common, "gated_delta")))

    @property
    def launches(self) -> float:
        """Convolution and scan or update."""
        return 2.0 * self.count

    @property
    def prompt_work(self) -> PromptWork:
        """FLOPs and state traffic of prompts, as the class says."""
        shape = self.shape
        return PromptWork(token_flops=shape.scan_flops, token_bytes=shape.token_bytes, chunk_bytes=shape.state_bytes)

    def prompt_kernel(self, gpu: CalibratedGpu) -> PromptKernel | None:
        """`recurrent_prefill_s`, where decodes were measured too."""
        form = gpu.form(RecurrentPrefillForm, *self.fit_keys)
        if form is None or gpu.first_key(*self.decode_keys) is None:
            return None
        return PromptKernel(recurrent_prefill_s, (self.shape, form, gpu.peaks(self.dtype)))

    def work(self, load: Load) -> OperatorWork:
        """Of prompts and of decodes, as the class says."""
        prompts, shape, decoded = super().work(load), self.shape, load.decodes * load.queries
        moved = (load.decodes + decoded) / 2.0 * shape.state_bytes + decoded * shape.token_bytes
        return OperatorWork(prompts.flops + decoded * shape.update_flops, prompts.hbm_bytes + moved)

    def kernel_s(self, load: Load, gpu: CalibratedGpu) -> Number | None:
        """`recurrent_prefill_s` of the chunks and `recurrent_decode_s` of the decodes, kernels of their own."""
        prompts_s, form = super().kernel_s(load, gpu), gpu.form(RecurrentDecodeForm, *self.decode_keys)
        if prompts_s is None or form is None:
            return None
        decodes_s = recurrent_decode_s(load.decodes, load.queries, self.shape, form, gpu.peaks(self.dtype))
        return prompts_s + where_any(load.decodes, decodes_s)
