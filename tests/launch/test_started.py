"""Exports that are started: scripts and Compose files run stand-ins for engines and routers, which serve requests.

The stand-ins (`tests.launch.stub_engine`) check their flags against the argument parsers of the real programs and take
the GPUs and ports that those would, so that a collision, a flag that is not read or a wrong address fails here. Each
server of a fleet is an address of the loopback.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner import launch
from planner.core import UnsupportedFeatureError
from planner.fleet import Plan
from planner.launch.placement import place_replicas, server_numbers
from planner.launch.routers import FIRST_ROUTER_PORT
from planner.launch.scripts import COMPOSE_NAME, JOB_NAME, RENDER_NODES_NAME
from planner.launch.spec import FIRST_PORT
from planner.llm import load_llm
from planner.roofline import Parallelism
from planner.serving import Router
from tests.builders import HARDWARE
from tests.made_up_fleets import mixed, on, pair, ranks, spread, two_pools

STUB = Path(__file__).with_name("stub_engine.py")
FLAGS = Path(__file__).parents[1] / "reference" / "launch" / "program_flags.csv"
METRICS = Path(launch.__file__).parents[1] / "presets" / "metric_names.csv"
PROGRAMS = ("vllm", "python3", "trtllm-serve", "vllm-router", "nginx")
MODEL = "meta-llama/Llama-3.1-8B"
RUNS = cycle(range(25))
H200, MI300X = HARDWARE.skus["h200-sxm"], HARDWARE.skus["mi300x"]


def attention_ranks(replicas: int, split: Parallelism) -> Plan:
    """SGLang with attention data parallelism."""
    native = load_llm("deepseek-v3").native_precision
    model = {"model": "deepseek-v3", "precision": native} if split.gpus > 8 else {"model": "qwen3-30b-a3b"}
    return mixed("sglang", replicas, parallelism=split, **model)


SHAPES: Mapping[str, tuple[Plan, int, str]] = {
    "one server of eight": (mixed("vllm", 4, tp=2), 1, "round_robin"),
    "two servers": (mixed("vllm", 3, tp=4), 2, "round_robin"),
    "a pair of two SKUs": (
        two_pools(on("vllm", tp=2), on("vllm", sku=H200, tp=4), (3, 2)),
        2,
        "round_robin",
    ),
    "SGLang, attention DP over two nodes": (attention_ranks(2, Parallelism(dp=16, ep=16)), 4, "round_robin"),
    "TensorRT-LLM": (mixed("tensorrt-llm", 4, Router.LEAST_REQUESTS, tp=2), 1, "least_conn"),
    "AMD": (mixed("vllm", 2, tp=4, sku=MI300X), 1, "round_robin"),
}
"""Plan, its servers, and the word of its router's policy."""
FURTHER: Mapping[str, tuple[Plan, int, str]] = {
    "a pair of SGLang": (pair("sglang", (2, 3)), 1, "round_robin"),
    "a pair of TensorRT-LLM": (pair("tensorrt-llm", (2, 2)), 1, "round_robin"),
    "pipelines over two servers": (spread(), 4, "round_robin"),
    "SGLang with encoders": (mixed("sglang", 6, model="qwen3-vl-8b-instruct", encoders=0.5), 2, "round_robin"),
    "ranks of vLLM over two servers": (ranks(), 2, ""),
}


class Site:
    """A folder with an export, loopback addresses for its servers, and the stand-ins before any other program."""

    def __init__(self, folder: Path, files: Mapping[str, str], servers: int) -> None:
        self.folder, self.state, programs = folder / "export", folder / "state", folder / "programs"
        for made in (self.folder, self.state, programs):
            made.mkdir()
        for name, text in files.items():
            (self.folder / name).write_text(text, encoding="utf-8")
        for program in PROGRAMS:
            (programs / program).write_text(
                f'#!/bin/sh\nexec {sys.executable} -I -S {STUB} {program} "$@"\n', encoding="utf-8"
            )
            (programs / program).chmod(0o755)
        quick = programs / "sleep"  # of the scripts, which look every second whether an engine answers
        quick.write_text('#!/bin/sh\nexec /bin/sleep "0.$1"\n', encoding="utf-8")
        quick.chmod(0o755)
        run, process = next(RUNS), os.getpid() % 60000
        self.addresses = {n: f"127.{16 + process // 250}.{process % 250}.{10 * run + n}" for n in range(1, servers + 1)}
        self.environment = {
            "PATH": f"{programs}:/usr/bin:/bin",
            "HOME": str(folder),
            "STUB_FLAGS": str(FLAGS),
            "STUB_METRICS": str(METRICS),
            "STUB_STATE": str(self.state),
            **{f"SERVER_{number}": address for number, address in self.addresses.items()},
        }
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, words: list[str], server: int, environment: Mapping[str, str] | None = None) -> None:
        """A process on one of the servers."""
        told = {**self.environment, "STUB_ADDRESS": self.addresses[server], "LOGS": f"logs-{server}"}
        with (self.folder / "output.txt").open("ab") as output:
            process = subprocess.Popen(
                words, cwd=self.folder, env={**told, **(environment or {})}, stdout=output, stderr=output
            )
        self.processes.append(process)

    def output(self) -> str:
        """What all processes have written."""
        return "\n".join(
            f"{path.name}: {path.read_text()}"
            for path in sorted(self.folder.rglob("*"))
            if path.suffix in (".log", ".txt")
        )

    def asked(self, host: str, path: str, content: object = None) -> Any:
        """The answer of a server, waited for; a process that ends is an error."""
        body = None if content is None else json.dumps(content).encode()
        end = time.monotonic() + 60.0
        while True:
            try:
                request = urllib.request.Request(f"http://{host}{path}", body)
                with urllib.request.urlopen(request, timeout=20) as response:
                    return json.loads(response.read() or b"{}")
            except OSError:
                ended = [process.args for process in self.processes if process.poll() is not None]
                assert not ended and time.monotonic() < end, f"{ended or host}\n{self.output()}"
                time.sleep(0.05)

    def stop(self) -> None:
        """End all processes, and see that nothing outlives them."""
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            process.wait(timeout=20)


def scripts(plan: Plan) -> Mapping[str, str]:
    """The scripts of a plan."""
    return launch.export_files(plan, "scripts")


@contextmanager
def started(folder: Path, plan: Plan, target: str, servers: int) -> Iterator[Site]:
    """A fleet that runs, by its scripts or by its Compose file."""
    site = Site(folder, launch.export_files(plan, target), servers)
    try:
        if target == "scripts":
            for server in site.addresses:
                site.start(["/bin/bash", "start.sh", *([str(server)] if servers > 1 else [])], server)
        else:
            compose_up(site, servers)
        yield site
    finally:
        site.stop()


def interpolated(text: str, variables: Mapping[str, str]) -> str:
    """A text of a Compose file with its variables filled in, as the Compose specification says (interpolation)."""

    def value(found: re.Match[str]) -> str:
        if found[0] == "$$":
            return "$"
        assert found[1] in variables or found[2] == "-", f"{found[1]} is demanded: {found[3]}"
        return variables.get(found[1]) or found[3]

    return re.sub(r"\$\$|\$\{(\w+):([-?])([^}]*)\}", value, text)


def filled(content: Any, variables: Mapping[str, str]) -> Any:
    """A Compose file with the variables of all its texts filled in."""
    if isinstance(content, str):
        return interpolated(content, variables)
    if isinstance(content, dict):
        return {key: filled(value, variables) for key, value in content.items()}
    return [filled(value, variables) for value in content] if isinstance(content, list) else content


def compose_up(site: Site, servers: int) -> None:
    """Start every service of a Compose file with its words, environment, files and GPUs, in the order it asks for."""
    variables = {**site.environment, "HF_TOKEN": "secret", **render_nodes(site)}
    content = filled(yaml.safe_load((site.folder / COMPOSE_NAME).read_text(encoding="utf-8")), variables)
    assert set(content) <= {"services", "configs"}
    for name, service in content["services"].items():
        assert service["network_mode"] == "host" and "ports" not in service
        profiles = service.get("profiles", ["server-1"])
        assert len(profiles) == 1 and ("profiles" in service) == (servers > 1)
        for other, when in service.get("depends_on", {}).items():
            assert when == {"condition": "service_healthy"} and "healthcheck" in content["services"][other], name
            assert content["services"][other].get("profiles", ["server-1"]) == profiles, (
                "Compose starts no other profile"
            )
            (url,) = re.findall(r"http://([^']+)'", content["services"][other]["healthcheck"]["test"][-1])
            site.asked(*[part if at == 0 else f"/{part}" for at, part in enumerate(url.split("/", 1))])
        words = [*service["entrypoint"], *service["command"]]
        for mount in service.get("volumes", []):
            source, inside = mount.split(":")[:2]
            words = [str(site.folder / source) if word == inside else word for word in words]
        for config in service.get("configs", []):
            path = site.folder / f"{name}.config"
            path.write_text(content["configs"][config["source"]]["content"], encoding="utf-8")
            words = [str(path) if word == config["target"] else word for word in words]
        site.start(words, int(profiles[0].removeprefix("server-")), {**service.get("environment", {}), **gpus(service)})


PARTITIONS = 8
"""Render nodes that the driver of an MI300X keeps for each GPU, whether it is partitioned or not."""


def render_nodes(site: Site) -> dict[str, str]:
    """What the exported script prints on a server of two CPUs and eight GPUs; nothing for NVIDIA."""
    script = site.folder / RENDER_NODES_NAME
    if not script.exists():
        return {}
    topology = site.folder / "topology"
    for node in range(10):
        place = topology / str(node)
        place.mkdir(parents=True)
        (place / "gpu_id").write_text(f"{0 if node < 2 else 1000 + node}\n", encoding="utf-8")
        minor = 0 if node < 2 else 128 + PARTITIONS * (node - 2)
        (place / "properties").write_text(f"simd_count 304\ndrm_render_minor {minor}\n", encoding="utf-8")
    told = {**site.environment, "TOPOLOGY": str(topology)}
    done = subprocess.run(["/bin/bash", str(script)], env=told, capture_output=True, text=True, check=True)
    return dict(line.split("=", 1) for line in done.stdout.splitlines())


def gpus(service: Mapping[str, Any]) -> dict[str, str]:
    """What a container sees of the GPUs of its server, as variables."""
    if "devices" in service:
        kfd, *nodes = service["devices"]
        assert kfd == "/dev/kfd"
        numbers = [str((int(node.removeprefix("/dev/dri/renderD")) - 128) // PARTITIONS) for node in nodes]
        return {"HIP_VISIBLE_DEVICES": ",".join(numbers)}
    if "deploy" not in service:
        return {}
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert device["driver"] == "nvidia" and "count" not in device
    return {"CUDA_VISIBLE_DEVICES": ",".join(device["device_ids"])}


def serves(site: Site, plan: Plan, policy: str) -> None:
    """Requests reach every replica that answers clients, through the router, and the policy is the planned one."""
    every = launch.launch_specs(plan, with_encoders=True)
    specs = [spec for spec in every if not spec.encodes]
    answering = [replica for replica in place_replicas(every) if replica.spec.name == specs[-1].name]
    host = f"{site.addresses[1]}:{FIRST_ROUTER_PORT if policy else FIRST_PORT}"
    model = specs[0].model
    request = {"model": model, "messages": [{"role": "user", "content": "hello"}]}
    answers = [site.asked(host, "/v1/chat/completions", request) for _ in range(2 * len(answering))]
    assert {answer["served_by"] for answer in answers} == {
        f"{site.addresses[replica.servers[0]]}:{replica.port}" for replica in answering
    }
    assert {answer["model"] for answer in answers} == {model}
    if policy:
        assert set(site.asked(host, "/policy")["policy"] or ["round_robin"]) in ({policy}, set(policy))
    if len(specs) > 1 and specs[0].engine_id != "tensorrt-llm":
        prefills = [replica for replica in place_replicas(every) if replica.spec.name == specs[0].name]
        assert len({answer["prefilled_by"] for answer in answers}) == len(prefills)
    planned = sum(spec.gpus * spec.replicas for spec in every)
    ends = time.monotonic() + 60.0
    while len(list(site.state.iterdir())) < planned and time.monotonic() < ends:
        time.sleep(0.05)  # ranks that answer nobody may start after the one that does
    assert len(list(site.state.iterdir())) == planned, "every GPU of the plan works, and none twice"


COMPOSED = ("two servers", "AMD", "TensorRT-LLM", "SGLang with encoders")
"""Shapes with all that a Compose file has of its own: profiles, render nodes, a router's file."""
STARTED = [("scripts", name) for name in (*SHAPES, *FURTHER) if name != "AMD"] + [
    ("compose", name) for name in COMPOSED
]


@pytest.mark.parametrize(("target", "shape"), STARTED)
def test_a_fleet_starts_from_its_export_and_serves_through_its_router(target: str, shape: str, tmp_path: Path) -> None:
    plan, servers, policy = {**SHAPES, **FURTHER}[shape]
    with started(tmp_path, plan, target, servers) as site:
        serves(site, plan, policy)


SRUN = """#!/bin/bash
group=0
while [[ $1 == --* ]]; do
  if [[ $1 == --het-group=* ]]; then group=${1#*=}; fi
  shift
done
read -ra hosts < "${STUB_NODES}/${group}"
trap 'kill $(jobs -p); wait; exit 143' TERM
for node in "${!hosts[@]}"; do
  SLURM_NODEID=${node} STUB_ADDRESS=${hosts[node]} LOGS=logs-${hosts[node]} "$@" &
done
wait
"""
"""A stand-in for ``srun``: a task on every node of a component of the job."""
SCONTROL = """#!/bin/bash
[ "$1 $2" = "show hostnames" ] || exit 1
tr ' ' '\\n' < "$3"
"""
"""A stand-in for ``scontrol show hostnames``; a node list is a file here."""


@pytest.mark.parametrize("shape", ["two servers", "a pair of two SKUs"])
def test_a_slurm_job_starts_the_fleet_on_its_nodes(shape: str, tmp_path: Path) -> None:
    plan, servers, policy = SHAPES[shape]
    site = Site(tmp_path, launch.export_files(plan, "slurm"), servers)
    for program, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (tmp_path / "programs" / program).write_text(text, encoding="utf-8")
        (tmp_path / "programs" / program).chmod(0o755)
    replicas = place_replicas(launch.launch_specs(plan))
    skus = dict(sorted((server, replica.spec.sku) for replica in replicas for server in replica.servers))
    parts = [[server for server in skus if skus[server] == sku] for sku in dict.fromkeys(skus.values())]
    site.environment |= {"SLURM_SUBMIT_DIR": str(site.folder), "STUB_NODES": str(tmp_path)}
    for number, part in enumerate(parts):
        (tmp_path / str(number)).write_text(" ".join(site.addresses[at] for at in part) + "\n")
        listed = "SLURM_JOB_NODELIST" + (f"_HET_GROUP_{number}" if len(parts) > 1 else "")
        site.environment[listed] = str(tmp_path / str(number))
    for number in range(1, servers + 1):
        site.environment.pop(f"SERVER_{number}")
    try:
        site.start(["/bin/bash", JOB_NAME], 1)
        serves(site, plan, policy)
    finally:
        site.stop()


def test_a_slurm_job_asks_for_the_servers_that_the_plan_fills() -> None:
    text = launch.export_files(SHAPES["a pair of two SKUs"][0], "slurm")[JOB_NAME]
    asked = [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH")]
    assert asked.count("hetjob") == 1 and asked.count("--exclusive") == 2
    assert [one for one in asked if "gpus" in one] == ["--gpus-per-node=h100:8", "--gpus-per-node=h200:8"]
    assert [one for one in asked if "nodes=" in one] == ["--nodes=1", "--nodes=1"]
    alone = launch.export_files(SHAPES["two servers"][0], "slurm")[JOB_NAME]
    assert "#SBATCH --nodes=2" in alone and "#SBATCH --gpus-per-node=8" in alone and "hetjob" not in alone


def test_a_process_that_ends_stops_its_server(tmp_path: Path) -> None:
    with started(tmp_path, mixed("vllm", 2), "scripts", 1) as site:
        site.asked(f"{site.addresses[1]}:{FIRST_ROUTER_PORT}", "/policy")
        children = site.processes[0].pid
        (first, *_) = Path(f"/proc/{children}/task/{children}/children").read_text().split()
        os.kill(int(first), signal.SIGTERM)
        assert site.processes[0].wait(timeout=20) == 1
        assert "a process has ended, so all are stopped" in site.output()


def test_a_server_without_the_addresses_of_the_others_says_which_is_missing(tmp_path: Path) -> None:
    site = Site(tmp_path, scripts(mixed("vllm", 3, tp=4)), 2)
    site.environment.pop("SERVER_2")
    site.start(["/bin/bash", "start.sh", "1"], 1)
    assert site.processes[0].wait(timeout=20) == 2
    assert "set SERVER_2 to the address of server 2, or write it into servers.env" in site.output()


def test_a_stand_in_refuses_what_the_real_program_does_not_read(tmp_path: Path) -> None:
    """So that the tests above can fail."""
    site = Site(tmp_path, scripts(mixed("vllm")), 1)
    environment = {**site.environment, "STUB_ADDRESS": site.addresses[1], "CUDA_VISIBLE_DEVICES": "0"}
    for words, error in (
        (["vllm", "serve", MODEL, "--max-num-sequences", "8"], "unrecognized argument --max-num-sequences"),
        (["vllm", "serve", MODEL, "--tensor-parallel-size", "two"], "invalid int value 'two'"),
        (["vllm", "serve", MODEL, "--tensor-parallel-size", "2"], "it uses 2 GPUs and sees 0"),
        (["vllm-router", "--policy", "least_requests"], "invalid choice 'least_requests'"),
        (["python3", "-m", "sglang.launch_server", "--enable-dp-attention"], "is deprecated"),
    ):
        program = str(tmp_path / "programs" / words[0])
        done = subprocess.run(
            [program, *words[1:]], env=environment, capture_output=True, text=True, timeout=20, check=False
        )
        assert done.returncode == 1 and error in done.stderr


@pytest.mark.parametrize("shape", ["a pair of two SKUs", "two replicas of attention ranks on a server"])
def test_no_two_processes_of_a_server_share_a_gpu_or_a_port(shape: str) -> None:
    ranks_beside = {"two replicas of attention ranks on a server": (attention_ranks(2, Parallelism(dp=4, ep=4)), 1, "")}
    plan, servers, _ = {**SHAPES, **ranks_beside}[shape]
    replicas = place_replicas(launch.launch_specs(plan))
    assert server_numbers(replicas) == list(range(1, servers + 1))
    gpus = [(server, gpu) for replica in replicas for server in replica.servers for gpu in replica.gpus]
    assert len(gpus) == len(set(gpus)) and all(
        0 <= gpu < replica.spec.node_gpus for replica in replicas for gpu in replica.gpus
    )
    ports = [(replica.servers[0], replica.port) for replica in replicas]
    ports += [(r.servers[0], r.own_port(port)) for r in replicas for port in r.spec.own_ports]
    assert len(ports) == len(set(ports))


def test_larger_replicas_are_placed_first_so_that_none_wastes_a_server() -> None:
    """Three of two GPUs, then two of four, fill two servers of eight as they would not in their own order."""
    plan = two_pools(on("vllm", tp=2), on("vllm", tp=4), (3, 2))
    replicas = place_replicas(launch.launch_specs(plan))
    assert server_numbers(replicas) == [1, 2]


def test_a_policy_that_neither_router_nor_nginx_has_is_refused() -> None:
    for target in ("scripts", "compose"):
        with pytest.raises(UnsupportedFeatureError, match=r"router = 'least_tokens'.*nginx"):
            launch.export_files(mixed(router=Router.LEAST_TOKENS), target)
    with pytest.raises(UnsupportedFeatureError, match=r"router = 'least_requests'.*round_robin.*"):
        launch.export_files(mixed(router=Router.LEAST_REQUESTS), "kubernetes")
    files = scripts(mixed(router=Router.LEAST_REQUESTS))  # which nginx has and the engine's router lacks
    assert "    least_conn;" in files["01-main-router.sh"] and "nginx spreads the requests" in files["README.md"]
