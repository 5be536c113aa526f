"""What study scripts share: rows of results in CSV files, and draws that leave no chance in the offered load."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.simulator.traffic import draw
from planner.workload import TokenLengths, Workload

Row = dict[str, float]
CLOSE_RATE, TRIED_SEEDS = 0.001, 60
"""Of so many seeds the first (or best) is taken whose measured arrivals come at the rate asked for to this share: near
saturation a rate that is 1 % off by chance moves a wait by more than the theory's error."""


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file; none where there is no file yet."""
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines())) if path.exists() else []


def write_rows(path: Path, rows: Iterable[Any]) -> None:
    """Records or mappings as CSV, in the columns of the first; a run that is cut short leaves the file whole."""
    listed = [row if isinstance(row, Mapping) else asdict(row) for row in rows]
    unfinished = path.with_suffix(".part")
    with unfinished.open("w", newline="", encoding="utf-8") as file:
        out = csv.DictWriter(file, list(listed[0]), lineterminator="\n")
        out.writeheader()
        out.writerows(listed)
    unfinished.replace(path)


def table_lines(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """Lines of a Markdown table."""
    names = list(heads)
    yield f"| {' | '.join(names)} |"
    yield "|---" * len(names) + "|"
    yield from (f"| {' | '.join(cells)} |" for cells in rows)


def write_between(path: Path, begin: str, end: str, text: str) -> None:
    """Put a text between two marks of a document. Raises SystemExit where they are not there."""
    before, first, rest = path.read_text(encoding="utf-8").partition(begin)
    _, last, after = rest.partition(end)
    if not first or not last:
        raise SystemExit(f"{path} has no {begin} ... {end}")
    path.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")


def read(path: Path) -> dict[int, Row]:
    """Rows of numbers done so far, by the number of their scenario."""
    rows = ({key: float(value) for key, value in row.items()} for row in read_rows(path))
    return {int(row["number"]): row for row in rows}


def write(path: Path, rows: dict[int, Row]) -> None:
    """All rows of numbers, sorted by scenario, to six digits."""
    ordered = (rows[number] for number in sorted(rows))
    write_rows(path, ({key: f"{value:.6g}" for key, value in row.items()} for row in ordered))


def fair_seed(workload: Workload, first: int, filling: int, requests: int) -> int:
    """A seed whose measured arrivals come at very nearly the rate asked for."""
    best, seed = np.inf, first
    for candidate in range(1000 * first, 1000 * first + TRIED_SEEDS):
        sent_s = draw(workload, requests, candidate).sent_s
        off = abs((requests - filling) / (sent_s[-1] - sent_s[filling - 1]) / workload.rate_per_s - 1.0)
        if off < best:
            best, seed = off, candidate
        if best < CLOSE_RATE:
            break
    return seed


def fair_lengths(lengths: TokenLengths, count: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Lengths in proportion to their probabilities (to one request), in random order: no chance in the offered load."""
    generator = np.random.default_rng(seed)
    places = (np.arange(count) + generator.random()) / count
    cells = np.searchsorted(np.cumsum(lengths.probabilities), places).clip(0, lengths.inputs.size - 1)
    cells = generator.permutation(cells)
    return lengths.inputs[cells].astype(np.int64), lengths.outputs[cells].astype(np.int64)
