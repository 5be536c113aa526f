"""A replica that nothing outside it concerns but its arrivals, which are known beforehand: followed by itself.

Replicas of a mixed pool that take turns are such, under open arrivals. Their events need no common clock, and with the
ordinary rules (`follows_alone`) all of them are one loop on arrays, which is compiled (`planner.simulator.step_loop`).
It is started here and given what it asks for. `planner.simulator.events` is the reference; tests hold the two together
to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Sized

import numpy as np

from planner.engine import NO_TABLES, Batching, KvAllocation, Order, Preemption
from planner.serving import PoolLimit, Role
from planner.simulator.clock import BENT_RUN_GROWTH, CONTEXT_KNOTS, LEAST_RUN_TOKENS
from planner.simulator.replica import Replica
from planner.simulator.step_loop import (
    BENDS,
    BENT,
    ENDED,
    GAP_FIELDS,
    GAPS,
    LINE,
    PREEMPTED,
    RUN_FIELDS,
    RUNS,
    STEP,
    STRAIGHT,
    follow,
)

NOTES = 1024
"""Entries of notes that are taken away together. Affects speed only."""
_KNOTS = np.array(CONTEXT_KNOTS)


def follows_alone(replica: Replica) -> bool:
    """Whether a replica has only the rules that are written out here."""
    rules, schedule = replica.rules, replica.schedule
    return (
        rules.role is Role.MIXED
        and schedule.batching is Batching.CONTINUOUS
        and schedule.order is Order.FCFS
        and schedule.mixed_steps
        and not (schedule.whole_prompts or schedule.preempts or schedule.batch_wait_steps)
        and schedule.receive_interval_steps == 1
        and schedule.kv is KvAllocation.PAGED
        and schedule.on_preemption is Preemption.RECOMPUTE
        and rules.tokens_per_step == 1.0
        and rules.tokens_per_decode == rules.micro_batches == 1
        and not (replica.has_extras or replica.ledger.encode_s)
        and replica.shared is None
    )


def follow_alone(replica: Replica, requests: Sized[int], times_s: Sized[float], ended: Callable[[int], None]) -> None:
    """Take a replica through its arrivals until it has nothing left to do.

    Args:
        replica: at its start.
        requests: that reach it, in order of arrival.
        times_s: when they do [s], rising.
        ended: called with how many requests have ended since it was called last.
    """
    rules, ledger, clock = replica.rules, replica.ledger, replica.clock
    count, most_running = len(requests), min(rules.max_running, len(requests))
    memory, order = rules.memory, np.array(requests, dtype=np.int64)
    tokens, remaining = (np.array(each, dtype=np.int64)[order] for each in (ledger.inputs, ledger.outputs))
    limits = (rules.max_running, rules.max_batched_tokens, rules.lag_steps, memory.blocks, memory.free_blocks)
    arrival_s, admit_s, first_s, end_s = found = tuple(np.full(count, np.nan) for _ in range(4))
    lines, known = clock.tables(most_running)
    runs, gaps = np.empty((NOTES, RUN_FIELDS)), np.empty((NOTES + 2 * most_running + 3, GAP_FIELDS))
    blocked_s, counts, asked = np.zeros(2), np.zeros(4, dtype=np.int64), np.zeros(6)
    loop = follow(
        np.array(times_s, dtype=np.float64),
        tokens,
        remaining,
        np.array([*limits, memory.block_tokens, memory.sequence_blocks]),
        rules.reserves,
        clock.timer.tables or NO_TABLES,
        clock.timer.tables is not None,
        _KNOTS,
        lines,
        known,
        BENT_RUN_GROWTH,
        LEAST_RUN_TOKENS,
        arrival_s,
        admit_s,
        first_s,
        end_s,
        runs,
        gaps,
        blocked_s,
        counts,
        asked,
    )
    for wanted in loop:
        if wanted == STEP:
            decodes, context, chunk, pairs, cached, chunks = asked.tolist()
            asked[0] = clock.step_s(int(decodes), context, chunk, pairs, cached, chunks)
        elif wanted == LINE:
            decodes, cell = int(asked[0]), int(asked[1])
            line = clock.line(decodes, cell)
            known[decodes, cell] = BENDS if line is None else STRAIGHT
            lines[decodes, cell] = line or (0.0, 0.0)
        elif wanted == BENT:
            run = clock.run(asked[0], int(asked[1]), asked[2], int(asked[3]))
            asked[0], asked[1] = run.first_s, run.slope_s
        else:
            replica.runs.frombytes(runs[: counts[RUNS]].tobytes())
            replica.gaps.frombytes(gaps[: counts[GAPS]].tobytes())
            if counts[ENDED]:
                ended(int(counts[ENDED]))
    for times, mine in zip((ledger.arrival_s, ledger.admit_s, ledger.first_s, ledger.end_s), found, strict=True):
        np.frombuffer(times)[order] = mine
    for cap, seconds in zip((PoolLimit.RUNNING_REQUESTS, PoolLimit.KV_CAPACITY), blocked_s.tolist(), strict=True):
        replica.blocked_s[cap] = seconds
    replica.preempted = int(counts[PREEMPTED])
