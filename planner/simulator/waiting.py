"""Requests that wait at one replica: in which order they are admitted, for which adapter, and in which static batch.

A request that was preempted goes back to where it stood: its place in the order of coming is kept.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Sized
from dataclasses import dataclass
from enum import Enum

from planner.engine import Order
from planner.simulator.cache import CacheLimits, Sequence
from planner.simulator.rules import Rules


class Queue(list[tuple[float, int, Sequence]]):
    """Smallest value first, then first come; without values, first come, first served."""

    def __init__(self, value: Callable[[Sequence], float] = lambda _: 0.0) -> None:
        super().__init__()
        self.value, self.came = value, 0

    def sequences(self) -> Iterator[Sequence]:
        """In order of admission, as if each were admitted in turn."""
        return (item[2] for item in self)

    def first(self) -> Sequence:
        """The sequence that is admitted next."""
        return self[0][2]

    def push(self, sequence: Sequence) -> None:
        """Add a newcomer."""
        sequence.number = self.came
        self.came += 1
        self.put_back(sequence)

    def put_back(self, sequence: Sequence) -> None:
        """Add one that was preempted, where it stood."""
        insort(self, (self.value(sequence), sequence.number, sequence))

    def admit(self, sequence: Sequence) -> None:
        """Take an admitted sequence out."""
        del self[bisect_left(self, (self.value(sequence), sequence.number))]

    def count_tokens(self, class_index: int, tokens: float) -> None:
        """Note that sequences of a class have gained output tokens."""

    def steps_before_change(self, running: Sized[int], tokens_per_step: float) -> float:
        """Decode steps during which `first` stays; `running` sequences of each class decode."""
        return math.inf


class FairQueue(Queue):
    """The class that has had the fewest tokens per weight first, then first come.

    The virtual token counter of Sheng et al., Fairness in Serving Large Language Models, OSDI 2024, algorithm 2: a
    class is charged its prompt when it is admitted and a token whenever one is made; a class of which nobody waited is
    lifted to the least counter of those that wait, or, when nobody waits, to that of the class that left the queue
    last. So no credit is saved up while idle.

    Attributes:
        counter: tokens served of each class, divided by its weight.
        queues: of each class.
        last: the class of the request admitted last.
    """

    def __init__(self, weights: Sized[float]) -> None:
        super().__init__()
        self.weights = weights
        self.counter = [0.0] * len(weights)
        self.queues = [Queue() for _ in weights]
        self.last = -1

    def __len__(self) -> int:
        """Number of waiting sequences."""
        return sum(map(len, self.queues))

    def sequences(self) -> Iterator[Sequence]:
        """Each admission charged as it would be."""
        counter, rest = list(self.counter), [list(queue.sequences()) for queue in self.queues]
        while any(rest):
            class_index = self._least(counter, [items[0].number if items else None for items in rest])
            sequence = rest[class_index].pop(0)
            yield sequence
            counter[class_index] += self._price(sequence)

    def first(self) -> Sequence:
        """The first of the class that has had least."""
        numbers = [queue[0][1] if queue else None for queue in self.queues]
        return self.queues[self._least(self.counter, numbers)].first()

    def push(self, sequence: Sequence) -> None:
        """Add it; the counter of its class is lifted if nobody of it waited."""
        class_index = sequence.class_index
        if not self.queues[class_index]:
            waiting = [self.counter[k] for k, queue in enumerate(self.queues) if queue]
            least = min(waiting) if waiting else self.counter[self.last] if self.last >= 0 else 0.0
            self.counter[class_index] = max(self.counter[class_index], least)
        super().push(sequence)

    def put_back(self, sequence: Sequence) -> None:
        """Insert it among those of its class by its order of coming."""
        self.queues[sequence.class_index].put_back(sequence)

    def admit(self, sequence: Sequence) -> None:
        """Take it out and charge its class for the prompt."""
        self.last = sequence.class_index
        self.queues[self.last].admit(sequence)
        self.counter[self.last] += self._price(sequence)

    def count_tokens(self, class_index: int, tokens: float) -> None:
        """Charge the class for tokens made."""
        self.counter[class_index] += tokens / self.weights[class_index]

    def steps_before_change(self, running: Sized[int], tokens_per_step: float) -> float:
        """Until the counter of the first's class meets that of another that waits (a step short of it)."""
        rates = [count * tokens_per_step / weight for count, weight in zip(running, self.weights, strict=True)]
        mine, steps = self.first().class_index, math.inf
        for class_index, queue in enumerate(self.queues):
            if queue and rates[mine] > rates[class_index]:
                steps = min(
                    steps, (self.counter[class_index] - self.counter[mine]) / (rates[mine] - rates[class_index]) - 1.0
                )
        return max(steps, 1.0)

    def _price(self, sequence: Sequence) -> float:
        """A prompt counts once: whoever was preempted has paid."""
        return 0.0 if sequence.admitted else sequence.tokens / self.weights[sequence.class_index]

    @staticmethod
    def _least(counter: list[float], first: list[int | None]) -> int:
        """The class that waits and has had least; of equals the one whose `first` (by number) came first."""
        return min(
            (count, number, k)
            for k, (count, number) in enumerate(zip(counter, first, strict=True))
            if number is not None
        )[2]


def queue_of(order: Order, rules: Rules) -> Queue:
    """The queue of a policy."""
    match order:
        case Order.FCFS:
            return Queue()
        case Order.SHORTEST_FIRST:
            return Queue(lambda sequence: sequence.tokens + sequence.remaining)
        case Order.PRIORITY:
            return Queue(lambda sequence: rules.priorities[sequence.class_index])
        case Order.FAIR_SHARE:
            return FairQueue(rules.weights)


class AdapterPlace(Enum):
    """Place of an adapter that a request needs."""

    THERE = "there"
    COMING = "coming"
    NO_SLOT = "no slot"


class AdapterSlots:
    """At most `slots` adapters on the GPU; one that nobody uses makes room, the least recently used first.

    Attributes:
        users: of each adapter in use, the sequences that use it.
        idle: adapters that are there and that nobody uses, the next to make room first.
        coming: when those that are being loaded will be there [s]; the host link loads one after the other.
    """

    def __init__(self, slots: int, load_s: float) -> None:
        self.slots, self.load_s = slots, load_s
        self.users: dict[int, int] = {}
        self.idle: dict[int, None] = {}
        self.coming: dict[int, float] = {}
        self.free_s = 0.0

    def finish_loads(self, now_s: float) -> None:
        """Make adapters available whose load is over."""
        while self.coming and min(self.coming.values()) <= now_s:
            adapter = next(iter(self.coming))  # they are loaded one after the other
            del self.coming[adapter]
            self.idle[adapter] = None

    def locate(self, adapter: int, now_s: float) -> AdapterPlace:
        """Place of an adapter; its load begins if it is nowhere and a slot is free or can be freed."""
        if adapter < 0 or adapter in self.users or adapter in self.idle:
            return AdapterPlace.THERE
        if adapter not in self.coming:
            if len(self.users) + len(self.idle) + len(self.coming) >= self.slots:
                if not self.idle:
                    return AdapterPlace.NO_SLOT
                del self.idle[next(iter(self.idle))]
            self.free_s = max(now_s, self.free_s) + self.load_s
            self.coming[adapter] = self.free_s
        return AdapterPlace.COMING

    def use(self, adapter: int) -> None:
        """Count a sequence that is admitted with it."""
        if adapter >= 0:
            self.idle.pop(adapter, None)
            self.users[adapter] = self.users.get(adapter, 0) + 1

    def release(self, adapter: int) -> None:
        """Count a sequence that used it as ended or preempted."""
        if adapter >= 0:
            self.users[adapter] -= 1
            if not self.users[adapter]:
                del self.users[adapter]
                self.idle[adapter] = None


@dataclass(eq=False, slots=True)
class StaticBatch:
    """A static batch under way.

    All sequences count as long as the longest until the last has ended, as in FasterTransformer and the batched
    `generate` of Hugging Face; what continuous batching (Yu et al., Orca, OSDI 2022, sec. 3) does away with.

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
        """True while its prompts are being processed."""
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
    """The batch that waiting requests make beside `held` KV blocks, and True if there is no room for one more."""
    taken: list[Sequence] = []
    for sequence in waiting.sequences():
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
