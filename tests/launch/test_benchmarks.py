"""Benchmarks of a plan: requests with the distribution of the workload, scripts that a shell and the clients take."""

from __future__ import annotations

import itertools
import json
import math
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

from calibration.serving.benchmark_files import read_results
from planner.cli.base import app
from planner.core import Metric
from planner.engine import LoraAdapters, Speculation
from planner.launch.benchmarks import CLIENTS, SEED, client_flags, files
from planner.launch.requests import MAX_REQUESTS, request_count, requests_of
from planner.llm import Precision, load_llm
from planner.roofline import Parallelism
from planner.serving import Deployment
from planner.workload import (
    ArrivalProcess,
    LatencyTarget,
    RecordedArrivals,
    RequestClass,
    SharedPrefixes,
    Slo,
    TokenLengths,
    Workload,
)
from tests.builders import Dtype
from tests.made_up_fleets import LENGTHS, NASTY, P99, launched, mixed, named, on, pair, planned, traffic

COUNT = 20_000


def test_lengths_have_the_means_and_the_correlation_of_the_workload() -> None:
    """Truth: means and covariance of the distribution in closed form; sampling errors by the central limit theorem."""
    drawn = requests_of(traffic(), COUNT, seed=1)
    distribution = LENGTHS
    for sample, values in ((drawn.input_tokens, distribution.inputs), (drawn.output_tokens, distribution.outputs)):
        mean = values @ distribution.probabilities
        error = math.sqrt(((values - mean) ** 2 @ distribution.probabilities) / COUNT)
        assert abs(sample.mean() - mean) < 4.0 * error
    expected = (
        distribution.inputs * distribution.outputs
    ) @ distribution.probabilities - distribution.mean_input * distribution.mean_output
    spread = math.sqrt(
        (distribution.inputs * distribution.outputs - distribution.mean_input * distribution.mean_output) ** 2
        @ distribution.probabilities
        / COUNT
    )
    assert abs(np.cov(drawn.input_tokens, drawn.output_tokens)[0, 1] - expected) < 5.0 * spread


@pytest.mark.parametrize("scv", [0.25, 3.0])
def test_gaps_have_the_rate_and_the_scv_that_were_asked_for(scv: float) -> None:
    """Truth: the SCV of n Gamma gaps has standard error SCV sqrt(2 (1 + SCV) / n) (delta method, from cumulants)."""
    gaps = np.diff(requests_of(traffic(rate_per_s=5.0, scv=scv), COUNT, seed=2).times_s)
    assert gaps.mean() == pytest.approx(0.2, abs=4.0 * 0.2 * math.sqrt(scv / COUNT))
    assert gaps.var() / gaps.mean() ** 2 == pytest.approx(scv, abs=4.0 * scv * math.sqrt(2.0 * (1.0 + scv) / COUNT))


def test_every_line_is_a_mooncake_request_with_a_number_for_every_block() -> None:
    """Truth: the rule by which GuideLLM checks a row: ceil(input / block) numbers, none negative."""
    drawn = requests_of(traffic(prefixes=SharedPrefixes(tokens=1000, groups=3)), 500, seed=4)
    lines = [json.loads(line) for line in drawn.text.splitlines()]
    assert len(lines) == len(drawn) == 500
    for line in lines:
        assert set(line) == {"timestamp", "input_length", "output_length", "hash_ids"}
        assert (
            len(line["hash_ids"]) == math.ceil(line["input_length"] / drawn.block_tokens) and min(line["hash_ids"]) >= 0
        )
    times = [line["timestamp"] for line in lines]
    assert times == sorted(times) and times[-1] == pytest.approx(1e3 * drawn.times_s[-1], abs=1e-3)


def test_equal_numbers_always_stand_for_blocks_of_one_size() -> None:
    """Otherwise a client would fill one number with two different texts, and nothing would be shared."""
    drawn = requests_of(traffic(prefixes=SharedPrefixes(tokens=900, groups=2)), 2000, seed=5)
    sizes: dict[int, set[int]] = {}
    for tokens, blocks in zip(drawn.input_tokens.tolist(), drawn.blocks, strict=True):
        for place, number in enumerate(blocks):
            sizes.setdefault(number, set()).add(min(drawn.block_tokens, tokens - place * drawn.block_tokens))
    assert all(len(found) == 1 for found in sizes.values())


def test_prompts_share_as_many_tokens_as_the_prefix_model_says() -> None:
    """Truth: of a request of I tokens, min(tokens, I) are shared, whole blocks of it; each group by its popularity."""
    prefixes = SharedPrefixes(tokens=600, groups=3, skew=1.0)
    drawn = requests_of(traffic(lengths=TokenLengths.constant(1000, 5), prefixes=prefixes), COUNT, seed=6)
    assert drawn.block_tokens == 300
    seen, counts = np.unique([blocks[0] for blocks in drawn.blocks], return_counts=True)
    assert len(seen) == 3
    expected = np.sort(prefixes.popularity)
    errors = np.sqrt(expected * (1 - expected) / COUNT)
    assert (np.abs(np.sort(counts) / COUNT - expected) < 4.0 * errors).all()
    numbers = list(itertools.chain.from_iterable(drawn.blocks))
    repeated = {number for number, times in zip(*np.unique(numbers, return_counts=True), strict=True) if times > 1}
    assert len(repeated) == 3 * 600 // 300
    assert len(drawn.blocks[0]) == 4 and len(set(drawn.blocks[0]) & repeated) == 2
    alone = requests_of(traffic(prefixes=prefixes), 300, seed=6, shared=False)
    numbers = list(itertools.chain.from_iterable(alone.blocks))
    assert len(numbers) == len(set(numbers)), "not shared, no two prompts have a block in common"


def test_classes_come_by_their_shares_each_with_its_own_lengths() -> None:
    classes = (
        RequestClass(name="short", lengths=TokenLengths.constant(10, 1), share=0.8),
        RequestClass(name="long", lengths=TokenLengths.constant(900, 9), share=0.2),
    )
    drawn = requests_of(Workload(arrivals=ArrivalProcess(rate_per_s=1.0), classes=classes), COUNT, seed=9)
    assert (drawn.input_tokens == 900).mean() == pytest.approx(0.2, abs=4.0 * math.sqrt(0.16 / COUNT))
    assert set(zip(drawn.input_tokens.tolist(), drawn.output_tokens.tolist(), strict=True)) == {(10, 1), (900, 9)}


def test_a_recording_is_sent_as_it_was() -> None:
    recording = RecordedArrivals(times_s=(5.0, 5.5, 7.0), input_tokens=(9, 8, 7), output_tokens=(1, 2, 3))
    drawn = requests_of(Workload(arrivals=recording, classes=(RequestClass(lengths=LENGTHS),)), 1000, seed=0)
    assert drawn.times_s.tolist() == [0.0, 0.5, 2.0] and drawn.input_tokens.tolist() == [9, 8, 7]


def test_a_run_is_long_enough_for_its_tail_and_no_longer_than_a_file_can_be() -> None:
    """Truth: 50 requests beyond p99 are 5,000; beyond p50 the five minutes or the thousand requests decide."""
    median = Slo(targets=(LatencyTarget(metric=Metric.TTFT, percentile=0.5, threshold_s=1.0),))
    joint = Slo(targets=median.targets, attainment=0.95)
    assert request_count(traffic(1.0), P99) == 5000
    assert request_count(traffic(1.0), median) == 1000 and request_count(traffic(20.0), median) == 6000
    assert request_count(traffic(0.1), joint) == 1000
    assert request_count(traffic(1e4), P99) == MAX_REQUESTS


def scripts(written: dict[str, str]) -> dict[str, str]:
    """The scripts by client."""
    return {name.split(".")[1]: text for name, text in written.items() if name.endswith(".sh")}


def commands(script: str, folder: Path, *arguments: str, **variables: str) -> list[list[str]]:
    """What a script runs, told by Bash: stand-ins for the clients print the words they were started with."""
    for program in ("vllm", "guidellm", "aiperf", "planner"):
        stand_in = folder / program
        stand_in.write_text(
            f'#!/bin/bash\nprintf "%s\\0" {program} "$@" >> {folder}/log; printf "\\n" >> {folder}/log\n'
        )
        stand_in.chmod(0o755)
    path = folder / "run.sh"
    path.write_text(script, encoding="utf-8")
    environment = {"PATH": f"{folder}:/usr/bin:/bin", "MODEL": "org/served", **variables}
    subprocess.run(["/bin/bash", str(path), *arguments], capture_output=True, env=environment, check=True, timeout=20)
    lines = (folder / "log").read_text(encoding="utf-8").split("\n")
    return [line.rstrip("\0").split("\0") for line in lines if line]


def options(words: list[str]) -> dict[str, list[str]]:
    """Values by option."""
    found: dict[str, list[str]] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name = word
            found[name] = []
        elif name:
            found[name].append(word)
    return found


def run_of(client: str, folder: Path, workload: Workload | None = None, slo: Slo = P99) -> dict[str, list[str]]:
    """Options of the run that checks a plan."""
    one = launched(Deployment.mixed(on(), 2), workload, slo=slo)
    (words,) = commands(scripts(files(planned(one)))[client], folder)
    return options(words)


@pytest.mark.parametrize("client", [client.id for client in CLIENTS])
def test_scripts_hold_only_flags_of_the_table_and_send_the_model_tokenizer_and_count_given(
    client: str, tmp_path: Path
) -> None:
    known = {word for row in client_flags() if row.client == client for word in row.flag.split() if word[:2] == "--"}
    script = scripts(files(mixed()))[client]
    for words in commands(script, tmp_path):
        assert {word for word in words if word.startswith("--")} <= known
    given = {"MODEL": "chat", "TOKENIZER": "/models/llama", "COUNT": "7"}
    for words in commands(script, tmp_path, "replica", **given)[1:]:
        if words[0] != "planner":
            assert {word for word in words if word.startswith("--")} <= known
            tokenizer = options(words)["--tokenizer"]
            assert tokenizer in (["/models/llama"], ["kind=huggingface_auto,model=/models/llama"])
            assert any(word in ("7", "kind=max_requests,count=7") for word in words)
    (by_default,) = [words for words in commands(script, tmp_path) if "chat" not in " ".join(words)][-1:]
    assert "org/served" in options(by_default)["--tokenizer"][0]


def test_vllm_is_told_rate_burstiness_percentiles_and_goodput(tmp_path: Path) -> None:
    """Truth: Gamma gaps of shape b have SCV 1/b; thresholds in milliseconds."""
    run = run_of("vllm", tmp_path, traffic(rate_per_s=8.0, scv=2.5))
    assert run["--request-rate"] == ["8"] and run["--burstiness"] == ["0.4"] and "--no-self-timed" in run
    assert run["--goodput"] == ["ttft:500", "tpot:30"] and run["--metric-percentiles"] == ["50,90,95,99"]
    assert run["--dataset-name"] == ["timed_trace"] and run["--num-prompts"] == ["5000"]
    assert run["--timed-trace-sec-multiplier"] == ["0.001"] and run["--model"] == ["org/served"]


def test_aiperf_draws_poisson_constant_or_gamma_gaps(tmp_path: Path) -> None:
    patterns = {}
    for scv in (0.0, 1.0, 4.0):
        folder = tmp_path / str(scv)
        folder.mkdir()
        patterns[scv] = run_of("aiperf", folder, traffic(scv=scv))
    assert [patterns[scv]["--arrival-pattern"] for scv in patterns] == [["constant"], ["poisson"], ["gamma"]]
    assert patterns[4.0]["--arrival-smoothness"] == ["0.25"] and patterns[4.0]["--request-rate"] == ["8"]
    assert patterns[1.0]["--goodput"] == ["time_to_first_token:500 inter_token_latency:30"]


def test_arrivals_that_are_no_renewals_are_sent_at_their_own_times(tmp_path: Path) -> None:
    batches = Workload(
        arrivals=ArrivalProcess(rate_per_s=8.0, batch_mean=4.0), classes=(RequestClass(lengths=LENGTHS),)
    )
    targets = [(0.5, 0.2), (0.999, 2.0)]  # of two thresholds for one metric the stricter counts
    slo = Slo(targets=tuple(LatencyTarget(metric="ttft", percentile=p, threshold_s=s) for p, s in targets))
    run = run_of("vllm", tmp_path, batches, slo)
    assert "--self-timed" in run and run["--goodput"] == ["ttft:200"]
    assert run["--metric-percentiles"] == ["50,90,99,99.9"]


def test_prompts_of_the_scripts_are_those_of_the_files_beside_them(tmp_path: Path) -> None:
    written = files(mixed())
    run = options(commands(scripts(written)["vllm"], tmp_path)[0])
    (path,), (count,) = run["--dataset-path"], run["--num-prompts"]
    assert len(written[path].splitlines()) == int(count)
    loops = [options(words) for words in commands(scripts(written)["vllm"], tmp_path, "replica")[1:]]
    loops = [loop for loop in loops if "--max-concurrency" in loop]
    assert [loop["--max-concurrency"] for loop in loops] == [["1"], ["4"], ["16"], ["64"], ["256"]]
    assert [loop["--num-prompts"] for loop in loops] == [["100"], ["100"], ["160"], ["640"], ["2560"]]
    assert len(written[loops[0]["--dataset-path"][0]].splitlines()) >= 2560


@pytest.mark.parametrize("name", [NASTY[0], NASTY[2], NASTY[4]])
def test_names_of_users_stay_text(name: str, tmp_path: Path) -> None:
    written = files(named(name))
    assert all(re.fullmatch(r"[A-Za-z0-9.-]+", file) and ".." not in file for file in written)
    for script in scripts(written).values():
        path = tmp_path / "run.sh"
        path.write_text(script, encoding="utf-8")
        assert subprocess.run(["/bin/bash", "-n", str(path)], capture_output=True, check=False).returncode == 0
        ran = subprocess.run(
            ["/bin/bash", str(path)], capture_output=True, text=True, env={"PATH": "/bin"}, check=False
        )
        assert ran.returncode == 2 and "set MODEL to" in ran.stderr and not ran.stdout


@pytest.mark.parametrize("client", [CLIENTS[0].id, CLIENTS[1].id])
def test_the_printed_command_is_one_that_the_planner_takes(client: str, tmp_path: Path) -> None:
    """Truth: the planner's own command line parses it, and the server is that of the plan."""
    config = on(tp=2, max_running_requests=96, max_batched_tokens=3072, memory_fraction=0.8)
    path = tmp_path / "run.sh"
    path.write_text(scripts(files(planned(launched(Deployment.mixed(config, 2)))))[client], encoding="utf-8")
    for program in ("vllm", "guidellm", "aiperf"):
        (tmp_path / program).write_text("#!/bin/bash\n")
        (tmp_path / program).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "FOLDER": "my results"}
    command_line = ["/bin/bash", str(path), "replica"]
    ran = subprocess.run(command_line, capture_output=True, text=True, env=environment, check=True, timeout=20)
    words = shlex.split(ran.stdout.splitlines()[-1])
    assert words[:2] == ["planner", "calibrate-serving"]
    command = typer.main.get_command(app).commands["calibrate-serving"]  # type: ignore[attr-defined]
    given = command.make_context("calibrate-serving", words[2:]).params
    assert [path.name.split(".")[-2] for path in given["results"]] == ["1", "4", "16", "64"]
    assert {path.parent.name for path in given["results"]} == {"my results"}
    asked = {name: given[name] for name in ("model", "sku", "engine", "tp", "dp", "ep", "precision", "kv_cache")}
    assert asked == {
        **{"model": "llama-3.1-8b", "sku": "h100-sxm", "engine": "vllm", "tp": 2, "dp": 1, "ep": 1},
        **{"precision": "", "kv_cache": "bf16"},
    }
    assert (given["max_running_requests"], given["max_batched_tokens"], given["memory_fraction"]) == (96, 3072, 0.8)


def test_results_of_the_runs_are_read_with_the_traffic_that_was_sent(tmp_path: Path) -> None:
    """Files in the form that vLLM 0.33.0 writes (vllm/benchmarks/serve.py), with what the script tells it."""
    run = run_of("vllm", tmp_path, traffic(rate_per_s=8.0, scv=2.5))
    drawn = requests_of(traffic(rate_per_s=8.0, scv=2.5), int(run["--num-prompts"][0]), SEED)
    result: dict[str, Any] = {
        "backend": "openai",
        "request_rate": float(run["--request-rate"][0]),
        "burstiness": float(run["--burstiness"][0]),
        "max_concurrency": None,
        "completed": len(drawn),
        "total_input_tokens": int(drawn.input_tokens.sum()),
        "total_output_tokens": int(drawn.output_tokens.sum()),
        "mean_ttft_ms": 80.0,
        "mean_tpot_ms": 9.0,
        "input_lens": drawn.input_tokens.tolist(),
        "output_lens": drawn.output_tokens.tolist(),
    }
    path = tmp_path / run["--result-filename"][0]
    path.write_text(json.dumps(result), encoding="utf-8")
    (read,) = read_results(path).runs
    assert (read.request_rate_per_s, read.arrival_scv, read.concurrency) == (8.0, pytest.approx(2.5), None)
    assert read.requests == len(drawn) and not read.unknown
    assert read.input_tokens == pytest.approx(LENGTHS.mean_input, rel=0.05)


def test_a_model_without_a_preset_is_named_by_its_repository_or_its_configuration() -> None:
    own = load_llm("llama-3.1-8b").model_copy(update={"id": "ours", "name": "org/ours"})
    for llm, word in ((own, "hf:org/ours"), (own.model_copy(update={"name": "ours"}), "config.json")):
        config = on().model_copy(update={"llm": llm})
        text = scripts(files(planned(launched(Deployment.mixed(config, 1)))))["vllm"]
        assert f"--model {word} --sku" in text


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"parallelism": Parallelism(tp=1, pp=2)}, "pipeline stages"),
        ({"lora": LoraAdapters(adapters=4)}, "adapters"),
        ({"speculation": Speculation(draft_tokens=2, acceptance=0.8)}, "speculates"),
        ({"precision": Precision(weights=Dtype.INT4)}, "format without a label"),
    ],
)
def test_servers_that_a_result_cannot_describe_are_not_calibrated_by_name(changes: dict[str, Any], why: str) -> None:
    written = files(mixed(**changes))
    assert not any("calibration" in name for name in written)
    assert all(why in script and "exit 2" in script for script in scripts(written).values())
    assert not any("calibration" in name for name in files(pair())), "a pair is measured as a whole only"
