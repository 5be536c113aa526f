"""Static batches: who is in one, and what its padded prompts are to a step.

All sequences of a batch count as long as the longest until the last has ended, as in FasterTransformer and the batched
`generate` of Hugging Face; what continuous batching (Yu et al., Orca, OSDI 2022, sec. 3) does away with.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from planner.simulator.cache import CacheLimits, Sequence
from planner.simulator.order import Queue
from planner.simulator.rules import Rules


@dataclass(eq=False, slots=True)
class StaticBatch:
    """A batch under way.

    Attributes:
        sequences: in it, ended ones included.
        padded: tokens of the longest prompt.
        done: prompt tokens processed, padding included.
        began: decode steps the replica had done when it began to decode.
    """

    sequences: list[Sequence]
    padded: int
    done: int = 0
    began: int = 0

    @property
    def in_prompts(self) -> bool:
        """Whether its prompts are still being processed."""
        return self.done < self.padded * len(self.sequences)

    def next_chunk(self, max_batched_tokens: int, micro_batches: int = 1) -> tuple[int, int, float, float]:
        """Chunk tokens, pairs, context and chunks (as in `StepShape`) of the next step, one prompt after the other.

        Each micro-batch has the chunk budget; a prompt of more is in several.

        >>> StaticBatch([Sequence(0, 3, 1), Sequence(1, 2, 1)], padded=3).next_chunk(4)  # a prompt of 3, the first of 3
        (4, 7, 4.0, 2)
        """
        total, room = self.padded * len(self.sequences), max_batched_tokens * micro_batches
        chunk = pairs = 0
        cached: float = 0
        chunks: float = 0
        while room > 0 and self.done < total:
            past = self.done % self.padded
            new = min(self.padded - past, room)
            pieces = 1 if new <= max_batched_tokens else new / max_batched_tokens
            chunk, chunks, cached = chunk + new, chunks + pieces, cached + pieces * past + (pieces + 1) * new / 2
            pairs += new * past + new * (new + 1) // 2
            self.done += new
            room -= new
        return chunk, pairs, cached, chunks


def batch_from(waiting: Queue, held: int, rules: Rules) -> tuple[list[Sequence], bool]:
    """The batch that waiting requests make beside `held` KV blocks, and whether there is no room for one more."""
    taken: list[Sequence] = []
    for sequence in waiting:
        if held + padded_blocks([*taken, sequence], rules.memory) * (len(taken) + 1) > rules.memory.blocks:
            return taken, True
        taken.append(sequence)
        if len(taken) == rules.max_running:
            return taken, True
    return taken, False


def padded_blocks(sequences: list[Sequence], memory: CacheLimits) -> int:
    """KV blocks of each sequence of a batch: the longest prompt and the longest output, or its piece."""
    tokens = max(each.tokens for each in sequences) + max(each.remaining for each in sequences)
    return (memory.piece_blocks or math.ceil(tokens / memory.block_tokens)) + memory.sequence_blocks
