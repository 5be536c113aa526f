"""Stand-ins for the programs that an export starts: engines, routers and nginx, in plain Python.

A stand-in refuses flags that the real program does not read (`tests/reference/launch/program_flags.csv`), takes its
GPUs and binds every port that the real one would, so that two processes which share one fail; engines answer the OpenAI
API, batch what they are asked in steps that take time, measure that in their own words at ``/metrics``, hand KV caches
over as far as addresses go, and routers pass requests on. It is run as ``stub_engine.py PROGRAM WORDS...`` and told by
its environment where it is: STUB_FLAGS (the table), STUB_STATE (a folder for the GPUs taken) and STUB_ADDRESS (of its
server, a loopback address); and how fast: STUB_STEP_S (what a step takes by itself, for each request that decodes and
for each token of a prompt, and what passes before a request is queued) and STUB_SPEED (seconds of an engine in one of
this machine).
"""

import csv
import http.client
import json
import os
import re
import socket
import sys
import threading
import time
from bisect import bisect_left
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

ADDRESS = os.environ.get("STUB_ADDRESS", "")
HELD = []
"""Sockets of the ports that a program takes besides the one it answers at."""


def stop(text):
    """End with an error."""
    sys.exit(f"{sys.argv[1]}: {text}")


def table(program):
    """The flags of a program."""
    with Path(os.environ["STUB_FLAGS"]).open(encoding="utf-8") as lines:
        return {row["flag"]: row for row in csv.DictReader(lines) if row["program"] == program}


def parsed(program, words):
    """Words of a command line as (positional, flags); a flag that may be repeated has a list of lists."""
    known, positional, flags = table(program), [], {}
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if not word.startswith("-"):
            positional.append(word)
            continue
        row = known.get(word) or _negated(known, word)
        if row is None:
            stop(f"unrecognized argument {word}")
        if row["note"] == "deprecated":
            stop(f"{word} is deprecated")
        most = {"switch": 0, "bool": 0, "list": len(words)}.get(row["takes"], 1)
        values = []
        while len(values) < most and at < len(words) and not words[at].startswith("--"):
            values.append(words[at])
            at += 1
        if row["takes"] not in ("switch", "bool") and not values:
            stop(f"{word} expects a value")
        for value in values:
            _check_value(word, row, value)
        flags.setdefault(word, []).append(values)
    return positional, flags


def _negated(known, word):
    row = known.get("--" + word.removeprefix("--no-")) if word.startswith("--no-") else None
    return row if row and row["takes"] == "bool" else None


def _check_value(word, row, value):
    try:
        {"int": int, "float": float}.get(row["takes"], str)(value)
    except ValueError:
        stop(f"{word}: invalid {row['takes']} value {value!r}")
    if row["choices"] and value not in row["choices"].split():
        stop(f"{word}: invalid choice {value!r}")


def number(flags, name, default=1):
    """The value of a flag that takes one number."""
    return int(flags[name][-1][0]) if name in flags else default


def take_gpus(wanted):
    """Take the visible GPUs of this server, of which there must be as many as the program uses."""
    shown = os.environ.get("CUDA_VISIBLE_DEVICES") or os.environ.get("HIP_VISIBLE_DEVICES")
    if shown is None:
        stop("it is not told which GPUs are its own")
    gpus = shown.split(",")
    if len(gpus) != wanted:
        stop(f"it uses {wanted} GPUs and sees {shown}")
    for gpu in gpus:
        try:
            os.close(os.open(Path(os.environ["STUB_STATE"]) / f"{ADDRESS}-gpu-{gpu}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            stop(f"GPU {gpu} is taken by another process")


def hold(host, port):
    """Take a port; another process that wants it fails."""
    if host != ADDRESS and not (host == "127.0.0.1" and ADDRESS.startswith("127.")):
        stop(f"{host} is not an address of this server")
    taken = socket.create_server((ADDRESS, port))
    HELD.append(taken)
    return taken


def reach(host, port, for_s=20.0):
    """A connection to a port that is about to be opened."""
    end = time.monotonic() + for_s
    while True:
        try:
            return socket.create_connection((host, int(port)), timeout=for_s)
        except OSError:
            if time.monotonic() > end:
                stop(f"nobody answers at {host}:{port}")
            time.sleep(0.05)


class Group:
    """The servers of one replica: the first waits for the others, which answer nothing."""

    def __init__(self, servers, rank, host, port):
        self.missing = servers - 1
        if rank:
            HELD.append(reach(host, port))
            threading.Event().wait()
        if servers > 1:
            listener = hold(host, port)
            threading.Thread(target=self._admit, args=(listener,), daemon=True).start()

    def _admit(self, listener):
        while True:
            HELD.append(listener.accept()[0])
            self.missing -= 1


class Server(ThreadingHTTPServer):
    """With room for the connections of a burst."""

    request_queue_size = 256


def serve(port, answer):
    """Answer requests until killed: ``answer(method, path, content)`` gives status and content."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def respond(self):
            size = int(self.headers.get("Content-Length") or 0)
            status, content = answer(self.command, self.path, json.loads(self.rfile.read(size)) if size else None)
            body = content.encode() if isinstance(content, str) else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = respond  # noqa: N815 - names that the base class looks for

        def log_message(self, *_):
            pass

    Server((ADDRESS, port), Handler).serve_forever()


def asked(host, method, path, content=None):
    """Status and content of a request to ``host:port``."""
    connection = http.client.HTTPConnection(host, timeout=20)
    body = None if content is None else json.dumps(content)
    connection.request(method, path, body, {} if body is None else {"Content-Type": "application/json"})
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response.status, text


SPEED = float(os.environ.get("STUB_SPEED", "1"))
STEP_S, REQUEST_S, TOKEN_S, BEFORE_S = map(float, os.environ.get("STUB_STEP_S", "0 0 0 0").split())
KV_TOKENS = 400_000
"""That the KV cache holds."""
WANTED = 16
"""Tokens of an answer whose request does not say."""


def clock():
    """Now, as an engine counts [s]."""
    return SPEED * time.monotonic()


class Request:
    """One request: tokens of its prompt that are still to compute, tokens made, and when."""

    def __init__(self, prompt, wanted, arrived):
        self.prompt, self.wanted, self.arrived, self.received = prompt, wanted, arrived, arrived - BEFORE_S
        self.left, self.made, self.first, self.last = prompt, 0, 0.0, 0.0
        self.done = threading.Event()


class Histogram:
    """Counts by bucket, as Prometheus has them."""

    def __init__(self, edges):
        self.edges, self.counts, self.total = edges, [0] * (len(edges) + 1), 0.0

    def observe(self, value):
        self.counts[bisect_left(self.edges, value)] += 1
        self.total += value


class Batch:
    """Continuous batching: a step takes what it contains, and requests join between steps.

    Prompts share the steps of decodes where these are `mixed`, else they have steps of their own, which go first. A
    machine that is too busy to keep up with the steps does not make them longer: they have their times by plan, and
    requests arrive by the same clock.
    """

    def __init__(self, most, budget, mixed=True):
        self.most, self.budget, self.mixed = most, budget, mixed
        self.waiting, self.running, self.now = [], [], 0.0
        self.changed = threading.Condition()
        self.finished = self.prompt_tokens = self.made_tokens = 0
        self.seen = {name: Histogram(edges) for name, edges in BUCKETS.items()}
        threading.Thread(target=self._run, daemon=True).start()

    def serve(self, words, wanted, computed=False):
        """Wait until a request is answered; `computed` where another server did the prompt."""
        with self.changed:
            busy = self.waiting or self.running
            request = Request(len(words), wanted, min(clock(), self.now) if busy else clock())
            if computed:
                request.left = 0
            self.waiting.append(request)
            self.changed.notify()
        request.done.wait()

    def _run(self):
        while True:
            with self.changed:
                while not (self.waiting or self.running):
                    self.changed.wait()
                if not self.running:
                    self.now = max(self.now, self.waiting[0].arrived)
                while self.waiting and len(self.running) < self.most:
                    self.running.append(self.waiting.pop(0))
            alone = not self.mixed and any(request.left for request in self.running)
            next_tokens = [] if alone else [request for request in self.running if not request.left]
            decodes, chunks = len(next_tokens), 0
            for request in self.running:
                chunk = min(request.left, max(0, self.budget - decodes - chunks))
                request.left, chunks = request.left - chunk, chunks + chunk
                if chunk and not request.left:
                    next_tokens.append(request)
            self.now += STEP_S + REQUEST_S * decodes + TOKEN_S * chunks
            time.sleep(max(0.0, self.now - clock()) / SPEED)
            with self.changed:
                for request in next_tokens:
                    self._token(request)

    def _token(self, request):
        request.made += 1
        if request.made == 1:
            request.first = self.now
            self.seen["ttft"].observe(self.now - request.received)
        else:
            self.seen["itl"].observe(self.now - request.last)
        request.last = self.now
        if request.made < request.wanted:
            return
        self.running.remove(request)
        self.finished += 1
        self.prompt_tokens += request.prompt
        self.made_tokens += request.made
        self.seen["e2e"].observe(self.now - request.received)
        self.seen["input_lengths"].observe(request.prompt)
        self.seen["output_lengths"].observe(request.made)
        if request.made > 1:
            self.seen["tpot"].observe((request.last - request.first) / (request.made - 1))
        request.done.set()

    def page(self, names, labels):
        """What it measured, in the words of an engine."""
        with self.changed:
            values = {
                "requests": self.finished,
                "input_tokens": self.prompt_tokens,
                "asked_tokens": self.prompt_tokens,
                "output_tokens": self.made_tokens,
                "cached_tokens": 0,
                "running": len(self.running),
                "waiting": len(self.waiting),
                "kv_usage": sum(one.prompt - one.left + one.made for one in self.running) / KV_TOKENS,
                "preemptions": 0,
            }
            lines, words = [], ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
            for quantity, row in names.items():
                name = row["metric"]
                lines += [f"# HELP {name} Of a stand-in for the engine.", f"# TYPE {name} {row['kind']}"]
                if row["kind"] != "histogram":
                    lines.append(f"{name}{{{words}}} {float(values[quantity])}")
                    continue
                histogram, below = self.seen[quantity], 0
                for edge, at in zip([*map(float, histogram.edges), "+Inf"], histogram.counts, strict=True):
                    below += at
                    lines.append(f'{name}_bucket{{le="{edge}",{words}}} {float(below)}')
                lines += [f"{name}_count{{{words}}} {float(below)}", f"{name}_sum{{{words}}} {histogram.total}"]
        return "\n".join(lines) + "\n"


TOKEN_EDGES = [
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
]
LONG_EDGES = [10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0]
REQUEST_EDGES = [60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0]
LENGTH_EDGES = [mantissa * 10**power for power in range(5) for mantissa in (1, 2, 5)]
BUCKETS = {
    "ttft": [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, *LONG_EDGES],
    "tpot": TOKEN_EDGES,
    "itl": TOKEN_EDGES,
    "e2e": [0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, *REQUEST_EDGES],
    "input_lengths": LENGTH_EDGES,
    "output_lengths": LENGTH_EDGES,
}
"""Of vLLM (vllm/v1/metrics/loggers.py, commit 005a810)."""


def metrics(engine):
    """What an engine calls what it measures: the first name of each quantity in the table, which has its source."""
    with Path(os.environ["STUB_METRICS"]).open(encoding="utf-8") as lines:
        rows = [row for row in csv.DictReader(lines) if row["engine"] == engine]
    return {row["quantity"]: row for row in reversed(rows)}


class Engine:
    """A server of one model."""

    metrics_path = "/metrics"

    def __init__(self, model, port, role, group, batch, metrics=(), labels=None, handover=None):
        self.model, self.port, self.role, self.group, self.handover = model, port, role, group, handover
        self.batch, self.metrics, self.labels = batch, metrics, {"model_name": model, **(labels or {})}
        self.requests = count(1)

    def answer(self, method, path, content):
        if path == "/health":
            return (200, "") if not self.group.missing else (503, "")
        if path == self.metrics_path and self.metrics:
            return 200, self.batch.page(self.metrics, self.labels)
        if path == "/v1/models":
            return 200, {"object": "list", "data": [{"id": self.model, "object": "model"}]}
        if method != "POST" or path not in ("/v1/chat/completions", "/v1/completions"):
            return 404, {"error": path}
        if content["model"] != self.model:
            return 404, {"error": f"the model {content['model']} does not exist"}
        words = (content["messages"][-1]["content"] if "messages" in content else content["prompt"]).split()
        wanted = 1 if self.role == "prefill" else content.get("max_tokens", WANTED)
        self.batch.serve(words, wanted, computed=self.role == "decode")
        return 200, {
            "id": f"{next(self.requests)}",
            "model": self.model,
            "served_by": f"{ADDRESS}:{self.port}",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}}],
            "usage": {"prompt_tokens": len(words), "completion_tokens": wanted},
            **(self.handover(content) if self.handover else {}),
        }


def vllm(words):
    if words[:1] != ["serve"]:
        stop("the server is started by vllm serve")
    (model,), flags = parsed("vllm serve", words[1:])
    shards = number(flags, "--tensor-parallel-size") * number(flags, "--pipeline-parallel-size")
    ranks = number(flags, "--data-parallel-size")
    local = number(flags, "--data-parallel-size-local", ranks)
    servers = number(flags, "--nnodes") if ranks == local else ranks // local
    take_gpus(shards * local // (servers if ranks == local else 1))
    rank = (
        number(flags, "--node-rank", 0) if ranks == local else number(flags, "--data-parallel-start-rank", 0) // local
    )
    if bool(rank) != ("--headless" in flags):
        stop("every server but the first is headless")
    meet = (
        ("--master-addr", "--master-port")
        if ranks == local
        else ("--data-parallel-address", "--data-parallel-rpc-port")
    )
    host = flags[meet[0]][-1][0] if servers > 1 else ADDRESS
    role, handover = "mixed", None
    if "--kv-transfer-config" in flags:
        transfer = json.loads(flags["--kv-transfer-config"][-1][0])
        role = {"kv_producer": "prefill", "kv_consumer": "decode"}[transfer["kv_role"]]
        side = (os.environ["VLLM_NIXL_SIDE_CHANNEL_HOST"], int(os.environ["VLLM_NIXL_SIDE_CHANNEL_PORT"]))
        for at in range(local):
            hold(side[0], side[1] + at)
        handover = _vllm_handover(role, side)
    group = Group(servers, rank, host, number(flags, meet[1], 29501))
    port = number(flags, "--port", 8000)
    batch = Batch(
        number(flags, "--max-num-seqs", 1024),
        number(flags, "--max-num-batched-tokens", 8192),
    )
    serve(port, Engine(model, port, role, group, batch, metrics("vllm"), {"engine": "0"}, handover).answer)


def _vllm_handover(role, side):
    """As the NIXL connector does: prefill says where its side channel is, decode asks there."""

    def handover(content):
        told = content["kv_transfer_params"]
        if role == "prefill":
            return {"kv_transfer_params": {"remote_host": side[0], "remote_port": side[1]}}
        reach(told["remote_host"], told["remote_port"], 1.0).close()
        return {"prefilled_by": f"{told['remote_host']}:{told['remote_port']}"}

    return handover


def encode_or_reach_encoders(flags):
    """Answer as an encoder of SGLang until killed, or reach those that a language server is told of."""
    encoders = flags.get("--encoder-urls", [[]])[-1]
    if bool(encoders) != ("--language-only" in flags):
        stop("a language server needs encoders, and no other has any")
    if "--encoder-only" in flags:
        port = number(flags, "--port", 30000)
        serve(port, lambda method, path, content: (200 if path == "/health" else 404, {}))
    for url in encoders:
        place = urlsplit(url)
        reach(place.hostname, place.port)
        if asked(place.netloc, "POST", "/v1/chat/completions", {})[0] != 404:
            stop(f"{url} is no encoder")


def sglang(words):
    _, flags = parsed("sglang.launch_server", words)
    servers = number(flags, "--nnodes")
    take_gpus(number(flags, "--tp-size") * number(flags, "--pp-size") * number(flags, "--dp-size") // servers)
    if "--enable-metrics" not in flags:
        stop("nothing would measure it")
    rank = number(flags, "--node-rank", 0)
    host, _, meet = (flags["--dist-init-addr"][-1][0] if "--dist-init-addr" in flags else f"{ADDRESS}:0").rpartition(
        ":"
    )
    if number(flags, "--attn-dp-size") > 1 and not rank:
        if meet == "0":
            meet = str(number(flags, "--port", 30000) + 233)
        for at in range(1 if servers > 1 else 0, 7):
            hold(host, int(meet) + at)
    role = flags["--disaggregation-mode"][-1][0] if "--disaggregation-mode" in flags else "mixed"
    encode_or_reach_encoders(flags)
    if role == "prefill":
        hold(ADDRESS, number(flags, "--disaggregation-bootstrap-port", 8998))

    def handover(content):
        if role == "mixed":
            return {}
        if role == "decode":
            reach(content["bootstrap_host"], content["bootstrap_port"], 1.0).close()
        return {"prefilled_by": f"{content['bootstrap_host']}:{content['bootstrap_port']}"}

    port, model = number(flags, "--port", 30000), flags["--model-path"][-1][0]
    group = Group(servers, rank, host, int(meet))
    batch = Batch(
        number(flags, "--max-running-requests", 4096),
        number(flags, "--chunked-prefill-size", 8192),
        "--enable-mixed-chunk" in flags,
    )
    labels = {"engine_type": role if role != "mixed" else "unified", "tp_rank": "0", "pp_rank": "0"}
    serve(port, Engine(model, port, role, group, batch, metrics("sglang"), labels, handover).answer)


def tensorrt(words):
    if words[:1] == ["disaggregated"]:
        tensorrt_router(words[1:])
        return
    (model,), flags = parsed("trtllm-serve serve", words)
    take_gpus(number(flags, "--tp_size") * number(flags, "--pp_size"))
    if not Path(flags["--config"][-1][0]).is_file():
        stop(f"no file {flags['--config']}")
    told = Path(flags["--config"][-1][0]).read_text().splitlines()
    measures = {"return_perf_metrics: true", "enable_iter_perf_stats: true"} <= set(told)
    port = number(flags, "--port", 8000)
    group = Group(1, 0, ADDRESS, 0)
    batch = Batch(number(flags, "--max_batch_size", 2048), number(flags, "--max_num_tokens", 8192))
    engine = Engine(
        model, port, "mixed", group, batch, metrics("tensorrt-llm") if measures else {}, {"engine_type": "pytorch"}
    )
    engine.metrics_path = "/prometheus/metrics"
    serve(port, engine.answer)


class Workers:
    """Replicas of a pool in turns; each must answer before the router does."""

    def __init__(self, urls):
        self.hosts = [urlsplit(url).netloc or url for url in urls]
        self.turns = count()
        for host in self.hosts:
            _wait_for(host)

    def next(self):
        return self.hosts[next(self.turns) % len(self.hosts)]


def _wait_for(host):
    end = time.monotonic() + 20.0
    while True:
        try:
            if asked(host, "GET", "/health")[0] == 200:
                return
        except OSError:
            pass
        if time.monotonic() > end:
            stop(f"worker {host} did not become healthy")
        time.sleep(0.05)


def route(port, forward, policy):
    """Serve what ``forward`` makes of a request."""

    def answer(method, path, content):
        if path == "/health":
            return 200, ""
        if path == "/policy":
            return 200, {"policy": policy}
        return forward(method, path, content)

    serve(port, answer)


def _in_turns(workers):
    return lambda method, path, content: asked(workers.next(), method, path, content)


def engine_router(program, words, is_vllm):
    _, flags = parsed(program, words)
    port = number(flags, "--port", 30000)
    if "--worker-urls" in flags:
        policy = flags["--policy"][-1][0] if "--policy" in flags else "cache_aware"
        route(port, _in_turns(Workers(flags["--worker-urls"][-1])), policy)
        return
    if ("--vllm-pd-disaggregation" if is_vllm else "--pd-disaggregation") not in flags:
        stop("it has no replicas")
    prefill, decode = Workers(each[0] for each in flags["--prefill"]), Workers(each[0] for each in flags["--decode"])
    bootstrap = {urlsplit(each[0]).netloc: each[1] for each in flags["--prefill"] if len(each) > 1}

    def forward(method, path, content):
        first, second = prefill.next(), decode.next()
        if is_vllm:
            told = asked(first, method, path, {**content, "kv_transfer_params": {"do_remote_decode": True}})[1]
            content = {**content, "kv_transfer_params": json.loads(told)["kv_transfer_params"]}
        else:
            host = first.rpartition(":")[0]
            content = {**content, "bootstrap_host": host, "bootstrap_port": bootstrap.get(first, 8998)}
            asked(first, method, path, content)
        return asked(second, method, path, content)

    route(port, forward, [flags[f"--{role}-policy"][-1][0] for role in ("prefill", "decode")])


def tensorrt_router(words):
    _, flags = parsed("trtllm-serve disaggregated", words)
    (path,) = flags["-c"][-1]
    text = Path(path).read_text(encoding="utf-8")
    pools = {}
    for line in text.splitlines():
        if re.match(r"\w+_servers:", line):
            pools[line.rstrip(":")] = []
        if found := re.match(r"\s*- (\S+:\d+)$", line):
            pools[list(pools)[-1]].append(found[1])
    first, second = Workers(pools["context_servers"]), Workers(pools["generation_servers"])

    def forward(method, path, content):
        asked(first.next(), method, path, content)
        return asked(second.next(), method, path, content)

    port = int(re.search(r"^port: (\d+)$", text, re.M)[1])
    route(port, forward, re.findall(r"type: (\S+)", text))


def nginx(words):
    _, flags = parsed("nginx", words)
    text = Path(flags["-c"][-1][0]).read_text(encoding="utf-8")
    if text.count("{") != text.count("}"):
        stop("unexpected end of file, expecting }")
    hosts = re.findall(r"^ +server (\S+);$", text, re.M)
    policy = re.findall(r"^ +(random.*|least_conn);$", text, re.M)
    port = int(re.search(r"listen (\d+);", text)[1])
    route(port, _in_turns(Workers(hosts)), policy)


def python(words):
    modules = {
        "sglang.launch_server": sglang,
        "sglang_router.launch_router": lambda rest: engine_router("sglang_router.launch_router", rest, False),
    }
    if words[0] != "-m" or words[1] not in modules:
        stop(f"{words} is not what an export starts")
    modules[words[1]](words[2:])


PROGRAMS = {
    "vllm": vllm,
    "python3": python,
    "trtllm-serve": tensorrt,
    "vllm-router": lambda words: engine_router("vllm-router", words, True),
    "nginx": nginx,
}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](sys.argv[2:])
