"""Step durations of a server, checked on the way in."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from planner.core import InputError
from planner.queueing.types import BatchServer, FloatArray


def step_durations_s(server: BatchServer, running: ArrayLike, prompt_tokens: ArrayLike) -> FloatArray:
    """Durations [s] of steps with `running` sequences and `prompt_tokens` prompt tokens (broadcast together).

    Raises InputError when the step-time function answers with anything but finite positive numbers.
    """
    n, p = np.broadcast_arrays(np.asarray(running, dtype=np.float64), np.asarray(prompt_tokens, dtype=np.float64))
    durations = np.asarray(server.step_s(n, p), dtype=np.float64)
    if durations.shape != n.shape:
        raise InputError(
            "server.step_s", durations.shape, f"must answer in the shape of its arguments, {n.shape}", "use numpy"
        )
    bad = ~(np.isfinite(durations) & (durations > 0.0))
    if bad.any():
        where = f"{float(n[bad].flat[0]):g} running, {float(p[bad].flat[0]):g} prompt tokens"
        fix = f"check the step time of {where}"
        raise InputError("server.step_s", float(durations[bad].flat[0]), "must be finite and > 0 s", fix)
    return durations


@lru_cache(maxsize=4096)
def step_duration_s(server: BatchServer, running: float, prompt_tokens: float) -> float:
    """Duration [s] of one step, remembered: the theory asks for the same few again and again.

    Raises InputError as `step_durations_s`.
    """
    return float(step_durations_s(server, running, prompt_tokens))


def require_usable(server: BatchServer, replicas: int) -> None:
    """Raise InputError unless budget, running limit and number of replicas make a working pool."""
    if server.max_batched_tokens < 1:
        fix = "give the most tokens of one step, e.g. 2048"
        raise InputError("server.max_batched_tokens", server.max_batched_tokens, "must be >= 1 token", fix)
    if not server.max_running >= 1.0:
        fix = "give the most sequences that run at once, e.g. 256"
        raise InputError("server.max_running", server.max_running, "must be >= 1 sequence", fix)
    if replicas < 1:
        raise InputError("replicas", replicas, "must be >= 1", "a pool has at least one server")
