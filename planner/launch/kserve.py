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
from typing import Any

from planner.core import UnsupportedFeatureError
from planner.fleet import Plan
from planner.launch.flags import word_of
from planner.launch.kubernetes import SERVING_PORT, PodPlace, environment, gpu_resources, gpu_tolerations, pod_template
from planner.launch.llmd import picker_config, picker_notes
from planner.launch.readme import README_NAME, readme_facts
from planner.launch.spec import LaunchSpec, configuration_text, deployments, launch_specs
from planner.launch.templates import literal, objects_of, text_of, yaml_text

ARGUMENTS = "VLLM_ADDITIONAL_ARGS"
"""Variable whose words the templates of KServe put behind ``vllm serve``; a shell reads them."""


def files(plan: Plan) -> dict[str, str]:
    """The resources of each deployment, and a README: name -> content.

    Raises:
        UnsupportedFeatureError: KServe has neither a template for a deployment nor can it run as plain containers.
    """
    specs = launch_specs(plan)
    groups = deployments(specs)
    resources = {}
    for pools in groups:
        is_plain = len(pools) == 1 and pools[0].servers == 1
        if is_plain:
            name = f"{pools[0].deployment_name}.inferenceservice.yaml"
            resources[name] = yaml_text(plain_objects(pools[0]))
        try:
            resources[f"{pools[0].deployment_name}.yaml"] = yaml_text([inference_service(pools)])
        except UnsupportedFeatureError:
            if not is_plain:
                raise
    facts = {
        "groups": groups,
        "port": SERVING_PORT,
        "has_plain": any(name.endswith(".inferenceservice.yaml") for name in resources),
        "has_runtime": any(word_of(spec.engine_id, "kserve_runtime") for spec in specs),
    }
    return {
        **resources,
        README_NAME: text_of("kserve.md.j2", **readme_facts(plan, specs, picker_notes(specs)), **facts),
    }


def plain_objects(pool: LaunchSpec) -> list[dict[str, Any]]:
    """The InferenceService of a pool, whose containers are the engine's own, and the engine's file if it needs one."""
    pod = pod_template(pool, PodPlace({}, {}, SERVING_PORT))["spec"]
    (engine,) = pod["containers"]
    return objects_of(
        "kserve-plain.yaml.j2",
        pool=pool,
        configuration=configuration_text(pool),
        pod={**pod, "containers": [{**engine, "name": "kserve-container"}]},
    )


def inference_service(pools: tuple[LaunchSpec, ...]) -> dict[str, Any]:
    """The LLMInferenceService of one deployment; its own workload is the mixed or the decode pool.

    Raises:
        UnsupportedFeatureError: KServe has no template for the engine, its roles, or its split over servers.
    """
    (service,) = objects_of(
        "kserve.yaml.j2",
        pools=pools,
        runtime=word_of(pools[-1].engine_id, "kserve_runtime"),
        workloads=[workload(pool) for pool in pools],
        picker=picker_config(pools),
    )
    return service


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


def workload(pool: LaunchSpec) -> dict[str, Any]:
    """Facts of the pods of one pool; KServe adds ports, probes, shared memory and the model.

    The images of the engines run as root, which KServe's templates for its own image may forbid.
    """
    template = word_of(pool.engine_id, f"kserve={pool.role.value}")
    if not template:
        bound = f"KServe has no template for {pool.role.value} pools of {pool.engine}"
        raise UnsupportedFeatureError("engine", pool.engine_id, bound, "export to kubernetes, or plan with vLLM")
    taken = [word_of(pool.engine_id, knob).split()[:1] for knob in ("tp", "pp", "dp", "ep_all_ranks")]
    written = taken if pool.servers > 1 else []  # the templates for several servers write these flags themselves
    words = [word for pair in pool.flags if [pair[0]] not in written for word in pair if word]
    variables = [variable for variable in environment(pool) if variable["name"] != "MODEL"]
    by_variable = template == ARGUMENTS
    return {
        "pool": pool,
        "split": parallelism(pool),
        "resources": gpu_resources(pool),
        "tolerations": gpu_tolerations(pool),
        "arguments": [] if by_variable else [literal(word) for word in words],
        "environment": variables + ([{"name": ARGUMENTS, "value": literal(shlex.join(words))}] if by_variable else []),
    }
