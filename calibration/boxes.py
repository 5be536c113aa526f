"""Which rows of collectives describe a SKU, and which only the box or the set-up they were measured in.

GPUs of one topology (NVSwitch, PCIe) reach much the same share of their link, whichever box they sit in, unless the
box sends their traffic the long way: through host memory where peer access is off, or between sockets. Such rows say
nothing about the next box, so that those of a box that does not are taken in their place, and the note says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from calibration.tables import ColumnTable, FloatArray, read_table
from hardware_db import GpuSku

LEAST_OF_BEST = 0.5
"""Share of what another box of the topology (or another library in the box) reaches below which rows are refused. A
choice: boxes with peer access reach 0.38 to 0.74 of a PCIe link over 2 to 8 GPUs (RTX PRO 6000, Arc Pro B60, A100 pairs
joined over PCIe), NVSwitch ones 0.6 to 1.04; the rows refused by it 0.1 to 0.2 (docs/explanation/calibration.md)."""


@dataclass(frozen=True)
class GroupRows:
    """Rows of collectives over one number of GPUs.

    Attributes:
        rows: columns of the table ``collectives``.
        link_bytes_per_s: of the link they ran over, per GPU and direction.
        note: what was refused, and where the rows are from; empty where they are the SKU's own and all of them.
        spread: standard deviation of log(time) between the boxes where rows are borrowed, else 0.
        measured_on: SKU they are borrowed from, else empty.
    """

    rows: ColumnTable
    link_bytes_per_s: float
    note: str = ""
    spread: float = 0.0
    measured_on: str = ""


def group_rows(
    folder: Path, skus: Mapping[str, GpuSku], sku_id: str, gpus: int, folders: Mapping[str, str]
) -> GroupRows | None:
    """The rows to fit the collectives of a SKU over so many GPUs to; None where nothing was measured.

    Args:
        folder: of the SKU's own tables.
        skus: datasheets.
        sku_id: the SKU.
        gpus: that take part.
        folders: folder of tables -> SKU, of those that may stand beside `folder`.
    """
    own = _measured(folder, skus[sku_id], gpus)
    if own is None:
        return None
    topology, best = skus[sku_id].scale_up.topology, reached_share(own)
    lender, lent = sku_id, own
    for name, other in folders.items():
        if other != sku_id and other in skus and skus[other].scale_up.topology is topology:
            found = _measured(folder.parent / name, skus[other], gpus)
            if found is not None and reached_share(found) > reached_share(lent):
                lender, lent = other, found
    most = reached_share(lent)
    if best >= LEAST_OF_BEST * most:
        return _without_slow_libraries(own)
    note = (
        f"own rows refused: over {gpus} GPUs their box reaches {100 * best:.0f} % of the link, that of {lender} "
        f"{100 * most:.0f} %; share of the link and start taken over from {lender}"
    )
    return GroupRows(lent.rows, lent.link_bytes_per_s, note, math.log(most / best) / math.sqrt(2.0), lender)


def reached_share(group: GroupRows) -> float:
    """Largest share of the link that any of the rows reaches [-], all of them sent round a ring."""
    return float(np.max(_shares(group)))


def _measured(folder: Path, sku: GpuSku, gpus: int) -> GroupRows | None:
    table = read_table(folder, "collectives") if folder.is_dir() else None
    if table is None or not (table["num_gpus"] == gpus).any():
        return None
    return GroupRows(table.rows(table["num_gpus"] == gpus), sku.scale_up.bandwidth_bytes_per_s.value)


def _shares(group: GroupRows) -> FloatArray:
    """Bytes over each link / time / bandwidth; twice (n - 1) / n of the buffer in an all-reduce, once otherwise."""
    rows = group.rows
    rounds = np.where(rows.text("op") == "all_reduce", 2.0, 1.0) * (rows["num_gpus"] - 1.0) / rows["num_gpus"]
    return np.asarray(rounds * rows["bytes"] / rows["latency_s"] / group.link_bytes_per_s)


def _without_slow_libraries(group: GroupRows) -> GroupRows:
    """Without the all-reduces of libraries that reach far less than another one in the same box."""
    rows, shares = group.rows, _shares(group)
    libraries = rows.text("backend")
    served = (rows.text("op") == "all_reduce") & (rows.text("mode") == "graph")
    best = {str(name): float(shares[served & (libraries == name)].max()) for name in np.unique(libraries[served])}
    slow = sorted(name for name, share in best.items() if share < LEAST_OF_BEST * max(best.values()))
    if not slow:
        return group
    shown = ", ".join(f"{name} ({100 * best[name]:.0f} % of the link)" for name in slow)
    note = f"all-reduces refused of {shown}: in the same box another library reaches {100 * max(best.values()):.0f} %"
    return GroupRows(rows.rows(~(served & np.isin(libraries, slow))), group.link_bytes_per_s, note)
