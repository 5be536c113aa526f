"""Result files of benchmark clients, as measured serving points.

Answers: what a benchmark of one's own measured, in a form that can be predicted and fitted to. Read are

- ``vllm bench serve --save-result`` (one JSON object a file, or several with --append-result): fields request_rate,
  burstiness, max_concurrency, completed, total_input_tokens, total_output_tokens, mean_ttft_ms, mean_tpot_ms, with
  --save-detailed also input_lens, output_lens (`vllm/benchmarks/serve.py` of vllm-project/vllm, commit 009e6d4);
- SGLang ``bench_serving --output-file`` (one JSON object a line), which has the same fields, and random_input_len,
  random_output_len, random_range_ratio (`docs/developer_guide/bench_serving.md` of sgl-project/sglang);
- GuideLLM's JSON report: `benchmark/schemas/generative/metrics.py` (commit 06cef29) and `scheduler/strategies.py`
  (03820eb) of vllm-project/guidellm. Its mean inter-token latency weighs requests by their tokens;
- AIPerf's ``profile_export_aiperf.json``: `common/models/export_models.py` of ai-dynamo/aiperf (commit 26240f9, schema
  1.0), and GenAI-Perf's export, after which it is made;
- inference-perf's ``stage_N_lifecycle_metrics.json``: `summarize_requests` in `inference_perf/reportgen/base.py` of the
  package inference-perf 0.7.0. Seconds; a file over all stages states no rate and is left out;
- LLMPerf's ``..._summary.json``: `token_benchmark_ray.py` of ray-project/llmperf (commit 004d3af), keys of
  `common_metrics.py` (commit 1eac866) joined by ``_``. Its inter-token latency holds the first token too, so that TPOT
  is taken from the means of E2E and TTFT;
- InferenceX's (InferenceMAX's) ``agg_....json``, one object or a list: `utils/process_result.py` of
  SemiAnalysisAI/InferenceX (commit 00e51cc); seconds, lengths as ``isl`` and ``osl`` where they are stated;
- MLPerf LoadGen's ``mlperf_log_summary.txt`` of the Server scenario with token latencies: `loadgen/results.cc` of
  mlcommons/inference (commit 05a9cec). It says output lengths only as a rate, and input lengths not at all.

Which program wrote a document is told by one key (`READERS`).
"""

from __future__ import annotations

import itertools
import json
import math
import re
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from calibration.serving.checkpoints import precision_of
from calibration.serving.measured_runs import ServingPoint, WorkerSettings, engine_called, start_limits
from hardware_db import Dtype, EngineCosts, EngineProfile, GpuSku, load_hardware, sku_id
from planner.core import InputError, UnknownNameError
from planner.engine import Schedule
from planner.llm import LlmSpec, load_llm
from planner.roofline import Parallelism

MAX_FILE_BYTES = 200_000_000
"""Largest result file that is read: 100,000 requests with details take about half of it."""
MAX_REQUESTS = 1_000_000
"""Most requests of a run: what one simulation is asked to play."""
SECONDS = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
"""Units of time in exports of AIPerf and GenAI-Perf; without one they mean milliseconds."""

MLPERF = "MLPerf Results Summary"
"""Title of LoadGen's summary."""

LABELS = ("", "bf16", "fp8", "int4", "fp4")
"""Labels of precision that points are predicted by; blank is the checkpoint's own."""


class Stated(NamedTuple):
    """What a file says of a run beside what is used of it; None, or empty, where it does not.

    Attributes:
        e2e_s, duration_s: mean of whole requests, and of the run [s].
        e2e_per_token_s: mean of E2E over output tokens. server_tpot_s: TPOT by the server's own metrics [s].
        requests_per_s, output_tokens_per_s: of the whole run.
        output_tokens: mean of a request, not rounded.
        total_input_tokens, total_output_tokens, input_tokens_per_s, total_tokens_per_s: of the whole run.
        running: mean requests in flight, as measured.
        tokens_per_s_of_a_user: mean of 1/TPOT. itl_s: mean between two chunks of an answer.
        listed_ttft_s, listed_tpot_s: means of the requests that the file lists one by one.
        accepted_tokens: a step of a server that checks drafts. drafts: how it makes them.
        failed: requests. cancelled: the run was.
        model, gpu, engine, precision: as named. tp: GPUs that share a layer; dp: of these, attention ranks; ep: groups
            of experts.
        falls: a percentile below a lower one, in words.
    """

    e2e_s: float | None = None
    duration_s: float | None = None
    e2e_per_token_s: float | None = None
    server_tpot_s: float | None = None
    requests_per_s: float | None = None
    output_tokens_per_s: float | None = None
    output_tokens: float | None = None
    total_input_tokens: float | None = None
    total_output_tokens: float | None = None
    input_tokens_per_s: float | None = None
    total_tokens_per_s: float | None = None
    running: float | None = None
    tokens_per_s_of_a_user: float | None = None
    itl_s: float | None = None
    listed_ttft_s: float | None = None
    listed_tpot_s: float | None = None
    accepted_tokens: float | None = None
    drafts: str = ""
    failed: float | None = None
    cancelled: bool = False
    model: str = ""
    gpu: str = ""
    engine: str = ""
    precision: str = ""
    tp: int | None = None
    dp: int | None = None
    ep: int | None = None
    falls: str = ""


_NOTHING_ELSE = Stated()


@dataclass(frozen=True)
class BenchmarkRun:
    """One run of a benchmark client.

    Attributes:
        id: file and number of the run in it.
        client: which program wrote it.
        requests: completed.
        concurrency: users in the loop; None for an open loop.
        request_rate_per_s, arrival_scv: of an open loop. ramp_s: over which users start.
        input_tokens, output_tokens: means, or upper ends where `range_ratio` is below 1.
        drawn: (inputs, outputs) of every request, where they were saved.
        mean_ttft_s, mean_tpot_s: measured.
        unknown: what the file does not say.
        said: what else it says, to hold the run against (`calibration.serving.run_checks`).
    """

    id: str
    client: str
    requests: int
    input_tokens: int
    output_tokens: int
    mean_ttft_s: float
    mean_tpot_s: float
    concurrency: int | None = None
    request_rate_per_s: float | None = None
    arrival_scv: float = 1.0
    range_ratio: float = 1.0
    ramp_s: float = 0.0
    drawn: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    unknown: tuple[str, ...] = ()
    said: Stated = _NOTHING_ELSE


NO_RUN = BenchmarkRun("none", "none", 1, 1, 1, 1.0, 1.0)
"""Stands for the runs of a server that none are known of."""


@dataclass(frozen=True)
class BenchmarkFile:
    """Content of a result file.

    Attributes:
        name: of the file.
        runs: that can be used.
        left_out: a sentence for each run that cannot.
    """

    name: str
    runs: tuple[BenchmarkRun, ...]
    left_out: tuple[str, ...]

    @property
    def recognised(self) -> str:
        """Format, runs, and what was left out, in a line."""
        clients = dict.fromkeys(run.client for run in self.runs)
        counts = (sum(run.client == client for run in self.runs) for client in clients)
        found = ", ".join(f"{client}: {count}" for client, count in zip(clients, counts, strict=True))
        return f"{self.name}: runs of {found}; left out: {len(self.left_out)}"


@dataclass(frozen=True)
class Server:
    """Server that was measured and how it was started, which a result file does not say."""

    llm: LlmSpec
    sku: str
    engine: EngineProfile
    parallelism: Parallelism = field(default_factory=Parallelism)
    kv_cache: Dtype = Dtype.BF16
    precision: str = ""
    max_batched_tokens: int | None = None
    max_running_requests: int | None = None
    memory_fraction: float | None = None


def server_of(
    *,
    model: str,
    sku: str,
    engine: EngineProfile,
    split: tuple[int, int, int] = (1, 1, 1),
    precision: str = "",
    kv_cache: str = "bf16",
    max_batched_tokens: int | None = None,
    max_running_requests: int | None = None,
    memory_fraction: float | None = None,
) -> Server:
    """A server from plain values; `split` is (tp, attention ranks, ep). Raises InputError naming the field."""
    if precision not in LABELS:
        raise UnknownNameError("--precision", precision, LABELS[1:])
    if kv_cache not in {str(dtype) for dtype in Dtype}:
        raise UnknownNameError("--kv", kv_cache, (str(dtype) for dtype in Dtype))
    if memory_fraction is not None and not 0.0 < memory_fraction <= 1.0:
        raise InputError("--memory-fraction", memory_fraction, "must lie in (0, 1]", "give the share of HBM")
    tp, dp, ep = split
    return Server(
        llm=load_llm(model),
        sku=sku,
        engine=engine,
        parallelism=Parallelism(tp=tp, dp=dp, ep=ep),
        kv_cache=Dtype(kv_cache),
        precision=precision,
        max_batched_tokens=max_batched_tokens,
        max_running_requests=max_running_requests,
        memory_fraction=memory_fraction,
    )


def memory_settings(server: Server, sku: GpuSku) -> dict[str, Any]:
    """Arguments of `calibration.memory_of_log` for a server, in the formats its runs are played in."""
    split = server.parallelism
    return {
        **{"engine": server.engine.id, "tp": split.tp, "dp": split.dp, "ep": split.ep},
        "precision": precision_of(_point(NO_RUN, server), server.llm, sku),
        "memory_fraction": server.memory_fraction,
        "max_running_requests": server.max_running_requests,
        "max_batched_tokens": server.max_batched_tokens,
    }


def points_of(runs: Sequence[BenchmarkRun], server: Server) -> tuple[ServingPoint, ...]:
    """Runs as measured points of one server."""
    return tuple(_point(run, server) for run in runs)


def _point(run: BenchmarkRun, server: Server) -> ServingPoint:
    engine = server.engine
    limits = start_limits(engine.id, server.sku)
    tokens = server.max_batched_tokens or limits.max_batched_tokens or limits.least_batched_tokens
    running = server.max_running_requests or limits.max_running_requests
    return ServingPoint(
        id=run.id,
        engine=engine.id,
        model=server.llm.id,
        sku=server.sku,
        precision=server.precision or native_label(server.llm),
        kv_cache=server.kv_cache,
        input_tokens=run.input_tokens,
        output_tokens=run.output_tokens,
        range_ratio=run.range_ratio,
        concurrency=run.concurrency or 1,
        requests=run.requests,
        request_rate_per_s=run.request_rate_per_s,
        arrival_scv=run.arrival_scv,
        ramp_s=run.ramp_s,
        drawn_inputs=run.drawn[0],
        drawn_outputs=run.drawn[1],
        servers=(
            WorkerSettings(
                parallelism=server.parallelism,
                max_batched_tokens=tokens,
                max_running_requests=running,
                memory_fraction=server.memory_fraction,
            ),
        ),
        schedule=Schedule(
            mixed_steps=engine.mixed_steps,
            whole_prompts=engine.whole_prompts,
            reserve_outputs=engine.reserves_outputs,
        ),
        mean_ttft_s=run.mean_ttft_s,
        mean_tpot_s=run.mean_tpot_s,
        unknown=run.unknown,
    )


def native_label(llm: LlmSpec) -> str:
    """The precision label of a checkpoint's own formats: ``fp4``, ``int4``, ``fp8`` or ``bf16``, the narrowest."""
    formats = llm.native_precision.model_dump_json()
    return next((label for label in ("fp4", "int4", "fp8") if label in formats), "bf16")


def read_costs(path: str | Path) -> EngineCosts:
    """Engine costs as `planner calibrate-serving --json` writes them.

    Raises InputError for a file that is missing, too large, not JSON or not engine costs, naming the field.
    """
    documents = _documents(Path(path))
    if len(documents) != 1 or not isinstance(documents[0], dict):
        raise InputError("engine costs", str(path), "is not one JSON object", "give a file of calibrate-serving --json")
    try:
        return EngineCosts(**documents[0])
    except InputError as error:
        place = f"{Path(path).name}.{error.field}"
        raise InputError(place, error.value, error.bound, error.fix or "write the file again") from None


# --- files ----------------------------------------------------------------------------------------------------------


def read_results(path: str | Path, input_tokens: int | None = None) -> BenchmarkFile:
    """The runs of a result file, whichever of the clients wrote it, and what cannot be used of it.

    Args:
        path: of the file.
        input_tokens: of a request, where the file does not say.

    Raises InputError naming file and field for a file that is missing, too large, malformed or of no known client, and
    for a run without completed requests or with means that are not positive.
    """
    name = Path(path).name
    try:
        return _runs(_documents(Path(path)), name, input_tokens)
    except RecursionError:  # a value that can be read and not be shown
        raise InputError(name, "(nested)", "is nested too deeply", "give a result file of a benchmark client") from None


def _runs(documents: Sequence[Any], name: str, input_tokens: int | None) -> BenchmarkFile:
    read: _Reader
    runs: list[BenchmarkRun] = []
    left_out: list[str] = []
    for number, document in enumerate(documents):
        at = f"{name}[{number}]"
        if not isinstance(document, Mapping):
            raise InputError(at, document, "is not a JSON object", "give a result file of a benchmark client")
        if isinstance(document.get("benchmarks"), list):
            nodes, read = [_JsonNode(at, benchmark) for benchmark in document["benchmarks"]], _guidellm_run
        else:
            nodes, read = [_JsonNode(at, _of_inferencex_rows(document))], _run_reader(document, at)
        for node in nodes:
            id = f"{name}#{len(runs) + len(left_out)}"
            found = read(node, id)
            said = _NOTHING_ELSE if isinstance(found, str) else _stated(node, found.client)
            reason = found if isinstance(found, str) else _why_not(said)
            if reason or isinstance(found, str):
                left_out.append(f"{id}: {reason}")
                continue
            doubts = [*found.unknown]
            doubts += [f"what {said.failed:.0f} failed requests did to the server"] if said.failed else []
            doubts += ["what was still running when it was cancelled"] if said.cancelled else []
            found = replace(found, said=said, unknown=tuple(doubts))
            runs.append(found if found.input_tokens else _with_inputs(found, input_tokens))
    if not runs:
        bound = f"holds no benchmark run that can be used ({'; '.join(left_out[:3]) or 'it is empty'})"
        raise InputError(name, len(documents), bound, "give a result file of a benchmark client")
    return BenchmarkFile(name, tuple(runs), tuple(left_out))


def _why_not(said: Stated) -> str:
    """Why a run cannot be used whatever it measured; empty if it can."""
    if said.drafts or (said.accepted_tokens or 1.0) > 1.0:
        told = f"drafts ({said.drafts})" if said.drafts else f"{said.accepted_tokens:.3g} tokens a step"
        return f"guesses tokens: {told}, which is not fitted"
    return ""


def _with_inputs(run: BenchmarkRun, input_tokens: int | None) -> BenchmarkRun:
    if input_tokens is None:
        raise InputError(f"{run.id} input tokens", "(missing)", f"are not said by {run.client}", "give --input-tokens")
    return replace(run, input_tokens=input_tokens)


def _documents(path: Path) -> list[Any]:
    """The JSON documents of a file: one, or one a line."""
    try:
        if not path.is_file():  # nor a FIFO or a device, which would never end
            raise FileNotFoundError
        if path.stat().st_size > MAX_FILE_BYTES:
            raise InputError("result", str(path), f"is larger than {MAX_FILE_BYTES} bytes", "save it without details")
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        bound = f"cannot be read ({type(error).__name__})"
        raise InputError("result", str(path), bound, "give a result file of a benchmark client") from None
    whole = _parsed_json(text)
    if whole is not None:
        return whole if isinstance(whole, list) else [whole]
    if MLPERF in text[:200]:
        cells = (line.partition(":") for line in text.splitlines())
        return [{MLPERF: {key.strip(): _parsed_or_text(value.strip()) for key, colon, value in cells if colon}}]
    beside = companion_fix(text)
    if beside:
        raise InputError("result", str(path), "has no runs that can be read", beside)
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    documents = []
    for number, line in lines:
        document = _parsed_json(line)
        if document is None:
            raise InputError("result", str(path), f"line {number} is not JSON", "give JSON, or one JSON object a line")
        documents.append(document)
    return documents


COMPANIONS = {
    "Metric,": "give profile_export_aiperf.json, which lies beside it",
    ":::MLLOG": "give mlperf_log_summary.txt, which lies beside it",
    "Run Info,": "give the report as JSON (guidellm --output kind=json)",
}
"""How files begin that clients write beside those that are read -> what to give."""


def companion_fix(text: str) -> str:
    """What to give instead of a file that a client writes beside the one that is read; empty for others."""
    return next((fix for start, fix in COMPANIONS.items() if text.lstrip("\ufeff").startswith(start)), "")


def is_companion(path: Path) -> bool:
    """True for a file of `COMPANIONS`."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return path.is_file() and bool(companion_fix(file.read(100)))
    except OSError:
        return False


def _parsed_or_text(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _parsed_json(text: str) -> Any:  # noqa: ANN401
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _run_reader(document: Mapping[str, Any], at: str) -> _Reader:
    for key, reader in READERS.items():
        if key in document:
            return reader
    if WITHOUT_FIRST & document.keys():
        fix = "measure answers of several tokens, with streaming"
        raise InputError(at, "time to first token", "is not said", fix)
    known = f"a result of {', '.join(PROGRAMS)}"
    raise InputError(at, sorted(map(str, document))[:6], f"is not {known}", "give the client's JSON output")


class _JsonNode:
    """A place in a JSON document that knows its name, so that errors can say where."""

    def __init__(self, at: str, value: Any) -> None:  # noqa: ANN401
        self.at, self.value = at, value

    def __getitem__(self, key: str) -> _JsonNode:
        value = self.value.get(key) if isinstance(self.value, Mapping) else None
        return _JsonNode(f"{self.at}.{key}", value)

    @property
    def missing(self) -> bool:
        return self.value is None

    def number(self) -> float:
        """A finite number > 0. Raises InputError."""
        value = self.value
        if isinstance(value, bool) or not isinstance(value, int | float):
            shown = "(missing)" if value is None else value
            raise InputError(self.at, shown, "must be a number", "give the complete output of the client")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number) or number <= 0.0:
            raise InputError(self.at, value, "must be finite and > 0", "leave this run out")
        return number

    def count(self) -> int:
        """A number of at least 1, rounded. Raises InputError."""
        number = self.number()
        if number > MAX_REQUESTS:
            raise InputError(self.at, self.value, f"is more than {MAX_REQUESTS}", "benchmark with fewer")
        return max(1, round(number))

    def text(self) -> str:
        return self.value if isinstance(self.value, str) else ""

    def counts(self) -> tuple[int, ...]:
        """A list of whole numbers >= 0; empty when missing. Raises InputError."""
        if self.missing:
            return ()
        good = isinstance(self.value, list) and all(type(entry) is int and entry >= 0 for entry in self.value)
        if not good:
            raise InputError(self.at, self.value, "must be a list of whole numbers", "save the run again")
        return tuple(self.value)


# --- vLLM and SGLang ------------------------------------------------------------------------------------------------


def _flat_run(node: _JsonNode, name: str) -> BenchmarkRun | str:
    """One object of plain numbers, as vLLM and SGLang write it."""
    if not node["ramp_up_strategy"].missing:
        return "has a rate that rises while it runs (ramp-up)"
    if node["request_rate"].text() == "trace":
        return "was sent at the times of a trace, which the file does not say"
    server = node["server_info"]
    if (
        not server["dp_size"].missing
        and server["dp_size"].number() > 1
        and server["enable_dp_attention"].value is False
    ):
        return f"is of {server['dp_size'].value} replicas (dp_size without DP attention); one server is fitted to"
    requests = node["completed"].count()
    rate, capped = _flat_rate(node["request_rate"]), not node["max_concurrency"].missing
    concurrency = node["max_concurrency"].count() if capped else requests
    unknown = ["max_concurrency beside a rate"] if rate is not None and capped else []
    nominal = _nominal_lengths(node, requests)
    drawn = _logged_lengths(node)
    if nominal.range_ratio == 1.0 and not drawn[0]:
        unknown.append("spread of the lengths")
    return BenchmarkRun(
        id=name,
        client="sglang" if not node["random_range_ratio"].missing else "vllm",
        requests=len(drawn[0]) or requests,
        concurrency=None if rate is not None else concurrency,
        request_rate_per_s=rate,
        arrival_scv=_scv_of_gaps(node["burstiness"]),
        input_tokens=nominal.input_tokens,
        output_tokens=nominal.output_tokens,
        range_ratio=nominal.range_ratio,
        drawn=drawn,
        mean_ttft_s=1e-3 * node["mean_ttft_ms"].number(),
        mean_tpot_s=1e-3 * node["mean_tpot_ms"].number(),
        unknown=tuple(unknown),
    )


def _flat_rate(node: _JsonNode) -> float | None:
    """Requests per second; None where all are sent at once."""
    if node.missing or node.value in ("inf", "Infinity", math.inf):
        return None
    return node.number()


class _NominalLengths(NamedTuple):
    """Tokens of a request, and the shortest length drawn over the nominal one."""

    input_tokens: int
    output_tokens: int
    range_ratio: float


def _nominal_lengths(node: _JsonNode, requests: int) -> _NominalLengths:
    """As SGLang was told to draw them, else means of the totals."""
    if node["dataset_name"].text().startswith("random") and not node["random_range_ratio"].missing:
        inputs, outputs = node["random_input_len"].count(), node["random_output_len"].count()
        ratio = node["random_range_ratio"].value
        if isinstance(ratio, int | float) and 0.0 <= ratio <= 1.0:
            return _NominalLengths(inputs, outputs, float(ratio))
    totals = (node["total_input_tokens"].number(), node["total_output_tokens"].number())
    return _NominalLengths(max(1, round(totals[0] / requests)), max(1, round(totals[1] / requests)), 1.0)


def _logged_lengths(node: _JsonNode) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Lengths of the requests that were answered, where the client saved them."""
    inputs, outputs = node["input_lens"].counts(), node["output_lens"].counts()
    if len(inputs) != len(outputs):
        if inputs and outputs:
            bound = f"has {len(outputs)} entries beside {len(inputs)} input_lens"
            raise InputError(node["output_lens"].at, len(outputs), bound, "save the run again")
        return (), ()
    answered = [(i, o) for i, o in zip(inputs, outputs, strict=True) if i > 0 and o > 0]
    return tuple(i for i, _ in answered), tuple(o for _, o in answered)


# --- GuideLLM -------------------------------------------------------------------------------------------------------


def _guidellm_run(node: _JsonNode, name: str) -> BenchmarkRun | str:
    config = node["config"] if not node["config"].missing else node["args"]
    strategy, metrics = config["strategy"], node["metrics"]
    requests = metrics["request_totals"]["successful"].count()
    kind = strategy["type_"].text()
    replay = _replayed_requests(node) if kind == "trace" else None
    drawn = replay.lengths if replay else ((), ())
    rate = strategy["rate"].number() if kind in ("constant", "poisson") else replay and replay.rate_per_s
    return BenchmarkRun(
        id=name,
        client="guidellm",
        requests=requests,
        concurrency=None if rate is not None else _concurrency(strategy, kind, requests),
        request_rate_per_s=rate,
        arrival_scv=replay.arrival_scv if replay else 0.0 if kind == "constant" else 1.0,
        drawn=drawn,
        ramp_s=0.0 if not strategy["rampup_duration"].value else strategy["rampup_duration"].number(),
        input_tokens=metrics["prompt_token_count"]["successful"]["mean"].count(),
        output_tokens=metrics["output_token_count"]["successful"]["mean"].count(),
        mean_ttft_s=1e-3 * metrics["time_to_first_token_ms"]["successful"]["mean"].number(),
        mean_tpot_s=1e-3 * metrics["inter_token_latency_ms"]["successful"]["mean"].number(),
        unknown=() if drawn[0] else ("spread of the lengths",),
    )


class _Replay(NamedTuple):
    """The answered requests of a replayed trace: (inputs, outputs) [tokens]; rate [1/s] and SCV of the gaps as sent."""

    lengths: tuple[tuple[int, ...], tuple[int, ...]]
    rate_per_s: float
    arrival_scv: float


def _replayed_requests(node: _JsonNode) -> _Replay:
    answered = node["requests"]["successful"]
    if not isinstance(answered.value, list) or len(answered.value) < 3:
        raise InputError(answered.at, "(too few)", "must list the requests of a replay", "save the run with them")
    requests = [_JsonNode(f"{answered.at}[{i}]", request) for i, request in enumerate(answered.value)]
    times = sorted(request["request_start_time"].number() for request in requests)
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    mean = statistics.fmean(gaps)
    if mean <= 0.0:
        raise InputError(answered.at, times[0], "were all sent at once", "replay a trace with times")
    inputs = tuple(request["prompt_tokens"].count() for request in requests)
    outputs = tuple(request["output_tokens"].count() for request in requests)
    return _Replay((inputs, outputs), 1.0 / mean, statistics.pvariance(gaps) / mean**2)


def _concurrency(strategy: _JsonNode, kind: str, requests: int) -> int:
    if kind == "synchronous":
        return 1
    if kind == "concurrent":
        return strategy["streams"].count()
    if kind == "throughput":
        most = strategy["max_concurrency"]
        return requests if most.missing else most.count()
    bound = "must be synchronous, concurrent, throughput, constant or poisson"
    raise InputError(strategy["type_"].at, kind or "(missing)", bound, "run GuideLLM with one of these profiles")


# --- AIPerf and GenAI-Perf ------------------------------------------------------------------------------------------


def _aiperf_run(node: _JsonNode, name: str) -> BenchmarkRun:
    load = _load_of(node["input_config"])
    rate = None if load["request_rate"].missing else load["request_rate"].number()
    pattern = " ".join(load[key].text() for key in ("arrival_pattern", "request_rate_mode"))
    unknown, users = ["spread of the lengths"], load["concurrency"]
    if isinstance(users.value, list) and len(users.value) == 1:
        users = _JsonNode(users.at, users.value[0])
    if rate is not None and not users.missing:
        unknown.append("concurrency beside a rate")
    return BenchmarkRun(
        id=name,
        client="aiperf",
        requests=node["request_count"]["avg"].count(),
        concurrency=None if rate is not None else users.count(),
        request_rate_per_s=rate,
        arrival_scv=0.0 if "constant" in pattern else _scv_of_gaps(load["smoothness"]),
        input_tokens=node["input_sequence_length"]["avg"].count(),
        output_tokens=node["output_sequence_length"]["avg"].count(),
        mean_ttft_s=_seconds(node["time_to_first_token"]),
        mean_tpot_s=_seconds(node["inter_token_latency"]),
        unknown=tuple(unknown),
    )


def _load_of(config: _JsonNode) -> _JsonNode:
    """Where an export keeps how it loaded the server: AIPerf's place, then those of GenAI-Perf."""
    phases = config["phases"]
    has_phases = isinstance(phases.value, list) and bool(phases.value)
    last = _JsonNode(f"{phases.at}[-1]", _with_older_names(phases.value[-1]) if has_phases else None)
    places = (config["loadgen"], config["perf_analyzer"]["stimulus"], config, last)
    for place in places:
        if not place["concurrency"].missing or not place["request_rate"].missing:
            return place
    bound = "names neither a concurrency nor a request rate"
    raise InputError(places[0].at, "(missing)", bound, "profile with --concurrency or --request-rate")


def _scv_of_gaps(shape: _JsonNode) -> float:
    """SCV of Gamma gaps of a shape; 1 where none is given."""
    return 1.0 if shape.missing else 1.0 / shape.number()


def _with_older_names(phase: Any) -> Any:  # noqa: ANN401
    """A phase of AIPerf 0.13 (schema 1.4) under the names of its older flags."""
    if not isinstance(phase, Mapping):
        return phase
    names = {"rate": "request_rate", "type": "arrival_pattern"}
    return {names.get(key, key): value for key, value in phase.items()}


def _seconds(metric: _JsonNode) -> float:
    unit = metric["unit"].text() or "ms"
    if unit not in SECONDS:
        raise InputError(metric["unit"].at, unit, "is no unit of time", f"use one of {', '.join(SECONDS)}")
    return SECONDS[unit] * metric["avg"].number()


# --- summaries ------------------------------------------------------------------------------------------------------


def _inference_perf_run(node: _JsonNode, name: str) -> BenchmarkRun | str:
    load, good = node["load_summary"], node["successes"]
    if load["requested_rate"].missing:
        return "is over all stages, which differ in rate: give stage_0_lifecycle_metrics.json and its like"
    closed = not load["concurrency"].missing
    inputs = good["prompt_tokens"] if not good["prompt_tokens"].missing else good["prompt_len"]
    return BenchmarkRun(
        id=name,
        client="inference-perf",
        requests=good["count"].count(),
        concurrency=load["concurrency"].count() if closed else None,
        request_rate_per_s=None if closed else load["achieved_rate"].number(),
        input_tokens=inputs["mean"].count(),
        output_tokens=good["output_len"]["mean"].count(),
        mean_ttft_s=good["latency"]["time_to_first_token"]["mean"].number(),
        mean_tpot_s=good["latency"]["time_per_output_token"]["mean"].number(),
        unknown=("spread of the lengths",),
    )


def _llmperf_run(node: _JsonNode, name: str) -> BenchmarkRun | str:
    outputs, ttft_s = node["results_number_output_tokens_mean"].number(), node["results_ttft_s_mean"].number()
    writing_s = node["results_end_to_end_latency_s_mean"].number() - ttft_s
    if outputs <= 1.0 or writing_s <= 0.0:
        return "writes no token after the first, so that there is no TPOT"
    return BenchmarkRun(
        id=name,
        client="LLMPerf",
        requests=node["results_num_completed_requests"].count(),
        concurrency=node["num_concurrent_requests"].count(),
        input_tokens=node["results_number_input_tokens_mean"].count(),
        output_tokens=max(1, round(outputs)),
        mean_ttft_s=ttft_s,
        mean_tpot_s=writing_s / (outputs - 1.0),
        unknown=("spread of the lengths", "requests that a batch of the client waits for"),
    )


INFERENCEX_REQUESTS = 10
"""Requests of each user (`--num-prompts` of the benchmark scripts of SemiAnalysisAI/InferenceX)."""
INFERENCEX_RANGE = 0.8
"""Shortest length over the nominal one (`random-range-ratio` in `.github/workflows/full-sweep-tmpl.yml` there)."""


def _of_inferencex_rows(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """A row as InferenceX's dashboard hands it out, in the form of its files; any other document as it is."""
    metrics = document.get("metrics")
    if "spec_method" not in document or not isinstance(metrics, Mapping):
        return document
    names = {"hw": "hardware", "tp": "decode_tp", "ep": "decode_ep", "mtp": "spec_method"}
    apart = ("prefill_tp",) if document.get("disagg") is False else ()
    renamed = {name: document[other] for name, other in names.items() if other in document}
    return {**{key: value for key, value in document.items() if key not in apart}, **renamed, **metrics}


def _inferencex_run(node: _JsonNode, name: str) -> BenchmarkRun | str:
    guesses = next((node[key].text() for key in ("mtp", "spec_decoding") if not node[key].missing), "")
    if guesses not in ("", "off", "none", "false"):
        return f"guesses tokens ({guesses}), with an acceptance that the file does not say"
    if node["disagg"].value in (True, "true") or not node["prefill_tp"].missing:
        return "prefills and decodes on servers of their own; a server of one kind is fitted to"
    if node["isl"].missing or node["osl"].missing:
        return "does not say its lengths (isl, osl)"
    users = node["conc"].count()
    return BenchmarkRun(
        id=name,
        client="InferenceX",
        requests=INFERENCEX_REQUESTS * users,
        concurrency=users,
        input_tokens=node["isl"].count(),
        output_tokens=node["osl"].count(),
        range_ratio=INFERENCEX_RANGE,
        mean_ttft_s=node["mean_ttft"].number(),
        mean_tpot_s=node["mean_tpot"].number(),
        unknown=("number of requests and spread of lengths: those of the published client",),
    )


def _mlperf_run(node: _JsonNode, name: str) -> BenchmarkRun | str:
    found = node[MLPERF]
    scenario = found["Scenario"].text()
    if scenario != "Server":
        return f"is of the scenario {scenario or '(missing)'}; only Server has arrivals at a rate"
    if found["Mean First Token latency (ns)"].missing:
        return "has no token latencies (use_token_latencies)"

    rate_per_s = found["Scheduled samples per second"].number()
    is_valid = found["Result is"].text() != "INVALID"
    return BenchmarkRun(
        id=name,
        client="MLPerf LoadGen",
        requests=found["min_query_count"].count(),
        request_rate_per_s=rate_per_s,
        input_tokens=0,
        output_tokens=max(1, round(found["Completed tokens per second"].number() / rate_per_s)),
        mean_ttft_s=1e-9 * found["Mean First Token latency (ns)"].number(),
        mean_tpot_s=1e-9 * found["Mean Time to Output Token (ns)"].number(),
        unknown=(
            *("lengths, of which only the output tokens per second are said", "requests beyond min_query_count"),
            *(() if is_valid else ("what made the result INVALID",)),
        ),
    )


_SUCCESS, _STAGE, _RESULTS = "metrics.{}.successful.mean", "successes.{}", "results_{}_mean"
_FLAT: dict[str, tuple[str, ...]] = {
    "e2e_s": ("mean_e2el_ms:0.001", "mean_e2e_latency_ms:0.001"),
    "duration_s": ("duration",),
    "requests_per_s": ("request_throughput",),
    "output_tokens_per_s": ("output_throughput",),
    "input_tokens_per_s": ("input_throughput",),
    "total_tokens_per_s": ("total_token_throughput", "total_throughput"),
    "total_input_tokens": ("total_input_tokens",),
    "total_output_tokens": ("total_output_tokens",),
    "running": ("concurrency",),
    "itl_s": ("mean_itl_ms:0.001",),
    "accepted_tokens": ("spec_decode_acceptance_length", "accept_length"),
    "drafts": ("server_info.speculative_algorithm",),
    "failed": ("failed",),
    "model": ("model_id", "server_info.model_path", "server_info.served_model_name"),
    "precision": ("server_info.quantization",),
    "tp": ("server_info.tp_size",),
    "dp": ("server_info.dp_size",),
}
STATED_AT: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "vllm": _FLAT,
    "sglang": _FLAT | {"engine": ("backend",)},
    "guidellm": {
        "e2e_s": (_SUCCESS.format("request_latency"),),
        "e2e_per_token_s": (_SUCCESS.format("time_per_output_token_ms") + ":0.001",),
        "duration_s": ("duration",),
        "requests_per_s": (_SUCCESS.format("requests_per_second"),),
        "output_tokens_per_s": (_SUCCESS.format("output_tokens_per_second"),),
        "total_tokens_per_s": (_SUCCESS.format("tokens_per_second"),),
        "output_tokens": (_SUCCESS.format("output_token_count"),),
        "running": (_SUCCESS.format("request_concurrency"),),
        "failed": ("metrics.request_totals.errored",),
        "model": ("config.backend.model", "args.backend.model", "benchmarker.backend.model", "worker.backend_model"),
    },
    "aiperf": {
        "e2e_s": ("request_latency.avg:unit",),
        "duration_s": ("benchmark_duration.avg:unit",),
        "requests_per_s": ("request_throughput.avg",),
        "output_tokens_per_s": ("output_token_throughput.avg",),
        "output_tokens": ("output_sequence_length.avg",),
        "total_input_tokens": ("total_isl.avg", "total_input_sequence_length.avg"),
        "total_output_tokens": ("total_osl.avg", "total_output_sequence_length.avg"),
        "tokens_per_s_of_a_user": ("output_token_throughput_per_user.avg",),
        "itl_s": ("inter_chunk_latency.avg:unit",),
        "failed": ("error_request_count.avg",),
        "cancelled": ("was_cancelled",),
        "model": ("input_config.endpoint.model_names", "input_config.model_names", "input_config.model"),
    },
    "inference-perf": {
        "e2e_s": (_STAGE.format("latency.request_latency.mean"),),
        "e2e_per_token_s": (_STAGE.format("latency.normalized_time_per_output_token.mean"),),
        "server_tpot_s": ("server_metrics.time_per_output_token.mean",),
        "requests_per_s": (_STAGE.format("throughput.requests_per_sec"),),
        "output_tokens_per_s": (_STAGE.format("throughput.output_tokens_per_sec"),),
        "input_tokens_per_s": (_STAGE.format("throughput.input_tokens_per_sec"),),
        "total_tokens_per_s": (_STAGE.format("throughput.total_tokens_per_sec"),),
        "output_tokens": (_STAGE.format("output_len.mean"),),
        "itl_s": (_STAGE.format("latency.inter_token_latency.mean"),),
        "failed": ("failures.count",),
        "model": ("model_name",),
    },
    "LLMPerf": {
        "e2e_s": (_RESULTS.format("end_to_end_latency_s"),),
        "e2e_per_token_s": (_RESULTS.format("inter_token_latency_s"),),
        "requests_per_s": ("results_num_completed_requests_per_min:0.016666666666666666",),
        "output_tokens_per_s": ("results_mean_output_throughput_token_per_s",),
        "output_tokens": (_RESULTS.format("number_output_tokens"),),
        "failed": ("results_number_errors",),
        "model": ("model",),
    },
    "InferenceX": {
        "tp": ("tp",),
        "ep": ("ep",),
        "e2e_s": ("mean_e2el",),
        "output_tokens_per_s": ("output_tput_per_gpu:tp",),
        "total_tokens_per_s": ("tput_per_gpu:tp",),
        "tokens_per_s_of_a_user": ("mean_intvty",),
        "model": ("model", "infmax_model_prefix"),
        "gpu": ("hw",),
        "engine": ("framework",),
        "precision": ("precision",),
    },
    "MLPerf LoadGen": {
        "e2e_s": (f"{MLPERF}.Mean latency (ns):1e-9",),
        "requests_per_s": (f"{MLPERF}.Completed samples per second",),
    },
}
"""Where each client states what `Stated` holds: keys joined by dots, with the factor to SI, or the key of the unit or
of the GPUs, behind a colon; the first that is there counts. Sources: as of their readers; ``server_info`` is SGLang's
since 0.5."""
_TEXTS = ("model", "gpu", "engine", "precision", "drafts")


def _stated(node: _JsonNode, client: str) -> Stated:
    """What a run says of itself beside what its reader takes; figures that are not positive count as not said."""
    found: dict[str, Any] = {}
    for name, places in STATED_AT.get(client, {}).items():
        for place in places:
            path, _, scale = place.partition(":")
            parents, _, last = path.rpartition(".")
            parent = node
            for key in filter(None, parents.split(".")):
                parent = parent[key]
            value = parent[last].value
            value = value[0] if isinstance(value, list) and len(value) == 1 else value
            factors = {"unit": SECONDS.get(parent["unit"].text() or "ms", 1.0), "tp": found.get("tp", 1), "": 1.0}
            if name in _TEXTS:
                if isinstance(value, str) and value:
                    found.setdefault(name, value)
            elif isinstance(value, bool):
                found.setdefault(name, value) if name == "cancelled" else None
            elif isinstance(value, int | float) and 0.0 < value <= sys.float_info.max:
                factor = factors[scale] if scale in factors else float(scale)
                found.setdefault(name, int(value) if name in ("tp", "dp", "ep") else factor * value)
    if client == "InferenceX" and "tp" in found:
        found["dp"] = found["tp"] if node["dp_attention"].value in (True, "true") else 1
    found |= {"gpu": _gpu_of_runner(found["gpu"])} if "gpu" in found else {}
    found |= {"engine": engine_called(found["engine"])} if "engine" in found else {}
    found |= {"precision": label_of(found["precision"])} if "precision" in found else {}
    return Stated(**found, **_listed_means(node), falls=falling_percentile(node.value))


def _gpu_of_runner(label: str) -> str:
    """The GPU that a runner is called by, as InferenceX does (``h200-nb_3``); the label where none is.

    >>> [_gpu_of_runner(label) for label in ("h200-nb_3", "mi355x-amds", "h100-pcie", "abacus-1")]
    ['h200', 'mi355x', 'h100-pcie', 'abacus-1']
    """
    skus = load_hardware().skus
    ends = [len(label), *(match.start() for match in reversed(list(re.finditer(r"[-_]", label))))]
    return next((label[:end] for end in ends if sku_id(label[:end]) in skus), label)


def label_of(words: str) -> str:
    """The label of a precision that words mean; empty where they mean none of `LABELS`.

    >>> [label_of(words) for words in ("modelopt_fp4", "w8a8_fp8", "awq", "BF16", "w8a8_int8")]
    ['fp4', 'fp8', 'int4', 'bf16', '']
    """
    named = {"fp4": ("fp4",), "int4": ("awq", "gptq", "int4", "w4a16"), "fp8": ("fp8",), "bf16": ("16",)}
    return next((label for label, marks in named.items() if any(mark in words.lower() for mark in marks)), "")


def _listed_means(node: _JsonNode) -> dict[str, Any]:
    """Means of the requests that vLLM and SGLang list with ``ttfts`` and ``itls``, of those that were answered."""
    lists = [node[key].value for key in ("ttfts", "itls", "output_lens")]
    if not all(isinstance(entries, list) and len(entries) == len(lists[2]) for entries in lists):
        return {}
    ttfts, tpots = [], []
    for ttft, gaps, tokens in zip(*lists, strict=True):
        if _is_time(ttft) and isinstance(tokens, int) and tokens > 0:
            ttfts.append(ttft)
            if isinstance(gaps, list) and tokens > 1 and gaps and all(map(_is_time, gaps)):
                tpots.append(math.fsum(gaps) / (tokens - 1))
    means = {"listed_ttft_s": ttfts, "listed_tpot_s": tpots}
    return {name: statistics.fmean(times) for name, times in means.items() if times and math.fsum(times) > 0.0}


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0.0 <= value <= MAX_TIME_S


MAX_TIME_S = 1e9
"""Longest time that a request may list [s]."""
_PERCENTILE = re.compile(r"^(?:(.+)_)?(median|min|max|p\d+(?:\.\d+)?)(?:_(.+))?$")
_WRAPS = frozenset({"percentiles", "successful", "total", "metrics"})
"""Keys between a figure and its percentiles that do not name it."""
_FALLING = ("intvty",)
"""Figures whose percentiles are named after those of another, and fall: InferenceX's interactivity."""


def falling_percentile(document: object, name: str = "a figure") -> str:
    """A percentile of a figure that is below a lower one of the same, in words; empty where all rise.

    >>> falling_percentile({"median_ttft_ms": 90.0, "p99_ttft_ms": 40.0, "latency": {"p50": 1.0, "p99": 2.0}})
    'ttft_ms: p99 of 40 below p50 of 90'
    """
    if not isinstance(document, Mapping):
        return ""
    figures: dict[str, list[tuple[float, float]]] = {}
    for key, value in document.items():
        named = _PERCENTILE.match(str(key)[:100])
        if named and isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            stem = "_".join(filter(None, (named[1], named[3])))
            figures.setdefault(stem, []).append((_probability(named[2]), value))
    for stem, values in figures.items():
        for (low, below), (high, above) in itertools.pairwise(sorted(values)):
            if low < high and above < below * (1.0 - 1e-6) - 1e-12 and not any(word in stem for word in _FALLING):
                return f"{stem or name}: p{100 * high:g} of {above:.4g} below p{100 * low:g} of {below:.4g}"
    inner = (falling_percentile(value, name if key in _WRAPS else str(key)[:100]) for key, value in document.items())
    return next(filter(None, inner), "")


def _probability(word: str) -> float:
    """Of ``median``, ``max``, ``p5``, ``p99.9`` and ``p999`` (GuideLLM's, as ``p05`` and ``p001``)."""
    words = {"median": 0.5, "min": 0.0, "max": 1.0, "p100": 1.0}
    digits = word[1:]
    if word in words:
        return words[word]
    return float(digits) / 100.0 if "." in digits or len(digits) == 1 else float(f"0.{digits}")


_Reader = Callable[[_JsonNode, str], "BenchmarkRun | str"]
"""A run, or why it is left out."""
WITHOUT_FIRST = frozenset({"request_latency", "mean_e2el_ms", "mean_e2e_latency_ms", "request_throughput"})
"""Keys of results that lack a time to first token: of embeddings, and without streaming."""
READERS: Mapping[str, _Reader] = {
    "time_to_first_token": _aiperf_run,
    "mean_ttft_ms": _flat_run,
    "load_summary": _inference_perf_run,
    "results_ttft_s_mean": _llmperf_run,
    "conc": _inferencex_run,
    MLPERF: _mlperf_run,
}
"""The key of a document that tells which program wrote it, and what reads it."""
PROGRAMS = (
    "vllm bench serve",
    "SGLang bench_serving",
    "GuideLLM",
    "AIPerf",
    "GenAI-Perf",
    "inference-perf",
    "LLMPerf",
    "InferenceX",
    "MLPerf LoadGen",
)
"""Their names, for people."""
