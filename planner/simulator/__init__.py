"""Pools under load, request by request: `simulate`.

`run` states the rules; `traffic` draws the requests, `events` moves the pools on one clock, `replica` takes their steps
and `outcome` makes a `Performance` of what happened. The same question is answered from theory by
`planner.serving.evaluate`.
"""

from __future__ import annotations

from planner.simulator.run import DEFAULT_REQUESTS, simulate
