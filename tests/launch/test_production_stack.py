"""Values of the vLLM production stack: fields of the chart's schema, and the flags that its template makes of them."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import yaml

from planner import launch
from planner.core import UnsupportedFeatureError
from planner.fleet import Plan
from planner.launch import launch_specs
from planner.launch.production_stack import release_name
from planner.serving import Router
from tests.builders import FP8, HARDWARE
from tests.launch.schemas import DNS_LABEL, breaks
from tests.made_up_fleets import launched, mixed, planned, spread

AMD = mixed("vllm", 2, tp=4, sku=HARDWARE.skus["mi300x"])


def values(plan: Plan) -> dict[str, Any]:
    """The values of the only release of a plan."""
    files = launch.export_files(plan, "production-stack")
    (text,) = [text for name, text in files.items() if name.endswith(".values.yaml")]
    return dict(yaml.safe_load(text))


def command(config: dict[str, Any]) -> list[str]:
    """The words behind ``vllm serve MODEL`` as the chart's template writes them, field by field in its order."""
    words: list[str] = []
    if "enableChunkedPrefill" in config:
        words.append("--enable-chunked-prefill" if config["enableChunkedPrefill"] else "--no-enable-chunked-prefill")
    words.append("--enable-prefix-caching" if config.get("enablePrefixCaching") else "--no-enable-prefix-caching")
    for name, flag in (
        ("maxModelLen", "--max-model-len"),
        ("dtype", "--dtype"),
        ("tensorParallelSize", "--tensor-parallel-size"),
        ("maxNumSeqs", "--max-num-seqs"),
        ("gpuMemoryUtilization", "--gpu-memory-utilization"),
    ):
        if name in config:
            words += [flag, str(config[name])]
    return words + config.get("extraArgs", [])


PLANS = [
    mixed("vllm", 4, tp=2),
    mixed("vllm", 2, precision=FP8, max_batched_tokens=3072),
    mixed("vllm", router=Router.PREFIX_AFFINITY),
    AMD,
]


@pytest.mark.parametrize("plan", PLANS)
def test_values_are_of_the_chart_s_schema_and_become_the_planned_flags(plan: Plan) -> None:
    found, (spec,) = values(plan), launch_specs(plan)
    assert not breaks(found, "ProductionStackValues")
    (model,) = found["servingEngineSpec"]["modelSpec"]
    assert sorted(command(model["vllmConfig"])) == sorted(spec.words)
    assert f"{model['repository']}:{model['tag']}" == spec.image and model["modelURL"] == spec.model
    assert model["replicaCount"] == spec.replicas
    assert set(model["resources"]["limits"].values()) == {str(spec.gpus)}


def test_the_router_is_pinned_to_the_release_of_the_chart() -> None:
    """The run that releases chart X pushes the router as vX (scheduled-release.yml at 4e9ae00); no moving tag."""
    files = launch.export_files(PLANS[0], "production-stack")
    router = values(PLANS[0])["routerSpec"]
    (chart,) = set(re.findall(r"vllm/vllm-stack --version (\S+)", files["README.md"]))
    assert (router["repository"], router["tag"]) == ("lmcache/lmstack-router", f"v{chart}")
    assert ":latest" not in "".join(files.values())


def test_each_release_has_engines_and_a_router_that_find_no_other_s() -> None:
    plan = mixed("vllm", 2)
    both = replace(plan, deployments=plan.deployments * 2)
    files = launch.export_files(both, "production-stack")
    found = [yaml.safe_load(text) for name, text in files.items() if name.endswith(".values.yaml")]
    labels = [tuple(one[part]["labels"].items()) for one in found for part in ("servingEngineSpec", "routerSpec")]
    assert len(found) == 2 and len(set(labels)) == 4


def test_what_the_chart_cannot_run_as_planned_is_refused_by_name() -> None:
    for plan, said in (
        (spread(), "parallelism = "),
        (mixed("vllm", router=Router.LEAST_REQUESTS), "router = 'least_requests': .*prefix_affinity, round_robin"),
    ):
        with pytest.raises(UnsupportedFeatureError, match=said):
            values(plan)
    assert values(mixed("vllm", 1, Router.LEAST_REQUESTS)), "one replica needs no policy"


def test_names_that_the_chart_makes_fit_into_a_label() -> None:
    (spec,) = launch_specs(
        planned(
            launched(mixed().deployments[0].deployment, service="a-very-long-name-of-a-service-that-goes-on-and-on")
        )
    )
    for suffix in ("router-service-account", "pool-engine-service", "pool-vllm-stack"):
        assert DNS_LABEL.fullmatch(f"{release_name(spec)}-{suffix}")
