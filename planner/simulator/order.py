"""Requests that wait at one replica, in the order in which they are admitted.

A request that was preempted goes back to where it stood: its place in the order of coming is kept.

- `ArrivalQueue`: first come, first served;
- `SortedQueue`: by a number of each request (its tokens, or the priority of its class), then first come;
- `FairQueue`: the class that has had the fewest tokens per weight, then first come. The virtual token counter of Sheng
  et al., Fairness in Serving Large Language Models, OSDI 2024, algorithm 2: a class is charged its prompt when it is
  admitted and a token whenever one is made; a class of which nobody waited is lifted to the least counter of those that
  wait, or, when nobody waits, to that of the class that left the queue last. So no credit is saved up while idle.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Sized
from typing import Protocol

from planner.engine import Order
from planner.simulator.cache import Sequence


class Queue(Protocol):
    """Sequences that wait for admission."""

    def __len__(self) -> int:
        """Number of waiting sequences."""

    def __iter__(self) -> Iterator[Sequence]:
        """In order of admission, as if each were admitted in turn."""

    def first(self) -> Sequence:
        """The sequence that is admitted next."""

    def push(self, sequence: Sequence) -> None:
        """Add a newcomer."""

    def put_back(self, sequence: Sequence) -> None:
        """Add one that was preempted, where it stood."""

    def admit(self, sequence: Sequence) -> None:
        """Take an admitted sequence out."""

    def count_tokens(self, class_index: int, tokens: float) -> None:
        """Note that sequences of a class have gained output tokens."""

    def steps_before_change(self, running: Sized[int], tokens_per_step: float) -> float:
        """Decode steps during which `first` stays; `running` sequences of each class decode."""


class ArrivalQueue(deque[Sequence]):
    """First come, first served."""

    def __init__(self) -> None:
        super().__init__()
        self.came = 0

    def first(self) -> Sequence:
        """The one that came first."""
        return self[0]

    def push(self, sequence: Sequence) -> None:
        """Add it at the end."""
        sequence.number = self.came
        self.came += 1
        self.append(sequence)

    def put_back(self, sequence: Sequence) -> None:
        """Insert it before all that came later."""
        later = next((i for i, other in enumerate(self) if other.number > sequence.number), len(self))
        self.insert(later, sequence)

    def admit(self, sequence: Sequence) -> None:
        """Take it out; it is mostly the first."""
        if self[0] is sequence:
            self.popleft()
        else:
            self.remove(sequence)

    def count_tokens(self, class_index: int, tokens: float) -> None:
        """Changes nothing in this order."""

    def steps_before_change(self, running: Sized[int], tokens_per_step: float) -> float:
        """Infinite: the order does not depend on what is served."""
        return math.inf


class SortedQueue:
    """Smallest value first, then first come."""

    def __init__(self, value: Callable[[Sequence], float]) -> None:
        self.value, self.came = value, 0
        self.items: list[tuple[float, int, Sequence]] = []

    def __len__(self) -> int:
        """Number of waiting sequences."""
        return len(self.items)

    def __iter__(self) -> Iterator[Sequence]:
        """By value."""
        return iter([item[2] for item in self.items])

    def first(self) -> Sequence:
        """The one of the smallest value."""
        return self.items[0][2]

    def push(self, sequence: Sequence) -> None:
        """Add it after those of the same value."""
        sequence.number = self.came
        self.came += 1
        self.put_back(sequence)

    def put_back(self, sequence: Sequence) -> None:
        """Insert it among those of the same value by its order of coming."""
        insort(self.items, (self.value(sequence), sequence.number, sequence))

    def admit(self, sequence: Sequence) -> None:
        """Take it out, found by value and number."""
        del self.items[bisect_left(self.items, (self.value(sequence), sequence.number))]

    def count_tokens(self, class_index: int, tokens: float) -> None:
        """Changes nothing in this order."""

    def steps_before_change(self, running: Sized[int], tokens_per_step: float) -> float:
        """Infinite: the order does not depend on what is served."""
        return math.inf


class FairQueue:
    """The class that has had the fewest tokens per weight first.

    Attributes:
        counter: tokens served of each class, divided by its weight.
        queues: of each class.
        last: the class of the request admitted last.
    """

    def __init__(self, weights: Sized[float]) -> None:
        self.weights = tuple(weights)
        self.counter = [0.0] * len(self.weights)
        self.queues = [ArrivalQueue() for _ in self.weights]
        self.last, self.came, self.size = -1, 0, 0

    def __len__(self) -> int:
        """Number of waiting sequences."""
        return self.size

    def __iter__(self) -> Iterator[Sequence]:
        """Each admission charged as it would be."""
        counter, rest = list(self.counter), [deque(queue) for queue in self.queues]
        while any(rest):
            class_index = self._least(counter, rest)
            sequence = rest[class_index].popleft()
            yield sequence
            counter[class_index] += self._price(sequence)

    def first(self) -> Sequence:
        """The first of the class that has had least."""
        return self.queues[self._least(self.counter, self.queues)].first()

    def push(self, sequence: Sequence) -> None:
        """Add it; the counter of its class is lifted if nobody of it waited."""
        class_index = sequence.class_index
        if not self.queues[class_index]:
            waiting = [self.counter[k] for k, queue in enumerate(self.queues) if queue]
            least = min(waiting) if waiting else self.counter[self.last] if self.last >= 0 else 0.0
            self.counter[class_index] = max(self.counter[class_index], least)
        self.queues[class_index].push(sequence)
        sequence.number = self.came
        self.came += 1
        self.size += 1

    def put_back(self, sequence: Sequence) -> None:
        """Insert it among those of its class by its order of coming."""
        self.queues[sequence.class_index].put_back(sequence)
        self.size += 1

    def admit(self, sequence: Sequence) -> None:
        """Take it out and charge its class for the prompt."""
        class_index = sequence.class_index
        self.queues[class_index].admit(sequence)
        self.counter[class_index] += self._price(sequence)
        self.last = class_index
        self.size -= 1

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
    def _least(counter: list[float], waiting: Sized[deque[Sequence]]) -> int:
        """The class that waits and has had least; of equals the one whose first came first."""
        kinds = (class_index for class_index, items in enumerate(waiting) if items)
        return min(kinds, key=lambda class_index: (counter[class_index], waiting[class_index][0].number))


def queue_of(order: Order, priorities: Sized[int], weights: Sized[float]) -> Queue:
    """The queue of a policy; `priorities` and `weights` are those of the classes."""
    match order:
        case Order.FCFS:
            return ArrivalQueue()
        case Order.SHORTEST_FIRST:
            return SortedQueue(lambda sequence: sequence.tokens + sequence.remaining)
        case Order.PRIORITY:
            return SortedQueue(lambda sequence: priorities[sequence.class_index])
        case Order.FAIR_SHARE:
            return FairQueue(weights)
