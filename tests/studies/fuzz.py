"""Fuzzing for as long as one likes: ``python -m tests.studies.fuzz --minutes N [--seed S] [--reader NAME ...]``.

Draws cases of every reader in turn (`tests.fuzz.cases`), and of whole plans and command lines (`tests.fuzz.plans`,
`tests.fuzz.commands`: seeds that count up from a million times S), in a process whose memory is limited. Keeps in
``tests/studies/fuzz.csv`` how many were tried, answered, refused and given up as too slow, the slowest, and what broke
the promise, the smallest file or first seed of each kind: a line for each reader and seed, written after every round.
A run may be ended at any time; the next one, of a seed that is not there yet, adds to it. Exits with 1 where anything
broke.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import random
import resource
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz import commands, plans
from tests.fuzz.cases import Case, holds
from tests.fuzz.guard import ROOT, Hang, answered
from tests.fuzz.readers import READERS

RESULTS = Path(__file__).with_suffix(".csv")
COLUMNS = ("reader", "seed", "cases", "taken", "refused", "slow", "broken", "slowest_s", "failure", "case")
MEMORY_BYTES = 4_000_000_000
"""Address space of the process: seeds have kilobytes, and the libraries take about one of these four."""
PLAN_LIMIT_S = 30.0
"""Time after which a plan or command is given up as slow, no failure by itself: some ask for fleets of thousands."""
SEEDS = 1_000_000
"""Seeds of one run of whole plans and command lines."""
GENERATED: dict[str, Callable[[int], str]] = {"plans": plans.outcome, "command lines": commands.outcome}
"""What is drawn from a seed rather than from damage to a file."""
SLICE_S = 2.0
"""Time for one reader before the next has its turn [s]."""


@dataclass
class Tally:
    """What came of the cases of one reader."""

    outcomes: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0
    broken: dict[str, Case | int] = field(default_factory=dict)

    def count(self, case: Case) -> None:
        """Read a file; once more where the time was up, since others may have had the machine."""

        def taken() -> bool:
            try:
                return holds(case.reader, case.content())
            except Hang:
                return holds(case.reader, case.content())

        self._run(case, taken)

    def count_seed(self, name: str, seed: int) -> None:
        """Make a plan, or run a command line."""
        try:
            self._run(seed, lambda: answered(lambda: GENERATED[name](seed), PLAN_LIMIT_S))
        except Hang:
            self.outcomes["slow"] += 1

    def _run(self, case: Case | int, taken: Callable[[], bool]) -> None:
        start = time.perf_counter()
        try:
            self.outcomes["taken" if taken() else "refused"] += 1
        except (Exception, Hang) as error:  # the point of it all
            if isinstance(error, Hang) and isinstance(case, int):
                raise
            self.outcomes["broken"] += 1
            self._keep(_kind_of(error), case)
        self.slowest_s = max(self.slowest_s, time.perf_counter() - start)

    def _keep(self, kind: str, case: Case | int) -> None:
        before = self.broken.get(kind)
        smaller = isinstance(case, Case) and isinstance(before, Case) and len(case.content()) < len(before.content())
        if before is None or smaller:
            self.broken[kind] = case


def _kind_of(error: BaseException) -> str:
    """Type and place, in this project where it has one."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename.startswith(str(ROOT)) and "/tests/" not in frame.filename]
    place = (own or frames)[-1]
    return f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}"


def run(readers: list[str], minutes: float, seed: int, keep: Callable[[dict[str, Tally]], None]) -> dict[str, Tally]:
    """Cases of every reader in turn until the time is up; `keep` gets the counts after each round."""
    warnings.simplefilter("error")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    chance = random.Random(seed)
    tallies = {name: Tally() for name in readers}
    end = time.monotonic() + 60.0 * minutes
    slice_s = min(SLICE_S, 60.0 * minutes / len(readers))
    seeds: dict[str, Iterator[int]] = {name: itertools.count(seed * SEEDS) for name in GENERATED}
    while time.monotonic() < end:
        for name, tally in tallies.items():
            turn = time.monotonic() + slice_s
            while time.monotonic() < turn:
                if name in GENERATED:
                    tally.count_seed(name, next(seeds[name]))
                else:
                    tally.count(Case.drawn(name, chance))
        keep(tallies)
    return tallies


def kept(path: Path = RESULTS) -> list[list[str]]:
    """The lines of the results, without their heading."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))[1:]


def write(tallies: dict[str, Tally], seed: int, path: Path = RESULTS) -> None:
    """One line for each reader, and one more for each kind of failure; lines of other readers and seeds stay."""
    rows = [row for row in kept(path) if row[0] not in tallies or row[1] != str(seed)]
    for name, tally in tallies.items():
        counts = [tally.outcomes[what] for what in COLUMNS[3:7]]
        rows.append([name, str(seed), str(sum(counts)), *map(str, counts), f"{tally.slowest_s:.2g}", "", ""])
        rows += [[name, str(seed), *[""] * 6, kind, repr(case)] for kind, case in tally.broken.items()]
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=None, help="default: the first that is not in the results")
    parser.add_argument("--reader", choices=[*READERS, *GENERATED], nargs="*", default=[*READERS, *GENERATED])
    given = parser.parse_args()
    seed = given.seed
    if seed is None:
        seed = 1 + max((int(row[1]) for row in kept()), default=0)
    tallies = run(given.reader, given.minutes, seed, lambda tallies: write(tallies, seed))
    broken = sum(tally.outcomes["broken"] for tally in tallies.values())
    print(f"{sum(tally.outcomes.total() for tally in tallies.values()):,} cases, {broken} broken: {RESULTS.name}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
