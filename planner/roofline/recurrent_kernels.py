"""How long a recurrence takes: kernel forms of linear attention and state space, which keep a state instead of a cache.

Forms, coefficients and their conventions as in `planner.roofline.kernels`. The kernels are those of the gated delta net
(Yang, Kautz & Hatamizadeh 2024, arXiv:2412.06464): a short convolution, then a scan over chunks of a prompt (Yang et
al. 2024, arXiv:2406.06484, sec. 4) or, in decoding, one update of the state.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.roofline.arithmetic import Value, at_least, p_norm
from planner.roofline.kernel_forms import GpuPeaks, RecurrentDecodeForm, RecurrentPrefillForm, corrected_s

STATE_BYTES = 4.0
"""Bytes per value of a recurrent state, kept in 32 bit."""
CHANNEL_BYTES = 2.0
"""Bytes per value of what goes through the convolution and comes out of the state: 16 bit in all engines."""
RECURRENCE_CHUNK = 64.0
"""Tokens a chunked linear-attention kernel treats at once (Yang et al. 2024, arXiv:2406.06484, sec. 4)."""
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
        """What a token brings and takes at least: its channels in, its heads' values out [bytes]."""
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


def recurrent_prefill_s(
    chunks: Value, new: Value, shape: RecurrentHeads, form: RecurrentPrefillForm, peaks: GpuPeaks
) -> Value:
    """Time [s] of prompts through a recurrence (means over the chunks are allowed).

    ``start + p_norm(compute + memory, new token_s)`` with

        compute = chunks new scan_flops / (e_c peak)
        memory  = chunks (state_bytes + new passed_bytes) / (e_m bandwidth)

    The chunks of one sequence follow one another, so that few sequences and heads wait for the chain ``new token_s``.
    Compute and memory add up, since convolution and scan run one after the other. Corrected over new and chunks heads.

    Args:
        chunks: sequences that bring new tokens, any shape.
        new: tokens each brings, shape of `chunks`.
        shape: heads and their states.
        form: coefficients.
        peaks: of the GPU, in 16 bit.

    Returns:
        Duration, shape of `chunks` [s].

    >>> form = RecurrentPrefillForm(1e-5, compute_efficiency=0.5, memory_efficiency=0.5, order=20.0, token_s=5e-8)
    >>> shape, gpu = RecurrentHeads(8.0, 128.0, 128.0, 1536.0), GpuPeaks(1e15, 4e12, 132.0)
    >>> f"{recurrent_prefill_s(1.0, 8192.0, shape, form, gpu):.6f}"  # the chain: 1e-5 + 8192 * 5e-8
    '0.000420'
    """
    flops_s = chunks * new * (shape.scan_flops / peaks.flops_per_s)
    work = flops_s / form.compute_efficiency
    work = work + chunks * (shape.state_bytes + new * shape.passed_bytes) / (form.memory_efficiency * peaks.bytes_per_s)
    took = form.start_s + p_norm(form.order, work, new * form.token_s)
    ideal = at_least(flops_s, chunks * (shape.state_bytes + new * shape.token_bytes) / peaks.bytes_per_s)
    return corrected_s(took, ideal, form.correction, new, chunks * shape.heads)


def recurrent_decode_s(
    sequences: Value, queries: float, shape: RecurrentHeads, form: RecurrentDecodeForm, peaks: GpuPeaks
) -> Value:
    """Time [s] of the updates of each sequence's state.

    ``p_norm(start, sequences ((1 + queries) / 2 state_bytes + queries passed_bytes) / (e_m bandwidth))``

    A state is read once and written after every query, since the queries beyond the first are guesses that may be taken
    back.

    Args:
        sequences: that decode, any shape.
        queries: of each: 1, more with speculation.
        shape: heads and their states.
        form: coefficients.
        peaks: of the GPU, in 16 bit.

    Returns:
        Duration, shape of `sequences` [s].

    >>> form = RecurrentDecodeForm(start_s=6e-6, memory_efficiency=0.8, order=1.0)
    >>> shape, gpu = RecurrentHeads(8.0, 128.0, 128.0, 1536.0), GpuPeaks(1e15, 4e12, 132.0)
    >>> f"{recurrent_decode_s(64.0, 1.0, shape, form, gpu):.7f}"  # 6e-6 + 64 * (1048576 + 11264) / 3.2e12
    '0.0000272'
    """
    moved = (1.0 + queries) * (shape.state_bytes / 2.0) + queries * shape.passed_bytes
    traffic_s = sequences * (moved / peaks.bytes_per_s)
    return p_norm(form.order, traffic_s / form.memory_efficiency, traffic_s * 0.0 + form.start_s)
