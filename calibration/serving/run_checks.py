"""Can a benchmark run be true, and is it of the server that it is said to be of?

A file states one thing several times: the time of a whole request is that of its first token and of those after it,
tokens and requests are rates times the duration, and users in a loop are never exceeded by the requests in flight
(Little 1961, doi:10.1287/opre.9.3.383: N = X R). Where two statements differ, a third tells which of them is used, and
a run without a third is refused. No figure may beat the memory of the GPU: every token reads the weights it visits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from calibration.possible import TOLERANCE
from calibration.serving.benchmark_files import BenchmarkRun, Server, native_label, points_of
from calibration.serving.checkpoints import precision_of
from hardware_db import GpuSku, HardwareDb, sku_id
from planner.core import InputError
from planner.llm import (
    BYTES_PER_VALUE,
    LlmSpec,
    Part,
    Precision,
    architecture_name,
    linear_parameters_by_part,
    lm_head_weights,
    preset_of,
)

MEANS_APART = 0.3
"""How far TPOT by the means of E2E, TTFT and tokens may be from the stated one: a choice. TPOT is a mean of ratios, and
requests of few tokens, which weigh as much as long ones, wait longer for each of theirs."""
TOTALS_APART = 0.05
"""How far a total may be from its rate times the duration: a choice; clients start their clocks at different ends."""
RATIOS_APART = 2.0
"""How far a mean of ratios may be from the ratio of means, and figures of GuideLLM, which weighs them by time, from one
another: a choice, three times."""
LONGEST = 10.0
"""Times the mean E2E that the last request of a run may take: a choice."""
LEAST_BUSY, ROUNDS = 0.6, 4
"""Share of a closed loop's users who wait on the mean below which its client is doubted, of runs that are this many
times as long as the users: a choice."""


class Check(NamedTuple):
    """A run as it is used, and what was said against its file."""

    run: BenchmarkRun
    remarks: tuple[str, ...]


def checked(run: BenchmarkRun) -> Check:
    """A run whose figures agree; where TPOT does not and a third figure says so, with TPOT from E2E and TTFT.

    Raises:
        InputError: figures that contradict one another, by name, and nothing says which of them is right.
    """
    said = run.said
    if said.falls:
        raise InputError(f"{run.id} percentiles", said.falls.partition(":")[0], said.falls, _MEASURE_AGAIN)
    _hold_identities(run)
    if said.e2e_s is None:
        _hold_users(run, _writing_s(run), MEANS_APART)
        _hold_e2e(run, _writing_s(run))
        return Check(run, _doubts(run))
    if said.e2e_s < run.mean_ttft_s * (1.0 - TOTALS_APART):
        bound = f"is less than the {run.mean_ttft_s:.4g} s of its TTFT"
        raise InputError(f"{run.id} E2E", f"{said.e2e_s:.4g} s", bound, _MEASURE_AGAIN)
    _hold_users(run, said.e2e_s, TOTALS_APART)
    tokens = mean_tokens(run)[1]
    if tokens <= 1.0:
        return Check(run, _doubts(run))
    of_whole_s = (said.e2e_s - run.mean_ttft_s) / (tokens - 1.0)
    if _near(of_whole_s, run.mean_tpot_s, MEANS_APART):
        _hold_e2e(run, said.e2e_s)
        return Check(run, _doubts(run))
    others = _whole_requests_s(run, tokens)
    by_tpot_s = run.mean_ttft_s + (tokens - 1.0) * run.mean_tpot_s
    for_e2e = [word for word, seconds in others.items() if _near(seconds, said.e2e_s, MEANS_APART)]
    for_tpot = [word for word, seconds in others.items() if _near(seconds, by_tpot_s, MEANS_APART)]
    stated, computed = f"{1e3 * run.mean_tpot_s:.4g} ms", f"{1e3 * of_whole_s:.4g} ms"
    if for_e2e and not for_tpot:
        remark = f"{run.id}: TPOT taken as {computed}, (E2E - TTFT) / (tokens - 1), not the {stated} stated; so says "
        return Check(replace(run, mean_tpot_s=of_whole_s), (remark + " and ".join(for_e2e),))
    if for_tpot and not for_e2e:
        return Check(
            run, (f"{run.id}: E2E of {said.e2e_s:.4g} s not used; TPOT agrees with " + " and ".join(for_tpot),)
        )
    bound = f"but (E2E - TTFT) / (tokens - 1) of the same file is {computed}"
    raise InputError(f"{run.id} TPOT", stated, bound, _MEASURE_AGAIN)


def mean_tokens(run: BenchmarkRun) -> tuple[float, float]:
    """Input and output tokens of a request: as stated, by the totals, else of the uniform distribution."""
    said, uniform = run.said, (1.0 + run.range_ratio) / 2.0
    inputs = said.total_input_tokens / run.requests if said.total_input_tokens else uniform * run.input_tokens
    outputs = said.total_output_tokens / run.requests if said.total_output_tokens else uniform * run.output_tokens
    return inputs, said.output_tokens or outputs


def _writing_s(run: BenchmarkRun) -> float:
    """E2E by TTFT, TPOT and tokens [s]."""
    return run.mean_ttft_s + (mean_tokens(run)[1] - 1.0) * run.mean_tpot_s


def _requests_per_s(run: BenchmarkRun) -> float | None:
    """Requests per second as stated, else by the output tokens per second."""
    said = run.said
    if said.requests_per_s or not said.output_tokens_per_s:
        return said.requests_per_s
    return said.output_tokens_per_s / mean_tokens(run)[1]


def _hold_users(run: BenchmarkRun, e2e_s: float, apart: float) -> None:
    """Raise InputError where more requests are in flight than there are users (Little's law)."""
    per_s = _requests_per_s(run)
    if not (per_s and run.concurrency):
        return
    in_flight = per_s * e2e_s
    if in_flight > run.concurrency * (1.0 + apart) + 1.0:
        bound = f"x {e2e_s:.4g} s of E2E are {in_flight:.4g} requests in flight of {run.concurrency} users"
        raise InputError(f"{run.id} requests per second", f"{per_s:.4g}", bound, _MEASURE_AGAIN)


def _hold_e2e(run: BenchmarkRun, e2e_s: float) -> None:
    """Raise InputError where E2E is far from its mean over output tokens, or from the requests in flight."""
    said, tokens = run.said, mean_tokens(run)[1]
    by_token_s, per_s = (said.e2e_per_token_s or 0.0) * tokens, _requests_per_s(run)
    if by_token_s and not _near(by_token_s, e2e_s, RATIOS_APART):
        bound = f"but {1e3 * by_token_s / tokens:.4g} ms a token over {tokens:.4g} tokens are {by_token_s:.4g} s"
        raise InputError(f"{run.id} E2E", f"{e2e_s:.4g} s", bound, _MEASURE_AGAIN)
    apart = RATIOS_APART if run.client == "guidellm" else MEANS_APART
    if said.running and per_s and not _near(said.running, per_s * e2e_s, apart):
        bound = f"but {per_s:.4g} requests per second x {e2e_s:.4g} s of E2E are {per_s * e2e_s:.4g}"
        raise InputError(f"{run.id} requests in flight", f"{said.running:.4g}", bound, _MEASURE_AGAIN)


def _doubts(run: BenchmarkRun) -> tuple[str, ...]:
    """What is said of a run that agrees with itself, and may be another than it seems."""
    said, doubts = run.said, []
    if said.itl_s and said.itl_s > run.mean_tpot_s * (1.0 + MEANS_APART):
        times = said.itl_s / run.mean_tpot_s
        doubts.append(f"{run.id}: {times:.3g} tokens a chunk (ITL over TPOT): drafts, or a client that gathers them")
    per_s, users = _requests_per_s(run), run.concurrency or 0
    in_flight = (per_s or 0.0) * (said.e2e_s or _writing_s(run))
    if 0.0 < in_flight < LEAST_BUSY * users and run.requests >= ROUNDS * users:
        doubts.append(
            f"{run.id}: {in_flight:.3g} of {users} users waited on the mean (Little's law): the client was slow"
        )
    return tuple(doubts)


_MEASURE_AGAIN = "measure the run again, or leave it out"


def _near(first: float, second: float, apart: float) -> bool:
    """Within the share of one another."""
    return first > 0.0 and second > 0.0 and abs(math.log(first / second)) <= math.log1p(apart)


class _Identity(NamedTuple):
    """A figure that has to be near what others come to."""

    word: str
    value: float | None
    other: float | None
    others: str
    apart: float
    unit: str = ""


def _identities(run: BenchmarkRun) -> Sequence[_Identity]:
    said = run.said
    inputs, outputs = mean_tokens(run)
    listed_in, listed_out = (float(sum(tokens)) or None for tokens in run.drawn)
    duration_s, per_s, count = said.duration_s, _requests_per_s(run), float(run.requests)
    all_out = (said.output_tokens or 0.0) * count or said.total_output_tokens or outputs * count
    of_tokens = TOTALS_APART if said.total_input_tokens or run.range_ratio == 1.0 else MEANS_APART

    def over(per: float | None) -> float | None:
        return per and duration_s and per * duration_s

    def each(tokens: float) -> float | None:
        return per_s and per_s * tokens

    long = f" a second over {duration_s or 0.0:.4g} s are"
    return (
        _Identity("requests", count, over(said.requests_per_s), f"{said.requests_per_s or 0:.4g}{long}", TOTALS_APART),
        _Identity(
            "output tokens",
            all_out,
            over(said.output_tokens_per_s),
            f"{said.output_tokens_per_s or 0:.4g}{long}",
            TOTALS_APART,
        ),
        _Identity("output tokens", said.total_output_tokens, all_out, "their mean times the requests is", TOTALS_APART),
        _Identity("output tokens", said.total_output_tokens, listed_out, "those listed are", TOTALS_APART),
        _Identity("input tokens", said.total_input_tokens, listed_in, "those listed are", TOTALS_APART),
        _Identity("output tokens per second", said.output_tokens_per_s, each(outputs), _EACH, of_tokens),
        _Identity("input tokens per second", said.input_tokens_per_s, each(inputs), _EACH, of_tokens),
        _Identity("tokens per second", said.total_tokens_per_s, each(inputs + outputs), _EACH, of_tokens),
        _Identity("TTFT", run.mean_ttft_s, said.listed_ttft_s, "those listed have a mean of", TOTALS_APART, " s"),
        _Identity("TPOT", run.mean_tpot_s, said.listed_tpot_s, "those listed have a mean of", TOTALS_APART, " s"),
        _Identity(
            "tokens per second of a user",
            said.tokens_per_s_of_a_user,
            1.0 / run.mean_tpot_s,
            "1 / TPOT is",
            MEANS_APART,
        ),
    )


_EACH = "requests per second times the tokens of each are"


def _hold_identities(run: BenchmarkRun) -> None:
    """Raise InputError for a figure that others contradict."""
    for one in _identities(run):
        apart = RATIOS_APART if run.client == "guidellm" else one.apart
        if one.value and one.other and not _near(one.value, one.other, apart):
            bound = f"but {one.others} {one.other:.6g}{one.unit}"
            raise InputError(f"{run.id} {one.word}", f"{one.value:.6g}{one.unit}", bound, _MEASURE_AGAIN)
    _hold_rate(run)


def _hold_rate(run: BenchmarkRun) -> None:
    """Raise InputError where requests were answered before they came, or long after all could have been."""
    said, asked, count = run.said, run.request_rate_per_s, run.requests
    per_s = said.requests_per_s or (count / said.duration_s if said.duration_s else None)
    if asked is None or per_s is None or count < 2:
        return
    by_chance = 3.0 * math.sqrt(run.arrival_scv / count)
    most_per_s = asked * count / (count - 1) * (1.0 + by_chance + TOTALS_APART)
    sent_s, answered_s = count / asked * (1.0 + by_chance), LONGEST * (said.e2e_s or _writing_s(run))
    is_whole = run.client in ("vllm", "sglang", "aiperf") and not said.failed
    is_whole = is_whole and not any("beside a rate" in doubt for doubt in run.unknown)
    late = is_whole and count / per_s > sent_s + answered_s
    if per_s > most_per_s or late:
        bound = f"at {asked:.4g} a second, with {said.e2e_s or _writing_s(run):.3g} s each, they would take "
        bound += f"{count / asked:.4g} s and not {count / per_s:.4g} s"
        raise InputError(f"{run.id} requests", count, bound, _MEASURE_AGAIN)


def _whole_requests_s(run: BenchmarkRun, tokens: float) -> Mapping[str, float]:
    """E2E as other figures of the file have it, by what they are [s]."""
    said, found = run.said, {}
    if said.e2e_per_token_s:
        found["E2E per token"] = said.e2e_per_token_s * tokens
    if said.running and said.requests_per_s:
        found["Little's law on its requests in flight"] = said.running / said.requests_per_s
    if run.concurrency and said.requests_per_s and run.requests >= 2 * run.concurrency:
        found["Little's law on its users and requests per second"] = run.concurrency / said.requests_per_s
    elif run.concurrency and said.output_tokens_per_s and run.requests >= 2 * run.concurrency:
        found["Little's law on its users and tokens per second"] = run.concurrency * tokens / said.output_tokens_per_s
    if said.server_tpot_s:
        found["the server's own metrics"] = run.mean_ttft_s + (tokens - 1.0) * said.server_tpot_s
    return found


# --- of which server --------------------------------------------------------------------------------------------------


def hold_against_server(
    runs: Sequence[BenchmarkRun], server: Server, db: HardwareDb, served_name: str = ""
) -> list[str]:
    """Refuse runs of another server than described, and runs faster than it can be.

    Args:
        runs: of one or several files.
        server: as described.
        db: its GPU.
        served_name: what the server called the model, where that is not its name.

    Returns:
        What the files do not say, a sentence each.

    Raises:
        InputError: a run names another model, GPU, engine or degree of tensor parallelism, or beats the GPU's memory.
    """
    split, sku = server.parallelism, db.skus[server.sku]
    absent: dict[str, None] = {}
    for run in runs:
        said = run.said
        same: dict[str, tuple[Any, str, bool]] = {
            "model": (said.model, server.llm.id, said.model == served_name or is_model(said.model, server.llm)),
            "GPU": (said.gpu, server.sku, sku_id(said.gpu) == server.sku),
            "engine": (said.engine, server.engine.id, said.engine == server.engine.id),
            "tensor parallelism": (said.tp, str(split.tp * split.dp), said.tp in (split.tp, split.tp * split.dp)),
        }
        label = server.precision or native_label(server.llm)
        others = {
            "precision": (said.precision, label, said.precision == label),
            "attention ranks": (said.dp, str(split.dp), said.dp == split.dp),
        }
        same |= {word: check for word, check in others.items() if check[0]}
        for word, (named, described, right) in same.items():
            if not named:
                absent[f"{run.client} does not say: {word} (taken as described: {described})"] = None
            elif not right:
                fix = f"describe the server of the file, or give the file of {described}"
                fix += "; --served-name if that is what the server called it" if word == "model" else ""
                raise InputError(f"{run.id} {word}", named, f"is not the {described} described", fix)
        _hold_against_memory(run, server, sku)
    return list(absent)


def is_model(name: str, llm: LlmSpec) -> bool:
    """True if a name is that of a checkpoint with the layers of a model."""
    names = {llm.id, architecture_name(llm.id), architecture_name(llm.name)}
    return architecture_name(name) in names or preset_of(name) == llm.id


def least_step_s(server: Server, sku: GpuSku) -> float:
    """The weights that one token visits over the memory bandwidth of all GPUs of the replica [s]."""
    (point,) = points_of([BenchmarkRun("none", "none", 1, 1, 1, 1.0, 1.0)], server)
    bytes_read = visited_bytes(server.llm, precision_of(point, server.llm, sku))
    return bytes_read / (sku.hbm_bandwidth_bytes_per_s.value * server.parallelism.gpus)


def visited_bytes(llm: LlmSpec, precision: Precision) -> float:
    """Bytes of the matrices that one token is multiplied by, of experts those that it visits [bytes]."""
    visited = {group.experts.visited_share for group in llm.layers if group.experts is not None}
    share = min(visited, default=1.0)
    parts = linear_parameters_by_part(llm) | {Part.LM_HEAD: lm_head_weights(llm)}
    return sum(
        count * BYTES_PER_VALUE[precision.of(part)[0]] * (share if part is Part.EXPERTS else 1.0)
        for part, count in parts.items()
    )


def _hold_against_memory(run: BenchmarkRun, server: Server, sku: GpuSku) -> None:
    least_s = least_step_s(server, sku)
    for word, seconds in (("TPOT", run.mean_tpot_s), ("TTFT", run.mean_ttft_s)):
        if seconds < least_s / (1.0 + TOLERANCE):
            gpus = f"{server.parallelism.gpus} x {sku.id}"
            bound = f"the weights of {server.llm.id} ({server.precision or native_label(server.llm)}) take "
            bound += f"{1e3 * least_s:.3g} ms to read on {gpus}"
            fix = "check --model, --sku, --tp and --precision; runs in which drafts are checked cannot be fitted"
            raise InputError(f"{run.id} {word}", f"{1e3 * seconds:.3g} ms", bound, fix)
