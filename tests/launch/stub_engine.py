"""Stand-ins for the programs that an export starts: engines, routers and nginx, in plain Python.

A stand-in refuses flags that the real program does not read (`tests/reference/launch/program_flags.csv`), takes its
GPUs and binds every port that the real one would, so that two processes which share one fail; engines answer the OpenAI
API, hand KV caches over as far as addresses go, and routers pass requests on. It is run as
``stub_engine.py PROGRAM WORDS...`` and told by its environment where it is: STUB_FLAGS (the table), STUB_STATE (a
folder for the GPUs taken) and STUB_ADDRESS (of its server, a loopback address).
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


# --- command lines --------------------------------------------------------------------------------------------------


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


# --- what two processes must not share ------------------------------------------------------------------------------


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


# --- HTTP -----------------------------------------------------------------------------------------------------------


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

    ThreadingHTTPServer((ADDRESS, port), Handler).serve_forever()


def asked(host, method, path, content=None):
    """Status and content of a request to ``host:port``."""
    connection = http.client.HTTPConnection(host, timeout=20)
    body = None if content is None else json.dumps(content)
    connection.request(method, path, body, {} if body is None else {"Content-Type": "application/json"})
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response.status, text


# --- engines --------------------------------------------------------------------------------------------------------


class Engine:
    """A server of one model."""

    def __init__(self, model, port, role, group, handover=None):
        self.model, self.port, self.role, self.group, self.handover = model, port, role, group, handover
        self.requests = count(1)

    def answer(self, method, path, content):
        if path == "/health":
            return (200, "") if not self.group.missing else (503, "")
        if path == "/v1/models":
            return 200, {"object": "list", "data": [{"id": self.model, "object": "model"}]}
        if method != "POST" or path not in ("/v1/chat/completions", "/v1/completions"):
            return 404, {"error": path}
        if content["model"] != self.model:
            return 404, {"error": f"the model {content['model']} does not exist"}
        return 200, {
            "id": f"{next(self.requests)}",
            "model": self.model,
            "served_by": f"{ADDRESS}:{self.port}",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}}],
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
    serve(port, Engine(model, port, role, group, handover).answer)


def _vllm_handover(role, side):
    """As the NIXL connector does: prefill says where its side channel is, decode asks there."""

    def handover(content):
        told = content["kv_transfer_params"]
        if role == "prefill":
            return {"kv_transfer_params": {"remote_host": side[0], "remote_port": side[1]}}
        reach(told["remote_host"], told["remote_port"], 1.0).close()
        return {"prefilled_by": f"{told['remote_host']}:{told['remote_port']}"}

    return handover


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
    serve(port, Engine(model, port, role, group, handover).answer)


def tensorrt(words):
    if words[:1] == ["disaggregated"]:
        tensorrt_router(words[1:])
        return
    (model,), flags = parsed("trtllm-serve serve", words)
    take_gpus(number(flags, "--tp_size") * number(flags, "--pp_size"))
    if not Path(flags["--config"][-1][0]).is_file():
        stop(f"no file {flags['--config']}")
    port = number(flags, "--port", 8000)
    group = Group(1, 0, ADDRESS, 0)
    serve(port, Engine(model, port, "mixed", group).answer)


# --- routers --------------------------------------------------------------------------------------------------------


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
