"""GPU slots for the adapters of one replica: which are loaded, which are being loaded, which can be replaced."""

from __future__ import annotations

from enum import Enum


class AdapterPlace(Enum):
    """Where an adapter is that a request needs."""

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

    def finish_loads(self, now_s: float) -> None:
        """Make adapters available whose load is over."""
        for adapter, there_s in list(self.coming.items()):
            if there_s <= now_s:
                del self.coming[adapter]
                self.idle[adapter] = None

    def locate(self, adapter: int, now_s: float) -> AdapterPlace:
        """Where an adapter is; its load begins if it is nowhere and a slot is free or can be freed."""
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

    def next_s(self) -> float:
        """When the next load is over [s]; inf if there is none."""
        return min(self.coming.values(), default=float("inf"))
