"""SkyServe services: fields of SkyPilot's own schemas, the plan's numbers in them, and what is refused."""

from __future__ import annotations

import re
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.core import UnsupportedFeatureError
from planner.launch.skypilot import POLICIES, disk_gb, files
from planner.llm import load_llm
from planner.roofline import Parallelism
from planner.serving import Deployment, Router
from tests.builders import HARDWARE
from tests.made_up_fleets import NASTY, launched, mixed, named, on, planned

FIELDS = {
    "": {"name", "num_nodes", "resources", "file_mounts", "envs", "secrets", "service", "run"},
    "resources": {"accelerators", "image_id", "disk_size", "ports"},
    "service": {"readiness_probe", "replica_policy", "load_balancing_policy", "ports"},
}
"""Those written, of the properties in sky/utils/schemas.py of skypilot 0.14.1, which forbids any others."""


def task(written: dict[str, str]) -> dict[str, Any]:
    """The only task, its fields checked."""
    (text,) = [text for name, text in written.items() if name.endswith(".sky.yaml")]
    content = yaml.safe_load(text)
    assert set(content) <= FIELDS[""]
    assert all(set(content[part]) <= FIELDS[part] for part in ("resources", "service"))
    assert all(
        value is None or isinstance(value, str) for value in (*content["envs"].values(), *content["secrets"].values())
    )
    return dict(content)


def started(script: str, folder: Path, **environment: str) -> list[str]:
    """Words that a task runs its engine with, told by Bash: a stand-in prints them."""
    stand_in = folder / "vllm"
    stand_in.write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n', encoding="utf-8")
    stand_in.chmod(0o755)
    path = folder / "run.sh"
    path.write_text(script, encoding="utf-8")
    given = {"PATH": f"{folder}:/usr/bin:/bin", **environment}
    ran = subprocess.run(["/bin/bash", str(path)], capture_output=True, text=True, env=given, check=True)
    return ran.stdout.splitlines()


def test_numbers_are_those_of_the_plan(tmp_path: Path) -> None:
    found = task(files(planned(launched(Deployment.mixed(on(tp=4, max_running_requests=96), 5)))))
    assert found["resources"]["accelerators"] == {"H100": 4} and found["num_nodes"] == 1
    assert found["service"]["replica_policy"] == {"min_replicas": 5, "max_replicas": 5}
    assert found["service"]["ports"] == found["resources"]["ports"] == 8000
    assert found["resources"]["image_id"].startswith("docker:vllm/vllm-openai:")
    assert found["service"]["readiness_probe"]["path"] == "/health"
    assert disk_gb(load_llm("deepseek-v3")) > 671 + 100, "671e9 parameters of a byte (arXiv 2412.19437), and the image"
    words = started(found["run"], tmp_path, MODEL=found["envs"]["MODEL"])
    assert words[:2] == ["serve", "meta-llama/Llama-3.1-8B"] and words[words.index("--port") + 1] == "8000"
    assert words[words.index("--tensor-parallel-size") + 1] == "4" and words[words.index("--max-num-seqs") + 1] == "96"


def test_servers_of_a_replica_learn_their_place_from_skypilot(tmp_path: Path) -> None:
    found = task(files(mixed(parallelism=Parallelism(tp=8, pp=2))))
    assert found["num_nodes"] == 2 and found["resources"]["accelerators"] == {"H100": 8}
    place = {"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2"}
    words = started(found["run"], tmp_path, **place)
    assert words[words.index("--node-rank") + 1] == "1" and words[words.index("--master-addr") + 1] == "10.0.0.1"


def test_an_engines_own_file_is_mounted_where_its_command_looks() -> None:
    written = files(mixed("tensorrt-llm"))
    found = task(written)
    ((inside, beside),) = found["file_mounts"].items()
    assert beside.removeprefix("./") in written and f"--config {inside}" in found["run"]
    assert "dirname" not in found["run"]


def test_requests_are_balanced_as_planned() -> None:
    """Truth: names of the policies in sky/serve/load_balancing_policies.py of skypilot 0.14.1."""
    for router, policy in POLICIES.items():
        assert task(files(mixed(router=router)))["service"]["load_balancing_policy"] == policy
        assert policy in ("round_robin", "least_load", "instance_aware_least_load")


@pytest.mark.parametrize("name", [NASTY[0], NASTY[2], NASTY[4]])
def test_names_of_users_stay_text(name: str, tmp_path: Path) -> None:
    written = files(named(name))
    assert all(re.fullmatch(r"[A-Za-z0-9.-]+", file) and ".." not in file for file in written)
    found = task(written)
    assert found["envs"] == {"MODEL": None}
    path = tmp_path / "run.sh"
    path.write_text(found["run"], encoding="utf-8")
    ran = subprocess.run(["/bin/bash", str(path)], capture_output=True, text=True, env={"PATH": ""}, check=False)
    assert ran.returncode == 2 and "set MODEL to" in ran.stderr and not ran.stdout
    assert name not in shlex.split(found["run"][found["run"].index("\nexec ") :])


def test_what_skypilot_does_not_have_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedFeatureError, match=r"router = 'prefix_affinity'.*Fix:"):
        files(mixed(router=Router.PREFIX_AFFINITY))
    with pytest.raises(UnsupportedFeatureError, match=r"sku = 'h100-pcie'.*Fix:"):
        files(mixed(sku=HARDWARE.skus["h100-pcie"]))


def test_each_deployment_is_a_service_whose_replicas_answer_at_the_port_it_asks() -> None:
    (one,) = mixed(router=Router.LEAST_REQUESTS).deployments
    one = replace(one, service="chat")
    written = files(planned(one, one))
    tasks = [yaml.safe_load(text) for name, text in written.items() if name.endswith(".sky.yaml")]
    assert [found["service"]["ports"] for found in tasks] == [8000, 8000], "on servers of their own"
    assert all("PORT=${PORT:-8000}" in found["run"] for found in tasks)
    assert "| 02-chat-mixed.sky.yaml | chat | 2 | 1 x H100 | 1 | least_load |" in written["README.md"]
