"""The loop of one replica that nothing outside it concerns, compiled: what `planner.simulator.alone` runs.

`follow` goes through the arrivals of a replica and does what `Replica.begin`, `arrive` and `finish` do under the
ordinary rules, on arrays. It is a generator: where it needs what is not in its tables (a step time, a line of step
times, room for its notes) it yields what it asks for, and finds the answer in `asked` when it goes on.
`planner.simulator.events` is the reference, to the last bit.

Requests are numbered from 0 in the order in which they reach the replica. So they are queued in this order, the inbox
and those that wait are ranges of numbers, and whoever was preempted waits before all of them.
"""

# ruff: noqa: C901, PLR0912, PLR0915 - one loop on arrays, so that it compiles to one function

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from planner.core import FloatArray, IntArray, compiled
from planner.engine import StepTables, step_seconds

STEP, LINE, BENT, FLUSH = 1, 2, 3, 4
"""What `follow` yields: it wants the duration of a step, a line of durations, a run where they bend, or has notes to
take away."""
UNKNOWN, STRAIGHT, BENDS = 0, 1, 2
"""What is known of a cell of the table of lines."""
RUNS, GAPS, ENDED, PREEMPTED = range(4)
"""Places in `counts`."""
RUN_FIELDS, GAP_FIELDS = 11, 3
"""Numbers of an entry of `ReplicaState.runs` and `gaps`."""
BoolArray = NDArray[np.bool_]


@compiled
def push(heap: IntArray, size: int, ends: int, request: int) -> None:
    """Add to a binary heap of (ends, request), shape (n, 2), of which `size` rows are in use."""
    child = size
    while child > 0:
        parent = (child - 1) // 2
        if heap[parent, 0] <= ends:
            break
        heap[child, 0], heap[child, 1] = heap[parent, 0], heap[parent, 1]
        child = parent
    heap[child, 0], heap[child, 1] = ends, request


@compiled
def pop(heap: IntArray, size: int) -> None:
    """Take the first out of a heap of `size` rows."""
    last = size - 1
    ends, request = heap[last, 0], heap[last, 1]
    parent = 0
    while True:
        child = 2 * parent + 1
        if child >= last:
            break
        if child + 1 < last and heap[child + 1, 0] < heap[child, 0]:
            child += 1
        if heap[child, 0] >= ends:
            break
        heap[parent, 0], heap[parent, 1] = heap[child, 0], heap[child, 1]
        parent = child
    heap[parent, 0], heap[parent, 1] = ends, request


@compiled
def held_at(tick: int, phases: IntArray, quotients: int, growing: int, prompts: int, sequence_blocks: int) -> int:
    """`EvenlyGrowingCache._held_at`: blocks of all once `tick` decode steps are done."""
    block = phases.size
    quotient, phase = tick // block, tick % block
    held = prompts + quotients + growing * (quotient + 1 + sequence_blocks)
    if phase:
        for full in range(block + 1 - phase, block):
            held += int(phases[full])
        return held
    return held - int(phases[0])


@compiled
def blocks_needed(tokens: int, remaining: int, reserves: bool, block: int, sequence_blocks: int) -> int:
    """`ReservedCache.blocks_needed` of a waiting request, or `GrowingCache`'s for its prompt and first decode."""
    length = tokens + (remaining if reserves else min(1, remaining))
    return (length + block - 1) // block + sequence_blocks


@compiled
def follow(
    times_s: FloatArray,
    tokens: IntArray,
    remaining: IntArray,
    limits: IntArray,
    reserves: bool,
    tables: StepTables,
    answers: bool,
    knots: FloatArray,
    lines: FloatArray,
    known: NDArray[np.int8],
    bent_growth: float,
    least_run_tokens: int,
    arrival_s: FloatArray,
    admit_s: FloatArray,
    first_s: FloatArray,
    end_s: FloatArray,
    runs: FloatArray,
    gaps: FloatArray,
    blocked_s: FloatArray,
    counts: IntArray,
    asked: FloatArray,
) -> Iterator[int]:
    """Take a replica through its arrivals until it has nothing left to do.

    Args:
        times_s: of arrivals [s], rising, shape (n,).
        tokens: of each prompt; a preempted one's grow by what it had made; shape (n,).
        remaining: output tokens still to come, the one that ends the prompt included, shape (n,).
        limits: most running, chunk budget, steps of lag, KV blocks, those kept free beside others, tokens of a block,
            blocks of a sequence beside its tokens.
        reserves: whether a sequence takes blocks for all its tokens at once.
        tables: of step times.
        answers: whether the tables hold the time of every step.
        knots: mean contexts between which step times of decodes are lines.
        lines: duration at the knot before a cell [s] and growth [s/token], shape (decodes, cells, 2).
        known: whether a line is known, shape (decodes, cells).
        bent_growth: share by which the mean context grows in a run where there is no line.
        least_run_tokens: tokens of mean context a run may have beyond a line.
        arrival_s: of each request [s], NaN at first, shape (n,); filled in.
        admit_s: when it was first admitted, the same.
        first_s: when it had its first token, the same.
        end_s: when it had its last, the same.
        runs: notes as in `ReplicaState.runs`, shape (entries, 11); filled in from 0 after every FLUSH.
        gaps: the same of `ReplicaState.gaps`, shape (entries, 3).
        blocked_s: seconds the first waiting request was held back by the running requests, and by the KV cache.
        counts: notes of runs, of gaps, requests that ended since the last FLUSH; preemptions in all.
        asked: what is asked for and the answer, shape (6,).

    Yields:
        STEP: wants the duration of a step of `asked` (fields of `StepShape`) in asked[0]. LINE: wants the line of
        asked[0] decodes in cell asked[1] put into the tables. BENT: wants first duration and slope of asked[3] steps
        from asked[0] of asked[1] decodes and context asked[2], in asked[0] and [1]. FLUSH: the notes are full.
    """
    most_running, budget, lag = limits[0], limits[1], limits[2]
    blocks, beside_others, block, own_blocks = limits[3], limits[3] - limits[4], limits[5], limits[6]
    count = times_s.size
    token_s = np.full(count, np.nan)
    due, joined, ends = np.full(count, -1), np.zeros(count, np.int64), np.zeros(count, np.int64)
    taken, grows = np.zeros(count, np.int64), np.zeros(count, np.bool_)
    running, before, after = np.zeros(count, np.bool_), np.full(count, -1), np.full(count, -1)
    leaving, leaving_size = np.zeros((16, 2), np.int64), 0
    back, backs = np.zeros(16, np.int64), 0
    new, news = np.zeros(most_running + 1, np.int64), 0
    done, dones = np.zeros(most_running + 1, np.int64), 0
    since_s, since_n = np.zeros(most_running + 2), np.zeros(most_running + 2, np.int64)
    phases, quotients, growing, in_prompts = np.zeros(block, np.int64), 0, 0, 0
    held, decodes, latest = 0, 0, -1
    place = inbox = queue = 0
    now_s, context, last_decode_s = 0.0, 0.0, np.nan
    steps_done = ticks = 0
    prompt, prompt_left = -1, 0

    while True:
        # Who has arrived: at a boundary all of this instant, of an idle replica the next.
        if inbox == place and backs == 0 and queue == inbox and decodes == 0 and prompt < 0:
            if place == count:
                break
            now_s = times_s[place]
        while place < count and times_s[place] == now_s:
            arrival_s[place] = now_s
            place += 1

        # `Replica.begin`: queue what is due, then fill the step.
        if inbox < place:
            idle = backs == 0 and queue == inbox and decodes == 0 and prompt < 0
            for request in range(inbox, place):
                if due[request] < 0:
                    due[request] = steps_done + lag
            while inbox < place and (idle or due[inbox] <= steps_done):
                inbox += 1
        if not reserves:
            held = held_at(ticks + 1, phases, quotients, growing, in_prompts, own_blocks)
        while held > blocks and decodes + (prompt >= 0) > 1:  # preempt the youngest
            victim = prompt if prompt >= 0 else latest
            counts[PREEMPTED] += 1
            if grows[victim]:
                origin = tokens[victim] - joined[victim]
                phases[origin % block] -= 1
                quotients -= origin // block
                growing -= 1
                grows[victim] = False
            else:
                in_prompts -= taken[victim]
                if reserves:
                    held -= taken[victim]
            if victim == prompt:
                prompt, prompt_left = -1, 0
            else:
                running[victim] = False
                decodes -= 1
                latest = before[victim]
                if latest >= 0:
                    after[latest] = -1
                gained = ticks - joined[victim]
                context -= tokens[victim] + 1 + gained
                if gained > 0:
                    token_s[victim] = last_decode_s
                kept = 0
                for i in range(news):
                    if new[i] != victim:
                        new[kept] = new[i]
                        kept += 1
                news = kept
                produced = min(remaining[victim] - 1, 1 + gained)
                tokens[victim] += produced
                remaining[victim] -= produced
            if backs == back.size:
                longer = np.zeros(2 * backs, np.int64)
                longer[:backs] = back
                back = longer
            spot = backs
            while spot > 0 and back[spot - 1] < victim:
                back[spot] = back[spot - 1]
                spot -= 1
            back[spot] = victim
            backs += 1
            if not reserves:
                held = held_at(ticks + 1, phases, quotients, growing, in_prompts, own_blocks)
        chunks, dones = 0, 0
        chunk = pairs = cached = 0.0
        run_first_s = run_slope_s = 0.0
        room = 1
        if prompt >= 0 or backs > 0 or queue < inbox:
            room = budget - decodes
            while room > 0:
                if prompt < 0:
                    if backs > 0:
                        first = back[backs - 1]
                    elif queue < inbox:
                        first = queue
                    else:
                        break
                    beside = decodes + dones
                    wanted = blocks_needed(tokens[first], remaining[first], reserves, block, own_blocks)
                    if beside >= most_running or held + wanted > (beside_others if beside > 0 else blocks):
                        break
                    prompt = first
                    if backs > 0:
                        backs -= 1
                    else:
                        queue += 1
                    if math.isnan(admit_s[prompt]):
                        admit_s[prompt] = now_s
                    taken[prompt] = wanted
                    in_prompts += wanted
                    held += wanted
                    prompt_left = tokens[prompt]
                now = min(prompt_left, room)
                past = tokens[prompt] - prompt_left
                chunk, chunks, cached = chunk + now, chunks + 1, cached + past + now
                pairs += now * past + now * (now + 1) / 2
                room -= now
                prompt_left -= now
                if prompt_left == 0:
                    done[dones] = prompt
                    dones += 1
                    prompt = -1
        start_s, steps = now_s, 1
        if chunks > 0:
            if answers:
                step_s = step_seconds(
                    tables, float(decodes), context, chunk, pairs, cached, float(chunks), math.nan, 0.0
                )
            else:
                asked[0], asked[1], asked[2] = decodes, context, chunk
                asked[3], asked[4], asked[5] = pairs, cached, chunks
                yield STEP
                step_s = asked[0]
            stop_s = start_s + step_s
        elif decodes > 0:
            room = 1
            while True:
                request = leaving[0, 1]
                if running[request] and ends[request] == leaving[0, 0]:
                    break
                pop(leaving, leaving_size)
                leaving_size -= 1
            mean = context / decodes
            cell = np.searchsorted(knots, mean, side="right")
            if known[decodes, cell] == UNKNOWN:
                asked[0], asked[1] = decodes, cell
                yield LINE
            straight = known[decodes, cell] == STRAIGHT
            if straight:
                reach = knots[cell] - mean
                if reach < least_run_tokens:
                    reach = float(least_run_tokens)
                elif reach > mean:
                    reach = mean
            else:
                reach = bent_growth * mean + least_run_tokens
            most = min(leaving[0, 0] - ticks, max(int(reach), 1))
            if inbox < place:
                most = min(most, due[inbox] - steps_done)
            if (backs > 0 or queue < inbox) and decodes < most_running:
                first = back[backs - 1] if backs > 0 else queue
                if held + blocks_needed(tokens[first], remaining[first], reserves, block, own_blocks) <= beside_others:
                    most = 1
            steps = most if most > 1 else 1
            fits = reserves or steps == 1 or held + growing * (steps // block + 1) <= blocks
            if not fits and held_at(ticks + steps, phases, quotients, growing, in_prompts, own_blocks) > blocks:
                low, high = 1, steps
                while high - low > 1:
                    middle = (low + high) // 2
                    if held_at(ticks + middle, phases, quotients, growing, in_prompts, own_blocks) <= blocks:
                        low = middle
                    else:
                        high = middle
                steps = low
            if straight:
                run_first_s = lines[decodes, cell, 0] + lines[decodes, cell, 1] * (context - decodes * knots[cell - 1])
                run_slope_s = lines[decodes, cell, 1] * decodes
            else:
                asked[0], asked[1], asked[2], asked[3] = start_s, decodes, context, steps
                yield BENT
                run_first_s, run_slope_s = asked[0], asked[1]
            stop_s = start_s + steps * (run_first_s + run_slope_s * (steps - 1) / 2.0)
        else:
            if place == count:
                break
            now_s = times_s[place]
            continue

        # `Replica.arrive`: who comes meanwhile, and whether a run of decodes ends for them.
        while place < count and times_s[place] < stop_s:
            came_s, is_first = times_s[place], inbox == place
            arrival_s[place] = came_s
            request = place
            place += 1
            if chunks > 0:
                due[request] = steps_done + 1 + lag
                continue
            low, high = 1, steps
            while low < high:
                middle = (low + high) // 2
                if start_s + middle * (run_first_s + run_slope_s * (middle - 1) / 2.0) >= came_s:
                    high = middle
                else:
                    low = middle + 1
            due[request] = steps_done + low + lag
            if backs > 0 or queue < inbox or not is_first or low + lag >= steps:
                continue
            wanted = blocks_needed(tokens[request], remaining[request], reserves, block, own_blocks)
            if decodes < most_running and held + wanted <= (beside_others if decodes > 0 else blocks):
                steps = low + lag
                stop_s = start_s + steps * (run_first_s + run_slope_s * (steps - 1) / 2.0)

        # `Replica.finish`: note what was done, then see off who is done.
        if counts[RUNS] == runs.shape[0] or counts[GAPS] + news + dones + 3 > gaps.shape[0]:
            yield FLUSH
            counts[RUNS] = counts[GAPS] = counts[ENDED] = 0
        now_s = stop_s
        note = runs[counts[RUNS]]
        counts[RUNS] += 1
        note[0], note[1], note[2], note[3], note[4], note[5] = start_s, stop_s, steps, held, decodes, decodes
        note[6] = context if chunks > 0 else context + decodes * (steps - 1) / 2.0
        note[7], note[8], note[9], note[10] = chunk, pairs, cached, chunks
        if (backs > 0 or queue < place) and room > 0:
            first = back[backs - 1] if backs > 0 else queue
            if arrival_s[first] < stop_s:
                beside = decodes + dones
                waited_s = stop_s - max(start_s, arrival_s[first])
                wanted = blocks_needed(tokens[first], remaining[first], reserves, block, own_blocks)
                if beside >= most_running:
                    blocked_s[0] += waited_s
                elif held + wanted > (beside_others if beside > 0 else blocks):
                    blocked_s[1] += waited_s
        steps_done += steps
        if decodes > 0:
            alike = 0
            for i in range(news):
                seen = 0
                while seen < alike and since_s[seen] != token_s[new[i]]:
                    seen += 1
                if seen == alike:
                    since_s[seen], since_n[seen] = token_s[new[i]], 0
                    alike += 1
                since_n[seen] += 1
            if decodes > news:
                seen = 0
                while seen < alike and since_s[seen] != last_decode_s:
                    seen += 1
                if seen == alike:
                    since_s[seen], since_n[seen] = last_decode_s, 0
                    alike += 1
                since_n[seen] += decodes - news
            news = 0
            if alike == 1 and since_s[0] == start_s:
                gap = gaps[counts[GAPS]]
                counts[GAPS] += 1
                gap[0], gap[1], gap[2] = stop_s, (stop_s - start_s) / steps, decodes * steps
            else:
                first_stop_s = stop_s if chunks > 0 else start_s + run_first_s
                for seen in range(alike):
                    gap = gaps[counts[GAPS]]
                    counts[GAPS] += 1
                    gap[0], gap[1], gap[2] = first_stop_s, first_stop_s - since_s[seen], since_n[seen]
                if steps > 1:
                    gap = gaps[counts[GAPS]]
                    counts[GAPS] += 1
                    gap[0], gap[1] = stop_s, (stop_s - first_stop_s) / (steps - 1)
                    gap[2] = decodes * (steps - 1)
            ticks += steps
            context += steps * decodes
            last_decode_s = stop_s
            while leaving_size > 0 and leaving[0, 0] <= ticks:
                last, request = leaving[0, 0], leaving[0, 1]
                pop(leaving, leaving_size)
                leaving_size -= 1
                if not running[request] or ends[request] != last:
                    continue
                running[request] = False
                decodes -= 1
                if before[request] >= 0:
                    after[before[request]] = after[request]
                if after[request] >= 0:
                    before[after[request]] = before[request]
                else:
                    latest = before[request]
                context -= tokens[request] + 1 + (last - joined[request])
                if grows[request]:
                    origin = tokens[request] - joined[request]
                    phases[origin % block] -= 1
                    quotients -= origin // block
                    growing -= 1
                else:
                    held -= taken[request]
                end_s[request] = stop_s
                counts[ENDED] += 1
        for i in range(dones):
            request = done[i]
            if math.isnan(first_s[request]):
                first_s[request] = stop_s
            if not math.isnan(token_s[request]):
                gap = gaps[counts[GAPS]]
                counts[GAPS] += 1
                gap[0], gap[1], gap[2] = stop_s, stop_s - token_s[request], 1
            token_s[request] = stop_s
            if remaining[request] <= 1:
                in_prompts -= taken[request]
                if reserves:
                    held -= taken[request]
                end_s[request] = stop_s
                counts[ENDED] += 1
                continue
            joined[request], ends[request] = ticks, ticks + remaining[request] - 1
            running[request] = True
            decodes += 1
            before[request], after[request] = latest, -1
            if latest >= 0:
                after[latest] = request
            latest = request
            context += tokens[request] + 1
            if not reserves:
                in_prompts -= taken[request]
                origin = tokens[request] - ticks
                phases[origin % block] += 1
                quotients += origin // block
                growing += 1
                grows[request] = True
            new[news] = request
            news += 1
            if leaving_size == leaving.shape[0]:
                wider = np.zeros((2 * leaving_size, 2), np.int64)
                wider[:leaving_size] = leaving
                leaving = wider
            push(leaving, leaving_size, ends[request], request)
            leaving_size += 1
        if decodes == 0:
            context = 0.0
    yield FLUSH
