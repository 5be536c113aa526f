"""A replica that nothing outside it concerns but its arrivals, which are known beforehand: followed by itself.

Replicas of a mixed pool that take turns are such, under open arrivals. Their events need no common clock, and with the
ordinary rules (`follows_alone`) all of them are one loop on arrays, which is compiled (`planner.simulator.step_loop`).
It is started here and given what it asks for. `planner.simulator.events` is the reference; tests hold the two together
to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from planner.core import FloatArray, IntArray
from planner.engine import NO_TABLES, Batching, KvAllocation, Order, Preemption
from planner.serving import PoolLimit, Role
from planner.simulator.clock import BENT_RUN_GROWTH, CONTEXT_KNOTS, LEAST_RUN_TOKENS, StepClock
from planner.simulator.prefix_loop import prefix_room
from planner.simulator.replica import Replica
from planner.simulator.step_loop import (
    BENDS,
    FLUSH,
    GAP_FIELDS,
    LINE,
    NOTHING,
    REQUEST,
    RUN_FIELDS,
    STATE,
    STEP,
    STRAIGHT,
    Limits,
    Room,
    StepTimes,
    follow,
)

NOTES = 1024
"""Entries of notes that are taken away together. Affects speed only."""
_KNOTS = np.array(CONTEXT_KNOTS)


def follows_alone(replica: Replica) -> bool:
    """Whether a replica has only the rules that are written out here."""
    rules, schedule = replica.rules, replica.schedule
    return (
        schedule.batching is Batching.CONTINUOUS
        and schedule.order is Order.FCFS
        and schedule.mixed_steps
        and not (schedule.whole_prompts or schedule.preempts or schedule.batch_wait_steps)
        and schedule.receive_interval_steps == 1
        and schedule.kv is KvAllocation.PAGED
        and schedule.on_preemption is Preemption.RECOMPUTE
        and rules.micro_batches == 1
        and not (replica.has_extras or replica.ledger.encode_s)
        and (replica.shared is None or _shares_alone(replica))
    )


def _shares_alone(replica: Replica) -> bool:
    """Whether prompts share prefixes of a mixed pool as `planner.simulator.prefix_loop` has it."""
    return replica.rules.role is Role.MIXED and replica.tiers is None and not replica.ledger.system_tokens


def follow_alone(
    replica: Replica,
    requests: IntArray,
    times_s: FloatArray,
    lengths: tuple[IntArray, IntArray],
    ended: Callable[[int], None],
    every: int,
) -> NDArray[np.void]:
    """Take a replica through its arrivals until it has nothing left to do.

    Args:
        replica: at its start.
        requests: that reach it, in order of arrival, shape (n,).
        times_s: when they do [s], rising, shape (n,).
        lengths: input and output tokens of every request of the pool.
        ended: called with how many requests have ended since it was called last.
        every: so many requests, at the latest.

    Returns:
        What is known of each request in the end: records of `planner.simulator.step_loop.REQUEST`, shape (n,).
    """
    rules, ledger, clock, memory = replica.rules, replica.ledger, replica.clock, replica.rules.memory
    most = min(rules.max_running, requests.size) + 1
    records, prefix_blocks = _records(replica, requests, times_s, lengths)
    answers = clock.timer.tables
    tables, drafts, draft_steps = answers or (NO_TABLES, NO_TABLES, 0.0)
    limits = Limits(
        running=rules.max_running,
        budget=rules.max_batched_tokens,
        lag=rules.lag_steps,
        gains=rules.tokens_per_step,
        takes=rules.tokens_per_decode,
        blocks=memory.blocks,
        beside_others=memory.blocks - memory.free_blocks,
        block=memory.block_tokens,
        own_blocks=memory.sequence_blocks,
        reserves=rules.reserves,
        shares=rules.shares_prefixes,
        comes_ready=rules.role is Role.DECODE,
        answers=answers is not None,
        bent_growth=BENT_RUN_GROWTH,
        least_run_tokens=LEAST_RUN_TOKENS,
        report=every,
    )
    room = Room(
        phases=np.zeros(memory.block_tokens, dtype=np.int64),
        leaving=np.zeros((most, 2), dtype=np.int64),
        numbers=np.zeros((3, most), dtype=np.int64),
        since=np.zeros((2, most + 1)),
        prefixes=prefix_room(prefix_blocks),
        runs=np.empty((NOTES, RUN_FIELDS)),
        gaps=np.empty((NOTES + 2 * most + 3, GAP_FIELDS)),
    )
    states = np.zeros(1, dtype=STATE).view(np.recarray)
    state = states[0]
    state.latest = state.prompt = state.oldest = state.newest = -1
    state.last_decode_s = math.nan
    times = StepTimes(_KNOTS, *clock.tables(most), drafts, draft_steps, np.zeros(6))
    wanted = FLUSH
    while wanted != NOTHING:
        wanted = follow(states, records, room, limits, times, tables)
        if wanted in (FLUSH, NOTHING):
            replica.runs.frombytes(room.runs[: state.runs].tobytes())
            replica.gaps.frombytes(room.gaps[: state.gaps].tobytes())
            ended(int(state.ended))
            state.runs = state.gaps = state.ended = 0
        else:
            _answer(wanted, clock, times)
    for name in ("arrival_s", "admit_s", "first_s", "end_s"):
        np.frombuffer(getattr(ledger, name))[requests] = records[name]
    if rules.shares_prefixes:
        for request, blocks in zip(requests.tolist(), records["hits"].tolist(), strict=True):
            ledger.hits[request] = blocks * memory.block_tokens
    replica.blocked_s[PoolLimit.RUNNING_REQUESTS] = float(state.blocked_running_s)
    replica.blocked_s[PoolLimit.KV_CAPACITY] = float(state.blocked_kv_s)
    replica.preempted = int(state.preempted)
    return records


def _answer(wanted: int, clock: StepClock, times: StepTimes) -> None:
    """Tell a loop how long steps take."""
    asked = times.asked
    if wanted == STEP:
        decodes, context, chunk, pairs, cached, chunks = asked.tolist()
        asked[0] = clock.step_s(int(decodes), context, chunk, pairs, cached, chunks)
    elif wanted == LINE:
        decodes, cell = int(asked[0]), int(asked[1])
        line = clock.line(decodes, cell)
        times.known[decodes, cell] = BENDS if line is None else STRAIGHT
        times.lines[decodes, cell] = line or (0.0, 0.0)
    else:
        run = clock.run(asked[0], int(asked[1]), asked[2], int(asked[3]))
        asked[0], asked[1] = run.first_s, run.slope_s


def _records(
    replica: Replica, requests: IntArray, times_s: FloatArray, lengths: tuple[IntArray, IntArray]
) -> tuple[NDArray[np.void], IntArray]:
    """Requests before they come, and the blocks of the prefixes that they share, by number there."""
    ledger = replica.ledger
    records = np.zeros(requests.size, dtype=REQUEST)
    for name in ("arrival_s", "admit_s", "began_s", "first_s", "end_s"):
        records[name] = math.nan
    records["time_s"], records["token_s"] = times_s, np.frombuffer(ledger.token_s)[requests]
    records["request"] = requests
    records["tokens"], records["remaining"] = (tokens[requests] for tokens in lengths)
    for name in ("due", "before", "after", "prefix"):
        records[name] = -1
    if not replica.rules.shares_prefixes:
        return records, np.zeros(0, dtype=np.int64)
    reusable = np.minimum(np.array(ledger.prefix_tokens)[requests], records["tokens"])
    records["whole"] = reusable // replica.rules.memory.block_tokens
    prefixes = np.array(ledger.prefix)[requests]
    shares = (records["whole"] > 0) & (prefixes >= 0)
    _, numbers = np.unique(prefixes[shares], return_inverse=True)
    records["prefix"][shares] = numbers
    blocks = np.zeros(numbers.max(initial=-1) + 1, dtype=np.int64)
    np.maximum.at(blocks, numbers, records["whole"][shares])
    return records, blocks
