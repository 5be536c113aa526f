"""DynamoGraphDeployments: the fields of nvidia.com/v1beta1, the plan's numbers in them, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from planner.core import UnsupportedFeatureError
from planner.launch.dynamo import ROUTER_MODES, files
from planner.serving import Deployment, Router
from tests.builders import FP8
from tests.made_up_fleets import launched, mixed, on, pair, planned


def documents(written: dict[str, str]) -> list[dict[str, Any]]:
    """All objects of all files."""
    texts = [text for name, text in written.items() if name.endswith(".yaml")]
    return [document for text in texts for document in yaml.safe_load_all(text)]


def graph(written: dict[str, str]) -> dict[str, Any]:
    """The only graph."""
    (found,) = [one for one in documents(written) if one["kind"] == "DynamoGraphDeployment"]
    return found


def components(written: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Components of the only graph by name."""
    return {one["name"]: one for one in graph(written)["spec"]["components"]}


def main(component: dict[str, Any]) -> dict[str, Any]:
    """The container that the operator looks for."""
    pod = component["podTemplate"]["spec"]
    (container,) = pod["containers"]
    gpus = container.get("resources", {}).get("limits", {})
    assert [taint["key"] for taint in pod.get("tolerations", [])] == list(gpus)
    assert container["name"] == "main"
    return container


def options(component: dict[str, Any]) -> dict[str, str]:
    """Values by option; a switch has none."""
    words = main(component)["args"]
    return {
        word: (following if not following.startswith("--") else "")
        for word, following in zip(words, [*words[1:], "--"], strict=True)
        if word.startswith("--")
    }


def test_numbers_are_those_of_the_plan() -> None:
    one = launched(Deployment.mixed(on(tp=4, max_running_requests=96, max_batched_tokens=3072), 5))
    worker = components(files(planned(one)))["worker"]
    asked = options(worker)
    assert worker["replicas"] == 5 and main(worker)["resources"]["limits"] == {"nvidia.com/gpu": "4"}
    assert (asked["--tensor-parallel-size"], asked["--max-num-seqs"]) == ("4", "96")
    assert asked["--max-num-batched-tokens"] == "3072" and asked["--model"] == "meta-llama/Llama-3.1-8B"
    assert asked["--max-model-len"] == "2048"  # the longest and 10 %, in whole 1,024s


def test_prefill_and_decode_are_components_with_dynamos_own_words_for_their_role() -> None:
    found = components(files(pair()))
    assert {name: one["replicas"] for name, one in found.items()} == {"Frontend": 1, "prefill": 2, "decode": 3}
    for role in ("prefill", "decode"):
        asked = options(found[role])
        assert asked["--disaggregation-mode"] == role
        assert json.loads(asked["--kv-transfer-config"]) == {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
        assert main(found[role])["args"].count("--kv-transfer-config") == 1


def test_tensorrt_llm_takes_dynamos_spelling_and_a_file_for_the_rest() -> None:
    written = files(mixed("tensorrt-llm", tp=2, max_running_requests=96))
    worker = components(written)["worker"]
    asked = options(worker)
    assert (asked["--tensor-parallel-size"], asked["--max-batch-size"]) == ("2", "96")
    assert not any("_" in name for name in asked)
    (config_map,) = [one for one in documents(written) if one["kind"] == "ConfigMap"]
    ((file, text),) = config_map["data"].items()
    assert asked["--extra-engine-args"] == f"/config/{file}"
    assert yaml.safe_load(text)["kv_cache_config"]["free_gpu_memory_fraction"] == 0.9
    (volume,) = worker["podTemplate"]["spec"]["volumes"]
    assert volume["configMap"]["name"] == config_map["metadata"]["name"]


@pytest.mark.parametrize("router", list(ROUTER_MODES))
def test_the_frontend_routes_as_planned(router: Router) -> None:
    """Truth: --router-mode in dynamo/common/configuration/groups/router_args.py of ai-dynamo 1.6.1, and its help."""
    modes = {
        "round_robin": "round-robin",
        "random": "random",
        "power_of_two": "power-of-two",
        "least_requests": "least-loaded",
        "prefix_affinity": "kv",
    }
    (variable,) = main(components(files(mixed(router=router)))["Frontend"])["env"]
    assert variable == {"name": "DYN_ROUTER_MODE", "value": modes[router.value]}


@pytest.mark.parametrize("engine", ["vllm", "tensorrt-llm"])
def test_prefix_affinity_needs_events_of_the_caches_from_whoever_prefills(engine: str) -> None:
    found = components(files(pair(engine, router=Router.PREFIX_AFFINITY)))
    publishes = {
        name: bool({"--kv-events-config", "--publish-kv-events"} & set(options(found[name])))
        for name in found
        if name != "Frontend"
    }
    assert publishes == {"prefill": True, "decode": False}
    assert not {"--kv-events-config", "--publish-kv-events"} & set(options(components(files(mixed(engine)))["worker"]))


def test_a_checkpoint_to_be_named_comes_from_the_users_config_map() -> None:
    worker = components(files(mixed("tensorrt-llm", model="opt-13b", precision=FP8)))["worker"]
    assert options(worker)["--model"] == "$(MODEL)"
    (variable,) = main(worker)["env"]
    assert variable["valueFrom"]["configMapKeyRef"]["name"] == "models"


def test_a_router_that_dynamo_does_not_have_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedFeatureError, match=r"router = 'least_tokens'.*Fix:"):
        files(mixed(router=Router.LEAST_TOKENS))


def test_each_deployment_is_a_graph_of_its_own_and_the_readme_lists_them() -> None:
    one = launched(Deployment.mixed(on(), 2), service="chat")
    written = files(planned(one, one))
    assert len(documents(written)) == 2 and "llm-02-chat.dynamo.yaml" in written
    assert "| llm-01-chat.dynamo.yaml | chat | mixed | 2 | 1 x h100-sxm | 1 | round-robin |" in written["README.md"]
