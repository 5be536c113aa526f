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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from pydantic import Field

from hardware_db import Dtype
from planner.core import Frozen, InputError
from planner.engine import Schedule
from planner.roofline import Parallelism

Row = Mapping[str, str]

MAX_FILE_BYTES = 100_000_000
"""Largest CSV that is read."""
MAX_CELL = 2000
"""Most characters of a cell: settings are searched for phrases, which takes the square of their length."""
MAX_DIGITS = 15
"""Most digits of a whole number: more is no count of anything here."""

SKU_ALIASES = {
    "a100_sxm": "a100-sxm-80gb",
    "h100_sxm": "h100-sxm",
    "h200_sxm": "h200-sxm",
    "b200_sxm": "b200-sxm",
    "gb200": "gb200-nvl72",
    "l40s": "l40s",
}
"""Names of SKUs in AIConfigurator's tables and in the hardware database."""
ENGINE_ALIASES = {"trtllm": "tensorrt-llm"}
"""Names of engines in the same tables and here."""
DEFAULT_MAX_BATCHED_TOKENS = {"vllm": 8192, "sglang": 8192, "tensorrt-llm": 8192}
"""Chunk budget where nothing is stated: the engines' own defaults (vLLM V1 on datacentre GPUs, SGLang's
chunked-prefill-size, TensorRT-LLM's max_num_tokens)."""
UNSTATED_WHOLE_PROMPTS = 2
"""Whole prompts beside all decodes in a step of TensorRT-LLM where its token limit is not stated. Fitted: with 2 the
TTFT of Qwen3-32B on H100 is met best (of 2, 4, 5 and the engine's default); other models are held out
(docs/studies/accuracy.md)."""
UNSTATED_PREFILL_TOKENS = 65_536
"""Chunk budget of a prefill server where none is stated: one of those stated for disaggregated SGLang servers."""
UNSTATED_LENGTH_SPREAD = 0.2
"""Lengths of a client that is not described lie within this share of the nominal: without any spread all users would
send their prompts in lockstep for ever. A choice."""
DEFAULT_MAX_RUNNING_REQUESTS = {"vllm": 1024, "sglang": 2048, "tensorrt-llm": 2048}
"""Sequences running at once where nothing is stated: engine defaults on datacentre GPUs."""


class WorkerSettings(Frozen):
    """One server: how it is split and what it may hold."""

    workers: int = Field(default=1, ge=1, description="servers alike")
    parallelism: Parallelism = Parallelism()
    max_batched_tokens: int = Field(ge=16)
    max_running_requests: int = Field(ge=1)
    memory_fraction: float | None = None
    memory_fraction_of_free: bool = Field(default=False, description="of what weights leave, not of the whole GPU")


class ServingPoint(Frozen):
    """One measured run."""

    id: str
    engine: str
    model: str
    sku: str
    precision: str
    quantisation: str = ""
    kv_cache: Dtype
    input_tokens: int = Field(ge=1, description="nominal; drawn uniformly from range_ratio to range_top times this")
    output_tokens: int = Field(ge=1)
    range_ratio: float = Field(gt=0.0, le=1.0)
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
    moe_backend: str = Field(default="", description="kernels of the routed experts, where they are stated")
    mean_ttft_s: float | None = Field(default=None, gt=0)
    mean_tpot_s: float | None = Field(default=None, gt=0)
    measured_on: str = ""
    settings_id: str = ""
    unknown: tuple[str, ...] = ()

    @property
    def disaggregated(self) -> bool:
        """Whether prefill and decode ran on servers of their own."""
        return len(self.servers) == 2

    @property
    def group(self) -> tuple[str, str]:
        """Model and SKU: the unit that is fitted to, or held out, as a whole."""
        return self.model, self.sku

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


def read_serving_points(path: str | Path, repeats: bool = False) -> tuple[ServingPoint, ...]:
    """Points of a CSV file and the settings beside it. `repeats`: also rows that repeat another row's run.

    Raises InputError for a file that cannot be read or a field out of range, naming row and column.
    """
    place = Path(path)
    rows = _rows(place)
    if not rows:
        raise InputError("points", place.name, "has no rows", "give a CSV file with a header and measured points")
    links = {
        row.get("source_id", ""): row for row in _rows(place.with_name(f"{place.stem}_settings.csv"), optional=True)
    }
    settings = {
        row.get("settings_id", ""): row for row in _rows(place.with_name("serving_settings.csv"), optional=True)
    }
    points = []
    for row in rows:
        link = links.get(row.get("source_id", ""), {})
        if link.get("same_run_as") and not repeats:
            continue
        with _naming_row(row):
            points.append(_point_of(row, link, settings.get(link.get("settings_id", ""), {})))
    return tuple(points)


def _rows(path: Path, optional: bool = False) -> list[dict[str, str]]:
    if optional and not path.is_file():
        return []
    try:
        if not path.is_file():  # nor a FIFO or a device, which would never end
            raise FileNotFoundError
        if path.stat().st_size > MAX_FILE_BYTES:
            raise InputError("points", str(path), f"is larger than {MAX_FILE_BYTES} bytes", "split the file")
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            return [_checked_cells(row, reader.line_num, path) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError("points", str(path), f"cannot be read ({type(error).__name__})", "give a CSV file") from None


def _checked_cells(row: Mapping[str | None, str | None], line: int, path: Path) -> dict[str, str]:
    """A row without cells beyond the header. Raises InputError for a cell longer than `MAX_CELL`."""
    cells = {key: (value or "").strip() for key, value in row.items() if key}
    for key, cell in cells.items():
        if len(cell) > MAX_CELL:
            bound = f"has {len(cell)} characters, more than {MAX_CELL}"
            raise InputError(f"{path.name} line {line}: {key[:40]}", cell, bound, "shorten the cell")
    return cells


@contextmanager
def _naming_row(row: Row) -> Iterator[None]:
    """Errors inside name the row."""
    try:
        yield
    except InputError as error:
        field = error.field.removeprefix("points.").removeprefix("servingpoint.")
        place = f"points[{row.get('source_id') or '?'}].{field}"
        raise InputError(place, error.value, error.bound, error.fix or "correct the row") from None


class _Fields:
    """Typed access to one row, its link and its settings; later ones win, blanks do not."""

    def __init__(self, row: Row, link: Row, settings: Row) -> None:
        self.row, self.link, self.settings = row, link, settings
        self.unknown: list[str] = []

    def text(self, *names: str) -> str:
        """The first non-blank value of the names, looked up in settings, link, row."""
        for name in names:
            for source in (self.settings, self.link, self.row):
                if source.get(name):
                    return source[name]
        return ""

    def number(self, source: Row, name: str) -> int | None:
        """The whole number a value starts with, or None."""
        return leading_number(source.get(name, ""))

    def required(self, name: str) -> str:
        """A value of the point's own row. Raises InputError when blank."""
        value = self.row.get(name, "")
        if not value:
            raise InputError(f"points.{name}", "(blank)", "every row needs it", "add it")
        return value

    def whole(self, name: str) -> int:
        """A whole number of the point's own row. Raises InputError."""
        value = leading_number(self.required(name))
        if value is None:
            raise InputError(f"points.{name}", self.row[name], "must be a whole number", "correct the row")
        return value


def leading_number(text: str) -> int | None:
    """The whole number a text starts with: ``"8192 (default)"`` is 8192, ``"not set"`` is None.

    >>> leading_number("32768 (chunked-prefill-size)"), leading_number("not set (engine default 1024)")
    (32768, None)
    """
    match = re.match(r"\s*(?:chunked-prefill-size\s+)?(\d+)", text)
    return _whole_number(match.group(1)) if match else None


def _whole_number(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise InputError("points", digits, f"is a number of more than {MAX_DIGITS} digits", "correct the row")
    return int(digits)


def _point_of(row: Row, link: Row, settings: Row) -> ServingPoint:
    fields = _Fields(row, link, settings)
    engine = ENGINE_ALIASES.get(row.get("engine", ""), row.get("engine", ""))
    concurrency = fields.number(row, "concurrency")
    if concurrency is None:
        fields.unknown.append("concurrency")
        concurrency = 1
    dp = _attention_dp(fields, concurrency)
    draft = _draft_tokens(fields, dp)
    client = _client_load(fields, concurrency)
    fraction = _share_of(settings.get("kv_memory_fraction", ""))
    return ServingPoint(
        id=row.get("source_id") or "?",
        engine=engine,
        model=fields.required("model"),
        sku=SKU_ALIASES.get(fields.required("sku"), row["sku"]),
        precision=row.get("precision", ""),
        quantisation=f"{row.get('gemm_quant_mode', '')} {row.get('moe_quant_mode', '')}".strip(),
        kv_cache=_kv_cache(fields, engine),
        input_tokens=fields.whole("input_tokens"),
        output_tokens=fields.whole("output_tokens"),
        range_ratio=client.range_ratio,
        range_top=client.range_top,
        concurrency=concurrency,
        requests=client.requests,
        servers=_server_settings(fields, engine, concurrency, dp, draft, fraction),
        schedule=_schedule(fields, engine, concurrency),
        draft_tokens=draft,
        mean_ttft_s=_milliseconds(row, "mean_ttft_ms"),
        mean_tpot_s=_milliseconds(row, "mean_tpot_ms"),
        moe_backend=settings.get("moe_backend", "") or row.get("moe_backend", ""),
        measured_on=row.get("measured_on", ""),
        settings_id=link.get("settings_id", ""),
        unknown=tuple(fields.unknown),
    )


def _share_of(text: str) -> float | None:
    """A share as a plain number; None where it is anything else, such as blank or "not set"."""
    return float(text) if re.fullmatch(r"\d++(?:\.\d++)?|\.\d++", text) else None


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
    true = fields.number(fields.link, "attention_dp")
    if true is not None:
        return true
    rule = fields.settings.get("attention_dp", "")
    match = re.match(r"(\d+) for (\d+)/(\d+) with concurrency > (\d+)", rule)
    if match:
        ranks, isl, osl, least = map(_whole_number, match.groups())
        at = (fields.whole("input_tokens"), fields.whole("output_tokens"))
        return ranks if at == (isl, osl) and concurrency > least else 1
    return fields.number(fields.row, "attention_dp_size") or 1


def _draft_tokens(fields: _Fields, dp: int) -> int:
    """Draft tokens per step, 0 without speculation: the first number, or the one ``with attention DP``."""
    if fields.link.get("speculative", fields.row.get("speculative", "")) != "mtp":
        return 0
    text = fields.settings.get("speculative_tokens", "") or fields.row.get("speculative_tokens", "")
    with_dp = re.search(r"(\d+) with attention DP", text)
    if dp > 1 and with_dp:
        return _whole_number(with_dp.group(1))
    return leading_number(text) or 1


class _ClientLoad(NamedTuple):
    """Shortest and longest length drawn over the nominal one, and the number of requests."""

    range_ratio: float
    range_top: float
    requests: int


def _client_load(fields: _Fields, concurrency: int) -> _ClientLoad:
    ratio = _decimal("client_range_ratio", fields.text("client_range_ratio") or "1")
    text, output = fields.text("client_requests"), fields.whole("output_tokens")
    by_output = re.search(rf"output {output}: (\d+) x concurrency", text)
    capped = re.search(r"(\d+) x concurrency up to (\d+); (\d+) at (\d+)", text)
    if by_output:
        return _ClientLoad(ratio, 1.0, _whole_number(by_output.group(1)) * concurrency)
    if capped and concurrency > _whole_number(capped.group(2)):
        return _ClientLoad(ratio, 1.0, _whole_number(capped.group(3)))
    times = re.search(r"(\d+) x concurrency", text)
    if times is not None:
        return _ClientLoad(ratio, 1.0, _whole_number(times.group(1)) * concurrency)
    fields.unknown.append("client_requests")
    if fields.text("client_range_ratio"):
        return _ClientLoad(ratio, 1.0, 10 * concurrency)
    fields.unknown.append("client_range_ratio")
    return _ClientLoad(1.0 - UNSTATED_LENGTH_SPREAD, 1.0 + UNSTATED_LENGTH_SPREAD, 10 * concurrency)


def _kv_cache(fields: _Fields, engine: str) -> Dtype:
    text = fields.text("kv_cache_dtype")
    if not text:
        fields.unknown.append("kv_cache_dtype")
        return Dtype.FP8 if engine == "tensorrt-llm" and fields.row.get("precision") == "fp8" else Dtype.BF16
    return Dtype.FP8 if text.startswith("fp8") else Dtype.BF16


def _schedule(fields: _Fields, engine: str, concurrency: int) -> Schedule:
    mixed_text = fields.settings.get("mixed_steps", "") or fields.row.get("mixed_steps", "")
    other = fields.settings.get("other_settings", "")
    mixed = not mixed_text.startswith("no") if mixed_text else engine != "sglang"
    if not mixed_text:
        fields.unknown.append("mixed_steps")
    wait_steps, fill = 0, 0.0
    wait = re.search(r"batch_wait_timeout_iters (\d+) and batch_wait_max_tokens_ratio (\d+(?:\.\d+)?)", other)
    lengths = (fields.whole("input_tokens"), fields.whole("output_tokens"))
    tp = fields.number(fields.link, "attention_tp") or fields.number(fields.row, "tp_size") or 1
    if wait and lengths == (1024, 1024) and tp < 8:
        wait_steps, fill = _whole_number(wait.group(1)), float(wait.group(2))
    interval = re.search(r"scheduler-recv-interval:? (\d+)(?: steps if concurrency >= (\d+), else (\d+))?", other)
    receive = 1
    if interval:
        most, least, otherwise = interval.groups()
        receive = _whole_number(most if least is None or concurrency >= _whole_number(least) else otherwise)
    return Schedule(
        mixed_steps=mixed,
        whole_prompts="whole prompts" in mixed_text or (engine == "tensorrt-llm"),
        batch_wait_steps=wait_steps,
        batch_wait_fill=fill,
        receive_interval_steps=receive,
        reserve_outputs=engine == "tensorrt-llm",
    )


def _server_settings(
    fields: _Fields, engine: str, concurrency: int, dp: int, draft: int, fraction: float | None
) -> tuple[WorkerSettings, ...]:
    settings, of_free = fields.settings, "free" in fields.settings.get("kv_memory_fraction_of", "")
    if settings.get("prefill_workers"):
        return tuple(_role_settings(fields, engine, role, concurrency, of_free) for role in ("prefill", "decode"))
    gpus = fields.number(fields.link, "gpus") or fields.number(fields.row, "gpus")
    tp_size = fields.number(fields.row, "tp_size") or 1
    gpus = gpus or tp_size * dp
    tp = fields.number(fields.link, "attention_tp") or max(1, gpus // dp)
    ep = _expert_parallel(fields, gpus)
    return (
        WorkerSettings(
            parallelism=Parallelism(tp=tp, dp=dp, ep=ep),
            max_batched_tokens=_token_limit(fields, engine, concurrency, draft) * dp,
            max_running_requests=_running_limit(fields, engine, concurrency, dp),
            memory_fraction=fraction,
            memory_fraction_of_free=of_free,
        ),
    )


def _expert_parallel(fields: _Fields, gpus: int) -> int:
    true = fields.number(fields.link, "moe_ep")
    stated = leading_number(fields.settings.get("expert_parallel", ""))
    ep = true or stated or fields.number(fields.row, "moe_ep_size") or 1
    return ep if gpus % ep == 0 else 1


def _token_limit(fields: _Fields, engine: str, concurrency: int, draft: int) -> int:
    text = fields.settings.get("max_num_tokens", "") or fields.row.get("max_num_tokens", "")
    isl = fields.whole("input_tokens")
    if "ceil64" in text:
        rows = (draft + 1) * concurrency if "mtp" in text else concurrency
        tokens = 64 * math.ceil((rows + isl + 64) / 64)
        return max(8192, tokens) if text.startswith("max(8192") else tokens
    stated = leading_number(text)
    if stated is not None:
        return stated
    if "not set" not in text:
        fields.unknown.append("max_num_tokens")
        if engine == "tensorrt-llm":
            return UNSTATED_WHOLE_PROMPTS * isl + concurrency
    return DEFAULT_MAX_BATCHED_TOKENS.get(engine, 8192)


def _running_limit(fields: _Fields, engine: str, concurrency: int, dp: int) -> int:
    text = fields.settings.get("max_num_seqs", "") or fields.row.get("max_num_seqs", "")
    if text.startswith("= concurrency"):
        return concurrency
    stated = leading_number(text)
    if stated is None and "not set" not in text:
        fields.unknown.append("max_num_seqs")
    per_rank = dp if engine == "tensorrt-llm" else 1
    return (stated or DEFAULT_MAX_RUNNING_REQUESTS.get(engine, 1024)) * per_rank


def _role_settings(fields: _Fields, engine: str, role: str, concurrency: int, of_free: bool) -> WorkerSettings:
    settings = fields.settings
    workers = leading_number(settings.get(f"{role}_workers", "")) or 1
    gpus = leading_number(settings.get(f"{role}_gpus", "")) or 1
    on = settings.get(f"{role}_attention_dp", "").startswith("on")
    if not settings.get(f"{role}_attention_dp"):
        fields.unknown.append(f"{role}_attention_dp")
        on = True
    tp = leading_number(settings.get(f"{role}_tp", "")) or gpus
    dp = gpus if on else 1
    tp = 1 if on else tp
    ep = leading_number(settings.get(f"{role}_ep", "")) or (gpus if on else 1)
    tokens = leading_number(settings.get(f"{role}_max_num_tokens", ""))
    running = leading_number(settings.get(f"{role}_max_num_seqs", ""))
    per_rank = dp if engine == "tensorrt-llm" else 1
    default = UNSTATED_PREFILL_TOKENS if role == "prefill" else DEFAULT_MAX_BATCHED_TOKENS.get(engine, 8192)
    return WorkerSettings(
        workers=workers,
        parallelism=Parallelism(tp=tp, dp=dp, ep=ep if (tp * dp) % ep == 0 else 1),
        max_batched_tokens=max(16, (tokens or default) * per_rank),
        max_running_requests=(running or DEFAULT_MAX_RUNNING_REQUESTS.get(engine, 1024)) * per_rank,
        memory_fraction=_share_of(settings.get(f"{role}_kv_memory_fraction", "")),
        memory_fraction_of_free=of_free,
    )
