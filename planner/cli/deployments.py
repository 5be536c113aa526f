"""The commands about a given deployment: `evaluate` and `compare`, with the options that describe it."""
# ruff: noqa: D301, PLC0415 - a line of \b keeps the examples of a help text as written; imports are late on purpose

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import planner
from planner.cli.base import (
    SET_INSTEAD,
    Assignments,
    CalibrationFiles,
    JsonFile,
    T,
    check_outputs,
    check_picture,
    deliver,
    hardware_for,
    look_up,
    require_fleet,
    sku_called,
    takes,
)
from planner.core import InputError, json_text, plain, rebuilt, typed_lengths

if TYPE_CHECKING:
    from hardware_db import HardwareDb
    from planner.engine import ReplicaConfig
    from planner.fleet import PlanRequest
    from planner.serving import Deployment, Performance, Pool
    from planner.workload import Slo, Workload

MODES = ("mixed", "disaggregated")
NO_SCENARIO: Mapping[str, Any] = {
    "workload": {},
    "slo": [{"metric": "e2e", "percentile": 0.99, "threshold_s": 1e9}],
    "search": {"skus": ["any"]},
}
"""Fields that a scenario must have and a given deployment does not need."""


# --- options ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """A deployment, its traffic, the targets it is held against, if any, and what its plan pays [USD/GPU-hour]."""

    deployment: Deployment
    workload: Workload
    slo: Slo | None
    usd_per_gpu_hour: float | None = None


@dataclass(frozen=True, kw_only=True)
class DeploymentOptions:
    """A deployment and its traffic as the command line describes them, one field for each option.

    Model, formats, traffic and targets that are not given are those of the scenario.
    """

    sku: str | None
    scenario: str | None = None
    llm: str | None = None
    weights: str | None = None
    activations: str | None = None
    kv: str | None = None
    rate: float | None = None
    lengths: str | None = None
    scv: str | None = None
    mode: str = MODES[0]
    tp: int = 1
    replicas: int = 1
    prefill_sku: str | None = None
    prefill_tp: int | None = None
    prefill_replicas: int | None = None
    encoders: int = 0
    max_running_requests: int = 256
    max_batched_tokens: int = 8192
    max_request_tokens: int | None = None
    engine: str = "vllm"
    memory_fraction: float | None = None
    eager: bool | None = None
    router: str = "round_robin"
    schedule_order: str | None = None
    prefix_cache: bool | None = None
    arrivals: str | None = None
    concurrency: int | None = None
    think_time: float | None = None
    calibrations: CalibrationFiles = None
    assignments: Assignments = None
    uncalibrated: bool = False

    def request(self) -> PlanRequest:
        """Model, traffic and targets: those of the scenario, changed by what else is given. Raises InputError."""
        given = {text.partition("=")[0].strip() for text in self.assignments or ()}
        if self.scenario is None:
            for option, value in {"--llm": self.llm, **self._needed_traffic()}.items():
                if value is None and SET_INSTEAD[option] not in given:
                    fix = f"give it, --set {SET_INSTEAD[option]}=... or a scenario"
                    raise InputError(option, "(missing)", "is needed without a scenario", fix)
        assignments = self._traffic_fields() | ({} if self.llm is None else {"llm": self.llm})
        settings = {
            "max_request_tokens": self.max_request_tokens,
            "search.memory_fraction": self.memory_fraction,
            "search.eager": self.eager,
        }
        assignments |= {name: value for name, value in settings.items() if value is not None}
        changes = [f"{key}={json.dumps(value)}" for key, value in assignments.items()]
        changes += self.assignments or ()
        return planner.load_scenario(NO_SCENARIO if self.scenario is None else self.scenario, changes)

    def _needed_traffic(self) -> dict[str, object]:
        """Options that must be given without a scenario: a trace brings all, a closed loop has no rate."""
        if self.arrivals is not None:
            return {}
        rate = {} if self.concurrency is not None else {"--rate": self.rate}
        return {**rate, "--lengths": self.lengths}

    def _traffic_fields(self) -> dict[str, object]:
        """Fields of a scenario with what replaces them; those of other kinds of traffic are taken out."""
        fields: dict[str, object] = {}
        if self.arrivals is not None:
            fields = {"replay": str(Path(self.arrivals).absolute()), "rate_per_s": None}
            fields |= {"lengths": None, "classes": [], "scv": 1.0, "concurrency": None}
        if self.concurrency is not None:
            fields |= {"concurrency": self.concurrency, "rate_per_s": None, "scv": 1.0}
        if self.think_time is not None:
            fields["think_time_s"] = self.think_time
        if self.lengths is not None:
            fields |= {"lengths": _lengths(self.lengths), "classes": []}
        fields |= {key: value for key, value in (("rate_per_s", self.rate), ("scv", self.scv)) if value is not None}
        return {f"workload.{key}": value for key, value in fields.items()}

    def setting(self) -> Setting:
        """The deployment of these options, its traffic and targets. Raises InputError, UnknownNameError."""
        from planner.serving import Pool, Role, Router

        request = self.request()
        router = look_up("--router", self.router, {router.value: router for router in Router})
        schedule = self._schedule_changes(request)
        hardware = hardware_for(self.engine, self.calibrations)

        def config(option: str, name: str, tp: int) -> ReplicaConfig:
            return self._config(request, hardware, schedule, sku_called(option, name, hardware.skus).id, tp)

        def pool(role: Role, config: ReplicaConfig, replicas: int) -> Pool:
            if self.encoders and role is not Role.DECODE:
                config = rebuilt(config, encoders=self.encoders / replicas)
            return Pool(role=role, config=config, replicas=replicas, router=router)

        sku = self.sku or ""
        own = config("--sku", sku, self.tp)
        pools: tuple[Pool, ...]
        if look_up("--mode", self.mode, dict.fromkeys(MODES, self.mode)) == MODES[0]:
            self._refuse_prefill_options()
            pools = (pool(Role.MIXED, own, self.replicas),)
        else:
            prefill = config("--prefill-sku", _or(self.prefill_sku, sku), _or(self.prefill_tp, self.tp))
            prefills = _or(self.prefill_replicas, 1)
            pools = (pool(Role.PREFILL, prefill, prefills), pool(Role.DECODE, own, self.replicas))
        return Setting(planner.Deployment(pools=pools), request.workload, request.slo if self.scenario else None)

    def _config(
        self, request: PlanRequest, hardware: HardwareDb, schedule: Mapping[str, object], sku: str, tp: int
    ) -> ReplicaConfig:
        """One replica; `schedule` holds the fields of the engine's own schedule that are set otherwise."""
        from hardware_db import select_calibration
        from planner.engine import ReplicaConfig
        from planner.llm import Precision
        from planner.roofline import Parallelism

        formats = {"weights": self.weights, "activations": self.activations, "kv_cache": self.kv}
        given = {name: dtype for name, dtype in formats.items() if dtype is not None}
        is_for_it = self.memory_fraction is not None or self.engine in request.search.engines
        config = ReplicaConfig(
            llm=request.llm,
            sku=hardware.skus[sku],
            engine=look_up("--engine", self.engine, hardware.engines),
            precision=Precision(**{**request.precision.model_dump(), **given}),
            parallelism=Parallelism(tp=tp),
            max_request_tokens=request.max_request_tokens,
            max_running_requests=self.max_running_requests,
            max_batched_tokens=self.max_batched_tokens,
            memory_fraction=request.search.memory_fraction if is_for_it else None,
            calibration=None if self.uncalibrated else select_calibration(hardware, sku, self.engine),
        )
        return rebuilt(config, own_schedule=config.schedule.model_copy(update=schedule)) if schedule else config

    def _schedule_changes(self, request: PlanRequest) -> dict[str, object]:
        """Fields of the engine's schedule that options, the scenario, or prefixes in the traffic set otherwise."""
        from planner.engine import Order
        from planner.search import may_share_prefixes

        caches = may_share_prefixes(request.workload) or None if self.prefix_cache is None else self.prefix_cache
        changes: dict[str, object] = {} if caches is None else {"prefix_cache": caches}
        if request.search.eager:
            changes["captured_decodes"] = 0
        if self.schedule_order is not None:
            orders = {order.value: order for order in Order}
            changes["order"] = look_up("--schedule-order", self.schedule_order, orders)
        return changes

    def _refuse_prefill_options(self) -> None:
        for name in ("prefill_sku", "prefill_tp", "prefill_replicas"):
            if (value := getattr(self, name)) is not None:
                option = f"--{name.replace('_', '-')}"
                raise InputError(option, value, "only a disaggregated deployment has it", "add --mode disaggregated")


def _lengths(text: str) -> str | dict[str, int] | dict[str, str]:
    """Lengths as a scenario writes them: ``IN/OUT`` tokens, the path of a trace, or the name of a preset."""
    if constant := typed_lengths(text):
        return {"input_tokens": constant[0], "output_tokens": constant[1]}
    if text.endswith((".csv", ".gz")):
        return {"trace": str(Path(text).absolute())}
    return text


def _or(value: T | None, default: T) -> T:
    return default if value is None else value


# --- one deployment ---------------------------------------------------------------------------------------------------


@takes(DeploymentOptions)
def evaluate(
    options: DeploymentOptions,
    simulate: bool = False,
    seed: int | None = None,
    requests: int | None = None,
    json_file: JsonFile = None,
) -> None:
    """Predict the latencies of a given deployment from theory, or simulate it.

    \b
    planner evaluate --llm llama-3.1-8b --sku h100-sxm --rate 5 --lengths 1000/200
    planner evaluate --llm llama-3.1-8b --sku h100-sxm --rate 5 --lengths 1000/200 --simulate --requests 2000 --seed 1
    planner evaluate --scenario chat-llama-70b --sku h100-sxm --tp 4 --replicas 10
    planner evaluate --scenario chat-llama-70b --mode disaggregated --sku h200-sxm --tp 2 --replicas 6
            --prefill-sku h100-sxm --prefill-tp 2 --prefill-replicas 12
    planner evaluate --llm llama-3.1-8b --sku h100-sxm --concurrency 32 --lengths 1000/200
    planner evaluate --llm llama-3.1-8b --sku h100-sxm --replicas 4 --arrivals trace.csv --rate 20
    planner evaluate --llm llama-3.1-8b --sku h100-sxm --replicas 4 --rate 20 --lengths 1000/200
            --simulate --requests 2000 --router least_requests --schedule-order shortest_first

    Formats that are not given are those of the scenario, or else of the checkpoint.
    """
    setting = options.setting()
    check_outputs(json_file)
    if not simulate:
        for option, value in (("--seed", seed), ("--requests", requests)):
            if value is not None:
                raise InputError(option, value, "only a simulation has it", "add --simulate")
        _deliver_performance(setting, planner.evaluate(setting.deployment, setting.workload), json_file)
        return
    from planner.report import terminal
    from planner.simulator import DEFAULT_REQUESTS
    from planner.workload import ClosedLoop, RecordedArrivals, Workload

    workload, arrivals = setting.workload, setting.workload.arrivals
    if isinstance(arrivals, ClosedLoop):
        arrivals = arrivals if requests is None else rebuilt(arrivals, requests=requests)
        workload, count = Workload(arrivals=arrivals, classes=workload.classes), arrivals.total_requests
    else:
        usual = len(arrivals.times_s) if isinstance(arrivals, RecordedArrivals) else DEFAULT_REQUESTS
        count = usual if requests is None else requests
    with terminal.bar(f"simulating {count:,} requests") as say:
        performance = planner.simulate(setting.deployment, workload, seed=seed or 0, requests=requests, progress=say)
    _deliver_performance(setting, performance, json_file)


def _deliver_performance(setting: Setting, performance: Performance, json_file: str | None) -> None:
    from planner.report import evaluation_to_dict, performance_report

    deployment, workload, slo = setting.deployment, setting.workload, setting.slo
    deliver(
        lambda: performance_report(deployment, performance, slo),
        (json_file, lambda: json_text(evaluation_to_dict(deployment, workload, performance, slo))),
    )


# --- systems side by side ---------------------------------------------------------------------------------------------


@takes(
    DeploymentOptions,
    without=(
        *("mode", "prefill_sku", "prefill_tp", "prefill_replicas"),
        *(option.removeprefix("--").replace("-", "_") for option in SET_INSTEAD),
    ),
    sku=None,
    scenario=None,
)
def compare(
    options: DeploymentOptions,
    systems: str | None = None,
    seed: int = 0,
    requests: int | None = None,
    rates: str | None = None,
    sustain: bool = False,
    theory: bool = False,
    price: float | None = None,
    list_systems: bool = False,
    csv_file: str | None = None,
    plot: str | None = None,
    json_file: JsonFile = None,
) -> None:
    """Compare serving systems of the literature on the same GPUs and traffic.

    \b
    planner compare chat-llama-70b --sku h100-sxm --tp 4 --replicas 4 --set workload.rate_per_s=8
    planner compare --sku h100-sxm --replicas 2 --set llm=llama-3.1-8b --set workload.rate_per_s=10
            --set workload.lengths=azure-2023-conv --systems static,orca,vllm,sarathi --requests 500 --plot compare.html
    planner compare --list      every system, with who described it

    Each system uses the same GPUs, gets the same requests, and is judged by theory and simulation. Without --sku the
    cheapest mixed fleet of the scenario is planned first; exit code 3: there is none.
    """
    from planner.analysis import DEFAULT_SYSTEMS, SYSTEMS, chosen_systems
    from planner.core import Report
    from planner.report import comparison as comparison_report
    from planner.report import terminal

    setting = None if options.sku is None else options.setting()
    request = options.request() if setting is None and options.scenario is not None else None
    if list_systems:
        from planner.cli.terminal import show

        show(Report("", (comparison_report.system_table(),)))
        return
    check_outputs(json_file, csv_file)
    check_picture(plot)
    names = DEFAULT_SYSTEMS if systems is None else _names(systems, tuple(SYSTEMS))
    chosen_systems(names)
    with terminal.progress() as say:
        setting = setting or _planned_setting(request, say)
        comparison = planner.compare(
            setting.deployment,
            setting.workload,
            setting.slo,
            names,
            seed=seed,
            requests=requests,
            usd_per_gpu_hour=setting.usd_per_gpu_hour if price is None else price,
            rates=_rates(rates),
            sustain=sustain,
            simulated=not theory,
            progress=say,
        )

    def charts_page() -> str:
        from planner.charts import systems as charts

        return charts.comparison_page(comparison)

    deliver(
        lambda: comparison_report.report(comparison),
        (json_file, lambda: json_text(plain(comparison_report.comparison_document(comparison)))),
        (csv_file, lambda: comparison_report.csv_text(comparison)),
        (plot, charts_page),
    )


def _names(text: str, every: tuple[str, ...]) -> tuple[str, ...]:
    return every if text.strip() == "all" else tuple(name.strip() for name in text.split(",") if name.strip())


def _rates(text: str | None) -> tuple[float, ...]:
    if text is None:
        return ()
    try:
        return tuple(float(number) for number in text.split(","))
    except ValueError:
        raise InputError("--rates", text, "must be numbers with commas between", "write e.g. 2,4,8") from None


def _planned_setting(request: PlanRequest | None, say: Callable[[str], None]) -> Setting:
    """The cheapest mixed fleet of a scenario; where there is none, its diagnosis is printed and the command ends."""
    from planner.analysis import mixed_plan

    if request is None:
        raise InputError("--sku", "(missing)", "is needed without a scenario", "give --sku or a scenario")
    result = mixed_plan(request, progress=say)
    require_fleet(result)
    first = result.deployments[0]
    return Setting(first.deployment, first.workload, request.slo, first.usd_per_hour / first.deployment.gpus or None)
