"""Measured serving points: what a benchmark ran and what it measured, read from CSV.

A point is one run of a benchmark client against a server (or against prefill and decode servers): model, GPUs, engine
settings, lengths, concurrency (or a request rate), and the measured mean TTFT and TPOT. Columns are described in
docs/studies/accuracy.md; anyone can bring a file with them. Beside ``NAME.csv`` two more are read where they exist:
``NAME_settings.csv`` (per point: which settings it ran with, true parallelism, whether it repeats another row) and
``serving_settings.csv`` (per settings: how server and client were started). Values there go before those of the point.

A setting that a file does not state keeps the engine's default and is named in `ServingPoint.unknown`.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple, TypeVar

from pydantic import Field

from calibration.serving.server_flags import NO_GRAPHS, settings_of_flags
from hardware_db import Dtype, EngineProfile, StartLimits, load_hardware, sku_id
from planner.core import Frozen, InputError, Metric
from planner.engine import LEAST_BATCHED_TOKENS, Schedule
from planner.roofline import Parallelism

Row = Mapping[str, str]

MAX_FILE_BYTES = 100_000_000
"""Largest CSV that is read."""
MAX_CELL = 2000
"""Most characters of a cell: settings are searched for phrases, which takes the square of their length."""
MAX_SHOWN = 40
"""Most characters of a name that an error repeats."""
REQUIRED_COLUMNS = ("engine", "model", "sku", "input_tokens", "output_tokens")
"""Columns without which no row can be read."""
MAX_DIGITS = 15
"""Most digits of a whole number: more is no count of anything here."""

STAND_INS = {"atom": ("sglang", StartLimits(max_running_requests=512, max_batched_tokens=16384))}
"""Engine without a record -> the engine whose record stands in, and the limits that it starts with itself. AMD's ATOM
runs the same kernels as SGLang does on AMD's GPUs (AITER), and its steps hold prompts or decodes, too
(atom/model_engine/scheduler.py and config.py of github.com/ROCm/ATOM)."""
ENGINE_ALIASES = {"trtllm": "tensorrt-llm", "trt": "tensorrt-llm", "trt-llm": "tensorrt-llm"}
"""Names of engines in the same tables and here."""
ENGINE_WRAPPING = re.compile(r"^(?:dynamo|mori|nim)-|-(?:disagg|disaggregated|agg|rocm|mtp|native|oai|chat)$")
"""Words around an engine's name in tables: the router before it, how it is deployed or asked. The engine loop is its
own."""
NO_VALUE = frozenset({"nan", "NaN", "None", "null", "N/A", "n/a", "<NA>", "-", "?", "unknown"})
"""Cells that say nothing: as other tools write a blank."""
FIGURE_COLUMN = re.compile(r"(mean|median|p\d\d(?:\.\d+)?)_(ttft|tpot|itl|e2el?)_ms")
"""Columns of further figures of a run's requests, as benchmark clients name them."""
NO_SPECULATION = frozenset({"", "none", "no", "off", "false", "0"})
OWN_SPECULATION = frozenset({"mtp", "nextn", "eagle", "true", "yes", "on"})
"""Speculation with the multi-token-prediction module of the model itself (SGLang runs it as EAGLE)."""
UNSTATED_ROOM_TOKENS = 1500
"""Tokens that a step of TensorRT-LLM has room for beside a whole prompt and all decodes where its token limit is not
stated: what AIConfigurator writes, whose authors made the reference runs that state none (max_num_tokens of
src/aiconfigurator/generator/rule_plugin/trtllm.rule, github.com/ai-dynamo/aiconfigurator)."""
UNSTATED_PREFILL_TOKENS = 65_536
"""Chunk budget of a prefill server where none is stated: one of those stated for disaggregated SGLang servers."""
UNSTATED_LENGTH_SPREAD = 0.2
"""Lengths of a client that is not described lie within this share of the nominal: without any spread all users would
send their prompts in lockstep for ever. A choice."""
LIMITS_PER_RANK = ("vllm", "tensorrt-llm")
"""Engines whose stated limits are those of one attention rank; SGLang divides its limits among the ranks."""
FROM_ONE = 0.001
"""Range ratios up to here mean lengths from 1 on: SGLang's bench_serving, whose default is 0."""
SGLANG_SEED = 1
"""Of the lengths that client draws, inputs first, then outputs (``--seed`` of python/sglang/bench_serving.py): totals
in github.com/sgl-project/sgl-cookbook are those of this seed to the token. Its runs repeat the prompts of the ones
before on the same server, so that some are in the prefix cache."""
IN_CACHE = "prompts that the prefix cache holds"
BALANCE_TIMEOUT_STEPS = 50
"""Steps that TensorRT-LLM waits for a prompt on every attention rank (`AttentionDpConfig.timeout_iters`)."""
ONE_SERVER = "AIConfigurator"
"""In the source of settings: its benchmark sends all loads to one server, each after 2 x concurrency requests
(backend_templates/benchmark/bench_run.sh.j2 of its generator, github.com/ai-dynamo/aiconfigurator). TensorRT-LLM's runs
of that source are such; SGLang's have one load for each set-up."""
RAN_IN_16_BITS = frozenset({"llama70b-h100-vllm-fp8"})
"""Settings whose flags ask for a KV cache of 8 bits and whose runs show one of 16: on two H100, 32 and 64 users alike
have 30 requests of 7,800 tokens running (Little's law), 232,000 tokens, where 16 bits leave room for 231,000 and 8 bits
for twice as many; TTFT and TPOT of all 30 runs follow (vLLM 0.10.2; the same flags on H200 and B200 are what ran)."""
MOST_FRONTENDS = 10
"""Frontends that srt-slurm, which started the disaggregated runs of InferenceX, puts behind nginx where nothing is said
(``num_additional_frontends`` 9, src/srtctl/core/schema.py, github.com/NVIDIA/srt-slurm)."""
EVERY_STEP_TOKENS = 2**20
"""More tokens than any step holds."""
COLD = "1 test request"
"""How settings say that a server was not warmed up."""


class WorkerSettings(Frozen):
    """One server: how it is split and what it may hold."""

    workers: int = Field(default=1, ge=1, description="servers alike")
    parallelism: Parallelism = Parallelism()
    max_batched_tokens: int = Field(ge=16)
    max_running_requests: int = Field(ge=1)
    memory_fraction: float | None = Field(default=None, gt=0, le=1, description="as the engine reads it")


class Statistic(StrEnum):
    """Which number stands for a run's requests."""

    MEAN = "mean"
    MEDIAN = "median"


class MeasuredFigure(Frozen):
    """Another number that a run's requests were summed up by, beside its TTFT and its TPOT."""

    metric: Metric
    percentile: float | None = Field(default=None, gt=0, lt=1, description="null: the mean")
    value_s: float = Field(gt=0)

    @property
    def name(self) -> str:
        """Metric and statistic in words.

        >>> MeasuredFigure(metric="e2e", percentile=0.99, value_s=2.0).name
        'E2E p99'
        """
        return f"{self.metric.value.upper()} {'mean' if self.percentile is None else f'p{100 * self.percentile:g}'}"


class MeasuredRun(Frozen):
    """Measured times, and what they are of: the part of a row that can be shown even where the rest cannot be read."""

    id: str
    engine: str
    model: str
    sku: str
    precision: str
    statistic: Statistic = Field(default=Statistic.MEAN, description="of a run's requests that the two times are")
    mean_ttft_s: float | None = Field(default=None, gt=0)
    mean_tpot_s: float | None = Field(default=None, gt=0)
    figures: tuple[MeasuredFigure, ...] = Field(default=(), description="further percentiles and means")
    measured_on: str = ""
    settings_id: str = ""

    @property
    def group(self) -> tuple[str, str]:
        """Model and SKU: the unit that is fitted to, or held out, as a whole."""
        return self.model, self.sku


class RefusedRun(MeasuredRun):
    """A row that cannot be read: there is no prediction for it, and `reason` says why."""

    disaggregated: bool = False
    reason: str


class ServingPoint(MeasuredRun):
    """One measured run, with all that it takes to play it again."""

    quantisation: str = ""
    kv_cache: Dtype
    input_tokens: int = Field(ge=1, description="nominal; drawn uniformly from range_ratio to range_top times this")
    output_tokens: int = Field(ge=1)
    range_ratio: float = Field(ge=0.0, le=1.0, description="0: from 1 token on")
    seed: int = Field(default=0, ge=0, description="of the client's lengths")
    range_top: float = Field(default=1.0, ge=1.0, le=2.0, description="largest length drawn / nominal")
    concurrency: int = Field(ge=1)
    requests: int = Field(ge=1)
    request_rate_per_s: float | None = Field(default=None, gt=0, description="open loop, in place of the concurrency")
    arrival_scv: float = Field(default=1.0, ge=0, description="of the gaps between requests of an open loop")
    ramp_s: float = Field(default=0.0, ge=0, description="the users' starts are spread over it")
    drawn_inputs: tuple[int, ...] = Field(default=(), description="input tokens of each request, where they are known")
    drawn_outputs: tuple[int, ...] = ()
    servers: tuple[WorkerSettings, ...] = Field(min_length=1, max_length=2, description="mixed; or prefill and decode")
    schedule: Schedule
    draft_tokens: int = Field(default=0, ge=0)
    tokens_per_step: float | None = Field(default=None, gt=1, description="with speculation: mean acceptance length")
    cold: bool = Field(default=False, description="its server had answered a single request before")
    routers: int = Field(default=1, ge=1, le=1024, description="side by side, each of which takes turns by itself")
    warmup_requests: int | None = Field(default=None, ge=0, description="answered before; null: nobody says")
    fresh: bool = Field(default=True, description="its server was started for it; else it had served other loads")
    checkpoint: str = Field(default="", description="its name on the Hugging Face Hub, where it is stated")
    moe_backend: str = Field(default="", description="kernels of the routed experts, where they are stated")
    unknown: tuple[str, ...] = ()

    @property
    def disaggregated(self) -> bool:
        """True if prefill and decode ran on servers of their own."""
        return len(self.servers) == 2

    @property
    def mean_output_tokens(self) -> float:
        """Mean output tokens of a request: of those drawn, else of the uniform distribution."""
        if self.drawn_outputs:
            return sum(self.drawn_outputs) / len(self.drawn_outputs)
        return self.output_tokens * (self.range_top + self.range_ratio) / 2.0

    @property
    def gpus(self) -> int:
        """GPUs of all servers."""
        return sum(server.workers * server.parallelism.gpus for server in self.servers)


def read_serving_runs(path: str | Path, repeats: bool = False) -> tuple[ServingPoint | RefusedRun, ...]:
    """Runs of a CSV file and the settings beside it, in order. `repeats`: also rows that repeat another row's run.

    A cell of a row that cannot be read refuses that row alone. One of its settings counts as not stated: the point's
    own value holds, else the engine's default, and `ServingPoint.unknown` names it.

    Raises InputError for a file that cannot be read or lacks one of `REQUIRED_COLUMNS`.
    """
    place = Path(path)
    rows = _rows(place)
    if not rows:
        raise InputError("points", place.name, "has no rows", "give a CSV file with a header and measured points")
    missing = [name for name in REQUIRED_COLUMNS if name not in rows[0]]
    if missing:
        raise InputError("points", place.name, f"has no column {missing[0]}", "add it to the header, and its cells")
    links = {
        row.get("source_id", ""): row for row in _rows(place.with_name(f"{place.stem}_settings.csv"), optional=True)
    }
    settings = {
        row.get("settings_id", ""): row for row in _rows(place.with_name("serving_settings.csv"), optional=True)
    }
    configurations = _rows(place.with_name(f"{place.stem.removesuffix('_points')}_settings.csv"), optional=True)
    runs: list[ServingPoint | RefusedRun] = []
    for row in rows:
        link = links.get(row.get("source_id", ""), {})
        if link.get("same_run_as") and not repeats:
            continue
        own = settings.get(link.get("settings_id", ""), {}) or settings_of_flags(row, configurations)
        runs.append(run_of(row, link, own))
    return tuple(runs)


def _rows(path: Path, optional: bool = False) -> list[dict[str, str]]:
    if optional and not path.is_file():
        return []
    try:
        if not path.is_file():  # nor a FIFO or a device, which would never end
            raise FileNotFoundError
        if path.stat().st_size > MAX_FILE_BYTES:
            raise InputError("points", str(path), f"is larger than {MAX_FILE_BYTES} bytes", "split the file")
        with path.open(newline="", encoding="utf-8") as file:
            return [{key: _cell(value) for key, value in row.items() if key} for row in csv.DictReader(file)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError("points", str(path), f"cannot be read ({type(error).__name__})", "give a CSV file") from None


def _cell(text: str | None) -> str:
    """A cell as plain text, blank where it says nothing."""
    stripped = (text or "").strip()
    return "" if stripped in NO_VALUE else stripped


def run_of(row: Row, link: Row, settings: Row) -> ServingPoint | RefusedRun:
    """The run of a row, or why it cannot be read."""
    try:
        for source in (row, link):
            _check_cells(source)
        return _point_of(row, link, settings)
    except InputError as error:
        field = error.field.removeprefix("points.").removeprefix("servingpoint.")
        place = f"points[{row.get('source_id', '')[:MAX_SHOWN] or '?'}].{field}"
        reason = InputError(place, error.value, error.bound, error.fix or "correct the row")
    statistic = _statistic(row)
    return RefusedRun(
        **_labels(row, link),
        statistic=statistic,
        mean_ttft_s=_positive_milliseconds(row.get(f"{statistic}_ttft_ms", "")),
        mean_tpot_s=_positive_milliseconds(row.get(f"{statistic}_tpot_ms", "")),
        figures=_figures(row),
        disaggregated=_is_disaggregated(row, settings),
        reason=str(reason),
    )


def _check_cells(source: Row) -> None:
    """Raise InputError for a cell longer than `MAX_CELL`."""
    for key, cell in source.items():
        if len(cell) > MAX_CELL:
            bound = f"has {len(cell)} characters, more than {MAX_CELL}"
            raise InputError(f"points.{key[:MAX_SHOWN]}", cell, bound, "shorten the cell")


def _labels(row: Row, link: Row) -> dict[str, str]:
    """Engine, model, GPU and other labels of a row, under this project's names."""
    return {
        "id": row.get("source_id", "")[:MAX_CELL] or "?",
        "engine": engine_called(row.get("engine", ""))[:MAX_CELL],
        "model": row.get("model", "")[:MAX_CELL],
        "sku": sku_id(row.get("sku", "")[:MAX_CELL]),
        "precision": row.get("precision", "").lower()[:MAX_CELL],
        "measured_on": row.get("measured_on", "")[:MAX_CELL],
        "settings_id": link.get("settings_id", "")[:MAX_CELL],
    }


def engine_called(name: str) -> str:
    """Id of the engine that tables call by a name.

    >>> engine_called("dynamo-trt"), engine_called("SGLang")
    ('tensorrt-llm', 'sglang')
    """
    plain = name.lower().replace("_", "-")
    plain = ENGINE_WRAPPING.sub("", ENGINE_WRAPPING.sub("", plain))
    return ENGINE_ALIASES.get(plain, plain)


def _statistic(row: Row) -> Statistic:
    """The mean; the median of a row that has medians and no mean."""
    means, medians = ([row.get(f"{kind}_{time}_ms") for time in ("ttft", "tpot")] for kind in Statistic)
    return Statistic.MEDIAN if any(medians) and not any(means) else Statistic.MEAN


def _figures(row: Row) -> tuple[MeasuredFigure, ...]:
    """Means and percentiles of a row beside the two that `_statistic` names; cells that hold no time do not count."""
    found = []
    for column, text in row.items():
        named, value_s = FIGURE_COLUMN.fullmatch(column), _positive_milliseconds(text)
        if named is None or value_s is None or column in {f"{_statistic(row)}_{time}_ms" for time in ("ttft", "tpot")}:
            continue
        statistic, metric = named.groups()
        percentile = {"mean": None, "median": 0.5}.get(statistic, 0.0)
        if percentile == 0.0:
            percentile = float(statistic[1:]) / 100.0
        found.append(
            MeasuredFigure(
                metric=Metric(metric[:3] if metric == "e2el" else metric), percentile=percentile, value_s=value_s
            )
        )
    return tuple(sorted(found, key=lambda figure: (list(Metric).index(figure.metric), figure.percentile or 0.0)))


def _positive_milliseconds(text: str) -> float | None:
    """A time in milliseconds as seconds; None where it is not one."""
    try:
        value = float(text) / 1e3
    except ValueError:
        return None
    return value if 0.0 < value < math.inf else None


def leading_number(text: str, name: str = "number") -> int | None:
    """The whole number a text starts with: ``"8192 (default)"`` is 8192, ``"not set"`` is None.

    Raises InputError for a number that a word, a unit or a second number makes another one (``"8k"``, ``"256-512"``).

    >>> leading_number("32768 (chunked-prefill-size)"), leading_number("not set (engine default 1024)")
    (32768, None)
    >>> leading_number("8,192"), leading_number("8.0")
    (8192, 8)
    """
    match = re.match(r"\s*(?:chunked-prefill-size\s+)?(\d{1,3}(?:,\d{3})+|\d+)(?:\.0*)?(?![\d.])(.{0,40})", text)
    if match is None:
        if re.match(r"\s*\d", text):
            raise InputError(f"points.{name}", text, "must be a whole number", "correct the row")
        return None
    if re.match(r"\w|\s*(?:-|–|\.\.|to |or |/)\s*\d", match.group(2)):
        raise InputError(f"points.{name}", text, "is no single whole number", "write one number")
    return _whole_number(match.group(1).replace(",", ""))


def _whole_number(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise InputError("points", digits, f"is a number of more than {MAX_DIGITS} digits", "correct the row")
    return int(digits)


def leading_share(text: str, name: str = "share") -> float | None:
    """The share a text starts with: ``"0.85 (mem-fraction-static)"`` is 0.85, ``"90 %"`` 0.9, ``"not set"`` None.

    Raises InputError for anything else that starts with a digit, such as ``"0.8-0.9"``.

    >>> leading_share("0.85 (mem-fraction-static)"), leading_share("90 %"), leading_share("not set")
    (0.85, 0.9, None)
    """
    match = re.match(r"\s*(\d{0,3}\.\d{1,15}|\d{1,3})(?![\d.])\s*(%?)(?!\s*(?:-|–|to |or |/)\s*[\d.])", text)
    if match is None:
        if re.match(r"\s*[\d.]", text):
            raise InputError(f"points.{name}", text, "must be a share between 0 and 1", "write one number")
        return None
    share = float(match.group(1)) / (100.0 if match.group(2) else 1.0)
    if share > 1.0:
        raise InputError(f"points.{name}", text, "must be a share between 0 and 1", "write 0.85 or 85 %")
    return share


_Number = TypeVar("_Number", int, float)


class _Fields:
    """Typed access to one row, its link and its settings; later ones win, blanks do not."""

    def __init__(self, row: Row, link: Row, settings: Row) -> None:
        self.row, self.link = row, link
        self.settings = {name: cell for name, cell in settings.items() if len(cell) <= MAX_CELL}
        self.unknown = [f"{name[:MAX_SHOWN]} in words" for name in settings if name not in self.settings]

    def text(self, *names: str) -> str:
        """The first non-blank value of the names, looked up in settings, link, row."""
        for name in names:
            for source in (self.settings, self.link, self.row):
                if source.get(name):
                    return source[name]
        return ""

    def number(self, *names: str) -> int | None:
        """The whole number that the first of the names with one starts with, in the link before the row, or None."""
        for name in names:
            for source in (self.link, self.row):
                value = leading_number(source.get(name, ""), name)
                if value is not None:
                    return value
        return None

    def stated(self, name: str, read: Callable[[str, str], _Number | None] = leading_number) -> _Number | None:
        """The number of a name in settings, link or row, the first that states one, or None.

        Words of the settings in which none can be read are named as unknown. Raises InputError for those of the point.
        """
        for source in (self.settings, self.link, self.row):
            try:
                value = read(source.get(name, ""), name)
            except InputError:
                if source is not self.settings:
                    raise
                self.unknown.append(f"{name} in words")
                continue
            if value is not None:
                return value
        return None

    def required(self, name: str) -> str:
        """A value of the point's own row. Raises InputError when blank."""
        value = self.row.get(name, "")
        if not value:
            raise InputError(f"points.{name}", "(blank)", "every row needs it", "add it")
        return value

    def whole(self, name: str) -> int:
        """A whole number of the point's own row. Raises InputError."""
        value = leading_number(self.required(name), name)
        if value is None:
            raise InputError(f"points.{name}", self.row[name], "must be a whole number", "correct the row")
        return value


def _point_of(row: Row, link: Row, settings: Row) -> ServingPoint:
    fields, labels = _Fields(row, link, settings), _labels(row, link)
    engine = labels["engine"]
    for name in ("engine", "model", "sku"):
        fields.required(name)
    concurrency = fields.number("concurrency")
    if concurrency is None:  # some tables give the users of an attention rank only
        fields.unknown.append("concurrency")
        ranks = fields.number("attention_dp", "attention_dp_size") or 1
        concurrency = (fields.number("concurrency_per_attention_rank") or 1) * ranks
    dp = _attention_dp(fields, concurrency)
    draft, length = _draft_tokens(fields, dp), fields.text("acceptance_length")
    if draft and not length:
        fields.unknown.append("acceptance_length")
    client = _client_load(fields, concurrency)
    servers = _server_settings(fields, labels, concurrency, dp, draft)
    return ServingPoint(
        **labels,
        cold=COLD in fields.text("client_warmup"),
        warmup_requests=_warmup_requests(fields.text("client_warmup"), concurrency),
        routers=_routers(fields.text("router"), servers, labels["sku"]),
        fresh=client.seed != SGLANG_SEED
        and engine not in STAND_INS
        and (engine != "tensorrt-llm" or ONE_SERVER not in settings.get("source", "")),
        quantisation=f"{row.get('gemm_quant_mode', '')} {row.get('moe_quant_mode', '')}".strip(),
        kv_cache=_kv_cache(fields, engine),
        input_tokens=fields.whole("input_tokens"),
        output_tokens=fields.whole("output_tokens"),
        range_ratio=client.range_ratio,
        range_top=client.range_top,
        seed=client.seed,
        concurrency=concurrency,
        requests=client.requests,
        servers=servers,
        schedule=_schedule(fields, engine, concurrency, dp),
        draft_tokens=draft,
        tokens_per_step=_decimal("acceptance_length", length) if draft and length else None,
        statistic=_statistic(row),
        mean_ttft_s=_milliseconds(row, f"{_statistic(row)}_ttft_ms"),
        mean_tpot_s=_milliseconds(row, f"{_statistic(row)}_tpot_ms"),
        figures=_figures(row),
        checkpoint=fields.text("checkpoint"),
        moe_backend=fields.text("moe_backend"),
        unknown=tuple(fields.unknown),
    )


def _warmup_requests(text: str, concurrency: int) -> int | None:
    """Requests before a run.

    >>> _warmup_requests("a run of 2 x concurrency requests at 250 requests/s", 8), _warmup_requests("", 8)
    (16, None)
    """
    times = re.search(r"(\d+) x concurrency", text)
    return _whole_number(times.group(1)) * concurrency if times else 1 if COLD in text else None


def _routers(text: str, servers: Sequence[WorkerSettings], sku: str) -> int:
    """Frontends behind nginx: one on every server but the first, and no more than `MOST_FRONTENDS`.

    nginx runs a process for each core, and each takes turns by itself, so that a request meets any of them.
    """
    stated = re.search(r"frontends \(1 \+ (\d+)\)", text)
    if stated or "several frontends" not in text:
        return 1 + _whole_number(stated.group(1)) if stated else 1
    node = load_hardware().skus[sku].node.gpus if sku in load_hardware().skus else 8
    return max(1, min(MOST_FRONTENDS, sum(one.workers * -(-one.parallelism.gpus // node) for one in servers) - 1))


def _decimal(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"points.{name}", text, "must be a number", "correct the row") from None


def _milliseconds(row: Row, name: str) -> float | None:
    """A column in milliseconds as seconds; None when blank."""
    text = row.get(name, "")
    return _decimal(name, text) / 1e3 if text else None


def _attention_dp(fields: _Fields, concurrency: int) -> int:
    """Attention ranks of a mixed server: the true value where stated, else a rule of the settings, else the row."""
    true = fields.number("attention_dp")
    if true is not None:
        return true
    rule = fields.settings.get("attention_dp", "")
    match = re.match(r"(\d+) for (\d+)/(\d+) with concurrency > (\d+)", rule)
    if match:
        ranks, isl, osl, least = map(_whole_number, match.groups())
        at = (fields.whole("input_tokens"), fields.whole("output_tokens"))
        return ranks if at == (isl, osl) and concurrency > least else 1
    return fields.number("attention_dp_size") or 1


def _draft_tokens(fields: _Fields, dp: int) -> int:
    """Draft tokens per step, 0 without speculation: the first number, or the one ``with attention DP``."""
    kind = (fields.link.get("speculative") or fields.row.get("speculative", "")).lower()
    if kind in NO_SPECULATION:
        return 0
    if kind not in OWN_SPECULATION:
        bound = "drafts of another kind than the model's own multi-token prediction are not modelled"
        raise InputError("points.speculative", kind, bound, "leave the row out, or write none or mtp")
    text = fields.text("speculative_tokens")
    with_dp = re.search(r"(\d+) with attention DP", text)
    if dp > 1 and with_dp:
        return _whole_number(with_dp.group(1))
    return fields.stated("speculative_tokens") or 1


class _ClientLoad(NamedTuple):
    """Number of requests; shortest and longest length drawn over the nominal one; seed of the generator."""

    requests: int
    range_ratio: float
    range_top: float = 1.0
    seed: int = 0


def _client_load(fields: _Fields, concurrency: int) -> _ClientLoad:
    requests, ratio = _requests(fields, concurrency), fields.stated("client_range_ratio", leading_share)
    if ratio is not None and ratio <= FROM_ONE:
        if not fields.text("prefix_caching").startswith("off"):
            fields.unknown.append(IN_CACHE)
        return _ClientLoad(requests, 0.0, seed=SGLANG_SEED)
    if ratio is not None:
        return _ClientLoad(requests, ratio)
    if "client_requests" not in fields.unknown:
        return _ClientLoad(requests, 1.0)
    fields.unknown.append("client_range_ratio")
    return _ClientLoad(requests, 1.0 - UNSTATED_LENGTH_SPREAD, 1.0 + UNSTATED_LENGTH_SPREAD)


def _requests(fields: _Fields, concurrency: int) -> int:
    text, output = fields.text("client_requests"), fields.whole("output_tokens")
    by_output = re.search(rf"output {output}: (\d+) x concurrency", text)
    capped = re.search(r"(\d+) x concurrency up to (\d+); (\d+) at (\d+)", text)
    if capped and not by_output and concurrency > _whole_number(capped.group(2)):
        return _whole_number(capped.group(3))
    times = by_output or re.search(r"(\d+) x concurrency", text)
    if times is not None:
        return _whole_number(times.group(1)) * concurrency
    plain = fields.stated("client_requests")
    if plain is None:
        fields.unknown.append("client_requests")
    return 10 * concurrency if plain is None else plain


def _kv_cache(fields: _Fields, engine: str) -> Dtype:
    text = fields.text("kv_cache_dtype")
    if fields.text("settings_id") in RAN_IN_16_BITS:
        return Dtype.BF16
    if not text:
        fields.unknown.append("kv_cache_dtype")
        return Dtype.FP8 if engine == "tensorrt-llm" and fields.row.get("precision") == "fp8" else Dtype.BF16
    return Dtype.FP8 if text.startswith("fp8") else Dtype.BF16


def _schedule(fields: _Fields, engine: str, concurrency: int, ranks: int) -> Schedule:
    mixed_text = fields.text("mixed_steps")
    other, engines = fields.settings.get("other_settings", ""), load_hardware().engines
    stands_in = STAND_INS.get(engine)
    usual = engines.get(stands_in[0] if stands_in else engine, engines["vllm"])
    mixed = not mixed_text.startswith("no") if mixed_text else usual.mixed_steps
    if not mixed_text and not _is_disaggregated(fields.row, fields.settings):
        fields.unknown.append("mixed_steps")
    wait_steps, fill, wanted = 0, 0.0, 0
    wait = re.search(r"batch_wait_timeout_iters (\d+) and batch_wait_max_tokens_ratio (\d+(?:\.\d+)?)", other)
    lengths = (fields.whole("input_tokens"), fields.whole("output_tokens"))
    tp = fields.number("attention_tp", "tp_size") or 1
    if wait and lengths == (1024, 1024) and tp < 8:
        wait_steps, fill = _whole_number(wait.group(1)), float(wait.group(2))
    balance = re.search(r"with attention DP:.*enable_balance(?:, timeout_iters (\d+))?", other)
    if balance and ranks > 1:
        wait_steps = _whole_number(balance.group(1)) if balance.group(1) else BALANCE_TIMEOUT_STEPS
        wanted = _until_each_has_one(ranks)
    interval = re.search(r"scheduler-recv-interval:? (\d+)(?: steps if concurrency >= (\d+), else (\d+))?", other)
    receive = 1
    if interval:
        most, least, otherwise = interval.groups()
        receive = _whole_number(most if least is None or concurrency >= _whole_number(least) else otherwise)
    return Schedule(
        mixed_steps=mixed,
        whole_prompts="whole prompts" in mixed_text or usual.whole_prompts or stands_in is not None,
        batch_wait_steps=wait_steps,
        batch_wait_fill=fill,
        batch_wait_requests=wanted,
        receive_interval_steps=receive,
        stream_interval_steps=0 if "Dynamo" in fields.text("router") else fields.stated("stream_interval") or 1,
        reserve_outputs=usual.reserves_outputs,
        captured_decodes=_captured_decodes(fields, concurrency),
        captured_prompt_tokens=_captured_prompt_tokens(fields, usual, concurrency),
        fused_norms=_fuses_norms(fields, usual),
    )


def _until_each_has_one(ranks: int) -> int:
    """Requests that wait until one is on every rank, on average: ranks * (1 + 1/2 + ... + 1/ranks), as coupons collect.

    A request goes to the rank that has fewest, which is the one where one has just ended: any of them.

    >>> [_until_each_has_one(ranks) for ranks in (2, 4, 8)]
    [3, 8, 22]
    """
    return round(ranks * sum(1.0 / k for k in range(1, ranks + 1)))


def _captured_decodes(fields: _Fields, concurrency: int) -> int | None:
    """Largest batch of a rank that was captured as a graph, 0 of none; None where it is not named, or every batch was.

    vLLM's is of tokens, drafts included. What is said of prefill workers plays no part: only decodes are replayed.
    """
    text = fields.settings.get("cuda_graph", "") or fields.settings.get("decode_cuda_graph", "")
    if text.strip() == NO_GRAPHS:
        return 0
    named = re.search(r"up to batch (\d+)|graph-(?:capture-)?sizes? (\d+)", text)
    if named is None:
        return concurrency if "batch = concurrency" in text else None
    return _whole_number(named.group(1) or named.group(2))


def _captured_prompt_tokens(fields: _Fields, engine: EngineProfile, concurrency: int) -> int | None:
    """Most tokens of a step with prompts that was captured in pieces; None: as the engine does by default.

    None are where it says so, or where the release is older than the first that captures such steps.
    """
    text = fields.settings.get("cuda_graph", "")
    pieces = re.search(r"piecewise graphs for 1k/1k(?: at (\d+(?:, \d+)*))?", text)
    if pieces and (fields.whole("input_tokens"), fields.whole("output_tokens")) == (1024, 1024):
        users = pieces.group(1)
        return EVERY_STEP_TOKENS if users is None or str(concurrency) in users.split(", ") else 0
    release = _release(fields)
    older = engine.graphs and release and not engine.graphs.captures_prompts(release)
    return 0 if older or "FULL_DECODE_ONLY" in text else None


def _fuses_norms(fields: _Fields, engine: EngineProfile) -> bool | None:
    """Whether all-reduces took the norm after them: as it says, else as the release does; None: the newest."""
    if re.search("allreduce.*fusion passes on", fields.settings.get("cuda_graph", "")):
        return True
    release = _release(fields)
    return None if release is None else any(one.is_in(release) for one in engine.fused_norms)


def _release(fields: _Fields) -> str | None:
    said = fields.row.get("engine_version") or fields.settings.get("container_image", "")
    found = re.search(r"\d+\.\d[\w.]*", said)
    return found.group() if found else None


def _ranks(count: int) -> int:
    """A number of attention ranks. Raises InputError where there is none: too few GPUs for the stages, or a 0."""
    if count < 1:
        raise InputError("points.attention_dp", count, "makes no attention rank", "correct GPUs, stages and ranks")
    return count


def _server_settings(fields: _Fields, labels: Row, concurrency: int, dp: int, draft: int) -> tuple[WorkerSettings, ...]:
    engine = labels["engine"]
    limits = start_limits(engine, labels["sku"], fields.row.get("engine_version", ""))
    if _is_disaggregated(fields.row, fields.settings):
        return tuple(_role_settings(fields, engine, role, limits) for role in ("prefill", "decode"))
    pp = fields.number("pp_size") or 1
    gpus = fields.number("gpus") or _printed_gpus(fields, dp) * pp
    dp = _ranks(min(dp, gpus // pp))
    tp = fields.number("attention_tp") or max(1, gpus // (dp * pp))
    ep = fields.number("moe_ep") or fields.stated("expert_parallel") or fields.number("moe_ep_size") or 1
    ep = ep if tp * dp % ep == 0 else 1
    return (
        WorkerSettings(
            parallelism=Parallelism(tp=tp, pp=pp, dp=dp, ep=ep, across_domains=True),
            max_batched_tokens=max(
                LEAST_BATCHED_TOKENS, _token_limit(fields, engine, concurrency, draft, limits) * _per_rank(engine, dp)
            ),
            max_running_requests=_running_limit(fields, engine, concurrency, dp, limits),
            memory_fraction=fields.stated("kv_memory_fraction", leading_share),
        ),
    )


def start_limits(engine: str, sku: str, version: str = "") -> StartLimits:
    """The limits that an engine starts with on a GPU where none are stated: of its release, else of its newest.

    >>> start_limits("sglang", "b200-sxm").max_batched_tokens, start_limits("atom", "mi355x").max_running_requests
    (16384, 512)
    """
    db = load_hardware()
    if engine in STAND_INS:
        return STAND_INS[engine][1]
    if engine not in db.engines or sku not in db.skus:
        return StartLimits(max_running_requests=1024, max_batched_tokens=8192)
    try:
        rule = db.engines[engine].memory_rule(version or None)
    except InputError:  # the tag of an image
        rule = db.engines[engine].memory_rule()
    return rule.limits_on(db.skus[sku].seen_bytes / 2**30, db.skus[sku].architecture)


def _per_rank(engine: str, dp: int) -> int:
    """Attention ranks that a stated limit holds for each of."""
    return dp if engine in LIMITS_PER_RANK else 1


def _printed_gpus(fields: _Fields, dp: int) -> int:
    """GPUs of a stage where only the row's labels are known: TP times attention ranks.

    Exports of InferenceX print TP times EP in their place (64 for 8 GPUs with EP 8), and TP as moe_tp_size: wherever
    the true number is known, labels of which neither expert degree is 1 mean that.
    """
    gpus = (fields.number("tp_size") or 1) * dp
    expert_tp, ep = fields.number("moe_tp_size") or 1, fields.number("moe_ep_size") or 1
    if ep > 1 and expert_tp % ep == 0 and expert_tp * ep == gpus:
        fields.unknown.append("gpus")
        return expert_tp
    return gpus


def _token_limit(fields: _Fields, engine: str, concurrency: int, draft: int, limits: StartLimits) -> int:
    text = fields.text("max_num_tokens")
    isl = fields.whole("input_tokens")
    if "ceil64" in text:
        rows = (draft + 1) * concurrency if "mtp" in text else concurrency
        tokens = 64 * math.ceil((rows + isl + 64) / 64)
        return max(8192, tokens) if text.startswith("max(8192") else tokens
    stated = fields.stated("max_num_tokens")
    if stated is not None:
        return stated
    if "not set" not in text:
        fields.unknown.append("max_num_tokens")
        if engine == "tensorrt-llm":
            return isl + UNSTATED_ROOM_TOKENS + concurrency
    return limits.max_batched_tokens or max(limits.least_batched_tokens, isl + fields.whole("output_tokens"))


def _running_limit(fields: _Fields, engine: str, concurrency: int, dp: int, limits: StartLimits) -> int:
    text = fields.text("max_num_seqs")
    if text.startswith("= concurrency"):
        return concurrency
    stated = fields.stated("max_num_seqs")
    if stated is None and "not set" not in text:
        fields.unknown.append("max_num_seqs")
    return limits.max_running_requests * dp if stated is None else stated * _per_rank(engine, dp)


def _is_disaggregated(row: Row, settings: Row) -> bool:
    """True if prefill and decode ran apart: as the settings say, else as the row does."""
    return bool(settings.get("prefill_workers")) or row.get("mode", "").lower().startswith("disagg")


def _role_settings(fields: _Fields, engine: str, role: str, limits: StartLimits) -> WorkerSettings:
    """The servers of one role: as the settings say, else as the row does."""
    settings = fields.settings

    def stated(name: str, in_row: str = "") -> int | None:
        number = fields.stated(f"{role}_{name}")
        return number if number is not None or not in_row else fields.number(f"{role}_{in_row}")

    workers, tp, pp = stated("workers", "num_workers"), stated("tp", "tp_size"), fields.number(f"{role}_pp_size") or 1
    if workers is None:
        bound = "a disaggregated run needs the number of its servers"
        raise InputError(f"points.{role}_workers", settings.get(f"{role}_workers", ""), bound, "state it")
    text = settings.get(f"{role}_attention_dp", "")
    ranks = re.search(r"dp-size (\d+)", text)
    in_row = None if text else fields.number(f"{role}_attention_dp_size")
    gpus = stated("gpus") or (tp or 1) * (in_row or 1) * pp
    if not text and in_row is None:
        fields.unknown.append(f"{role}_attention_dp")
    if ranks is not None:
        dp = _ranks(_whole_number(ranks.group(1)))
    elif in_row is not None:
        dp = _ranks(in_row)
    else:
        dp = gpus // pp if text.startswith("on") or not text else 1
    if ranks is not None or in_row is not None or dp > 1:
        tp = max(1, gpus // (dp * pp))
    tp = tp or max(1, gpus // pp)
    ep = stated("ep", "moe_ep_size") or (gpus if dp > 1 else 1)
    tokens, running = stated("max_num_tokens"), stated("max_num_seqs")
    per_rank = _per_rank(engine, dp)
    default = UNSTATED_PREFILL_TOKENS if role == "prefill" else limits.max_batched_tokens or 8192
    return WorkerSettings(
        workers=workers,
        parallelism=Parallelism(tp=tp, pp=pp, dp=dp, ep=ep if (tp * dp) % ep == 0 else 1, across_domains=True),
        max_batched_tokens=max(LEAST_BATCHED_TOKENS, (tokens or default) * per_rank),
        max_running_requests=running * per_rank if running else limits.max_running_requests * dp,
        memory_fraction=fields.stated(f"{role}_kv_memory_fraction", leading_share),
    )
