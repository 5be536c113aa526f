"""Launch files: flags with sources, texts that shells and YAML readers take, and the plan's own numbers in them."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from hardware_db import Dtype
from planner import launch
from planner.core import InputError, UnknownNameError, UnsupportedFeatureError
from planner.engine import LoraAdapters, Order, Schedule, Speculation
from planner.fleet import Plan
from planner.launch import export_files, launch_specs
from planner.launch.flags import FlagKind, engine_flags
from planner.launch.readme import README_NAME
from planner.launch.scripts import COMPOSE_NAME, START_NAME
from planner.llm import DraftMethod, Precision, load_llm
from planner.roofline import Parallelism
from tests.builders import FP8, HARDWARE
from tests.made_up_fleets import NASTY, mixed, named, on, two_pools
from tests.made_up_plans import REAL, made_up

ENGINES = sorted(HARDWARE.engines)


def launch_files(plan: Plan) -> dict[str, str]:
    """Scripts and the Compose file of a plan."""
    return {**export_files(plan, "scripts"), **export_files(plan, "compose")}


def flags(plan: Plan, pool: int = 0) -> dict[str, str]:
    """Flags of a pool by name."""
    return dict(launch_specs(plan)[pool].flags)


def scripts(plan: Plan) -> dict[str, str]:
    """The shell scripts of the pools and routers of a plan."""
    return {name: text for name, text in launch_files(plan).items() if name.endswith(".sh") and name != START_NAME}


def command(script: str) -> list[str]:
    """Words of the command that a script ends in."""
    return shlex.split(script[script.index("\nexec ") :].replace("\\\n", " "))[1:]


def test_every_row_names_its_source_and_the_version_that_is_planned_with() -> None:
    for row in engine_flags():
        assert row.source_url.startswith("https://") and re.fullmatch(r"\d{4}-\d\d-\d\d", row.retrieved_on), row
        assert row.version == HARDWARE.engines[row.engine].version, row
        assert row.flag or row.kind is FlagKind.DEFAULT, row


@pytest.mark.parametrize("engine", ENGINES)
def test_every_flag_of_a_script_is_in_the_table(engine: str) -> None:
    known = {word for row in engine_flags() if row.engine == engine for word in row.flag.split() if word[:2] == "--"}
    plan = mixed(engine, parallelism=Parallelism(tp=2, pp=2), precision=FP8)
    for text in scripts(plan).values():
        assert {word for word in command(text) if word.startswith("--")} <= known


def test_vllm_gets_the_numbers_of_the_plan_under_its_documented_names() -> None:
    asked = flags(mixed(tp=4, max_running_requests=96, max_batched_tokens=3072, memory_fraction=0.8))
    assert asked["--tensor-parallel-size"] == "4" and "--pipeline-parallel-size" not in asked
    assert (asked["--max-num-seqs"], asked["--max-num-batched-tokens"]) == ("96", "3072")
    assert asked["--gpu-memory-utilization"] == "0.8" and "--no-enable-prefix-caching" in asked
    assert REAL.deployments[0].workload.lengths.max_total == 950 and asked["--max-model-len"] == "2048"  # + 10 %


def test_sglang_counts_attention_ranks_in_its_tensor_parallel_size_and_vllm_its_limits_per_rank() -> None:
    split = Parallelism(tp=2, dp=4, ep=8)
    changes = {"model": "qwen3-30b-a3b", "parallelism": split, "max_running_requests": 256, "max_batched_tokens": 4096}
    sglang, vllm = flags(mixed("sglang", **changes)), flags(mixed("vllm", **changes))
    assert (sglang["--tp-size"], sglang["--attn-dp-size"], sglang["--ep-size"]) == ("8", "4", "8")
    on_amd = flags(mixed("sglang", sku=HARDWARE.skus["mi300x"], **changes))
    assert (on_amd["--dp-size"], on_amd["--enable-dp-attention"]) == ("4", ""), "its image is of an older release"
    assert (sglang["--max-running-requests"], sglang["--chunked-prefill-size"]) == ("256", "4096")
    assert (vllm["--tensor-parallel-size"], vllm["--data-parallel-size"]) == ("2", "4")
    assert (vllm["--max-num-seqs"], vllm["--max-num-batched-tokens"]) == ("64", "1024")
    assert vllm["--enable-expert-parallel"] == ""


def test_tensorrt_llm_gets_a_configuration_file_that_script_and_compose_name() -> None:
    plan = mixed("tensorrt-llm", precision=Precision(kv_cache=Dtype.FP8))
    (spec,) = launch_specs(plan)
    files = launch_files(plan)
    cache = yaml.safe_load(files[spec.config_name])["kv_cache_config"]
    assert cache == {"dtype": "fp8", "free_gpu_memory_fraction": 0.9, "enable_block_reuse": False}
    assert f'--config "$(dirname "$0")"/{spec.config_name}' in files[f"{spec.name}.sh"]
    service = yaml.safe_load(files[COMPOSE_NAME])["services"][f"{spec.name}-1"]
    assert service["command"][-2:] == ["--config", f"/config/{spec.config_name}"]


@pytest.mark.parametrize("engine", ENGINES)
def test_drafts_of_the_models_own_module(engine: str) -> None:
    plan = mixed(
        engine,
        model="deepseek-v3",
        precision=load_llm("deepseek-v3").native_precision,
        parallelism=Parallelism(tp=8),
        speculation=Speculation(draft_tokens=2, acceptance=0.8),
    )
    (spec,) = launch_specs(plan)
    texts = json.dumps([spec.flags, spec.configuration])
    assert "2" in re.sub(r"[^0-9 ]", " ", texts).split() and re.search("mtp|NEXTN|MTP", texts)


EAGLE3 = Speculation(method=DraftMethod.EAGLE3, draft_tokens=3, dataset="mt-bench")
HEAD = "RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3"


def test_heads_are_named_in_each_engines_words() -> None:
    asked = flags(mixed("vllm", model="llama-3.1-8b", speculation=EAGLE3))["--speculative-config"]
    assert json.loads(asked) == {"method": "eagle3", "model": HEAD, "num_speculative_tokens": 3}
    asked_sglang = flags(mixed("sglang", model="llama-3.1-8b", speculation=EAGLE3))
    assert asked_sglang["--speculative-algorithm"] == "EAGLE3"
    assert asked_sglang["--speculative-draft-model-path"] == HEAD
    assert (asked_sglang["--speculative-num-steps"], asked_sglang["--speculative-num-draft-tokens"]) == ("3", "4")
    (spec,) = launch_specs(mixed("tensorrt-llm", model="llama-3.1-8b", speculation=EAGLE3))
    told = {"decoding_type": "Eagle3", "max_draft_len": 3, "speculative_model": HEAD}
    assert spec.configuration["speculative_config"] == told


def test_small_models_draft_where_an_engine_has_a_flag_for_them() -> None:
    drafts = Speculation(draft="qwen3-0.6b", draft_tokens=3, acceptance=0.7)
    asked = json.loads(flags(mixed("vllm", model="qwen3-8b", speculation=drafts))["--speculative-config"])
    assert asked == {"method": "draft_model", "model": "Qwen/Qwen3-0.6B", "num_speculative_tokens": 3}
    with pytest.raises(UnsupportedFeatureError, match="speculation = 3"):
        launch_files(mixed("tensorrt-llm", model="qwen3-8b", speculation=drafts))


def test_adapters_have_a_rank_that_vllm_takes() -> None:
    lora = flags(mixed(lora=LoraAdapters(adapters=20, rank=24, slots=6)))
    assert (lora["--enable-lora"], lora["--max-loras"], lora["--max-lora-rank"]) == ("", "6", "32")


def test_weights_come_from_a_checkpoint_from_a_flag_or_from_a_checkpoint_to_be_named() -> None:
    """Llama-3.1-8B is published in FP8, OPT-13B is not: SGLang's --quantization fp8 makes it on loading."""
    assert "--quantization" not in flags(mixed())
    assert launch_specs(mixed())[0].model == "meta-llama/Llama-3.1-8B"
    for engine in ("vllm", "sglang", "tensorrt-llm"):
        plan = mixed(engine, precision=FP8)
        assert launch_specs(plan)[0].model == "nvidia/Llama-3.1-8B-Instruct-FP8"
        assert "--quantization" not in flags(plan)
    assert flags(mixed("sglang", model="opt-13b", precision=FP8))["--quantization"] == "fp8"
    assert launch_specs(mixed("tensorrt-llm", model="opt-13b", precision=FP8))[0].model == ""
    (spec,) = launch_specs(mixed(model="opt-13b", precision=Precision(weights=Dtype.INT4)))
    assert spec.model == "" and "int4 weights" in spec.checkpoint


@pytest.mark.parametrize(
    ("engine", "changes", "named"),
    [
        ("tensorrt-llm", {"model": "qwen3-30b-a3b", "parallelism": Parallelism(dp=4)}, "parallelism.dp = 4"),
        ("tensorrt-llm", {"lora": LoraAdapters(adapters=2)}, "lora = "),
        ("sglang", {"precision": Precision(kv_cache=Dtype.INT8)}, "precision.kv_cache = 'int8'"),
        ("vllm", {"speculation": Speculation(draft_tokens=2, acceptance=0.5, draft_cost=0.1)}, "speculation = 2"),
        ("vllm", {"own_schedule": Schedule(order=Order.SHORTEST_FIRST, reserve_outputs=False)}, "schedule.order"),
        ("sglang", {"sku": HARDWARE.skus["mi355x"]}, "sku = 'mi355x'"),
        ("vllm", {"sku": HARDWARE.skus["gaudi3"]}, "sku = 'gaudi3'"),
        ("tensorrt-llm", {"parallelism": Parallelism(tp=8, pp=2)}, "parallelism = 16"),
        ("vllm", {"parallelism": Parallelism(pp=9)}, "parallelism = 9"),
    ],
)
def test_what_an_engine_has_no_verified_flag_for_is_refused_by_name(
    engine: str, changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(UnsupportedFeatureError, match=re.escape(named)) as refused:
        launch_files(mixed(engine, **changes))
    assert "Fix:" in str(refused.value)


def test_a_fleet_that_cannot_be_started_is_refused_by_name() -> None:
    amd = HARDWARE.skus["mi300x"]
    launch_files(two_pools(on("vllm", sku=amd), on("vllm", sku=amd)))
    for plan, error, said in (
        (made_up(REAL.request, {}, float("inf")), InputError, "has no fleet to launch"),
        (
            two_pools(on("vllm"), on("sglang")),
            UnsupportedFeatureError,
            r"deployment\.pools\.engine",
        ),
        (
            two_pools(on("sglang", sku=amd), on("sglang", sku=amd)),
            UnsupportedFeatureError,
            "no verified hand-over of KV caches on GPUs of AMD",
        ),
    ):
        with pytest.raises(error, match=said):
            launch_files(plan)


@pytest.mark.parametrize("target", ["kubernetes", "kserve", "llm-d", "dynamo", "skypilot", "autoscaling"])
def test_encoders_are_refused_where_nothing_would_start_them(target: str) -> None:
    plan = mixed("sglang", model="qwen3-vl-8b-instruct", encoders=0.5)
    with pytest.raises(UnsupportedFeatureError, match=r"starts no pools of encoders\. Fix: export to scripts"):
        export_files(plan, target)


def test_compose_has_what_a_service_needs_and_the_readme_what_is_served() -> None:
    plan = mixed("sglang", tp=2)
    (spec,) = launch_specs(plan)
    files = launch_files(plan)
    services = yaml.safe_load(files[COMPOSE_NAME])["services"]
    for number, gpus in ((1, ["0", "1"]), (2, ["2", "3"])):
        service = services[f"{spec.name}-{number}"]
        assert service["image"] == spec.image and spec.image.rpartition(":")[2] not in ("", "latest")
        assert service["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"] == gpus
        assert spec.health_path in service["healthcheck"]["test"][-1]
        assert "meta-llama/Llama-3.1-8B" in service["command"]
    assert f"| {spec.name} | 2 | 2 x h100-sxm | 1 |" in files[README_NAME]
    assert "## What is served" in files[README_NAME] and "To serve a fine-tune of it" in files[README_NAME]


@pytest.mark.parametrize(("name", "engine"), [*zip(NASTY, [*ENGINES] * 3, strict=False)])
def test_names_of_users_stay_text(name: str, engine: str, tmp_path: Path) -> None:
    plan = named(name, engine)
    files = launch_files(plan)
    assert all(re.fullmatch(r"[A-Za-z0-9.-]+", file) and ".." not in file for file in files)
    for script in (text for file, text in files.items() if file.endswith(".sh")):
        path = tmp_path / "run.sh"
        path.write_text(script, encoding="utf-8")
        assert subprocess.run(["/bin/bash", "-n", str(path)], check=False).returncode == 0
        ran = subprocess.run(
            ["/bin/bash", str(path)], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"}, check=False
        )
        assert ran.returncode == 2 and re.search("set MODEL.* to", ran.stderr) and not ran.stdout
    assert not any(name in word for text in scripts(plan).values() for word in command(text))
    (service,) = yaml.safe_load(files[COMPOSE_NAME])["services"].values()
    words = " ".join(service["command"])
    assert name not in words and re.search(r"\$\{MODEL_[A-Z0-9_]+:\?", words)
    assert "## What is served" not in files[README_NAME]  # whoever starts it has to say


@pytest.mark.parametrize(
    "names", [(40 * "a" + "1", 40 * "a" + "2"), ("模型一", "模型二"), ("a b", "a-b"), ("***", "+++")]
)
@pytest.mark.parametrize("target", launch.TARGETS)
def test_two_services_share_no_name_in_any_export(names: tuple[str, str], target: str) -> None:
    """Of a variable, which started the wrong checkpoint, an object, a container or a file."""
    own, other = (named(name).deployments[0] for name in names)
    both = replace(
        named("x"), deployments=tuple(replace(one, service=n) for one, n in zip((own, other), names, strict=True))
    )
    alone = [replace(both, deployments=(one,)) for one in both.deployments]
    files, singly = export_files(both, target), export_files(alone[0], target)
    specs = launch_specs(both)
    for attribute in ("name", "deployment_name", "object_name", "model_variable"):
        assert len({getattr(spec, attribute) for spec in specs}) == 2
    text = "\n".join(files.values())
    if specs[0].model_variable in "\n".join(singly.values()):
        assert all(spec.model_variable in text for spec in specs)
    pairs: list[tuple[str, str]] = []
    for file, content in files.items():
        for one in yaml.safe_load_all(content) if file.endswith((".yaml", ".yml")) else ():
            if isinstance(one, dict) and "name" in one.get("metadata", ()):
                pairs.append((one["kind"], one["metadata"]["name"]))
    assert len(set(pairs)) == len(pairs)
    own_files = [name for name in files if re.match(r"(llm-)?0[12]-", name)]
    assert len([name for name in own_files if "01-" in name]) == len([name for name in own_files if "02-" in name])


def test_a_script_runs_the_command_with_the_model_it_is_given(tmp_path: Path) -> None:
    (script,) = scripts(mixed(replicas=1, tp=2)).values()
    stand_in, path = tmp_path / "vllm", tmp_path / "run.sh"
    stand_in.write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n', encoding="utf-8")
    stand_in.chmod(0o755)
    path.write_text(script, encoding="utf-8")
    given = {"PATH": f"{tmp_path}:/usr/bin:/bin", "MODEL": "my org/$(id) 'x'", "PORT": "9000"}
    words = subprocess.run(["/bin/bash", str(path)], capture_output=True, text=True, env=given, check=True).stdout
    assert words.splitlines()[:6] == ["serve", given["MODEL"], "--host", "0.0.0.0", "--port", "9000"]


def test_amd_gpus_get_a_rocm_image_and_the_render_nodes_of_their_own_gpus() -> None:
    files = launch_files(mixed("sglang", replicas=2, tp=2, sku=HARDWARE.skus["mi300x"]))
    service = yaml.safe_load(files[COMPOSE_NAME])["services"]["01-main-mixed-2"]
    nodes = [f"${{RENDER_NODE_{gpu}:?add what ./render-nodes.sh prints}}" for gpu in (2, 3)]
    assert "rocm" in service["image"] and service["devices"] == ["/dev/kfd", *nodes]
    assert "deploy" not in service, "AMD GPUs are devices, not reservations of an NVIDIA driver"


def test_targets_are_listed_under_their_own_names_and_unknown_ones_are_refused() -> None:
    assert {"scripts", "compose", "kubernetes", "kserve", "llm-d"} <= set(launch.TARGETS)
    assert all(name == target.name and target.title for name, target in launch.TARGETS.items())
    with pytest.raises(UnknownNameError, match="kubernets"):
        launch.export_files(mixed(), "kubernets")
