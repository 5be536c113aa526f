"""What happens to every request at one pool."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass(eq=False)
class Ledger:
    """Times of every request at one pool [s], NaN where it has not (yet) come to that; and what it brings there.

    Attributes:
        inputs, outputs: tokens.
        kind: index of its class.
        prefix, prefix_tokens: which shared prefix its prompt begins with (-1: none) and how many tokens that is.
        adapter: which adapter it uses, -1: none.
        token_s: when the client had its latest token before the request began to decode here.
        hits: prompt tokens found in the prefix cache.
    """

    inputs: list[int]
    outputs: list[int]
    kind: list[int] = field(default_factory=list)
    prefix: list[int] = field(default_factory=list)
    prefix_tokens: list[int] = field(default_factory=list)
    adapter: list[int] = field(default_factory=list)
    hits: list[int] = field(default_factory=list)
    token_s: list[float] = field(default_factory=list)
    arrival_s: list[float] = field(default_factory=list)
    admit_s: list[float] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)
    end_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Nothing has happened yet."""
        for times in (self.arrival_s, self.admit_s, self.first_s, self.end_s, self.token_s):
            times.extend([math.nan] * len(self.inputs))
        for numbers, default in ((self.kind, 0), (self.prefix, -1), (self.prefix_tokens, 0), (self.adapter, -1)):
            if not numbers:
                numbers.extend([default] * len(self.inputs))
        self.hits.extend([0] * len(self.inputs))
