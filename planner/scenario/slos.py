"""Latency targets by use: chat, code, RAG, reasoning, batch; a starting point, with the publication each comes from."""

from __future__ import annotations

import csv
from functools import cache
from itertools import groupby

from pydantic import Field

from planner.core import Frozen, UnknownNameError
from planner.presets import preset
from planner.workload import LatencyTarget


class SloPreset(Frozen):
    """Targets that somebody published for a use.

    A threshold of the table is in seconds; the source names the benchmark or paper and its workload.
    """

    name: str = Field(description="e.g. chat")
    title: str = Field(description="for people")
    targets: tuple[LatencyTarget, ...] = Field(min_length=1)
    source: str = Field(min_length=8)
    source_url: str = Field(min_length=8)


@cache
def slo_presets() -> tuple[SloPreset, ...]:
    """Every preset, in the order of the table.

    >>> [f"{target.name}: {target.threshold_s:g} s" for target in slo_preset("chat").targets]
    ['p99 TTFT: 0.45 s', 'p99 TPOT: 0.04 s']
    """
    text = preset("slos.csv").read_text(encoding="utf-8")
    found = []
    for name, group in groupby(csv.DictReader(text.splitlines()), key=lambda row: row["name"]):
        rows = list(group)
        found.append(
            SloPreset(
                name=name,
                title=rows[0]["title"],
                targets=tuple(
                    LatencyTarget.model_validate({key: row[key] for key in ("metric", "percentile", "threshold_s")})
                    for row in rows
                ),
                source=rows[0]["source"],
                source_url=rows[0]["source_url"],
            )
        )
    return tuple(found)


def slo_preset(name: str) -> SloPreset:
    """The preset of a name. Raises UnknownNameError."""
    known = {preset.name: preset for preset in slo_presets()}
    if name not in known:
        raise UnknownNameError("slo preset", name, known)
    return known[name]
