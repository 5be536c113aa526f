"""`simulate`: a deployment under a workload, request by request, and the rules by which it goes.

Traffic. Open arrivals are drawn from a process, alone or in batches, or replayed from a recording (times and lengths);
in a closed loop every answer sends the next request. Each request belongs to a class by share, has the lengths of its
class, and may begin with one of its shared prefixes and use an adapter, both by popularity. Arrivals, lengths, classes,
prefixes, adapters and the routers' chances are independent streams of one seed.

Replicas. A replica works in steps. With the default `Schedule`, at each step boundary

1. every decoding sequence gets a place in the step (one token each);
2. what is left of `max_batched_tokens` goes to prompts, first come first served: a prompt is split over steps where it
   has to be, and several prompts share a step where they can;
3. a new request is admitted only while running and joining requests number less than `max_running_requests` (and less
   than the chunk budget), and KV blocks for all its input and output tokens are free. They are reserved at once and
   kept to its end: nothing is ever preempted. A request that does not fit holds back all that came after it.

The step takes what `ReplicaConfig.timer` says for exactly this content. A prompt that ends in a step emits its first
token at the end of it and decodes one token per step from the next step on. A replica with nothing to do waits for the
next arrival, which starts a step at once.

With pp pipeline stages a step is a round of pp micro-batches, each with a chunk budget and its share of the decodes: it
holds up to pp times as many prompt tokens and takes what the busiest micro-batch takes through all stages. A prompt of
several chunks in one step ends (chunks - 1) / pp of a step after it where nobody waits.

Other fields of `ReplicaConfig.schedule` (`planner.engine.Schedule`) change the rules:

- without `mixed_steps`, a step holds prompts only as long as there is a prompt to admit or to go on with (it has the
  whole chunk budget), else decodes only;
- with `whole_prompts` a prompt joins a step only if it fits in what is left of the budget; one longer than the whole
  budget goes where no other prompt is; `PoolLimit.BATCHED_TOKENS` says where prompts wait for decodes to end for it;
- with `batch_wait_steps` the prompts that could be admitted beside running decodes wait until all waiting prompts have
  `batch_wait_fill * max_batched_tokens` tokens, or for that many steps; with `batch_wait_requests`, until so many wait,
  as long as no fewer decode;
- with `receive_interval_steps` above 1, arrivals are looked at only so many decode steps after the last look, or after
  a step with prompts;
- without `reserve_outputs` a request takes blocks for its prompt and a decode step when it is admitted, and one more
  whenever its last is full. When they run out, the youngest (of the highest priority number, under priorities) is
  preempted: it gives its blocks back and goes back to where it stood among the waiting. `on_preemption`: its prompt and
  all tokens so far are processed again, or its blocks are copied to the host and back while no step runs;
- `watermark` keeps a share of the blocks free at admission while others run;
- `kv` contiguous sets one piece of `longest_tokens` aside for every sequence;
- `batching` static takes requests only when the whole batch before has ended (a free replica waits up to
  `static_wait_s` for a full one): prompts are padded to the longest, and every sequence keeps its place in the steps
  and its KV until the last has ended;
- `order` says who is admitted first: first come, fewest tokens, lowest priority number, or the class with the fewest
  tokens per weight; with `preempts` a waiting request takes the place of running ones of higher priority numbers;
- with `prefix_cache` whole blocks of shared prefixes that are in the cache are neither processed nor stored again, and
  whole blocks of the share of a prompt that is known to be cached are not processed (`prefix_hit_rate`, or
  `prefix_reuse` at the memory that theory finds free); shared ones that nobody uses are dropped when room is needed,
  the least recently used first.

With speculation a sequence gains `tokens_per_step` tokens in each decode step, the same in every one (a mean, kept as a
fraction), and takes its drafts from the chunk budget too. Adapters (`ReplicaConfig.lora`) add the work of
`planner.engine.lora` to a step; a request waits until its adapter has been loaded into one of the slots. A constrained
sequence adds `mask_s` to every step it decodes in.

Pools. Every request goes to the replica that `Pool.router` (`planner.serving.Router`) chooses when it reaches the
pool; loads are counted in requests or tokens sent to a replica and not ended there. It reaches its replica `request_s`
(of `ReplicaConfig.costs`) after it was sent, and `admission_s` after the one before it at the earliest; it is queued
`lag_steps` steps after the boundary at which it is looked at, at once where the replica has nothing to do.

In a PREFILL pool a request ends with its first token. Its KV cache takes input tokens * KV bytes per token / link
bandwidth to the DECODE pool, in one piece when the prompt ends, or with `EngineProfile.chunkwise_kv_transfer` in one
for each of its steps when that ends: with the first what a prefix cache held (with `early_prefix_transfer` that begins
with the step), with the last windows and recurrent state. With `KvTransfer.shared` the receiver is chosen with the
first piece, a piece begins when all earlier ones of its sender and of its receiver are over, and the sender keeps the
blocks until the last is over; otherwise every transfer has a link of its own, its receiver is chosen at its end, and
the sender frees its blocks with the prompt. `layerwise`: a piece begins with its step, and ends no earlier than
1/layers of its time after it.
`first_token_from_decode`: the client's first token is that of the first step in the decode pool, which processes the
last prompt token once more; the prefill pool's token is not delivered. A decode pool that preempts processes prompts
itself.

Steps without prompts are not looked at one by one: within a run of them in which the mean context grows by 2 %,
durations are a line through the first and the last (error below 1e-4 of a step).
"""

from __future__ import annotations

import math

import numpy as np

from planner.core import InputError, IntArray, UnsupportedFeatureError
from planner.engine import LoraAdapters, require_room
from planner.serving import Deployment, Performance, evaluate, with_known_hits
from planner.simulator.events import Progress, in_order_of_sending, run_events
from planner.simulator.outcome import closed_performance, open_performance
from planner.simulator.traffic import DrawnTraffic, draw, draw_sessions, has_sessions, settling_requests
from planner.workload import ClosedLoop, RecordedArrivals, Workload

DEFAULT_REQUESTS = 4000
"""Requests of an open run unless given: a p99 from 40 requests beyond it. A choice."""
MOST_WARMUP_FRACTION = 0.9
"""Largest share of the requests that may go unmeasured. A choice."""


def simulate(
    deployment: Deployment,
    workload: Workload,
    *,
    seed: int = 0,
    requests: int | None = None,
    warmup_fraction: float = 0.1,
    drawn: tuple[IntArray, IntArray] | None = None,
    ready_s: float = 0.0,
    progress: Progress | None = None,
) -> Performance:
    """Latencies of a deployment under a workload, from simulating requests one by one. Repeats for one seed.

    Open workloads: the first `warmup_fraction * requests` requests load the system but are not measured, and as many
    more follow the last measured one, so that it does not finish in an emptying system. Pool figures, gaps between
    tokens and link utilisation are those of the time between the first and the last measured arrival. A recording
    (`RecordedArrivals`) is replayed from its first request; fewer follow the last measured one where it ends.

    `stable` is a judgement, for a run is finite. False when in some pool the mean wait for admission in the last
    quarter of the measured requests is more than 1.2 times that in the second quarter and more than 3 % of the time
    passed since the start, while the replicas idled less than 1 % of the time or shared links were busy for half of it;
    or when transfers wait for shared links so. Overload by a factor r makes waits grow
    as (1 - 1/r) * time, which meets all three. A single-server queue is judged right in 98 of 100 runs of 4000 requests
    at loads up to 0.98 and from 1.06; in between, or with fewer requests, chance decides more often.

    Sessions: a run starts among sessions under way, and begins with some think times that are not measured
    (`planner.simulator.traffic`). Requests are numbered as they were sent in the end.

    Closed loops: the loop says how many requests there are, and all are measured, the first burst and the last
    stragglers included, as benchmark clients report them; `requests` and `warmup_fraction` are ignored. `rate_per_s` is
    requests per second of the run, `steady` holds the part between burst and stragglers, `stable` is always True.

    Args:
        deployment: the pools.
        workload: arrivals and lengths.
        seed: of all that is drawn, the choices of routers included; >= 0.
        requests: open: arrivals up to the last measured one, over all replicas; give several hundred per replica. None:
            4000, or all of a recording.
        warmup_fraction: open: share of them that is not measured, in [0, 0.9].
        drawn: (input tokens, output tokens) of every request in order of sending, each shape (n,), in place of drawn
            ones; n is `requests` + `warmup_fraction` of them when open, the requests of the loop when closed.
        ready_s: time from which on requests are taken up [s]; those sent before wait, as at a server that still loads
            kernels.
        progress: called at most 100 times with the share of all requests that have ended, in (0, 1].

    Returns:
        Latencies [s] of the measured requests. An overloaded deployment is not an error: its latencies are those of
        this finite run, and `stable` is False.

    Raises:
        InputError: an argument is out of range, a recording is shorter than `requests`, the model, its KV cache or the
            longest request does not fit, or more happens than `planner.simulator.events.MOST_EVENTS`.

    >>> from hardware_db import load_hardware
    >>> from planner import ReplicaConfig, TokenLengths, load_llm
    >>> db = load_hardware()
    >>> replica = ReplicaConfig(llm=load_llm("llama-3.1-8b"), sku=db.skus["h100-sxm"], engine=db.engines["vllm"])
    >>> alone = simulate(Deployment.mixed(replica), Workload.of(1.0, TokenLengths.constant(16, 32)), requests=1)
    >>> round(alone.tpot.mean_s, 4)  # 7.5e9 weights of 2 bytes at 3.35e12 bytes/s (H100 SXM5 datasheet)
    0.0045
    """
    workload = with_known_hits(deployment, workload)
    arrivals = workload.arrivals
    recorded = len(arrivals.times_s) if isinstance(arrivals, RecordedArrivals) else None
    if requests is None:
        requests = DEFAULT_REQUESTS if recorded is None else recorded
    _check(requests, warmup_fraction)
    warmup = int(warmup_fraction * requests)
    sent = requests + warmup if recorded is None else max(requests, min(requests + warmup, recorded))
    talking = has_sessions(workload)
    if talking:
        refused = drawn is not None or _adapters(deployment) is not None
        traffic, settling = _draw_sessions(deployment, workload, sent, seed, refused)
    else:
        traffic = draw(workload, sent, seed, drawn, adapters=_adapters(deployment))
    _require_room(deployment, workload, traffic, drawn is not None)
    record = run_events(deployment, traffic, seed=seed, classes=workload.classes, progress=progress, ready_s=ready_s)
    if traffic.think_s is not None:
        traffic, record = in_order_of_sending(traffic, record)
    if talking:
        traffic, record = in_order_of_sending(traffic, record)
        ends_s = np.array([settling + warmup, settling + requests]) / workload.rate_per_s
        first, last = (int(place) for place in np.searchsorted(record.sent_s, ends_s))
        measured = slice(first, max(last, first + 1))
        return open_performance(deployment, workload, measured, traffic, record)
    if isinstance(arrivals, ClosedLoop):
        return closed_performance(deployment, workload, arrivals, traffic, record)
    measured = slice(warmup, requests)
    return open_performance(deployment, workload, measured, traffic, record)


def _draw_sessions(
    deployment: Deployment, workload: Workload, count: int, seed: int, refused: bool
) -> tuple[DrawnTraffic, int]:
    """Requests of sessions, those under way at time 0 placed by the mean latency from theory; how many to leave out."""
    if refused:
        bound = "sessions bring their own requests, without adapters"
        raise InputError("drawn", "given", bound, "leave out drawn and adapters")
    try:
        answer_s = evaluate(deployment, workload).e2e.mean_s
    except UnsupportedFeatureError:
        answer_s = math.inf
    known = math.isfinite(answer_s)
    settling = settling_requests(workload, known)
    horizon_s = (count + settling) / workload.rate_per_s
    return draw_sessions(workload, horizon_s, seed, answer_s if known else 0.0), settling


def _adapters(deployment: Deployment) -> LoraAdapters | None:
    """The adapters that requests choose from: those of all pools that have any."""
    of_pools = {pool.config.lora for pool in deployment.pools if pool.config.lora is not None}
    if len({(lora.adapters, lora.skew) for lora in of_pools}) > 1:
        bound = "the pools serve the same requests"
        raise InputError(
            "deployment.pools.config.lora", len(of_pools), bound, "give both pools the same adapters and skew"
        )
    return next(iter(of_pools), None)


def _require_room(deployment: Deployment, workload: Workload, traffic: DrawnTraffic, given: bool) -> None:
    """Refuse what could not be served: the longest request that may come, or that of the `given` or recorded ones."""
    longest = int((traffic.inputs + traffic.outputs).max())
    if not given and not isinstance(workload.arrivals, RecordedArrivals):
        longest = workload.lengths.max_total
    for pool in deployment.pools:
        require_room(pool.config, longest)


def _check(requests: int, warmup_fraction: float) -> None:
    if requests < 1:
        raise InputError("requests", requests, "must be >= 1", "several hundred per replica give stable tails")
    if not 0.0 <= warmup_fraction <= MOST_WARMUP_FRACTION:
        bound = f"must lie in [0, {MOST_WARMUP_FRACTION}]"
        raise InputError("warmup_fraction", warmup_fraction, bound, "0.1 drops the first tenth")
