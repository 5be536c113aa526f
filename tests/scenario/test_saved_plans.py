"""Plans read back from their documents: what planning chose, field by field, and no traceback for edited files."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hardware_db import load_hardware
from planner.core import InputError, Metric, json_text, rebuilt, write_text
from planner.engine import Order, Schedule
from planner.fleet import Plan, PlannedDeployment, plan
from planner.launch import export_files, read_fleet
from planner.report import plan_to_dict, tables
from planner.scenario import build_request, load_plan, read_scenario
from planner.serving import Deployment, KvTransfer

LENGTHS = {"input_tokens": 800, "output_tokens": 150}
SLO = [
    {"metric": "ttft", "percentile": 0.95, "threshold_s": 0.5},
    {"metric": "tpot", "percentile": 0.95, "threshold_s": 0.03},
]
SMALL: dict[str, Any] = {
    "name": "small",
    "llm": "llama-3.1-8b",
    "workload": {"rate_per_s": 30.0, "lengths": LENGTHS},
    "slo": SLO,
    "search": {
        "skus": ["h100-sxm"],
        "tp": [1],
        "modes": ["mixed"],
        "max_batched_tokens": [2048],
        "max_running_requests": [128],
    },
    "prices": {"usd_per_gpu_hour": {"h100-sxm": 2.5}},
}
FP8 = {"weights": "fp8", "activations": "fp8", "kv_cache": "fp8"}
TIGHT = [{"metric": "ttft", "percentile": 0.9, "threshold_s": 0.2}]


def small(**changes: Any) -> dict[str, Any]:
    """The small scenario with fields changed; mappings are merged."""
    merged = {key: {**SMALL.get(key, {}), **value} for key, value in changes.items() if isinstance(value, dict)}
    return {**SMALL, **changes, **merged}


SHAPES: dict[str, dict[str, Any]] = {
    "mixed": small(),
    "disaggregated": small(search={"modes": ["disaggregated"]}),
    "several services": small(
        services=[{"name": "second", "llm": "qwen3-8b", "workload": {"rate_per_s": 9, "lengths": LENGTHS}, "slo": SLO}]
    ),
    "split by length": small(split={"input_tokens": [1000]}, workload={"lengths": "azure-2023-conv"}),
    "classes with targets of their own": small(
        workload={
            "lengths": None,
            "classes": [
                {"name": "quick", "share": 0.4, "lengths": LENGTHS, "slo": TIGHT},
                {"name": "slow", "share": 0.6, "lengths": {"input_tokens": 300, "output_tokens": 200}},
            ],
        }
    ),
    "cascade": small(
        llm="llama-2-13b",
        cascade={
            "llm": "llama-2-7b",
            "points": [{"escalated": 0.3, "quality": 0.8}, {"escalated": 0.5, "quality": 0.9}],
            "least_quality": 0.75,
            "routed": True,
        },
    ),
    "offline work and a profile": small(
        offline=[{"name": "night", "lengths": LENGTHS, "requests_per_hour": 2000}],
        profile={"factors": [1.0, 0.25], "period_hours": 12},
    ),
    "growth, confidence and prefix cache": small(growth=1.5, confidence=0.95, search={"prefix_cache": [True]}),
    "every rank its own requests": small(
        llm="qwen3-30b-a3b",
        workload={"rate_per_s": 3.0},
        search={"tp": [1], "dp": [2], "ep": [2], "router": "least_requests", "more_engines": ["sglang"]},
    ),
    "a pool of encoders": small(
        llm="qwen3-vl-8b-instruct",
        workload={"images": {"per_request": 2, "size": "1024x1024"}},
        search={"engine": "sglang", "encoders": [0.5]},
    ),
    "drafts, adapters, another format": small(
        precision=FP8,
        search={
            "speculation": [{"draft_tokens": 2, "acceptance": 0.7, "draft_cost": 0.1}],
            "lora": {"adapters": 20, "rank": 8, "slots": 4},
        },
    ),
}


@cache
def planned(shape: str) -> Plan:
    """The plan of a shape, with the scenario it was written as, by theory."""
    scenario, _ = read_scenario(SHAPES[shape])
    found = plan(build_request(scenario, Path()), simulate=False, alternatives=False)
    return dataclasses.replace(found, scenario=scenario.model_dump(mode="json", exclude_unset=True))


def written(folder: Path, document: object, name: str = "plan.json") -> Path:
    """A file with a document."""
    path = folder / name
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


@cache
def _document(shape: str) -> str:
    return json.dumps(plan_to_dict(planned(shape)))


def document(shape: str = "mixed") -> dict[str, Any]:
    """The document of a shape, to be changed at will."""
    return dict(json.loads(_document(shape)))


# --- what planning chose --------------------------------------------------------------------------------------------


APPROXIMATE = ("goodput_per_s", "confidence_s", "p50", "p90", "p95", "p99", "p99_9", "mean")
"""Of several deployments together, or from samples, which documents do not hold."""


def exact(content: Any) -> Any:
    """A document without what is approximate in a plan read back."""
    if isinstance(content, dict):
        return {key: exact(value) for key, value in content.items() if key not in APPROXIMATE}
    return [exact(item) for item in content] if isinstance(content, list) else content


@pytest.mark.parametrize("shape", SHAPES)
def test_a_plan_read_back_is_the_plan_that_was_written(shape: str, tmp_path: Path) -> None:
    write_text(tmp_path / "plan.json", json_text(plan_to_dict(planned(shape))))
    wanted, found = planned(shape), load_plan(tmp_path / "plan.json")
    assert len(found.deployments) == len(wanted.deployments) >= 1
    for one, other in zip(found.deployments, wanted.deployments, strict=True):
        for name in ("service", "option", "deployment", "surviving", "workload", "slo", "slices", "pool_usd_per_hour"):
            assert getattr(one, name) == getattr(other, name), name
        assert one.sustained_per_s == pytest.approx(other.sustained_per_s, rel=1e-12)
        for metric in Metric:
            assert latencies(one, metric) == latencies(other, metric)
    for field in dataclasses.fields(wanted):
        if field.name not in ("deployments", "allocation"):
            assert getattr(found, field.name) == getattr(wanted, field.name), field.name
    assert exact(plan_to_dict(found)) == exact(plan_to_dict(wanted))
    assert started(found) == started(wanted) == started(read_fleet(tmp_path / "plan.json"))
    assert shape != "drafts, adapters, another format" or tables(found) == tables(wanted)


def started(plan: Plan) -> list[tuple[object, ...]]:
    """What the exports of a plan start."""
    return [(one.service, one.deployment, one.workload, one.slo, one.pool_usd_per_hour) for one in plan.deployments]


def latencies(deployment: PlannedDeployment, metric: Metric) -> list[float]:
    """Mean and kept percentiles by either method [s]."""
    found = [of.distribution(metric) for of in (deployment.predicted, deployment.simulated)]
    return [s for one in found for s in (one.mean_s, *(one.quantile_s(p) for p in (0.5, 0.9, 0.95, 0.99, 0.999)))]


def test_a_latency_without_bound_is_one_again(tmp_path: Path) -> None:
    content = document()
    content["deployments"][0]["simulated"]["ttft_s"]["p95"] = None
    (one,) = load_plan(written(tmp_path, content)).deployments
    assert one.simulated.ttft.quantile_s(0.5) == float("inf") > one.predicted.ttft.quantile_s(0.5)
    rules = export_files(read_fleet(written(tmp_path, content)), "observability")["rules.yml"]
    assert rules.count("planner:promised_latency") == 2 and rules.count("planner:expected_latency") == 1


def test_shapes_are_what_they_are_called() -> None:
    """The round trips above cover pairs, several slices in one deployment, spare settings: not one case ten times."""
    deployments = {shape: planned(shape).deployments for shape in SHAPES}
    assert deployments["disaggregated"][0].deployment.is_disaggregated
    assert {one.service for one in deployments["several services"]} == {"llama-3.1-8b", "second"}
    assert any(len(one.slices) > 1 for one in deployments["split by length"])
    assert {one.service for one in deployments["cascade"]} == {"llama-2-13b", "llama-2-7b"}
    (ranks,) = deployments["every rank its own requests"]
    assert ranks.deployment.pools[0].config.parallelism.dp == 2
    assert deployments["growth, confidence and prefix cache"][0].deployment.pools[0].config.schedule.prefix_cache


def test_nothing_is_planned_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise AssertionError("asked for a plan")

    path = written(tmp_path, document("disaggregated"))
    for function in ("planning.search_fleet", "program.solve", "simulation.evaluate"):
        monkeypatch.setattr(f"planner.fleet.{function}", refused)
    assert started(load_plan(path)) == started(planned("disaggregated"))


def test_settings_that_planning_never_chooses_come_back_too(tmp_path: Path) -> None:
    """Deployments by hand may set what no search does; the document holds it all."""
    (one,) = planned("disaggregated").deployments
    schedule = Schedule(order=Order.PRIORITY, preempts=True, watermark=0.01)
    by_hand = {"memory_fraction": 0.77, "own_schedule": schedule, "expert_skew": 0.5, "mask_s": 1e-4}
    pools = tuple(rebuilt(pool, config=rebuilt(pool.config, **by_hand)) for pool in one.deployment.pools)
    by_hand_too = dataclasses.replace(one, deployment=Deployment(pools=pools, transfer=KvTransfer(layerwise=True)))
    changed = dataclasses.replace(planned("disaggregated"), deployments=(by_hand_too,))
    content = plan_to_dict(changed)
    assert content["deployments"][0]["deployment"]["pools"][0]["memory_fraction"] == 0.77
    assert started(load_plan(written(tmp_path, content))) == started(changed)


def test_versions_are_those_that_were_planned_with(tmp_path: Path) -> None:
    """A newer database does not change what a written plan launches."""
    content = document()
    content["deployments"][0]["deployment"]["pools"][0] |= {"engine_version": "0.0.1", "calibration": "vllm 0.0.1"}
    (found,) = load_plan(written(tmp_path, content)).deployments
    config = found.deployment.pools[0].config
    assert config.engine == rebuilt(load_hardware().engines["vllm"], version="0.0.1")
    assert config.calibration == planned("mixed").deployments[0].deployment.pools[0].config.calibration


# --- documents that cannot be launched ------------------------------------------------------------------------------


def test_a_plan_without_a_fleet_is_refused_alike_from_both_sides(tmp_path: Path) -> None:
    none = dataclasses.replace(planned("mixed"), deployments=(), cost=None)
    said = "plan = 'small': has no fleet to launch. Fix: change the request until it is feasible"
    with pytest.raises(InputError) as from_plan:
        export_files(none, "compose")
    with pytest.raises(InputError) as from_file:
        read_fleet(written(tmp_path, plan_to_dict(none)))
    assert str(from_plan.value) == str(from_file.value) == said


def test_what_is_no_plan_document_is_refused(tmp_path: Path) -> None:
    for path, said in (
        (tmp_path / "missing.json", "is no plan document"),
        (written(tmp_path, {"schema_version": 2}, "other.json"), "is no plan document"),
        (written(tmp_path, {**document(), "scenario": None}), "plan it again with --json"),
    ):
        with pytest.raises(InputError, match=said):
            load_plan(path)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("pools.parallelism", ..., r"pools\[0\].parallelism = '\(missing\)': .* Fix: plan again with --json"),
        ("pools.sku", "h1000", r"pools\[0\].sku = 'h1000': unknown name"),
        ("pools.engine", 3, r"pools\[0\].engine = 3: must be text"),
        ("pools.tp", 4, r"pools\[0\].tp = 4: parallelism.tp is 1"),
        ("pools.parallelism", {"tp": 1, "ep": 3}, "must divide"),
        ("pools.replicas", 0, r"pools\[0\].replicas = 0: .*greater than or equal to 1"),
        ("pools.role", "decode", r"must be \(mixed\) or \(prefill, decode\)"),
        ("pools.memory_fraction", 3, "memory_fraction = 3"),
        ("pools.schedule", {"order": "random"}, r"pools\[0\].schedule.order"),
        ("slices", {}, "must name a rate for each slice"),
        ("slices", {"other": 1.0}, r"plan.deployments\[0\].slices = 'other': unknown name"),
        ("slices", {"llama-3.1-8b": -1.0}, "must be a rate > 0"),
        ("slices", {"llama-3.1-8b": 1e9}, r"plan.deployments\[0\].share"),
        ("service", "other", "its slices are of llama-3.1-8b"),
        ("deployment", [], "deployment = .*must be a record"),
    ],
)
def test_an_edited_deployment_is_refused_by_name(field: str, value: object, said: str, tmp_path: Path) -> None:
    content = document()
    record, name = content["deployments"][0], field.removeprefix("pools.")
    if name != field:
        (record,) = record["deployment"]["pools"]
    if value is ...:
        del record[name]
    else:
        record[name] = value
    with pytest.raises(InputError, match=said):
        load_plan(written(tmp_path, content))


def test_slices_of_two_services_in_one_deployment_are_refused(tmp_path: Path) -> None:
    content = document("several services")
    first = content["deployments"][0]
    first["slices"] = {"llama-3.1-8b": 30.0, "second": 9.0}  # whichever of the two it serves
    with pytest.raises(InputError, match=rf"service = '{first['service']}': its slices are of llama-3.1-8b and second"):
        load_plan(written(tmp_path, content))


def test_a_cascade_at_a_setting_that_is_not_offered_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"plan.escalated = 0.4: .*\[0.3, 0.5\]"):
        load_plan(written(tmp_path, {**document("cascade"), "escalated": 0.4}))


def places(node: Any) -> Iterator[tuple[Any, Any]]:
    """Every holder and key of plain data."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in list(items):
        yield node, key
        yield from places(value)


def test_no_edit_ends_in_a_traceback(tmp_path: Path) -> None:
    """Whatever stands anywhere in a document: a plan or one instructive line. One value after the other, in turn."""
    content = document()
    (one,) = content["deployments"]
    for pool in one["deployment"]["pools"]:
        pool["memory"] = None
    read, values = 0, itertools.cycle([None, "x", -1, [], {"a": 1}])
    top = [(content, key) for key in content if key != "deployments"]
    for holder, key in [*top, *places(content["deployments"]), *places(content["scenario"])]:
        kept, holder[key] = holder[key], copy.deepcopy(next(values))
        try:
            assert isinstance(load_plan(written(tmp_path, content)), Plan)
            read += 1
        except InputError as error:
            assert error.fix, error
        holder[key] = kept
    assert read > 0  # what follows from the rest is not read
