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
    _hold_totals(run)
    if said.e2e_s is None:
        return Check(run, ())
    if said.e2e_s < run.mean_ttft_s * (1.0 - TOTALS_APART):
        bound = f"is less than the {run.mean_ttft_s:.4g} s of its TTFT"
        raise InputError(f"{run.id} E2E", f"{said.e2e_s:.4g} s", bound, _MEASURE_AGAIN)
    if said.requests_per_s and run.concurrency:
        in_flight = said.requests_per_s * said.e2e_s
        if in_flight > run.concurrency * (1.0 + TOTALS_APART) + 1.0:
            bound = f"x {said.e2e_s:.4g} s of E2E are {in_flight:.4g} requests in flight of {run.concurrency} users"
            raise InputError(f"{run.id} requests per second", f"{said.requests_per_s:.4g}", bound, _MEASURE_AGAIN)
    tokens = said.output_tokens or run.output_tokens
    if tokens <= 1.0:
        return Check(run, ())
    of_whole_s = (said.e2e_s - run.mean_ttft_s) / (tokens - 1.0)
    if _near(of_whole_s, run.mean_tpot_s, MEANS_APART):
        return Check(run, ())
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


_MEASURE_AGAIN = "measure the run again, or leave it out"


def _near(first: float, second: float, apart: float) -> bool:
    """Within the share of one another."""
    return first > 0.0 and second > 0.0 and abs(math.log(first / second)) <= math.log1p(apart)


def _hold_totals(run: BenchmarkRun) -> None:
    """Raise InputError where tokens or requests are not their rate times the duration."""
    said = run.said
    totals = (
        ("requests", run.requests, said.requests_per_s),
        ("output tokens", (said.output_tokens or run.output_tokens) * run.requests, said.output_tokens_per_s),
    )
    for word, total, per_s in totals:
        if said.duration_s and per_s and not _near(total, per_s * said.duration_s, TOTALS_APART):
            bound = f"but {per_s:.4g} a second over {said.duration_s:.4g} s are {per_s * said.duration_s:.6g}"
            raise InputError(f"{run.id} {word}", f"{total:.6g}", bound, _MEASURE_AGAIN)


def _whole_requests_s(run: BenchmarkRun, tokens: float) -> Mapping[str, float]:
    """E2E as other figures of the file have it, by what they are [s]."""
    said, found = run.said, {}
    if said.e2e_per_token_s:
        found["E2E per token"] = said.e2e_per_token_s * tokens
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
            "engine": (said.engine, server.engine.id, server.engine.id in said.engine.lower().replace("-", "")),
            "tensor parallelism": (said.tp, str(split.tp * split.dp), said.tp in (split.tp, split.tp * split.dp)),
        }
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
