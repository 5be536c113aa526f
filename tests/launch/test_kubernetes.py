"""Kubernetes, KServe and llm-d: objects of published kinds and fields, the plan's numbers, and nothing expanded.

Every object is held against the published schema of its kind: a typo in a manifest is silent in a cluster that prunes
unknown fields, so it has to fail here.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import yaml

from hardware_db import Dtype
from planner import launch
from planner.core import UnsupportedFeatureError
from planner.fleet import Plan
from planner.launch.llmd import PICKS
from planner.launch.spec import UNKNOWN_GPU, gpu_labels
from planner.llm import Precision
from planner.serving import Router
from tests.builders import HARDWARE
from tests.launch.schemas import DNS_LABEL, object_breaks
from tests.launch.test_launch import ENGINES
from tests.made_up_fleets import mixed, pair, ranks, spread

Objects = list[dict[str, Any]]


def exported(plan: Plan, target: str = "kubernetes") -> dict[str, str]:
    """Files of a plan for one target."""
    return launch.export_files(plan, target)


def objects(plan: Plan, target: str = "kubernetes") -> Objects:
    """All objects of the manifests of a plan."""
    files = exported(plan, target)
    texts = (text for name, text in files.items() if name.endswith(".yaml") and "values" not in name)
    found = [one for text in texts for one in yaml.safe_load_all(text)]
    return [one for one in found if one["kind"] != "Kustomization"]


def kinds(found: Objects, kind: str) -> Objects:
    """Those of one kind."""
    return [one for one in found if one["kind"] == kind]


def pods(value: Any) -> Iterator[dict[str, Any]]:
    """Every pod specification inside an object."""
    if isinstance(value, dict):
        if "containers" in value:
            yield value
        for inner in value.values():
            yield from pods(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from pods(inner)


PLANS = [
    *(mixed(engine, replicas=3, tp=2) for engine in ENGINES),
    *(pair(engine) for engine in ENGINES),
    mixed(replicas=2, sku=HARDWARE.skus["mi300x"]),
    mixed(replicas=1, precision=Precision(weights=Dtype.INT4)),
    spread(),
    ranks(),
]
TARGETS = ("kubernetes", "kserve", "llm-d")


@cache
def manifests() -> list[tuple[str, Plan]]:
    """Every target with every plan that it does not refuse."""
    found = []
    for target in TARGETS:
        for plan in PLANS:
            try:
                exported(plan, target)
            except UnsupportedFeatureError:
                continue
            found.append((target, plan))
    return found


@pytest.mark.parametrize(("target", "plan"), manifests())
def test_objects_are_of_published_schemas_with_the_replicas_gpus_and_images_of_the_plan(
    target: str, plan: Plan
) -> None:
    specs = launch.launch_specs(plan)
    found = objects(plan, target)
    for one in found:
        assert not object_breaks(one), one["kind"]
        assert DNS_LABEL.fullmatch(one["metadata"]["name"]), one["metadata"]
    workloads = [one for one in found if one["kind"] in ("Deployment", "StatefulSet", "LeaderWorkerSet")]
    workloads = [one for one in workloads if "router" not in one["metadata"]["name"]]
    if target == "kserve":
        service = next(iter(kinds(found, "LLMInferenceService")), None)
        if service is None:
            (service,) = kinds(found, "InferenceService")
            predictor = service["spec"]["predictor"]
            service = {"spec": {**predictor, "replicas": predictor["minReplicas"]}}
        workloads = [{"spec": service["spec"].get("prefill", {})}, {"spec": service["spec"]}][-len(specs) :]
    assert [one["spec"]["replicas"] for one in workloads] == [spec.replicas for spec in specs]
    for one, spec in zip(workloads, specs, strict=True):
        ours = {name: part for name, part in one["spec"].items() if name not in ("prefill", "router")}
        servers = [pod["containers"][0] for pod in pods(ours)]
        given = [next(iter(server["resources"]["limits"].items())) for server in servers]
        assert {name for name, _ in given} == {"amd.com/gpu" if spec.vendor == "AMD" else "nvidia.com/gpu"}
        assert {server["image"] for server in servers} == {spec.image}
        assert sum(int(count) for _, count in given) == spec.gpus // (spec.servers if spec.servers == 1 else 1)


def selected(service: dict[str, Any], found: Objects) -> list[str]:
    """Names of the workloads whose pods a service picks."""
    wanted = service["spec"]["selector"].items()
    templates = [(one["metadata"]["name"], template) for one in found for template in _templates(one)]
    return [name for name, template in templates if wanted <= template["metadata"]["labels"].items()]


def _templates(one: dict[str, Any]) -> list[dict[str, Any]]:
    spec = one.get("spec", {})
    return [
        part[name]
        for part in (spec, spec.get("leaderWorkerTemplate", {}))
        for name in part
        if "emplate" in name and "metadata" in part[name]
    ]


@pytest.mark.parametrize("plan", [pair("vllm"), pair("tensorrt-llm"), ranks()])
def test_every_service_picks_the_pods_of_exactly_one_workload(plan: Plan) -> None:
    """Also where a replica has servers that answer nothing: they must not be picked."""
    found = objects(plan)
    services = kinds(found, "Service")
    assert services and all(len(selected(service, found)) == 1 for service in services)
    entry = [one for one in services if selected(one, found)[0].endswith("router")]
    routers = [one for one in kinds(found, "Deployment") if one["metadata"]["name"].endswith("router")]
    assert len(entry) == len(routers)


def test_the_router_finds_replicas_by_the_labels_they_carry_and_may_look_for_them() -> None:
    found = objects(pair("sglang", router=Router.RANDOM))
    (router,) = [one for one in kinds(found, "Deployment") if one["metadata"]["name"].endswith("router")]
    words = router["spec"]["template"]["spec"]["containers"][0]["args"]
    labels = {
        one["metadata"]["name"]: one["spec"]["template"]["metadata"]["labels"] for one in kinds(found, "Deployment")
    }
    for flag, pool in (("--prefill-selector", "llm-01-main-prefill"), ("--decode-selector", "llm-02-main-decode")):
        at = words.index(flag)
        asked = dict(word.split("=") for word in words[at + 1 : at + 3])
        assert asked.items() <= labels[pool].items()
    assert words[words.index("--prefill-policy") + 1] == words[words.index("--decode-policy") + 1] == "random"
    account = router["spec"]["template"]["spec"]["serviceAccountName"]
    (binding,) = kinds(found, "RoleBinding")
    (role,) = kinds(found, "Role")
    assert [account] == [one["name"] for one in binding["subjects"]] and binding["roleRef"]["name"] == account
    assert role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]


def test_prefill_pods_of_sglang_name_their_bootstrap_port_and_those_of_vllm_their_address() -> None:
    def prefill(engine: str) -> dict[str, Any]:
        named = (one for one in kinds(objects(pair(engine)), "Deployment") if "prefill" in one["metadata"]["name"])
        template: dict[str, Any] = next(named)["spec"]["template"]
        return template

    assert prefill("sglang")["metadata"]["annotations"] == {"sglang.ai/bootstrap-port": "8998"}
    environment = {one["name"]: one for one in prefill("vllm")["spec"]["containers"][0]["env"]}
    address = environment["VLLM_NIXL_SIDE_CHANNEL_HOST"]["valueFrom"]
    assert address == {"fieldRef": {"fieldPath": "status.podIP"}}


def test_stateful_pods_have_the_names_that_the_router_of_tensorrt_llm_is_given() -> None:
    """A StatefulSet behind a headless service gives its pods NAME-NUMBER.SERVICE (Kubernetes, stable network ID)."""
    found = objects(pair("tensorrt-llm"))
    (config,) = [one for one in kinds(found, "ConfigMap") if "router" in one["metadata"]["name"]]
    (text,) = config["data"].values()
    servers = yaml.safe_load(text)
    expected = {}
    for one in kinds(found, "StatefulSet"):
        name, service = one["metadata"]["name"], one["spec"]["serviceName"]
        expected[name] = [f"{name}-{number}.{service}:8000" for number in range(one["spec"]["replicas"])]
    assert [servers["context_servers"]["urls"], servers["generation_servers"]["urls"]] == list(expected.values())
    headless = {one["metadata"]["name"] for one in kinds(found, "Service") if one["spec"].get("clusterIP") == "None"}
    assert headless == set(expected)


def test_servers_of_a_replica_find_each_other_by_the_variables_of_a_leader_worker_set() -> None:
    (group,) = kinds(objects(spread()), "LeaderWorkerSet")
    template = group["spec"]["leaderWorkerTemplate"]
    leader, worker = (template[name]["spec"]["containers"][0] for name in ("leaderTemplate", "workerTemplate"))
    assert template["size"] == 2 and group["spec"]["replicas"] == 2
    for container in (leader, worker):
        at = container["args"].index("--node-rank")
        assert container["args"][at + 1 : at + 4] == ["$(LWS_WORKER_INDEX)", "--master-addr", "$(LWS_LEADER_ADDRESS)"]
    assert "--headless" in worker["args"] and "--headless" not in leader["args"]
    assert "readinessProbe" in leader and "readinessProbe" not in worker, "further servers answer nothing"
    (group,) = kinds(objects(ranks()), "LeaderWorkerSet")
    worker = group["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["containers"][0]
    assert worker["command"] == ["/bin/bash"] and worker["args"][0] == "-c", "the first rank is a product"
    assert worker["args"][1].endswith("$$((LWS_WORKER_INDEX * 8))"), "Kubernetes makes $$ one dollar"


def test_scaling_keeps_the_planned_replicas_and_asks_the_engines_own_metric() -> None:
    scaled = kinds(objects(pair("sglang")), "ScaledObject")
    assert [one["spec"]["minReplicaCount"] for one in scaled] == [2, 3]
    assert all(one["spec"]["maxReplicaCount"] > one["spec"]["minReplicaCount"] for one in scaled)
    query = scaled[0]["spec"]["triggers"][0]["metadata"]["query"]
    assert query.startswith('sum(sglang:num_queue_reqs{namespace="default",pod=~"llm-01-main-prefill-')
    targets = {one["spec"]["scaleTargetRef"]["kind"] for one in kinds(objects(spread()), "ScaledObject")}
    assert targets == {"LeaderWorkerSet"}
    fixed = pair("tensorrt-llm")  # behind a router with a list of its replicas
    assert len(kinds(objects(fixed), "PodMonitor")) == 2 and not kinds(objects(fixed), "ScaledObject")
    assert "Nothing is scaled" in exported(fixed)["README.md"]
    listed = yaml.safe_load(exported(mixed())["kustomization.yaml"])["resources"]
    assert listed == ["llm-01-main.yaml"] and "autoscaling.yaml" in exported(mixed())


@pytest.mark.parametrize(("survives", "unsatisfiable"), [(True, "DoNotSchedule"), (False, "ScheduleAnyway")])
def test_pods_of_a_pool_are_spread_over_nodes_and_wait_where_the_plan_counts_on_it(
    survives: bool, unsatisfiable: str
) -> None:
    plan = pair("vllm")
    limits = plan.request.limits.model_copy(update={"survives_node_loss": survives})
    plan = replace(plan, request=plan.request.model_copy(update={"limits": limits}))
    for pool in (one for one in kinds(objects(plan), "Deployment") if not one["metadata"]["name"].endswith("router")):
        (spread,) = pool["spec"]["template"]["spec"]["topologySpreadConstraints"]
        labels = pool["spec"]["template"]["metadata"]["labels"]
        assert spread["labelSelector"]["matchLabels"].items() <= labels.items(), "it counts the pods of this pool"
        assert (spread["maxSkew"], spread["whenUnsatisfiable"]) == (1, unsatisfiable)
        assert spread["nodeTaintsPolicy"] == "Honor", "a node that is down is none to spread over"
    assert ("When a server is lost" in exported(plan)["README.md"]) is survives


def test_nodes_are_drained_one_replica_of_a_pool_at_a_time() -> None:
    """A budget for the pods of every pool of several; one for a lone pod would keep its node for ever."""
    found = objects(pair("vllm"), "llm-d")
    pools = {
        one["metadata"]["name"]: one["spec"]
        for one in kinds(found, "Deployment")
        if not one["metadata"]["name"].endswith("router")
    }
    budgets = {one["metadata"]["name"]: one["spec"] for one in kinds(found, "PodDisruptionBudget")}
    assert budgets.keys() == {name for name, pool in pools.items() if pool["replicas"] > 1}
    assert budgets
    for name, budget in budgets.items():
        assert budget["maxUnavailable"] == 1
        labels = pools[name]["template"]["metadata"]["labels"]
        assert budget["selector"]["matchLabels"].items() <= labels.items()


def test_nodes_are_chosen_by_a_label_with_a_source_or_by_one_that_the_readme_asks_for() -> None:
    assert gpu_labels()["h100-sxm"] == ("nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3")
    assert set(gpu_labels()) <= set(HARDWARE.skus)
    plan = mixed(sku=HARDWARE.skus["b200-sxm"])
    (workload,) = [one for one in kinds(objects(plan), "Deployment") if "mixed" in one["metadata"]["name"]]
    selector = workload["spec"]["template"]["spec"]["nodeSelector"]
    assert selector == {"nvidia.com/gpu.product": UNKNOWN_GPU}
    assert "node label `nvidia.com/gpu.product` for the GPU `b200-sxm`" in exported(plan)["README.md"]


def test_every_policy_of_the_planner_has_a_picker_whose_plugins_are_all_declared() -> None:
    for router in Router:
        (service,) = objects(pair("vllm", router=router), "kserve")
        config = service["spec"]["router"]["scheduler"]["config"]["inline"]
        declared = {plugin["type"] for plugin in config["plugins"]}
        for profile in config["schedulingProfiles"]:
            used = {plugin["pluginRef"] for plugin in profile["plugins"]}
            assert used <= declared and f"{profile['name']}-filter" in used
            if router in PICKS:
                assert set(PICKS[router]) <= used
        needs = {"active-request-scorer", "token-load-scorer"} & declared
        assert not needs or "inflight-load-producer" in declared
        readme = exported(pair("vllm", router=router), "llm-d")["README.md"]
        assert ("has no policy" in readme) == (router not in PICKS)


def test_kserve_carries_the_flags_of_vllm_in_its_variable_so_that_a_shell_reads_them_back() -> None:
    (service,) = objects(pair("vllm"), "kserve")
    specs = launch.launch_specs(pair("vllm"))
    for workload, spec in zip((service["spec"]["prefill"], service["spec"]), specs, strict=True):
        environment = {one["name"]: one for one in workload["template"]["containers"][0]["env"]}
        assert shlex.split(environment["VLLM_ADDITIONAL_ARGS"]["value"]) == list(spec.words)
    assert service["spec"]["model"] == {"uri": "hf://meta-llama/Llama-3.1-8B", "name": "meta-llama/Llama-3.1-8B"}


def test_kserve_fills_the_split_over_servers_in_its_own_templates() -> None:
    """A pipeline stage on each server, or data-parallel ranks in equal parts; the flags then stay out of the words."""
    (pipeline,) = objects(spread(), "kserve")
    assert pipeline["spec"]["parallelism"] == {"tensor": 8, "pipeline": 2} and "worker" in pipeline["spec"]
    (parallel,) = objects(ranks(), "kserve")
    assert parallel["spec"]["parallelism"] == {"data": 16, "dataLocal": 8, "tensor": 1, "expert": True}
    text = exported(ranks(), "kserve")["llm-01-main.yaml"]
    assert "--data-parallel" not in text and "--tensor-parallel" not in text and "--max-num-seqs" in text


def test_kserve_runs_sglang_under_its_runtime_and_refuses_what_has_no_template() -> None:
    (service,) = kinds(objects(mixed("sglang"), "kserve"), "LLMInferenceService")
    container = service["spec"]["template"]["containers"][0]
    assert service["spec"]["runtime"] == "kserve-llm-sglang" and "--mem-fraction-static" in container["args"]
    assert "kubectl explain llminferenceservice.spec.runtime" in exported(mixed("sglang"), "kserve")["README.md"]
    for plan, target, named in (
        (pair("sglang"), "kserve", "prefill pools of SGLang"),
        (pair("tensorrt-llm"), "llm-d", "no sidecar for prefill and decode pools of TensorRT-LLM"),
    ):
        with pytest.raises(UnsupportedFeatureError, match=named):
            exported(plan, target)


def test_an_inference_service_runs_the_words_of_the_plain_pods() -> None:
    plan = mixed("tensorrt-llm", replicas=3, tp=2)
    (service,) = kinds(objects(plan, "kserve"), "InferenceService")
    predictor = service["spec"]["predictor"]
    (workload,) = [one for one in objects(plan) if one["kind"] == "Deployment" and "mixed" in one["metadata"]["name"]]
    plain = workload["spec"]["template"]["spec"]
    (ours,), (engines,) = predictor["containers"], plain["containers"]
    assert ours == {**engines, "name": "kserve-container"}
    assert (predictor["minReplicas"], predictor["maxReplicas"]) == (3, 3)
    assert predictor["volumes"] == plain["volumes"] and predictor["nodeSelector"] == plain["nodeSelector"]
    assert service["metadata"]["annotations"] == {"serving.kserve.io/deploymentMode": "Standard"}


def test_llm_d_serves_the_pods_that_carry_the_labels_of_its_router_values() -> None:
    files = exported(pair("vllm"), "llm-d")
    values = yaml.safe_load(files["llm-01-main.router.values.yaml"])["router"]
    picker = yaml.safe_load(values["epp"]["pluginsCustomConfig"][values["epp"]["pluginsConfigFile"]])
    assert picker["kind"] == "EndpointPickerConfig"
    for one in kinds(objects(pair("vllm"), "llm-d"), "Deployment"):
        labels = one["spec"]["template"]["metadata"]["labels"]
        assert values["modelServers"]["matchLabels"].items() <= labels.items()
        assert labels["llm-d.ai/role"] == ("prefill" if "prefill" in one["metadata"]["name"] else "decode")


def test_a_decode_replica_of_llm_d_stands_behind_a_sidecar_at_the_serving_port() -> None:
    pods = kinds(objects(pair("vllm"), "llm-d"), "Deployment")
    prefill, decode = (one["spec"]["template"]["spec"] for one in pods)
    (sidecar,) = decode["initContainers"]
    assert sidecar["restartPolicy"] == "Always", "Kubernetes runs an init container beside the others only so"
    served = [pod["containers"][0]["ports"][0]["containerPort"] for pod in (prefill, decode)]
    assert served == [8000, 8200] and sidecar["ports"][0]["containerPort"] == 8000
    assert "--kv-connector=nixlv2" in sidecar["args"] and "initContainers" not in prefill
