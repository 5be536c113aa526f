"""A fleet as KServe resources: an LLMInferenceService for each deployment, and an InferenceService beside it.

Fields read on 2026-11-22 in kserve/kserve: pkg/apis/serving/v1alpha2/llm_inference_service_types.go at 01b1241;
samples in docs/samples/llmisvc: agentic-tool-calling/nemotron-3-ultra-pd.yaml at 79fa799 (image, prefill and decode,
flags in VLLM_ADDITIONAL_ARGS), multi-gpu-vendor at 2276e82 (AMD), and single-node-gpu at 2d5370a (the SGLang runtime,
whose arguments are those of the engine); config/llmisvcconfig/config-llm-worker-pipeline-parallel.yaml at 04184a4 (how
replicas on several servers are started). On 2026-11-26: the definition of the resource, config/crd/full/llmisvc at
2d5370a, and config-sglang-template.yaml at 26da579, which puts the arguments of the container behind those of its own.
InferenceService: models of the wheel kserve 0.21.0 on PyPI (kserve/models/v1beta1_predictor_spec.py); name of the
container and annotation of the deployment mode: documentation in kserve/website, read on 2026-11-24.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from typing import Any

from planner.core import UnsupportedFeatureError
from planner.launch.endpoint_picker import picker_config, picker_notes
from planner.launch.escaping import kubernetes_literal, yaml_text
from planner.launch.flags import word_of
from planner.launch.fleet import Fleet
from planner.launch.kubernetes import FIXED_REPLICAS, NOT_WRITTEN, SERVING_PORT, object_table, wanted_lines
from planner.launch.pods import (
    PodPlace,
    config_map,
    environment,
    gpu_resources,
    gpu_tolerations,
    node_selector,
    pod_template,
)
from planner.launch.readme import README_NAME, bullets, closing_sections, name_text, page
from planner.launch.spec import LaunchSpec, deployments, launch_specs
from planner.serving import Role

ARGUMENTS = "VLLM_ADDITIONAL_ARGS"
"""Variable whose words the templates of KServe put behind ``vllm serve``; a shell reads them."""
UNKNOWN_MODEL = "set/checkpoint"
"""Place of a checkpoint that the plan does not name."""
PLAIN_MODE = {"serving.kserve.io/deploymentMode": "Standard"}
"""Annotation by which an InferenceService becomes a Deployment and a Service, without Knative."""


def files(fleet: Fleet) -> dict[str, str]:
    """The resources of each deployment, and a README: name -> content.

    Raises:
        UnsupportedFeatureError: KServe has neither a template for a deployment nor can it run as plain containers.
    """
    specs = launch_specs(fleet)
    resources = {}
    for pools in deployments(specs):
        is_plain = len(pools) == 1 and pools[0].servers == 1
        if is_plain:
            resources[f"{pools[0].deployment_name}.inferenceservice.yaml"] = yaml_text(plain_objects(pools[0]))
        try:
            resources[f"{pools[0].deployment_name}.yaml"] = yaml_text([inference_service(pools)])
        except UnsupportedFeatureError:
            if not is_plain:
                raise
    return {**resources, README_NAME: readme(fleet, specs, resources)}


def plain_objects(pool: LaunchSpec) -> list[dict[str, Any]]:
    """The InferenceService of a pool, whose containers are the engine's own, and the engine's file if it needs one."""
    template = pod_template(pool, PodPlace({}, {}, SERVING_PORT))["spec"]
    (engine,) = template["containers"]
    service = {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": pool.deployment_name, "annotations": dict(PLAIN_MODE)},
        "spec": {
            "predictor": {
                "minReplicas": pool.replicas,
                "maxReplicas": pool.replicas,
                **template,
                "containers": [{**engine, "name": "kserve-container"}],
            }
        },
    }
    return [*([config_map(pool)] if pool.configuration else []), service]


def inference_service(pools: tuple[LaunchSpec, ...]) -> dict[str, Any]:
    """The LLMInferenceService of one deployment; its own workload is the mixed or the decode pool.

    Raises:
        UnsupportedFeatureError: KServe has no template for the engine, its roles, or its split over servers.
    """
    serving = pools[-1]
    model = serving.model or UNKNOWN_MODEL
    runtime = word_of(serving.engine_id, "kserve_runtime")
    return {
        "apiVersion": "serving.kserve.io/v1alpha2",
        "kind": "LLMInferenceService",
        "metadata": {"name": pools[0].deployment_name},
        "spec": {
            "model": {"uri": f"hf://{model}", "name": model},
            **({"runtime": runtime} if runtime else {}),
            **workload(serving),
            **({"prefill": workload(pools[0])} if pools[0].role is Role.PREFILL else {}),
            "router": {
                "route": {},
                "gateway": {},
                "scheduler": {"config": {"inline": picker_config(pools)}},
            },
        },
    }


def workload(pool: LaunchSpec) -> dict[str, Any]:
    """Replicas, split over servers and pods of one pool."""
    _require_template(pool)
    split = parallelism(pool)
    return {
        "replicas": pool.replicas,
        **({"parallelism": split} if split else {}),
        "template": pod(pool),
        **({"worker": pod(pool)} if pool.servers > 1 else {}),
    }


def _require_template(pool: LaunchSpec) -> None:
    template = word_of(pool.engine_id, f"kserve={pool.role.value}")
    if not template:
        bound = f"KServe has no template for {pool.role.value} pools of {pool.engine}"
        raise UnsupportedFeatureError("engine", pool.engine_id, bound, "export to kubernetes, or plan with vLLM")


def parallelism(pool: LaunchSpec) -> dict[str, Any]:
    """The split that KServe's templates for several servers fill in; empty on one server, where flags say it.

    A pipeline runs one stage on each server; data-parallel ranks are spread evenly.
    """
    split = pool.parallelism
    if pool.servers == 1:
        return {}
    if word_of(pool.engine_id, f"kserve={pool.role.value}") != ARGUMENTS:
        raise _split_refused(pool, f"KServe has no template for replicas of {pool.engine} on several servers")
    if split.dp > 1 and split.pp == 1:
        expert = {"expert": True} if split.ep > 1 else {}
        return {"data": split.dp, "dataLocal": pool.server_words.ranks_each, "tensor": split.tp, **expert}
    if split.dp == 1 and split.pp == pool.servers:
        return {"tensor": split.tp, "pipeline": split.pp}
    raise _split_refused(pool, f"KServe runs one pipeline stage on each server, which are {pool.servers}")


def _split_refused(pool: LaunchSpec, bound: str) -> UnsupportedFeatureError:
    split = pool.parallelism
    return UnsupportedFeatureError("parallelism", split.label, bound, "export to kubernetes, or plan with pp = servers")


def pod(pool: LaunchSpec) -> dict[str, Any]:
    """The pod of one server of a replica; KServe adds ports, probes, shared memory and the model.

    The images of the engines run as root, which KServe's templates for its own image may forbid.
    """
    words = [word for pair in pool.flags if not _is_written_by_template(pool, pair[0]) for word in pair if word]
    variables = [variable for variable in environment(pool) if variable["name"] != "MODEL"]
    engine: dict[str, Any] = {
        "name": "main",
        "image": pool.image,
        "securityContext": {"runAsNonRoot": False},
        "resources": gpu_resources(pool),
    }
    if word_of(pool.engine_id, f"kserve={pool.role.value}") == ARGUMENTS:
        variables.append({"name": ARGUMENTS, "value": kubernetes_literal(shlex.join(words))})
    else:
        engine["args"] = [kubernetes_literal(word) for word in words]
    return {
        "nodeSelector": node_selector(pool),
        "tolerations": gpu_tolerations(pool),
        "containers": [{**engine, "env": variables}],
    }


def _is_written_by_template(pool: LaunchSpec, flag: str) -> bool:
    """Whether the templates for several servers write a flag themselves."""
    knobs = ("tp", "pp", "dp", "ep_all_ranks") if pool.servers > 1 else ()
    return any(word_of(pool.engine_id, knob).split()[:1] == [flag] for knob in knobs)


def readme(fleet: Fleet, specs: Sequence[LaunchSpec], names: Iterable[str]) -> str:
    """What the resources are, what has to be set before they are applied, and what they leave out."""
    notes = [note for spec in specs for note in spec.notes]
    notes += [note for pools in deployments(specs) for note in picker_notes(pools)]
    notes += [_RUNTIME for spec in specs if word_of(spec.engine_id, "kserve_runtime")]
    has_plain = any(name.endswith(".inferenceservice.yaml") for name in names)
    wanted = wanted_lines(specs, own_models=has_plain)
    wanted += [
        f"`{pools[0].deployment_name}`: `spec.model`, a checkpoint of {name_text(pools[-1].checkpoint)}."
        for pools in deployments(specs)
        if not pools[-1].model
    ]
    sections = [
        "An LLMInferenceService for each deployment: `kubectl apply -f FILE`. KServe adds the model, ports, probes "
        "and the router (the endpoint picker of llm-d behind a gateway).",
        *([_PLAIN] if has_plain else []),
        object_table(specs),
        "## Before you apply",
        bullets(wanted),
        FIXED_REPLICAS,
        *closing_sections(fleet, specs, notes, NOT_WRITTEN),
    ]
    return page(f"{name_text(fleet.name)} on KServe", sections)


_PLAIN = (
    "Or, in its place, the InferenceService of `*.inferenceservice.yaml`: the same replicas as plain containers, "
    "without gateway and picker. Its service picks a replica as services of the cluster do, whatever policy was "
    "planned. A deployment that has only this file has an engine for which KServe knows no LLMInferenceService."
)
_RUNTIME = (
    "`spec.runtime` is newer than KServe 0.20: `kubectl explain llminferenceservice.spec.runtime` says whether yours "
    "has it. A KServe without it drops the field and starts vLLM. KServe calls this runtime "
    "experimental."
)
