"""Options that describe a deployment and its traffic, for the commands that predict, simulate and compare."""
# ruff: noqa: PLC0415 - imports are late on purpose

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import planner
from planner.cli.base import CalibrationFiles, T, hardware_for, known
from planner.cli.completion import complete_llm, complete_scenario, complete_sku
from planner.core import InputError

if TYPE_CHECKING:
    from planner.engine import ReplicaConfig
    from planner.fleet import PlanRequest
    from planner.serving import Deployment
    from planner.workload import Slo, Workload

MODES = ("mixed", "disaggregated")
NO_SCENARIO: Mapping[str, Any] = {
    "workload": {},
    "slo": [{"metric": "e2e", "percentile": 0.99, "threshold_s": 1e9}],
    "search": {"skus": ["any"]},
}
"""What a scenario must have and a given deployment does not need."""


@dataclass(frozen=True)
class Setting:
    """A deployment, its traffic, and the targets it is held against, if any."""

    deployment: Deployment
    workload: Workload
    slo: Slo | None


@dataclass(frozen=True)
class Subject:
    """What is compared on: a setting, or a request whose mixed fleet has to be planned first."""

    setting: Setting | None = None
    request: PlanRequest | None = None


def _setting(
    *,
    sku: Annotated[
        str, typer.Option(help="GPU of the mixed pool, or of the decode pool.", autocompletion=complete_sku)
    ],
    scenario: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Take model, formats, traffic and targets from it.",
            autocompletion=complete_scenario,
        ),
    ] = None,
    llm: Annotated[
        str | None, typer.Option(help="Preset id, config.json or its folder.", autocompletion=complete_llm)
    ] = None,
    weights: Annotated[str | None, typer.Option(metavar="DTYPE", help="bf16, fp8, int4, ...")] = None,
    activations: Annotated[str | None, typer.Option(metavar="DTYPE", help="Format that matrices multiply in.")] = None,
    kv: Annotated[str | None, typer.Option(metavar="DTYPE", help="Format of the KV cache.")] = None,
    rate: Annotated[float | None, typer.Option(help="Mean arrivals [requests/s].")] = None,
    lengths: Annotated[
        str | None, typer.Option(help="Tokens as IN/OUT such as 1000/200, a preset, or a trace (CSV).")
    ] = None,
    scv: Annotated[str | None, typer.Option(help="SCV of the gaps between arrivals (1: Poisson), or a preset.")] = None,
    mode: Annotated[str, typer.Option(help="mixed or disaggregated.")] = MODES[0],
    tp: Annotated[int, typer.Option(help="GPUs per replica of that pool.")] = 1,
    replicas: Annotated[int, typer.Option(help="Replicas of that pool.")] = 1,
    prefill_sku: Annotated[
        str | None, typer.Option(help="GPU of the prefill pool (default: --sku).", autocompletion=complete_sku)
    ] = None,
    prefill_tp: Annotated[int | None, typer.Option(help="GPUs per prefill replica (default: --tp).")] = None,
    prefill_replicas: Annotated[int | None, typer.Option(help="Prefill replicas (default: 1).")] = None,
    max_running_requests: Annotated[int, typer.Option(help="Per replica; vLLM's max_num_seqs.")] = 256,
    max_batched_tokens: Annotated[int, typer.Option(help="Chunk budget; vLLM's max_num_batched_tokens.")] = 8192,
    engine: Annotated[str, typer.Option(help="Engine profile.")] = "vllm",
    router: Annotated[
        str, typer.Option(help="round_robin, random, power_of_two, least_requests, least_tokens or prefix_affinity.")
    ] = "round_robin",
    schedule_order: Annotated[
        str | None, typer.Option(metavar="ORDER", help="fcfs, shortest_first, priority or fair_share.")
    ] = None,
    prefix_cache: Annotated[
        bool | None,
        typer.Option("--prefix-cache/--no-prefix-cache", help="Keep shared prefixes in the KV cache (default: off)."),
    ] = None,
    arrivals: Annotated[
        str | None, typer.Option(metavar="FILE", help="Replay this trace (CSV), rescaled to --rate if given.")
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(help="Users in a closed loop, in place of an arrival rate.")
    ] = None,
    calibrations: CalibrationFiles = None,
    uncalibrated: Annotated[bool, typer.Option("--uncalibrated", help="Datasheet rooflines: a bound.")] = False,
) -> Setting:
    """What the options describe; model, formats and traffic that are not given come from the scenario."""
    from hardware_db import select_calibration
    from planner.engine import ReplicaConfig
    from planner.llm import Precision
    from planner.roofline import Parallelism
    from planner.serving import Pool, Role, Router
    from planner.systems import reconfigured

    request = _request(scenario, llm, Traffic(rate, lengths, scv, arrivals, concurrency))
    served = known("--router", router, {one.value: one for one in Router})
    schedule = _schedule_changes(schedule_order, prefix_cache)
    formats = {"weights": weights, "activations": activations, "kv_cache": kv}
    given = {name: dtype for name, dtype in formats.items() if dtype is not None}
    precision = Precision(**{**request.precision.model_dump(), **given})
    hardware = hardware_for(engine, calibrations or (), None)

    def config(option: str, name: str, gpus: int) -> ReplicaConfig:
        found = ReplicaConfig(
            llm=request.llm,
            sku=known(option, name, hardware.skus),
            engine=known("--engine", engine, hardware.engines),
            precision=precision,
            parallelism=Parallelism(tp=gpus),
            max_running_requests=max_running_requests,
            max_batched_tokens=max_batched_tokens,
            calibration=None if uncalibrated else select_calibration(hardware, name, engine),
        )
        if not schedule:
            return found
        return reconfigured(found, own_schedule=found.schedule.model_copy(update=schedule))

    pool = config("--sku", sku, tp)
    if known("--mode", mode, dict.fromkeys(MODES, mode)) == MODES[0]:
        _refuse({"--prefill-sku": prefill_sku, "--prefill-tp": prefill_tp, "--prefill-replicas": prefill_replicas})
        pools: tuple[Pool, ...] = (Pool(role=Role.MIXED, config=pool, replicas=replicas, router=served),)
    else:
        first = config("--prefill-sku", _or(prefill_sku, sku), _or(prefill_tp, tp))
        pools = (
            Pool(role=Role.PREFILL, config=first, replicas=_or(prefill_replicas, 1), router=served),
            Pool(role=Role.DECODE, config=pool, replicas=replicas, router=served),
        )
    return Setting(planner.Deployment(pools=pools), request.workload, request.slo if scenario else None)


def _schedule_changes(order: str | None, prefix_cache: bool | None) -> dict[str, object]:
    """Fields of the engine's schedule that options set otherwise."""
    from planner.engine import Order

    changes: dict[str, object] = {} if prefix_cache is None else {"prefix_cache": prefix_cache}
    if order is not None:
        changes["order"] = known("--schedule-order", order, {one.value: one for one in Order})
    return changes


@dataclass(frozen=True)
class Traffic:
    """What the options say about arrivals and lengths; None where they are silent."""

    rate: float | None
    lengths: str | None
    scv: str | None
    arrivals: str | None
    concurrency: int | None

    @property
    def needed(self) -> dict[str, object]:
        """Options that must be given without a scenario: a trace brings all, a closed loop has no rate."""
        if self.arrivals is not None:
            return {}
        rate = {} if self.concurrency is not None else {"--rate": self.rate}
        return {**rate, "--lengths": self.lengths}

    @property
    def assignments(self) -> dict[str, object]:
        """Fields of a scenario with what replaces them; those of other kinds of traffic are taken out."""
        found: dict[str, object] = {}
        if self.arrivals is not None:
            found = {"replay": str(Path(self.arrivals).absolute()), "rate_per_s": None}
            found |= {"lengths": None, "classes": [], "scv": 1.0, "concurrency": None}
        if self.concurrency is not None:
            found |= {"concurrency": self.concurrency, "rate_per_s": None, "scv": 1.0}
        if self.lengths is not None:
            found |= {"lengths": _lengths(self.lengths), "classes": []}
        found |= {key: value for key, value in (("rate_per_s", self.rate), ("scv", self.scv)) if value is not None}
        return {f"workload.{key}": value for key, value in found.items()}


def _request(scenario: str | None, llm: str | None, traffic: Traffic) -> PlanRequest:
    """Model, traffic and targets: those of the scenario, changed by what else is given."""
    if scenario is None:
        for option, value in {"--llm": llm, **traffic.needed}.items():
            if value is None:
                raise InputError(option, "(missing)", "is needed without a scenario", f"give {option} or --scenario")
    assignments = traffic.assignments | ({} if llm is None else {"llm": llm})
    changes = [f"{key}={json.dumps(value)}" for key, value in assignments.items()]
    return planner.load_scenario(NO_SCENARIO if scenario is None else scenario, changes)


def _lengths(text: str) -> str | dict[str, int] | dict[str, str]:
    """Lengths as a scenario writes them: ``IN/OUT`` tokens, the path of a trace, or the name of a preset."""
    constant = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text)
    if constant:
        return {"input_tokens": int(constant[1]), "output_tokens": int(constant[2])}
    if text.endswith((".csv", ".gz")):
        return {"trace": str(Path(text).absolute())}
    return text


def _refuse(given: Mapping[str, object]) -> None:
    for option, value in given.items():
        if value is not None:
            raise InputError(option, value, "only a disaggregated deployment has it", "add --mode disaggregated")


def _or(value: T | None, default: T) -> T:
    return default if value is None else value


OF_TWO_POOLS = ("mode", "prefill_sku", "prefill_tp", "prefill_replicas")
"""Options that only make sense where pools may be given apart."""


def of_a_deployment(command: Callable[..., None]) -> Callable[..., None]:
    """A command with the options of `_setting` before its own; what they describe is its first argument.

    Typer reads options off a signature, so two signatures are joined instead of being written out in every command.
    """
    return _joined(command, dict(inspect.signature(_setting, eval_str=True).parameters), _setting)


def of_a_mixed_pool(command: Callable[..., None]) -> Callable[..., None]:
    """The same for a command that starts from a mixed pool; the scenario is its argument, and a SKU is optional."""
    shared = dict(inspect.signature(_setting, eval_str=True).parameters)
    for name in OF_TWO_POOLS:
        del shared[name]
    named = Annotated[str | None, typer.Argument(help="Name of a packaged scenario, or path of a YAML file.")]
    sku = Annotated[str | None, typer.Option(help="GPU of the pool; without it the pool is planned.")]
    shared["scenario"] = shared["scenario"].replace(annotation=named)
    shared["sku"] = shared["sku"].replace(annotation=sku, default=None)
    ordered = {"scenario": shared.pop("scenario"), **shared}

    def described(**given: Any) -> Subject:  # noqa: ANN401
        if given["sku"] is not None:
            return Subject(setting=_setting(**given))
        traffic = Traffic(*(given[name] for name in ("rate", "lengths", "scv", "arrivals", "concurrency")))
        if given["scenario"] is None:
            return Subject()
        return Subject(request=_request(given["scenario"], given["llm"], traffic))

    return _joined(command, ordered, described)


def _joined(
    command: Callable[..., None],
    shared: Mapping[str, inspect.Parameter],
    described: Callable[..., Setting | Subject],
) -> Callable[..., None]:
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    joined = [*shared.values(), *(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own)]

    def run(**given: Any) -> None:  # noqa: ANN401
        setting = described(**{name: given.pop(name) for name in shared})
        command(setting, **given)

    run.__signature__ = inspect.Signature(joined)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in joined}
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    return run
