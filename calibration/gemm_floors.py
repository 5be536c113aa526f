"""What tables of matrix products contain and serving does not: passes and launches that engines fuse or do once.

Both are identified by other measurements, never by what would please: a pass that was timed alone is taken off, and a
product that quantises nothing starts no later than the same backend's 16-bit one.
"""

from __future__ import annotations

import numpy as np

from calibration.tables import ColumnTable
from hardware_db import KernelFit

MOST_EXTRA_S = 5e-6
"""Start of a product beyond that of the engine's 16-bit one from which on it is the measurement's [s]. A choice: one
more launch takes 1.3 to 2.9 us (table ``scale_matrix``, small inputs)."""
SCALE_PASS_NOTE = (
    "the pass that finds a tensor's scale, measured alone, is taken off: checkpoints hold that scale (ModelOpt FP8)"
)


def without_scale_pass(rows: ColumnTable, passes: ColumnTable | None, backend: str) -> ColumnTable:
    """Products less the pass that computes the scale of the whole activation tensor before it is quantised.

    Args:
        rows: products, columns m, k and latency_s; those of other backends stay as they are.
        passes: the pass measured alone (table ``computescale``), if it was.
        backend: whose products contain it.
    """
    at = rows.text("backend") == backend
    if passes is None or not at.any() or not (passes.text("backend") == backend).any():
        return rows
    alone = passes.rows(passes.text("backend") == backend)
    seconds = dict(zip(zip(alone["m"].tolist(), alone["k"].tolist(), strict=True), alone["latency_s"], strict=True))
    sizes = zip(rows["m"][at].tolist(), rows["k"][at].tolist(), strict=True)
    left = rows["latency_s"].copy()
    left[at] -= np.array([seconds.get(size, np.nan) for size in sizes])
    return rows.with_columns(latency_s=left).rows(left > 0.0)


def without_launch_floor(result: KernelFit, plain: KernelFit) -> KernelFit:
    """A fit whose start is that of the 16-bit product, where it was found far later.

    Args:
        result: fit of a product of narrow weights that quantises no activations.
        plain: fit of the same backend's 16-bit product.
    """
    start, value = result.parameters["start_s"], plain.parameters["start_s"].value
    if start.value <= value + MOST_EXTRA_S:
        return result
    served = start.model_copy(update={"value": value, "low": min(start.low, value)})
    note = f"start of {1e6 * start.value:.1f} us cut to that of the 16-bit product, {1e6 * value:.1f}: one launch each"
    return result.model_copy(
        update={
            "parameters": {**result.parameters, "start_s": served},
            "note": "; ".join(text for text in (result.note, note) if text),
        }
    )
