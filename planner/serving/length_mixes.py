"""What requests are like while little work comes, and while much does.

In a recording rate, prompts and answers move together. `RateDrift.mixes` puts windows in order of the work that comes
in them; here that order is chosen by what a pool does, and the requests of each mix are made: the same classes with
other mean lengths.
"""

from __future__ import annotations

from functools import lru_cache

from planner.serving.types import Role
from planner.workload import LengthMix, RequestClass, Workload

MOST_SCALED = 64
"""Lengths times factors that are kept. A choice: affects speed only."""


@lru_cache(maxsize=MOST_SCALED)
def _scaled_classes(
    kinds: tuple[RequestClass, ...], inputs: float, outputs: float, *, tilted: bool
) -> tuple[RequestClass, ...]:
    """The same requests with mean inputs and outputs times factors; of sessions what is new in each turn.

    Tilted: long or short ones of them come more often, where that can be; else each is longer or shorter.
    """
    classes = []
    for kind in kinds:
        sessions = kind.sessions and kind.sessions.scaled(inputs, outputs)
        lengths = sessions.lengths if sessions else None
        if lengths is None and tilted:
            lengths = kind.lengths.tilted(inputs, outputs)
        lengths = lengths or kind.lengths.scaled(inputs, outputs, kind.lengths.max_total)
        classes.append(kind.model_copy(update={"lengths": lengths, "sessions": sessions}))
    return tuple(classes)


def length_mixes(workload: Workload, role: Role) -> tuple[tuple[LengthMix, Workload], ...]:
    """What requests are like while little work comes, and while much does, the busiest last.

    Work is prompt tokens in a prefill pool, output tokens in a decode pool, and both in a mixed one.

    Args:
        workload: whose rate varies.
        role: of the pool that serves it.

    Returns:
        Mixes of lengths, each with steady requests like that; none where lengths do not drift.

    Raises:
        Nothing.
    """
    drift = workload.open_arrivals.drift
    if drift is None or not drift.input_factors:
        return ()
    lengths = workload.lengths
    inputs = lengths.mean_input / (lengths.mean_input + lengths.mean_output)
    by_inputs = {Role.MIXED: inputs, Role.PREFILL: 1.0, Role.DECODE: 0.0}[role]
    mixes = drift.mixes(by_inputs, 1.0 - by_inputs)
    if len(mixes) < 2:
        return ()
    return tuple((mix, scaled_workload(workload, mix.inputs, mix.outputs, tilted=True)) for mix in mixes)


def scaled_workload(workload: Workload, inputs: float, outputs: float, *, tilted: bool = False) -> Workload:
    """Steady requests as these with mean inputs and outputs times factors.

    Args:
        workload: the requests.
        inputs: factor on mean inputs.
        outputs: factor on mean outputs.
        tilted: long or short requests come more often, where that can be; else each is longer or shorter.

    Returns:
        The requests at their mean rate; no request is longer than the longest.

    Raises:
        Nothing.
    """
    classes = _scaled_classes(workload.classes, inputs, outputs, tilted=tilted)
    return Workload(arrivals=workload.open_arrivals.steady, classes=classes)
