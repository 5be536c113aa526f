"""Start-up logs of serving engines: their memory, their KV cache, and whether they started.

Answers: how many bytes per GPU an engine counted for weights, activations, graphs and KV cache, in a form that a
prediction can be held against. Read are the lines of

- vLLM 0.5.5 to 0.33.0, as its sources of these releases write them: `worker/worker.py`, `worker/model_runner.py` (V0),
  `v1/worker/gpu_worker.py`, `v1/worker/gpu_model_runner.py`, `v1/core/kv_cache_utils.py`, `config` (V1);
- SGLang 0.3 to 0.5 and its main branch of 2026: `model_executor/model_runner.py`, `mem_cache/memory_pool.py`,
  `managers/scheduler.py`;
- TensorRT-LLM: `_torch/pyexecutor/_util.py` (0.17 to 1.1) and the C++ runtime's `kvCacheManager.cpp` and
  `tllmRuntime.cpp` (0.8 on).

Units: a figure in "GB" is in GiB in all three programs, which divide by 2^30; here all of them become bytes. Ranks
print the same line with figures of their own: of what takes memory the largest is kept, of the KV cache the smallest,
which is what an engine runs with. SGLang loads, allocates and captures in parts (a draft model, window pools): the
parts of a rank add up. TensorRT-LLM allocates a small KV cache to profile with, then the one it keeps: the last counts.

The lines stand in `calibration.serving.startup_patterns`. Nothing in a log is evaluated but one dictionary of literals
of a bounded length; every line is cut to `MAX_LINE_CHARS`.
"""

from __future__ import annotations

import ast
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from calibration.serving.startup_patterns import (
    BANNERS,
    CAPACITY,
    EXHAUSTED,
    EXHAUSTED_MARKERS,
    KEPT,
    LOOKED_FOR,
    MAMBA,
    POOL_DTYPE,
    POOL_FRACTION,
    QUANT_ALGORITHM,
    RANK,
    READY,
    REFUSALS,
    RULES,
    SETTING,
    SETTING_OF_KEY,
    SETTINGS_MARKERS,
    SGLANG,
    SOURCE_CODE,
    SPECULATIVE_METHOD,
    TENSORRT,
    TEXTS,
    TRIED,
    VLLM,
    Keep,
)
from planner.core import InputError

MAX_LOG_BYTES = 200_000_000
"""Largest log file that is read; a start takes some thousand lines, and what follows is the log of requests."""
MAX_LINE_CHARS = 32_768
"""Characters of a line that are looked at: the longest line wanted, SGLang's ``server_args``, has about 15,000."""
MAX_SETTINGS_LINES = 256
"""Lines of settings that are read, one or two a process: a bound on work, well above the ranks of one log."""
MAX_LITERAL_CHARS = 20_000
"""Longest dictionary of arguments that is read as literals; a longer one is searched by its keys."""
MAX_REASON_CHARS = 400
"""Characters kept of the line that says why an engine did not start."""
GIB_BYTES = 2**30
"""Bytes of a GiB."""
MIB_BYTES = 2**20
"""Bytes of a MiB."""
UNIT_BYTES = {"GiB": GIB_BYTES, "MiB": MIB_BYTES, "KiB": 2**10, "bytes": 1}
"""Units of `TRIED`."""
DEFAULT_BLOCK_TOKENS = 16
"""Tokens of a block where vLLM says only how many blocks (``block_size`` in `config` of vLLM 0.5.5 to 0.8.5)."""


class StartupOutcome(StrEnum):
    """How a start ended."""

    STARTS = "starts"
    REFUSES = "refuses"
    """The engine worked out that it cannot serve, and said so."""
    OUT_OF_MEMORY = "out of memory"
    """An allocation failed before the engine was ready."""
    UNKNOWN = "unknown"
    """No line says: the log is cut off, or the engine failed for another reason."""


@dataclass(frozen=True)
class StartupLog:
    """A start as its log tells it; None stands for what it leaves out.

    Attributes:
        engine: ``vllm``, ``sglang`` or ``tensorrt-llm``.
        version, model: as printed. SGLang prints no version.
        gpu_total_bytes: memory of a GPU. memory_fraction: share of it that the engine may take.
        tp, pp, dp: sizes. SGLang's and TensorRT-LLM's dp may be attention ranks inside of tp.
        max_model_len: longest context. max_num_seqs: running requests (of a rank).
        max_num_batched_tokens: chunk budget.
        kv_cache_dtype, quantization: as the engine calls them; ``none`` where it says that there is none.
        eager: without CUDA graphs. speculative: method of speculation, ``none`` where the log says that there is none.
        weights_bytes: of the largest rank. activation_bytes: peak of a step above the weights; from vLLM 0.29 on it may
            hold the graph estimate too. For a TensorRT engine, execution context, runtime buffers and decoder.
        outside_bytes: of the largest rank, outside of torch's allocator; for SGLang what the process group took.
        consumed_bytes: weights and outside together (vLLM 0.27 and newer, which does not tell them apart).
        graph_bytes: CUDA graphs as captured. graph_estimate_bytes: what vLLM expected of them.
        kv_bytes: room for the KV cache of the smallest rank, below 0 where the weights take more than there is.
        kv_tokens: KV capacity of the smallest rank. kv_blocks, block_tokens: blocks, and tokens of a block.
        state_bytes: recurrent state that SGLang keeps beside the KV cache.
        max_concurrency: requests of `max_model_len` that fit, by vLLM's count.
        free_before_load_bytes, free_after_kv_bytes: free on the fullest GPU before the weights and after the KV cache.
        outcome: how the start ended. reason: the line that says why it failed.
        needed_bytes: what a refusal asks for, or the allocation that failed.
        starts_seen: starts in the log; the last one is described.
    """

    engine: str
    version: str | None = None
    model: str | None = None
    gpu_total_bytes: int | None = None
    memory_fraction: float | None = None
    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    kv_cache_dtype: str | None = None
    quantization: str | None = None
    eager: bool | None = None
    speculative: str | None = None
    weights_bytes: int | None = None
    activation_bytes: int | None = None
    outside_bytes: int | None = None
    consumed_bytes: int | None = None
    graph_bytes: int | None = None
    graph_estimate_bytes: int | None = None
    kv_bytes: int | None = None
    kv_tokens: int | None = None
    kv_blocks: int | None = None
    block_tokens: int | None = None
    state_bytes: int | None = None
    max_concurrency: float | None = None
    free_before_load_bytes: int | None = None
    free_after_kv_bytes: int | None = None
    outcome: StartupOutcome = StartupOutcome.UNKNOWN
    reason: str | None = None
    needed_bytes: int | None = None
    starts_seen: int = 1


def read_startup_file(path: str | Path) -> StartupLog:
    """The start that a log file tells of.

    Raises InputError for a file that is missing, too large, or no start-up log of a known engine.
    """
    place = Path(path)
    fix = "give the log that the server wrote from its first line on"
    try:
        if not place.is_file():  # nor a FIFO or a device, which would never end
            raise FileNotFoundError
        if place.stat().st_size > MAX_LOG_BYTES:
            raise InputError("log", str(path), f"is larger than {MAX_LOG_BYTES} bytes", "give its beginning only")
        text = place.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError("log", str(path), f"cannot be read ({type(error).__name__})", fix) from None
    return read_startup_log(text)


def read_startup_log(text: str) -> StartupLog:
    """The start that a log tells of; of several in a row, the last.

    Raises InputError for a text without any line of a known engine, saying which are looked for.

    >>> log = read_startup_log("INFO 11-28 10:00:00 [gpu_worker.py:298] Available KV cache memory: 54.90 GiB")
    >>> log.engine, log.kv_bytes == round(54.90 * 2**30)
    ('vllm', True)
    """
    reading = _Reading()
    starts = 1
    for line in _lines(text):
        if reading.ended and any(banner in line for banner in BANNERS):
            reading, starts = _Reading(), starts + 1
        if not reading.is_ready:
            reading.read(line)
    engine = reading.engine
    if engine is None:
        looked_for = "; ".join(f"{name}: {', '.join(map(repr, lines))}" for name, lines in LOOKED_FOR.items())
        bound = "holds no line that vLLM, SGLang or TensorRT-LLM writes while it starts"
        raise InputError("log", text[:200], bound, f"give the server's whole output (looked for are {looked_for})")
    return _log_of(engine, reading, starts)


# --- lines ----------------------------------------------------------------------------------------------------------

ESCAPES = re.compile(r"\x1b\[[0-9;:?]{0,32}[A-Za-z]")
"""Colours and cursor moves of a terminal."""


def _lines(text: str) -> Iterator[str]:
    for line in text.splitlines():
        cut = line[:MAX_LINE_CHARS]
        yield ESCAPES.sub("", cut) if "\x1b" in cut else cut


# --- settings -------------------------------------------------------------------------------------------------------

BRACKETS = re.compile(r"[(\[{)\]}]")


def _flat(text: str) -> str:
    """A list of settings without what stands inside of brackets, up to the bracket that ends it.

    >>> _flat("a=1, b=X(c=2, d=[3]), e=4), f=5")
    'a=1, b=X, e=4'
    """
    parts, depth, begin = [], 0, 0
    for bracket in BRACKETS.finditer(text):
        opens = bracket.group() in "([{"
        if depth == 0:
            parts.append(text[begin : bracket.start()])
        depth += 1 if opens else -1
        if depth < 0:
            return "".join(parts)
        begin = bracket.end()
    return "".join(parts) if depth else "".join(parts) + text[begin:]


def _literal(text: str) -> Mapping[Any, Any]:
    """The dictionary of literals that a text is, or else an empty one."""
    if len(text) > MAX_LITERAL_CHARS:
        return {}
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return {}
    return value if isinstance(value, dict) else {}


def _settings(text: str) -> dict[str, str]:
    """Settings in the words of `SETTING_OF_KEY`, unquoted; of one that occurs twice, the first."""
    found: dict[str, str] = {}
    for key, value in SETTING.findall(_flat(text)):
        found.setdefault(SETTING_OF_KEY[key], value.strip("'\""))
    return found


def _settings_of_dictionary(text: str) -> dict[str, str]:
    """Settings of vLLM's ``non-default args: {...}``."""
    inside = text.strip()
    literals = _literal(inside)
    if not literals:
        return _settings(inside.removeprefix("{"))
    found: dict[str, str] = {}
    for key, value in literals.items():
        if key == "speculative_config" and isinstance(value, dict):
            found["speculative"] = str(value.get("method") or value.get("model") or "unnamed")[:400]
        elif isinstance(key, str) and key in SETTING_OF_KEY and isinstance(value, str | int | float | None):
            found.setdefault(SETTING_OF_KEY[key], str(value)[:400])
    return found


# --- reading --------------------------------------------------------------------------------------------------------


def _number(text: str) -> float | None:
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


@dataclass
class _Facts:
    """Figures and words of one engine."""

    lines: int = 0
    words: dict[str, str] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    of_ranks: defaultdict[str, defaultdict[str, float]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(float))
    )

    def see(self, name: str, value: float, rank: str = "") -> None:
        """Adds a figure by what is kept of its name."""
        keep = KEPT.get(name, Keep.LAST)
        if keep is Keep.SUM_OF_RANK:
            self.of_ranks[name][rank] += value
        elif keep is Keep.LAST or name not in self.figures:
            self.figures[name] = value
        else:
            choose = max if keep is Keep.LARGEST else min
            self.figures[name] = choose(self.figures[name], value)

    def see_match(self, match: re.Match[str], rank: str) -> None:
        """Adds the groups of a line."""
        self.lines += 1
        for name, text in match.groupdict().items():
            if text is None:
                continue
            if name == "version":
                self.words[name] = text.rstrip(".")
            elif (value := _number(text)) is not None:
                self.see(name, value, rank)

    def see_settings(self, settings: Mapping[str, str]) -> None:
        """Adds settings; a number that is not one is left out."""
        self.lines += 1
        for name, text in settings.items():
            if name in TEXTS:
                if text != "None" or name != "model":
                    self.words[name] = "none" if text == "None" else text
            elif name == "eager":
                self.words[name] = text
            elif (value := _number(text)) is not None and value > 0:
                self.see(name, value)

    def totals(self, *names: str) -> list[float]:
        """Sums of the named parts, one for each rank that printed one."""
        ranks = dict.fromkeys(rank for name in names for rank in self.of_ranks.get(name, ()))
        return [sum(self.of_ranks[name][rank] for name in names if name in self.of_ranks) for rank in ranks]


class _Reading:
    """Lines read so far of one start."""

    def __init__(self) -> None:
        self.facts: dict[str, _Facts] = {}
        self.outcome = StartupOutcome.UNKNOWN
        self.reason: str | None = None
        self.failed_bytes: float | None = None
        self.capacity_bytes: float | None = None
        self.is_ready = False
        self.settings_lines = 0
        self.arguments_follow = False

    @property
    def ended(self) -> bool:
        """True if a start ended here, so that a banner begins another."""
        return self.is_ready or self.outcome in (StartupOutcome.REFUSES, StartupOutcome.OUT_OF_MEMORY)

    @property
    def engine(self) -> str | None:
        """The engine most lines are of; None without any."""
        return max(self.facts, key=lambda name: self.facts[name].lines, default=None)

    def of(self, engine: str) -> _Facts:
        """Facts of an engine, which is thereby seen."""
        return self.facts.setdefault(engine, _Facts())

    def read(self, line: str) -> None:
        """Takes what a line says."""
        if self.arguments_follow:
            self.arguments_follow = False
            self._take_settings(TENSORRT, line)
        for engine, marker, pattern in RULES:
            if marker in line and (match := pattern.search(line)):
                self.of(engine).see_match(match, _rank_of(line))
        if "Mamba Cache is allocated" in line:
            sizes = map(_number, MAMBA.findall(line))
            self.of(SGLANG).lines += 1
            self.of(SGLANG).see("state_part_gib", sum(size for size in sizes if size is not None), _rank_of(line))
        for engine, marker in SETTINGS_MARKERS:
            if marker in line:
                self._read_settings(engine, marker, line)
        self._read_outcome(line)

    def _read_settings(self, engine: str, marker: str, line: str) -> None:
        text = line.partition(marker)[2]
        if marker == "with config: " and "LLM engine (v" not in line:
            return
        if marker == "LLM Args:" and not text.strip():
            self.arguments_follow = True
            self.of(engine).lines += 1
            return
        self._take_settings(engine, "{" + text if marker.endswith("{") else text)

    def _take_settings(self, engine: str, text: str) -> None:
        self.settings_lines += 1
        if self.settings_lines > MAX_SETTINGS_LINES:
            return
        settings = _settings_of_dictionary(text) if text.startswith("{") else _settings(text)
        if method := SPECULATIVE_METHOD.search(text):
            settings["speculative"] = method.group(1)
        if engine == TENSORRT:
            settings |= _tensorrt_settings(text)
        self.of(engine).see_settings(settings)

    def _read_outcome(self, line: str) -> None:
        if any(text in line for text in READY):
            self.is_ready, self.outcome, self.reason, self.failed_bytes = True, StartupOutcome.STARTS, None, None
            return
        for engine, marker, pattern in REFUSALS:
            if marker in line and (match := pattern.search(line)) and not SOURCE_CODE.search(line[:200]):
                self.of(engine).see_match(match, "")
                self._fail(StartupOutcome.REFUSES, line[match.start() :], match.groupdict().get("needed_gib"), "GiB")
        if any(text in line for text in EXHAUSTED_MARKERS) and (match := EXHAUSTED.search(line)):
            if SOURCE_CODE.search(line[:200]):
                return
            tried = TRIED.search(line)
            self._fail(StartupOutcome.OUT_OF_MEMORY, line[match.start() :], *(tried.groups() if tried else (None, "")))
            if capacity := CAPACITY.search(line):
                self.capacity_bytes = GIB_BYTES * (_number(capacity.group(1)) or 0.0) or None
        elif self.outcome is StartupOutcome.UNKNOWN and _is_engine_up(line):
            self.outcome = StartupOutcome.STARTS

    def _fail(self, outcome: StartupOutcome, reason: str, needed: str | None, unit: str) -> None:
        """Keeps the first failure: what follows it is its consequence."""
        if self.outcome in (StartupOutcome.REFUSES, StartupOutcome.OUT_OF_MEMORY):
            return
        self.outcome = outcome
        self.reason = reason.strip()[:MAX_REASON_CHARS]
        number = _number(needed) if needed else None
        self.failed_bytes = None if number is None else number * UNIT_BYTES[unit]


def _rank_of(line: str) -> str:
    found = RANK.search(line[:200])
    return found.group(1) if found else ""


def _is_engine_up(line: str) -> bool:
    """True if an engine says that it is set up, though no server may answer yet."""
    return (
        "init engine (profile" in line
        or ("max_total_num_tokens=" in line and "max_running_requests=" in line)
        or "Executor instance created" in line
    )


def _tensorrt_settings(text: str) -> dict[str, str]:
    """Settings of TensorRT-LLM that stand in a record inside of its arguments."""
    found = {}
    patterns = {"kv_cache_dtype": POOL_DTYPE, "fraction": POOL_FRACTION, "quantization": QUANT_ALGORITHM}
    for name, pattern in patterns.items():
        if match := pattern.search(text):
            found[name] = match.group(1)
    if graphs := re.search(r"\bcuda_graph_config=(None|\w)", text):
        found["eager"] = str(graphs.group(1) == "None")
    if "enable_attention_dp=True" in text and (tp := re.search(r"\btensor_parallel_size=(\d{1,5})", text)):
        found["dp"] = tp.group(1)
    return found


# --- result ---------------------------------------------------------------------------------------------------------


def _log_of(engine: str, reading: _Reading, starts: int) -> StartupLog:
    facts = reading.of(engine)
    seen, words = facts.figures, facts.words

    def size(*names: str) -> int | None:
        """Bytes of the first of the names that was seen."""
        for name in names:
            if name in seen:
                return round(seen[name] * (MIB_BYTES if name.endswith("_mib") else GIB_BYTES))
        return None

    def count(*names: str) -> int | None:
        return next((round(seen[name]) for name in names if name in seen), None)

    def in_parts(largest: bool, *names: str) -> int | None:
        totals = facts.totals(*names)
        return round((max if largest else min)(totals) * GIB_BYTES) if totals else None

    weights = size("weights_gib", "weights_rounded_gib", "weights_mib")
    activation = size("activation_gib")
    torch_peak = size("peak_torch_gib")  # of vLLM 0.6.4 and 0.6.5, with the weights
    if activation is None and torch_peak is not None and weights is not None:
        activation = max(0, torch_peak - weights)
    working = [part for name in ("context_mib", "buffers_gib", "decoder_gib") if (part := size(name)) is not None]
    blocks = count("allocated_blocks", "blocks")
    block_tokens = count("block_tokens")
    tokens = count("allocated_tokens", "tokens", "pool_tokens", "estimated_tokens")
    if engine == VLLM and blocks is not None:
        block_tokens = block_tokens or DEFAULT_BLOCK_TOKENS
        tokens = blocks * block_tokens if tokens is None else tokens
    fraction = seen.get("fraction")
    capacity = reading.capacity_bytes
    total = size("total_gib")
    kv = size("allocated_gib", "kv_gib", "kv_rounded_gib", "estimated_kv_gib")
    return StartupLog(
        engine=engine,
        version=words.get("version"),
        model=words.get("model"),
        gpu_total_bytes=total if total is not None or capacity is None else round(capacity),
        memory_fraction=None if fraction is None else round(fraction, 6),  # TensorRT-LLM prints 0.9 as a 32-bit float
        tp=count("tp"),
        pp=count("pp"),
        dp=count("dp"),
        max_model_len=count("max_len"),
        max_num_seqs=count("running"),
        max_num_batched_tokens=count("budget"),
        kv_cache_dtype=words.get("kv_cache_dtype"),
        quantization=words.get("quantization"),
        eager={"True": True, "False": False}.get(words.get("eager", "")),
        speculative=words.get("speculative"),
        weights_bytes=in_parts(True, "weights_part_gib") if weights is None else weights,
        activation_bytes=sum(working) if working else activation,
        outside_bytes=size("outside_gib"),
        consumed_bytes=size("consumed_gib"),
        graph_bytes=in_parts(True, "graph_part_gib") if size("graph_gib") is None else size("graph_gib"),
        graph_estimate_bytes=size("graph_estimate_gib"),
        kv_bytes=in_parts(False, "kv_part_gib", "kv_second_part_gib") if kv is None else kv,
        kv_tokens=tokens,
        kv_blocks=blocks,
        block_tokens=block_tokens,
        state_bytes=in_parts(True, "state_part_gib"),
        max_concurrency=seen.get("concurrency"),
        free_before_load_bytes=size("free_before_gib"),
        free_after_kv_bytes=size("free_after_gib"),
        outcome=reading.outcome,
        reason=reading.reason,
        needed_bytes=None if reading.failed_bytes is None else round(reading.failed_bytes),
        starts_seen=starts,
    )
