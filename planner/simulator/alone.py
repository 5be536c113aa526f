"""A replica that nothing outside it concerns but its arrivals, which are known beforehand: followed in one function.

Replicas of a mixed pool that take turns are such, under open arrivals. Their events need no common clock, and with the
ordinary rules (`follows_alone`) what `Replica.begin`, `arrive` and `finish` do comes down to a few lines, which are
written out here: calls and events took more than half of the time. Anything rare (a preemption) is done by the replica
itself. `planner.simulator.events` is the reference; tests hold the two together to the last bit.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from collections.abc import Sequence as Sized
from heapq import heappop, heappush

from planner.engine import Batching, KvAllocation, Order, Preemption
from planner.serving import PoolLimit, Role
from planner.simulator.cache import Sequence
from planner.simulator.clock import CONTEXT_KNOTS
from planner.simulator.order import ArrivalQueue
from planner.simulator.replica import Replica


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


def follow_alone(  # noqa: C901, PLR0912, PLR0915  (one loop, so that nothing is called or looked up in it)
    replica: Replica, requests: Sized[int], times_s: Sized[float], ended: Callable[[int], None]
) -> None:
    """Take a replica through its arrivals until it has nothing left to do.

    Args:
        replica: at its start.
        requests: that reach it, in order of arrival.
        times_s: when they do [s], rising.
        ended: called with how many requests ended with a step.
    """
    rules, ledger, clock, cache = replica.rules, replica.ledger, replica.clock, replica.cache
    decoding, leaving, waiting, inbox = replica.decoding, replica.leaving, replica.waiting, replica.inbox
    assert isinstance(waiting, ArrivalQueue)
    note_run, note_gap, blocked_s = replica.runs.extend, replica.gaps.extend, replica.blocked_s
    inputs, outputs, class_index = ledger.inputs, ledger.outputs, ledger.class_index
    arrival_s, admit_s, first_s, end_s = ledger.arrival_s, ledger.admit_s, ledger.first_s, ledger.end_s
    step_s, line_of, bent_run = clock.step_s, clock.line, clock.run
    take, free, join, count_held, needed = cache.take, cache.free, cache.join, cache.count_held, cache.blocks_needed
    blocks, most_running = rules.memory.blocks, rules.max_running
    beside_others = blocks - rules.memory.free_blocks
    budget, lag = rules.max_batched_tokens, rules.lag_steps
    count, place, ceil, isnan = len(requests), 0, math.ceil, math.isnan
    now_s, context, last_decode_s = 0.0, 0.0, math.nan
    steps_done = ticks = number = 0
    prompt: Sequence | None = None
    prompt_left: float = 0
    new_decodes: list[Sequence] = []
    prompts: list[Sequence] = []

    while True:
        # Who has arrived: at a boundary all of this instant, of an idle replica the next.
        if not (inbox or waiting or decoding or prompt):
            if place == count:
                return
            now_s = times_s[place]
        while place < count and times_s[place] == now_s:
            request = requests[place]
            arrival_s[request] = now_s
            inbox.append(Sequence(request, inputs[request], outputs[request], False, class_index[request]))
            place += 1

        # `Replica.begin`: queue what is due, then fill the step.
        if inbox:
            idle = not (waiting or decoding or prompt)
            for sequence in inbox:
                if sequence.due is None:
                    sequence.due = steps_done + lag
            while inbox and (idle or (inbox[0].due or 0) <= steps_done):
                sequence = inbox.popleft()
                sequence.number = number
                number += 1
                waiting.append(sequence)
        decodes = len(decoding)
        held = count_held(ticks + 1)
        if held > blocks:
            replica.now_s, replica.ticks, replica.context, replica.last_decode_s = now_s, ticks, context, last_decode_s
            replica.prompt, replica.prompt_left, replica.new_decodes = prompt, prompt_left, new_decodes
            replica.make_room()
            prompt, prompt_left, new_decodes, context = (
                replica.prompt,
                replica.prompt_left,
                replica.new_decodes,
                replica.context,
            )
            decodes = len(decoding)
        chunks, prompts = 0, []
        chunk = pairs = cached = 0.0
        run_first_s = run_slope_s = 0.0
        room: float = 1
        if prompt is not None or waiting:
            room = budget - decodes
            while room > 0:
                if prompt is None:
                    if not waiting:
                        break
                    prompt = waiting[0]
                    running = decodes + len(prompts)
                    if running >= most_running or cache.held + needed(prompt) > (beside_others if running else blocks):
                        prompt = None
                        break
                    waiting.popleft()
                    request = prompt.request
                    if isnan(admit_s[request]):
                        admit_s[request] = now_s
                    take(prompt)
                    prompt.admitted = True
                    prompt_left = prompt.tokens
                new = prompt_left if prompt_left < room else room
                past = prompt.tokens - prompt_left
                chunk, chunks, cached = chunk + new, chunks + 1, cached + past + new
                pairs += new * past + new * (new + 1) / 2
                room -= new
                prompt_left -= new
                if not prompt_left:
                    prompts.append(prompt)
                    prompt = None
        start_s, steps = now_s, 1
        if chunks:
            stop_s = start_s + step_s(decodes, context, chunk, pairs, cached, chunks)
        elif decodes:
            room = 1
            while True:
                ends, request = leaving[0]
                last = decoding.get(request)
                if last is not None and last.ends == ends:
                    break
                heappop(leaving)
            mean = context / decodes
            cell = bisect_right(CONTEXT_KNOTS, mean)
            line = line_of(decodes, cell)
            most = min(ends - ticks, clock.steps_in_line(decodes, context))
            if inbox:
                most = min(most, (inbox[0].due or 0) - steps_done)
            if waiting:
                running = decodes
                if running < most_running and cache.held + needed(waiting[0]) <= beside_others:
                    most = 1
            steps = cache.steps_that_fit(ticks, most) if most > 1 else 1
            if line is None:
                run = bent_run(start_s, decodes, context, steps)
                run_first_s, run_slope_s = run.first_s, run.slope_s
            else:
                run_first_s = line[0] + line[1] * (context - decodes * CONTEXT_KNOTS[cell - 1])
                run_slope_s = line[1] * decodes
            stop_s = start_s + steps * (run_first_s + run_slope_s * (steps - 1) / 2.0)
        else:
            if place == count:
                return
            now_s = times_s[place]
            continue

        # `Replica.arrive`: who comes meanwhile, and whether a run of decodes ends for them.
        while place < count and times_s[place] < stop_s:
            request, came_s = requests[place], times_s[place]
            place += 1
            arrival_s[request] = came_s
            sequence = Sequence(request, inputs[request], outputs[request], False, class_index[request])
            is_first = not inbox
            inbox.append(sequence)
            if chunks:
                sequence.due = steps_done + 1 + lag
                continue
            low, high = 1, steps
            while low < high:
                middle = (low + high) // 2
                if start_s + middle * (run_first_s + run_slope_s * (middle - 1) / 2.0) >= came_s:
                    high = middle
                else:
                    low = middle + 1
            sequence.due = steps_done + low + lag
            if waiting or not is_first or low + lag >= steps:
                continue
            if decodes < most_running and cache.held + needed(sequence) <= (beside_others if decodes else blocks):
                steps = low + lag
                stop_s = start_s + steps * (run_first_s + run_slope_s * (steps - 1) / 2.0)

        # `Replica.finish`: note what was done, then see off who is done.
        now_s = stop_s
        if chunks:
            note_run((start_s, stop_s, 1, cache.held, decodes, decodes, context, chunk, pairs, cached, chunks))
        else:
            middle_context = context + decodes * (steps - 1) / 2.0
            note_run((start_s, stop_s, steps, cache.held, decodes, decodes, middle_context, 0, 0, 0, 0))
        if (waiting or inbox) and room > 0:
            sequence = waiting[0] if waiting else inbox[0]
            came_s = arrival_s[sequence.request]
            if came_s < stop_s:
                running = decodes + len(prompts)
                cap = None
                if running >= most_running:
                    cap = PoolLimit.RUNNING_REQUESTS
                elif cache.held + needed(sequence) > (beside_others if running else blocks):
                    cap = PoolLimit.KV_CAPACITY
                if cap is not None:
                    blocked_s[cap] += stop_s - max(start_s, came_s)
        steps_done += steps
        gone = 0
        if decodes:
            if not new_decodes and last_decode_s == start_s:
                note_gap((stop_s, (stop_s - start_s) / steps, decodes * steps))
            else:
                since: dict[float, int] = {}
                for sequence in new_decodes:
                    since[sequence.token_s] = since.get(sequence.token_s, 0) + 1
                before = decodes - len(new_decodes)
                if before:
                    since[last_decode_s] = since.get(last_decode_s, 0) + before
                new_decodes = []
                if len(since) == 1 and start_s in since:
                    note_gap((stop_s, (stop_s - start_s) / steps, decodes * steps))
                else:
                    first_stop_s = stop_s if chunks else start_s + run_first_s
                    for token_s, alike in since.items():
                        if not isnan(token_s):
                            note_gap((first_stop_s, first_stop_s - token_s, alike))
                    if steps > 1:
                        note_gap((stop_s, (stop_s - first_stop_s) / (steps - 1), decodes * (steps - 1)))
            ticks += steps
            context += steps * decodes
            last_decode_s = stop_s
            while leaving and leaving[0][0] <= ticks:
                ends, request = heappop(leaving)
                gone_sequence = decoding.get(request)
                if gone_sequence is None or gone_sequence.ends != ends:
                    continue
                del decoding[request]
                context -= gone_sequence.tokens + 1 + (ends - gone_sequence.joined)
                free(gone_sequence)
                end_s[request] = stop_s
                gone += 1
        for sequence in prompts:
            request = sequence.request
            if isnan(first_s[request]):
                first_s[request] = stop_s
            if not isnan(sequence.token_s):
                note_gap((stop_s, stop_s - sequence.token_s, 1))
            sequence.token_s = stop_s
            if sequence.remaining <= 1:
                free(sequence)
                end_s[request] = stop_s
                gone += 1
                continue
            sequence.joined = ticks
            sequence.ends = ticks + ceil(sequence.remaining - 1 - 1e-9)
            decoding[request] = sequence
            context += sequence.tokens + 1
            join(sequence)
            new_decodes.append(sequence)
            heappush(leaving, (sequence.ends, request))
        if not decoding:
            context = 0.0
        if gone:
            ended(gone)
