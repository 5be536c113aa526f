"""A case: a reader, one of its seeds, and the damage; and whether the promise holds on it."""

from __future__ import annotations

import functools
import json
import random
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.fuzz.guard import TIME_LIMIT_S, answered
from tests.fuzz.mutations import Mutation, mutated_bytes, mutated_lines, mutated_table, mutated_tree
from tests.fuzz.readers import READERS, Reader

MOST_MUTATIONS = 3


class Case(NamedTuple):
    """One file to be read.

    Attributes:
        reader: its name.
        seed: which of its seeds, modulo how many there are.
        bytewise: damage it byte by byte, also where it could be damaged by node, cell or line.
        mutations: the damage; none leaves the seed as it is.
    """

    reader: str
    seed: int
    bytewise: bool
    mutations: tuple[Mutation, ...]

    @classmethod
    def drawn(cls, reader: str, chance: random.Random) -> Case:
        """One at random."""
        mutations = tuple(Mutation.drawn(chance) for _ in range(chance.randint(1, MOST_MUTATIONS)))
        return cls(reader, chance.randrange(1 << 10), chance.random() < 0.3, mutations)

    def content(self) -> bytes:
        """What is in the file."""
        reader = READERS[self.reader]
        path = reader.seeds[self.seed % len(reader.seeds)]
        if not self.mutations:
            return _bytes(path)
        if self.bytewise or path in reader.texts:
            return mutated_bytes(_bytes(path), self.mutations)
        return _damaged(reader, path, self.mutations).encode("utf-8", "surrogatepass")


def _damaged(reader: Reader, path: Path, mutations: Sequence[Mutation]) -> str:
    if path in reader.trees:
        return mutated_tree(json.loads(_bytes(path)), mutations)
    text = _bytes(path).decode()
    return mutated_table(text, mutations) if path in reader.tables else mutated_lines(text, mutations)


@functools.cache
def _bytes(path: Path) -> bytes:
    return path.read_bytes()


def holds(reader: str, content: bytes, limit_s: float = TIME_LIMIT_S) -> bool:
    """Whether a reader takes a file (False: it refuses it). Raises whatever breaks the promise."""
    entry = READERS[reader]
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    try:
        path = folder / entry.file
        path.write_bytes(content)
        return answered(lambda: entry.read(path), limit_s)
    finally:
        shutil.rmtree(folder)
