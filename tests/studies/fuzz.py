"""Fuzzing for as long as one likes: ``python -m tests.studies.fuzz --minutes N [--seed S] [--reader NAME ...]``.

Draws cases of every reader in turn (`tests.fuzz.cases`), in a process whose memory is limited, and keeps in
``tests/studies/fuzz.csv`` how many were tried, taken and refused, the slowest, and what broke the promise, the smallest
file of each kind. Exits with 1 where anything did.
"""

from __future__ import annotations

import argparse
import csv
import random
import resource
import sys
import time
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.cases import Case, holds
from tests.fuzz.guard import ROOT, Hang
from tests.fuzz.readers import READERS

RESULTS = Path(__file__).with_suffix(".csv")
MEMORY_BYTES = 4_000_000_000
"""Address space of the process: seeds have kilobytes, and the libraries take about one of these four."""
SLICE_S = 2.0
"""Time for one reader before the next has its turn [s]."""


@dataclass
class Tally:
    """What came of the cases of one reader."""

    outcomes: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0
    broken: dict[str, Case] = field(default_factory=dict)

    def count(self, case: Case) -> None:
        """Run a case."""
        start = time.perf_counter()
        try:
            self.outcomes["taken" if holds(case.reader, case.content()) else "refused"] += 1
        except (Exception, Hang) as error:  # the point of it all
            self.outcomes["broken"] += 1
            self._keep(_kind_of(error), case)
        self.slowest_s = max(self.slowest_s, time.perf_counter() - start)

    def _keep(self, kind: str, case: Case) -> None:
        before = self.broken.get(kind)
        if before is None or len(case.content()) < len(before.content()):
            self.broken[kind] = case


def _kind_of(error: BaseException) -> str:
    """Type and place, in this project where it has one."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename.startswith(str(ROOT)) and "/tests/" not in frame.filename]
    place = (own or frames)[-1]
    return f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}"


def run(readers: list[str], minutes: float, seed: int) -> dict[str, Tally]:
    """Cases of every reader in turn until the time is up."""
    warnings.simplefilter("error")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    chance = random.Random(seed)
    tallies = {name: Tally() for name in readers}
    end = time.monotonic() + 60.0 * minutes
    slice_s = min(SLICE_S, 60.0 * minutes / len(readers))
    while time.monotonic() < end:
        for name, tally in tallies.items():
            turn = time.monotonic() + slice_s
            while time.monotonic() < turn:
                tally.count(Case.drawn(name, chance))
    return tallies


def write(tallies: dict[str, Tally], path: Path = RESULTS) -> None:
    """One line for each reader, and one more for each kind of failure."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["reader", "cases", "taken", "refused", "broken", "slowest_s", "failure", "case"])
        for name, tally in tallies.items():
            counts = [tally.outcomes[what] for what in ("taken", "refused", "broken")]
            writer.writerow([name, sum(counts), *counts, f"{tally.slowest_s:.2g}", "", ""])
            for kind, case in tally.broken.items():
                writer.writerow([name, "", "", "", "", "", kind, repr(case)])


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--reader", choices=READERS, nargs="*", default=list(READERS))
    given = parser.parse_args()
    tallies = run(given.reader, given.minutes, given.seed)
    write(tallies)
    broken = sum(tally.outcomes["broken"] for tally in tallies.values())
    print(f"{sum(tally.outcomes.total() for tally in tallies.values()):,} cases, {broken} broken: {RESULTS.name}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
