"""Start times of serving engines: ``presets/engine_starts.csv``, each row with its source.

Measured from the start of the process or container to ready, weights on a local disk. The time to obtain a machine and
to download weights comes on top: a person who knows it gives `DemandProfile.cold_start_s`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

from planner.core import GIB, Frozen, preset_rows
from planner.llm import LlmSpec, Precision, weight_bytes


class EngineStart(Frozen):
    """One measured start."""

    llm: str
    weights_gib: float
    weights_note: str
    engine: str
    sku: str
    tp: int
    seconds: float
    what: str
    source: str


@dataclass(frozen=True)
class ColdStart:
    """Time from the order for a replica until it serves.

    Attributes:
        seconds: [s].
        note: where it comes from, and what it takes for granted.
    """

    seconds: float
    note: str


@cache
def engine_starts() -> tuple[EngineStart, ...]:
    """Every measured start that is packaged.

    >>> min(start.seconds for start in engine_starts()) > 0
    True
    """
    return tuple(map(EngineStart.model_validate, preset_rows("engine_starts.csv")))


def cold_start_of(llm: LlmSpec, precision: Precision) -> ColdStart:
    """The measured start of the model itself, else that of the model whose weights are nearest in size (by ratio).

    Args:
        llm: that starts.
        precision: of its weights.
    """
    gib = weight_bytes(llm, precision) / GIB
    nearest = min(engine_starts(), key=lambda row: (row.llm != llm.id, abs(math.log(row.weights_gib / gib))))
    where = f"{nearest.engine}, {nearest.sku}, TP{nearest.tp}; {nearest.what}; {nearest.source}"
    note = f"cold start {nearest.seconds:g} s, measured for {nearest.llm} ({where})"
    if nearest.llm != llm.id:
        note += f": {llm.id} itself was not measured, and of what was its weights of {gib:.3g} GiB are nearest in size"
    return ColdStart(nearest.seconds, f"{note}; obtaining a machine and downloading weights come on top")
