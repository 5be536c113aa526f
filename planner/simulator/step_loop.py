"""The loop of one replica that nothing outside it concerns but its arrivals, which are known beforehand, compiled.

Replicas whose pool takes turns are such, under open arrivals. Their events need no common clock, and with the ordinary
rules (`follows_alone`) all of them are one loop on arrays: `follow` goes through the arrivals of a replica and does
what `Replica.begin`, `arrive` and `finish` do, on records. Where it needs what it does not have (a step time, a line of
step times, room for its notes) it says so to `follow_alone`, finds the answer in `StepTimes.asked` when it is called
again, and goes on. `planner.simulator.replica` is the reference; tests hold the two together to the last bit.

Requests are numbered from 0 in the order in which they reach the replica. So they are queued in this order, the inbox
and those that wait are ranges of numbers, and whoever was preempted waits before all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.core import FloatArray, IntArray, compiled, knot_below
from planner.engine import (
    NO_TABLES,
    Batching,
    KvAllocation,
    Order,
    Preemption,
    StepTables,
    decode_seconds,
    step_seconds,
)
from planner.serving import PoolLimit, Role
from planner.simulator.cache import admission_blocks, grown_blocks
from planner.simulator.clock import CONTEXT_KNOTS, StepClock, run_end_s, steps_in_line, steps_until
from planner.simulator.prefix_loop import PrefixRoom, Record, blocks_saved, free, prefix_room, publish, take, trim
from planner.simulator.replica import GAP_FIELDS, RUN_FIELDS, Replica

NOTHING, STEP, LINE, BENT, FLUSH = range(5)
"""Requests of `follow`: time a step, find a line of durations, time a run where they bend, take away notes."""
BEGIN, BEGUN, ANSWERED = range(3)
"""Progress of a step: to be decided on, decided on, its duration known."""
UNKNOWN, STRAIGHT, BENDS = 0, 1, 2
"""Knowledge of a cell of the table of lines."""
FREE, RUNNING_REQUESTS, KV_CAPACITY = 0, 1, 2
"""Caps that keep a request out of a step."""
BACK, NEW, DONE = range(3)
"""Rows of `Room.numbers`."""
AT_S, COUNT = range(2)
"""Rows of `Room.since`."""
PLACES = 2**31
"""More than any request's number: who ends first, and of those who end at once who was sent first, in one number."""
NOTES = 1024
"""Entries of notes that are taken away together. Affects speed only."""
REQUEST = np.dtype(
    (
        np.record,
        [(name, np.float64) for name in ("time_s", "arrival_s", "admit_s", "began_s", "first_s", "end_s", "token_s")]
        + [(name, np.int64) for name in ("tokens", "remaining", "due", "joined", "ends", "blocks", "before", "after")]
        + [(name, np.int64) for name in ("request", "grows", "runs", "prefix", "whole", "shared", "hits")],
    )
)
"""A request: when it comes, arrived, was admitted, when the step began that ended its prompt, first and last token, its
latest token [s]; tokens its prompt step must process (a preempted one's grow by what it had made), output tokens still
to come; `Sequence.due`, `joined`, `ends` and `blocks`; who joined before and after it; `Sequence.request`; whether it
counts in the blocks that grow, and whether it decodes; `Sequence.prefix`, `whole_blocks` and `shared_blocks`, and
blocks found when it was admitted first. Numbers are -1 and times NaN before they are known."""
STATE = np.dtype(
    (
        np.record,
        [(name, np.int64) for name in ("place", "inbox", "queue", "backs", "decodes", "latest", "news", "dones")]
        + [(name, np.int64) for name in ("leaving", "prompt", "prompt_left", "held", "in_prompts", "quotients")]
        + [(name, np.int64) for name in ("growing", "ticks", "steps_done", "steps", "chunks", "room", "phase", "alike")]
        + [(name, np.int64) for name in ("runs", "gaps", "ended", "preempted")]
        + [(name, np.int64) for name in ("saved", "idle", "oldest", "newest", "kept_ends")]
        + [(name, np.float64) for name in ("now_s", "context", "last_decode_s", "start_s", "stop_s")]
        + [(name, np.float64) for name in ("first_s", "slope_s", "chunk", "pairs", "cached")]
        + [(name, np.float64) for name in ("blocked_running_s", "blocked_kv_s")],
    )
)
"""A replica: arrivals taken in, queued and admitted; how many wait again, decode, who joined last, how many are new
among them and end their prompts in this step, entries of the heap of ends; the prompt in progress and what is left of
it; blocks held, those of prompts, and what `KvCache` counts; decode steps done, steps done, and of the step
or run under way steps, chunks and what is left of the budget; notes of runs and of gaps, requests that ended since the
last FLUSH, preemptions; of a prefix cache `PrefixBlocks.saved` and `idle_blocks`, the runs that have been idle for
longest and for least long, and prefixes whose end is kept; time, total context, end of the last decode step, start and
end of what is under way, its first step and growth [s], and the rest of its `StepShape`; seconds the first waiting
request was held back by each cap."""


class Limits(NamedTuple):
    """Limits and policies of a replica.

    Attributes:
        running, budget, lag: most running requests, chunk budget [tokens], steps until an arrival is looked at.
        gains, takes: tokens that a sequence gains in a decode step, and takes of the chunk budget.
        blocks, beside_others: KV blocks, and those of them that a request may take into use beside others.
        block, own_blocks: tokens of a block, blocks of a sequence beside its tokens.
        reserves: a sequence takes blocks for all its tokens at once.
        shares: prompts share blocks of prefixes.
        comes_ready: requests come with their KV cache.
        answers: the tables of step times hold that of every step.
        report: requests that end before the notes are taken away.
    """

    running: int
    budget: int
    lag: int
    gains: float
    takes: int
    blocks: int
    beside_others: int
    block: int
    own_blocks: int
    reserves: bool
    shares: bool
    comes_ready: bool
    answers: bool
    report: int


class Room(NamedTuple):
    """Arrays of a replica; few, since every call counts the references to each of them.

    Attributes:
        phases: sequences whose last block is so full, shape (tokens of a block,).
        leaving: heap of (`Sequence.ends` * `PLACES` + `Sequence.request`, request), shape (n, 2).
        numbers: requests that wait again (the next one last), that decode and have made no step yet, and whose prompts
            end in this step; shape (3, n).
        since: times of latest tokens [s], and how many sequences had theirs then, shape (2, n).
        prefixes: the prefix cache.
        runs, gaps: notes as in `ReplicaState`, filled in from 0 after every FLUSH; shapes (entries, fields).
    """

    phases: IntArray
    leaving: IntArray
    numbers: IntArray
    since: FloatArray
    prefixes: PrefixRoom
    runs: FloatArray
    gaps: FloatArray


class StepTimes(NamedTuple):
    """Durations of steps beside the tables.

    Attributes:
        knots: mean contexts between which step times of decodes are lines, shape (cells,).
        lines: duration at the knot before a cell [s] and growth [s/token], shape (decodes, cells, 2).
        known: UNKNOWN, STRAIGHT or BENDS, shape (decodes, cells).
        drafts, draft_steps: tables of a draft, and how many of those a step takes.
        asked: what is asked for and the answer, shape (6,).
    """

    knots: FloatArray
    lines: FloatArray
    known: NDArray[np.int8]
    drafts: StepTables
    draft_steps: float
    asked: FloatArray


@compiled(makes_arrays=True)
def admitted_s(times_s: FloatArray, admission_s: float) -> FloatArray:
    """Arrivals at a replica [s]: each `admission_s` after the one before it at the earliest."""
    come_s, free_s = np.empty(times_s.size), 0.0
    for i in range(times_s.size):
        come_s[i] = max(times_s[i], free_s)
        free_s = come_s[i] + admission_s
    return come_s


@compiled
def push(heap: IntArray, size: int, key: int, request: int) -> None:
    """Add to a binary heap of (key, request), shape (n, 2), of which `size` rows are in use."""
    child = size
    while child > 0:
        parent = (child - 1) // 2
        if heap[parent, 0] <= key:
            break
        heap[child, 0], heap[child, 1] = heap[parent, 0], heap[parent, 1]
        child = parent
    heap[child, 0], heap[child, 1] = key, request


@compiled
def pop(heap: IntArray, size: int) -> None:
    """Take the first out of a heap of `size` rows."""
    last = size - 1
    key, request = heap[last, 0], heap[last, 1]
    parent = 0
    while True:
        child = 2 * parent + 1
        if child >= last:
            break
        if child + 1 < last and heap[child + 1, 0] < heap[child, 0]:
            child += 1
        if heap[child, 0] >= key:
            break
        heap[parent, 0], heap[parent, 1] = heap[child, 0], heap[child, 1]
        parent = child
    heap[parent, 0], heap[parent, 1] = key, request


@compiled
def held_at(state: Record, requests: Record, room: Room, limits: Limits, tick: int) -> int:
    """`KvCache.held` once `tick` decode steps are done, where sequences grow."""
    held = state.in_prompts - state.saved + limits.own_blocks * state.growing
    if limits.gains == 1.0:
        return int(held + grown_blocks(room.phases, state.quotients, state.growing, tick))
    number = state.latest
    while number >= 0:
        request = requests[number]
        base = request.tokens - limits.gains * request.joined
        held += math.ceil((base + limits.gains * tick) / limits.block)
        number = request.before
    return int(held)


@compiled
def blocks_taken(request: Record, limits: Limits) -> int:
    """Blocks that a waiting request takes at its admission."""
    tokens, remaining = float(request.tokens), float(request.remaining)
    return admission_blocks(tokens, remaining, limits.reserves, limits.gains, limits.block, limits.own_blocks)


@compiled
def blocks_needed(request: Record, room: Room, limits: Limits) -> int:
    """`KvCache.blocks_needed`: the same without those that are there and in use."""
    taken = blocks_taken(request, limits)
    return taken - blocks_saved(request, room.prefixes, limits.block, limits.own_blocks) if limits.shares else taken


@compiled
def trim_prefixes(state: Record, room: Room, limits: Limits) -> None:
    """Keep no more idle blocks of prefixes than there is room for."""
    if limits.shares:
        trim(state, room.prefixes, limits.blocks - state.held, limits.own_blocks)


@compiled
def binding_cap(state: Record, request: Record, room: Room, limits: Limits) -> int:
    """`Replica._binding_cap`: what keeps a waiting request out of the step."""
    running = state.decodes + state.dones
    if running >= limits.running:
        return RUNNING_REQUESTS
    most = limits.beside_others if running > 0 else limits.blocks
    return KV_CAPACITY if state.held + blocks_needed(request, room, limits) > most else FREE


@compiled
def waits(state: Record) -> bool:
    """True if a request is queued."""
    return bool(state.backs > 0 or state.queue < state.inbox)


@compiled
def first_waiting(state: Record, room: Room) -> int:
    """The next to be admitted: whoever was preempted before those that are new."""
    return int(room.numbers[BACK, state.backs - 1]) if state.backs > 0 else int(state.queue)


@compiled
def count_growing(state: Record, request: Record, room: Room, limits: Limits, sign: int) -> None:
    """`KvCache._count_phase`: one more of those that grow alike, or one less."""
    if limits.gains == 1.0:
        origin = request.tokens - request.joined
        room.phases[origin % limits.block] += sign
        state.quotients += sign * (origin // limits.block)
    state.growing += sign


@compiled
def drop(state: Record, request: Record, room: Room, limits: Limits) -> None:
    """Give the blocks of a sequence back."""
    if limits.shares:
        free(state, request, room.prefixes)
    if request.grows > 0:
        count_growing(state, request, room, limits, -1)
        request.grows = 0
        return
    if request.runs == 0:
        state.in_prompts -= request.blocks
    if limits.reserves:
        state.held -= request.blocks


@compiled
def leave(state: Record, requests: Record, number: int) -> None:
    """A sequence no longer decodes."""
    request = requests[number]
    request.runs = 0
    state.decodes -= 1
    if request.before >= 0:
        requests[request.before].after = request.after
    if request.after >= 0:
        requests[request.after].before = request.before
    else:
        state.latest = request.before


@compiled
def join(state: Record, requests: Record, room: Room, limits: Limits, number: int) -> None:
    """`Replica._join`: decode from the next step on."""
    request = requests[number]
    request.joined = state.ticks
    request.ends = state.ticks + math.ceil((request.remaining - 1) / limits.gains - 1e-9)
    state.in_prompts -= request.blocks
    if not limits.reserves:
        count_growing(state, request, room, limits, 1)
        request.grows = 1
    request.runs = 1
    state.decodes += 1
    request.before, request.after = state.latest, -1
    if state.latest >= 0:
        requests[state.latest].after = number
    state.latest = number
    state.context += request.tokens + 1
    room.numbers[NEW, state.news] = number
    state.news += 1
    push(room.leaving, state.leaving, request.ends * PLACES + request.request, number)
    state.leaving += 1


@compiled
def preempt(state: Record, requests: Record, room: Room, limits: Limits) -> None:
    """`Replica._preempt` of the youngest: its tokens are recomputed, it waits before all that are younger."""
    number = state.prompt if state.prompt >= 0 else state.latest
    victim = requests[number]
    state.preempted += 1
    drop(state, victim, room, limits)
    if number == state.prompt:
        state.prompt, state.prompt_left = -1, 0
    else:
        leave(state, requests, number)
        size, state.leaving = state.leaving, 0
        for i in range(size):
            key, other = room.leaving[i, 0], room.leaving[i, 1]
            if other != number:
                push(room.leaving, state.leaving, key, other)
                state.leaving += 1
        gained = limits.gains * (state.ticks - victim.joined)
        state.context -= victim.tokens + 1 + gained
        if gained > 0:
            victim.token_s = state.last_decode_s
        news, state.news = state.news, 0
        for i in range(news):
            if room.numbers[NEW, i] != number:
                room.numbers[NEW, state.news] = room.numbers[NEW, i]
                state.news += 1
        produced = min(victim.remaining - 1, 1 + int(gained))
        victim.tokens += produced
        victim.remaining -= produced
    spot = state.backs
    while spot > 0 and room.numbers[BACK, spot - 1] < number:
        room.numbers[BACK, spot] = room.numbers[BACK, spot - 1]
        spot -= 1
    room.numbers[BACK, spot] = number
    state.backs += 1


@compiled
def admit(state: Record, requests: Record, room: Room, limits: Limits) -> int:
    """Admit the first that waits; its number."""
    number = first_waiting(state, room)
    request = requests[number]
    if state.backs > 0:
        state.backs -= 1
    else:
        state.queue += 1
    is_new = math.isnan(request.admit_s)
    if is_new:
        request.admit_s = state.now_s
    request.blocks = blocks_taken(request, limits)
    state.in_prompts += request.blocks
    state.held += request.blocks
    if limits.shares:
        take(state, request, room.prefixes, limits.block, limits.own_blocks)
        if is_new:
            request.hits = request.shared
    trim_prefixes(state, room, limits)
    return number


@compiled
def take_in(state: Record, requests: Record, limits: Limits) -> bool:
    """Queue what has arrived: all at this instant, of an idle replica the next. False when no request is left."""
    waiting = state.backs > 0 or state.queue < state.inbox
    busy = waiting or state.decodes > 0 or state.prompt >= 0
    if not busy and state.inbox == state.place:
        if state.place == requests.size:
            return False
        state.now_s = requests[state.place].time_s
    while state.place < requests.size and requests[state.place].time_s == state.now_s:
        requests[state.place].arrival_s = state.now_s
        state.place += 1
    for number in range(state.inbox, state.place):
        if requests[number].due < 0:
            requests[number].due = state.steps_done + limits.lag
    while state.inbox < state.place and (not busy or requests[state.inbox].due <= state.steps_done):
        state.inbox += 1
    return True


@compiled
def make_room(state: Record, requests: Record, room: Room, limits: Limits) -> None:
    """`Replica._make_room`: preempt until every decoding sequence has blocks for the next step."""
    while True:
        if not limits.reserves:
            state.held = held_at(state, requests, room, limits, state.ticks + 1)
        trim_prefixes(state, room, limits)
        if state.held <= limits.blocks or state.decodes + (1 if state.prompt >= 0 else 0) <= 1:
            return
        preempt(state, requests, room, limits)


@compiled
def join_ready(state: Record, requests: Record, room: Room, limits: Limits) -> None:
    """`Replica._join_ready`: admit who comes with a KV cache, to decode in this step."""
    while limits.comes_ready and state.prompt < 0 and state.backs == 0 and state.queue < state.inbox:
        if binding_cap(state, requests[state.queue], room, limits) != FREE:
            return
        join(state, requests, room, limits, admit(state, requests, room, limits))


@compiled
def add_chunks(state: Record, requests: Record, room: Room, limits: Limits) -> None:
    """`Replica._prompt_step`: what of the prompts goes into the step beside its decodes."""
    state.room = limits.budget - state.decodes * limits.takes
    while state.room > 0:
        if state.prompt < 0:
            if state.backs == 0 and (limits.comes_ready or state.queue == state.inbox):
                return
            if binding_cap(state, requests[first_waiting(state, room)], room, limits) != FREE:
                return
            state.prompt = admit(state, requests, room, limits)
            state.prompt_left = requests[state.prompt].tokens - requests[state.prompt].shared * limits.block
        now = min(state.prompt_left, state.room)
        past = requests[state.prompt].tokens - state.prompt_left
        state.chunks += 1
        state.chunk += now
        state.cached += past + now
        state.pairs += now * past + now * (now + 1) / 2
        state.room -= now
        state.prompt_left -= now
        if state.prompt_left == 0:
            room.numbers[DONE, state.dones] = state.prompt
            state.dones += 1
            state.prompt = -1


@compiled
def begin(state: Record, requests: Record, room: Room, limits: Limits) -> None:
    """`Replica.begin`, but for how long the step takes."""
    state.start_s, state.steps, state.chunks, state.dones, state.room = state.now_s, 1, 0, 0, 1
    state.chunk, state.pairs, state.cached = 0.0, 0.0, 0.0
    make_room(state, requests, room, limits)
    join_ready(state, requests, room, limits)
    if state.prompt >= 0 or waits(state):
        add_chunks(state, requests, room, limits)
    if state.chunks == 0:
        state.room = 1


@compiled
def steps_of_run(state: Record, requests: Record, room: Room, limits: Limits, straight: bool, knot: float) -> int:
    """`Replica._decode_run`: steps until one leaves, KV runs out or waiting requests are to be looked at.

    `knot` is the end of a line of step times [tokens of mean context], where there is one (`straight`).
    """
    reach = steps_in_line(state.context / state.decodes, knot, straight, limits.gains)
    most = min(room.leaving[0, 0] // PLACES - state.ticks, reach)
    if state.inbox < state.place:
        most = min(most, requests[state.inbox].due - state.steps_done)
    if waits(state) and binding_cap(state, requests[first_waiting(state, room)], room, limits) == FREE:
        most = 1
    steps = int(max(most, 1))
    if limits.reserves or steps == 1:
        return steps
    fits = limits.gains == 1.0 and state.held + state.growing * (steps // limits.block + 1) <= limits.blocks
    if not fits and held_at(state, requests, room, limits, state.ticks + steps) > limits.blocks:
        low, high = 1, steps
        while high - low > 1:
            middle = (low + high) // 2
            if held_at(state, requests, room, limits, state.ticks + middle) <= limits.blocks:
                low = middle
            else:
                high = middle
        steps = low
    return steps


@compiled
def arrive(state: Record, requests: Record, room: Room, limits: Limits) -> None:
    """`Replica.arrive`: who comes before the step or run ends, and whether a run ends for them."""
    while state.place < requests.size and requests[state.place].time_s < state.stop_s:
        request, is_first = requests[state.place], state.inbox == state.place
        came_s = request.time_s
        request.arrival_s = came_s
        state.place += 1
        if state.chunks > 0:
            request.due = state.steps_done + 1 + limits.lag
            continue
        looked = steps_until(state.start_s, state.first_s, state.slope_s, came_s, state.steps) + limits.lag
        request.due = state.steps_done + looked
        if waits(state) or not is_first or looked >= state.steps:
            continue
        if binding_cap(state, request, room, limits) == FREE:
            state.steps = looked
            state.stop_s = run_end_s(state.start_s, state.first_s, state.slope_s, looked)


@compiled
def note_run(state: Record, requests: Record, room: Room, limits: Limits) -> None:
    """`Replica._record_plan`: the steps, and whether a cap kept the first waiting request out of them."""
    note, decodes = room.runs[state.runs], state.decodes
    state.runs += 1
    note[0], note[1], note[2], note[3] = state.start_s, state.stop_s, state.steps, state.held
    note[4], note[5], note[6] = decodes, decodes, state.context + decodes * limits.gains * (state.steps - 1) / 2.0
    note[7], note[8], note[9], note[10] = state.chunk, state.pairs, state.cached, state.chunks
    if state.room <= 0 or not (state.backs > 0 or state.queue < state.place):
        return
    first = requests[first_waiting(state, room)]
    if first.arrival_s < state.stop_s:
        waited_s = state.stop_s - max(state.start_s, first.arrival_s)
        cap = binding_cap(state, first, room, limits)
        if cap == RUNNING_REQUESTS:
            state.blocked_running_s += waited_s
        elif cap == KV_CAPACITY:
            state.blocked_kv_s += waited_s


@compiled
def note_gap(state: Record, room: Room, end_s: float, gap_s: float, count: float) -> None:
    """Note gaps between tokens."""
    gap = room.gaps[state.gaps]
    gap[0], gap[1], gap[2] = end_s, gap_s, count
    state.gaps += 1


@compiled
def count_since(state: Record, room: Room, token_s: float, count: float) -> None:
    """Add so many sequences to those that had their latest token then."""
    seen = 0
    while seen < state.alike and room.since[AT_S, seen] != token_s:
        seen += 1
    if seen == state.alike:
        room.since[AT_S, seen], room.since[COUNT, seen] = token_s, 0.0
        state.alike += 1
    room.since[COUNT, seen] += count


@compiled
def note_gaps(state: Record, requests: Record, room: Room) -> None:
    """`Replica._record_gaps`: gaps that end with these steps, and first tokens of who came ready."""
    stop_s, start_s, steps, decodes = state.stop_s, state.start_s, state.steps, state.decodes
    first_stop_s = stop_s if state.chunks > 0 else start_s + state.first_s
    state.alike = 0
    for i in range(state.news):
        request = requests[room.numbers[NEW, i]]
        count_since(state, room, request.token_s, 1.0)
        if math.isnan(request.first_s):
            request.first_s = first_stop_s
    if decodes > state.news:
        count_since(state, room, state.last_decode_s, float(decodes - state.news))
    state.news = 0
    if state.alike == 1 and room.since[AT_S, 0] == start_s:
        note_gap(state, room, stop_s, (stop_s - start_s) / steps, float(decodes * steps))
        return
    for seen in range(state.alike):
        if not math.isnan(room.since[AT_S, seen]):
            note_gap(state, room, first_stop_s, first_stop_s - room.since[AT_S, seen], room.since[COUNT, seen])
    if steps > 1:
        note_gap(state, room, stop_s, (stop_s - first_stop_s) / (steps - 1), float(decodes * (steps - 1)))


@compiled
def end_prompts(state: Record, requests: Record, room: Room, limits: Limits) -> None:
    """`Replica._end_prompts`: first tokens of the prompts that ended."""
    for i in range(state.dones):
        number = room.numbers[DONE, i]
        request = requests[number]
        request.began_s = state.start_s
        if math.isnan(request.first_s):
            request.first_s = state.stop_s
        if not math.isnan(request.token_s):
            note_gap(state, room, state.stop_s, state.stop_s - request.token_s, 1.0)
        request.token_s = state.stop_s
        if limits.shares:
            publish(state, request, room.prefixes, limits.own_blocks)
        if request.remaining <= 1:
            drop(state, request, room, limits)
            request.end_s = state.stop_s
            state.ended += 1
        else:
            join(state, requests, room, limits, number)


@compiled
def finish(state: Record, requests: Record, room: Room, limits: Limits) -> None:
    """`Replica.finish`: note what was done, then see off who is done."""
    note_run(state, requests, room, limits)
    state.now_s = state.stop_s
    state.steps_done += state.steps
    if state.decodes > 0:
        note_gaps(state, requests, room)
        state.ticks += state.steps
        state.context += state.steps * state.decodes * limits.gains
        state.last_decode_s = state.stop_s
        if limits.shares:
            if not limits.reserves:
                state.held = held_at(state, requests, room, limits, state.ticks)
            trim_prefixes(state, room, limits)
    while state.leaving > 0 and room.leaving[0, 0] < (state.ticks + 1) * PLACES:
        number = room.leaving[0, 1]
        request = requests[number]
        pop(room.leaving, state.leaving)
        state.leaving -= 1
        state.context -= request.tokens + 1 + limits.gains * (request.ends - request.joined)
        drop(state, request, room, limits)
        leave(state, requests, number)
        request.end_s = state.stop_s
        state.ended += 1
    end_prompts(state, requests, room, limits)
    if state.decodes == 0:
        state.context = 0.0


@compiled
def notes_are_full(state: Record, room: Room) -> bool:
    """True if the notes of another step may find no room."""
    gaps = 2 * room.numbers.shape[1] + 3
    return bool(state.runs == room.runs.shape[0] or state.gaps + gaps > room.gaps.shape[0])


@compiled
def drafts_s(times: StepTimes, decodes: float, context: float) -> float:
    """Time [s] that drafts add to a step."""
    if times.draft_steps == 0.0 or decodes == 0.0:
        return 0.0
    return times.draft_steps * decode_seconds(times.drafts, decodes, context, 0.0)


@compiled
def time_step(state: Record, limits: Limits, times: StepTimes, tables: StepTables) -> int:
    """Find out when a step with prompts ends; what is wanted for that."""
    asked, decodes, chunks = times.asked, float(state.decodes), float(state.chunks)
    if limits.answers:
        content = decodes, state.context, state.chunk, state.pairs, state.cached, chunks
        asked[0] = step_seconds(tables, *content, math.nan, drafts_s(times, decodes, state.context))
    elif state.phase == BEGUN:
        asked[0], asked[1], asked[2] = decodes, state.context, state.chunk
        asked[3], asked[4], asked[5] = state.pairs, state.cached, chunks
        state.phase = ANSWERED
        return STEP
    state.stop_s = state.start_s + asked[0]
    return NOTHING


@compiled
def time_run(state: Record, requests: Record, room: Room, limits: Limits, times: StepTimes, tables: StepTables) -> int:
    """Find out how many decode steps make a run, and when it ends; what is wanted for that."""
    asked, decodes, context = times.asked, state.decodes, state.context
    cell = knot_below(times.knots, context / decodes) + 1
    if times.known[decodes, cell] == UNKNOWN:
        asked[0], asked[1] = decodes, cell
        return LINE
    straight = times.known[decodes, cell] == STRAIGHT
    state.steps = steps_of_run(state, requests, room, limits, straight, times.knots[cell])
    if straight:
        at_knot_s, per_token_s = times.lines[decodes, cell, 0], times.lines[decodes, cell, 1]
        state.first_s = at_knot_s + per_token_s * (context - decodes * times.knots[cell - 1])
        state.slope_s = per_token_s * decodes * limits.gains
    elif limits.answers:
        last = context + state.steps * decodes * limits.gains
        state.first_s = decode_seconds(tables, float(decodes), context, drafts_s(times, float(decodes), context))
        last_s = decode_seconds(tables, float(decodes), last, drafts_s(times, float(decodes), last))
        state.slope_s = (last_s - state.first_s) / state.steps
    elif state.phase == BEGUN:
        asked[0], asked[1], asked[2] = decodes, context, state.steps
        state.phase = ANSWERED
        return BENT
    else:
        state.first_s, state.slope_s = asked[0], asked[1]
    state.stop_s = run_end_s(state.start_s, state.first_s, state.slope_s, state.steps)
    return NOTHING


@compiled
def follow(states: Record, requests: Record, room: Room, limits: Limits, times: StepTimes, tables: StepTables) -> int:
    """Take a replica through its arrivals until it wants something, or has nothing left to do.

    Args:
        states: of the replica, one record of STATE, shape (1,): an array is known again faster than a record.
        requests: records of REQUEST in order of arrival, shape (n,).
        room: its arrays.
        limits: what it may do.
        times: durations of steps.
        tables: of step times, if it has them.

    Returns:
        What it wants. STEP: the duration of a step of `asked` (fields of `StepShape`) in asked[0]. LINE: the line of
        asked[0] decodes in cell asked[1] put among the lines. BENT: first duration and slope of asked[2] steps of
        asked[0] decodes and context asked[1], in asked[0] and [1]. FLUSH: the notes taken away.
        NOTHING: it is done.
    """
    state = states[0]
    while True:
        if state.phase == BEGIN:
            if state.ended >= limits.report or notes_are_full(state, room):
                return FLUSH
            if not take_in(state, requests, limits):
                return NOTHING
            begin(state, requests, room, limits)
            state.phase = BEGUN
        if state.chunks > 0:
            wanted = time_step(state, limits, times, tables)
        elif state.decodes > 0:
            wanted = time_run(state, requests, room, limits, times, tables)
        else:
            state.phase = BEGIN
            if state.place == requests.size:
                return NOTHING
            state.now_s = requests[state.place].time_s
            continue
        if wanted != NOTHING:
            return wanted
        arrive(state, requests, room, limits)
        finish(state, requests, room, limits)
        state.phase = BEGIN


def follows_alone(replica: Replica) -> bool:
    """True if a replica has only the rules that are written out here."""
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
        and not (rules.stream_s or rules.mask_s or rules.adapters is not None or replica.ledger.encode_s)
        and not (rules.shares_prefixes and rules.role is not Role.MIXED)
        and not (replica.tiers is not None or replica.ledger.system_tokens)
    )


def follow_alone(
    replica: Replica,
    requests: IntArray,
    times_s: FloatArray,
    ended: Callable[[int], None],
    happened: Callable[[int], None],
    every: int,
) -> None:
    """Take a replica through its arrivals until it has nothing left to do.

    Args:
        replica: at its start.
        requests: that reach it, in order of arrival, shape (n,).
        times_s: when they do [s], rising, shape (n,).
        ended: called with how many requests have ended since it was called last.
        happened: called with how many runs of steps there were since it was called last, at least every `NOTES`.
        every: so many requests, at the latest.
    """
    rules, ledger, clock, memory = replica.rules, replica.ledger, replica.clock, replica.rules.memory
    most = min(rules.max_running, requests.size) + 1
    records, prefix_blocks = _records(replica, requests, times_s)
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
        reserves=memory.reserves,
        shares=rules.shares_prefixes,
        comes_ready=rules.role is Role.DECODE,
        answers=answers is not None,
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
    times = StepTimes(np.array(CONTEXT_KNOTS), *clock.tables(most), drafts, draft_steps, np.zeros(6))
    wanted = FLUSH
    while wanted != NOTHING:
        wanted = follow(states, records, room, limits, times, tables)
        if wanted in (FLUSH, NOTHING):
            replica.runs.frombytes(room.runs[: state.runs].tobytes())
            replica.gaps.frombytes(room.gaps[: state.gaps].tobytes())
            ended(int(state.ended))
            happened(int(state.runs))
            state.runs = state.gaps = state.ended = 0
        else:
            _answer(wanted, clock, times)
    for name in ("arrival_s", "admit_s", "began_s", "first_s", "end_s", "blocks"):
        ledger.column(name)[requests] = records[name]
    ledger.column("hits")[requests] = records["hits"] * memory.block_tokens
    replica.blocked_s[PoolLimit.RUNNING_REQUESTS] = float(state.blocked_running_s)
    replica.blocked_s[PoolLimit.KV_CAPACITY] = float(state.blocked_kv_s)
    replica.preempted = int(state.preempted)


def _answer(wanted: int, clock: StepClock, times: StepTimes) -> None:
    """Tell a loop how long steps take."""
    asked = times.asked
    if wanted == STEP:
        decodes, context, chunk, pairs, cached, chunks = asked.tolist()
        asked[0] = clock.timer.step_s(int(decodes), context, chunk, pairs, cached, chunks)
    elif wanted == LINE:
        decodes, cell = int(asked[0]), int(asked[1])
        line = clock.line(decodes, cell)
        times.known[decodes, cell] = BENDS if line is None else STRAIGHT
        times.lines[decodes, cell] = line or (0.0, 0.0)
    else:
        asked[0], asked[1] = clock.run(int(asked[0]), asked[1], int(asked[2]))


def _records(replica: Replica, requests: IntArray, times_s: FloatArray) -> tuple[NDArray[np.void], IntArray]:
    """Requests before they come, and the blocks of the prefixes that they share, by number there."""
    ledger = replica.ledger
    records = np.zeros(requests.size, dtype=REQUEST)
    for name in ("arrival_s", "admit_s", "began_s", "first_s", "end_s"):
        records[name] = math.nan
    records["time_s"], records["request"] = times_s, requests
    for name, column in (("tokens", "inputs"), ("remaining", "outputs"), ("token_s", "token_s")):
        records[name] = ledger.column(column)[requests]
    for name in ("due", "before", "after", "prefix"):
        records[name] = -1
    if not replica.rules.shares_prefixes:
        return records, np.zeros(0, dtype=np.int64)
    reusable = np.minimum(ledger.column("prefix_tokens")[requests], records["tokens"])
    records["whole"] = reusable // replica.rules.memory.block_tokens
    prefixes = ledger.column("prefix")[requests]
    shares = (records["whole"] > 0) & (prefixes >= 0)
    _, numbers = np.unique(prefixes[shares], return_inverse=True)
    records["prefix"][shares] = numbers
    blocks = np.zeros(numbers.max(initial=-1) + 1, dtype=np.int64)
    np.maximum.at(blocks, numbers, records["whole"][shares])
    return records, blocks
