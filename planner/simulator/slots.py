"""GPU slots for adapters of one replica: which are there, which are on their way, which make room."""

from __future__ import annotations

from enum import Enum


class Adapter(Enum):
    """Where an adapter is that somebody wants."""

    THERE = "there"
    COMING = "coming"
    NO_SLOT = "no slot"


class AdapterSlots:
    """At most `slots` adapters; one that nobody uses makes room, the least recently used first.

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

    def settle(self, now_s: float) -> None:
        """Note what has been loaded by now."""
        for adapter, there_s in list(self.coming.items()):
            if there_s <= now_s:
                del self.coming[adapter]
                self.idle[adapter] = None

    def ask(self, adapter: int, now_s: float) -> Adapter:
        """Where it is; its load begins if it is nowhere and a slot can be had."""
        if adapter < 0 or adapter in self.users or adapter in self.idle:
            return Adapter.THERE
        if adapter not in self.coming:
            if len(self.users) + len(self.idle) + len(self.coming) >= self.slots:
                if not self.idle:
                    return Adapter.NO_SLOT
                del self.idle[next(iter(self.idle))]
            self.free_s = max(now_s, self.free_s) + self.load_s
            self.coming[adapter] = self.free_s
        return Adapter.COMING

    def use(self, adapter: int) -> None:
        """A sequence is admitted with it."""
        if adapter >= 0:
            self.idle.pop(adapter, None)
            self.users[adapter] = self.users.get(adapter, 0) + 1

    def release(self, adapter: int) -> None:
        """A sequence that used it ends or is preempted."""
        if adapter >= 0:
            self.users[adapter] -= 1
            if not self.users[adapter]:
                del self.users[adapter]
                self.idle[adapter] = None

    def next_s(self) -> float:
        """When the next load is over [s]; inf if there is none."""
        return min(self.coming.values(), default=float("inf"))
