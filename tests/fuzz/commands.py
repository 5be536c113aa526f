"""Whole command lines from a seed: options and --set values, ordinary and hostile, and how the program must end."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from typer.testing import CliRunner

from planner.cli.base import BAD_INPUT, INFEASIBLE, app
from planner.cli.completion import complete_setting
from planner.core import InputError
from tests.fuzz.mutations import NUMBERS, WORDS

SCENARIO = "chat-llama-70b"
LINE = re.compile(r"error: \S.* = .+: .+\n", re.DOTALL)
RATES = ("0.01", "1", "5", "40", "1e-9", "1e6", "1e9")
LENGTHS = ("1000/200", "1000/200", "1/1", "16/4000", "3000/1", "azure-2023-conv")
CHOICES: dict[str, Sequence[str]] = {
    "--llm": ("llama-3.1-8b", "llama-3.1-8b", "phi-4", "qwen3-30b-a3b"),
    "--sku": ("h100-sxm", "h100-sxm", "h200-sxm", "mi300x", "b200-sxm", "t4"),
    "--rate": RATES,
    "--lengths": LENGTHS,
}
RARE: dict[str, Sequence[str]] = {
    "--tp": ("1", "2", "3", "8", "64"),
    "--replicas": ("1", "3", "50", "1000"),
    "--scv": ("0", "1", "1000", "azure-2023-conv"),
    "--mode": ("mixed", "disaggregated"),
    "--prefill-sku": ("h200-sxm", "l40s"),
    "--prefill-tp": ("1", "2"),
    "--prefill-replicas": ("1", "4"),
    "--max-running-requests": ("1", "7", "256", "1000000"),
    "--max-batched-tokens": ("16", "100", "8192", "1000000"),
    "--max-request-tokens": ("1", "6000", "1000000"),
    "--engine": ("vllm", "sglang", "tensorrt-llm"),
    "--router": ("random", "power_of_two", "least_requests", "least_tokens", "prefix_affinity"),
    "--schedule-order": ("fcfs", "shortest_first", "priority", "fair_share"),
    "--weights": ("fp8", "int4", "nvfp4", "bf16"),
    "--activations": ("fp8", "bf16"),
    "--kv": ("fp8", "bf16", "int8"),
    "--concurrency": ("1", "64", "100000"),
}
FLAGS = ("--uncalibrated", "--prefix-cache", "--no-prefix-cache", "--json=-")
HOSTILE = tuple(word for word in (*NUMBERS, *WORDS) if word.isprintable() and len(word) < 1000)


def drawn(seed: int) -> list[str]:
    """A command line without `planner`: `evaluate`, simulated or not, or a `plan` with settings that is only read."""
    chance = random.Random(seed)
    if chance.random() < 0.4:
        known = complete_setting("")
        settings = [f"{chance.choice(known)}={chance.choice(HOSTILE)}" for _ in range(chance.randint(1, 2))]
        return ["plan", SCENARIO, *(word for setting in settings for word in ("--set", setting))]
    words = ["evaluate", *(["--simulate"] if chance.random() < 1.0 / 3.0 else [])]
    for option, values in CHOICES.items():
        words += [option, _value(chance, values)]
    for option, values in RARE.items():
        if chance.random() < 0.1:
            words += [option, _value(chance, values)]
    words += [flag for flag in FLAGS if chance.random() < 0.1]
    return [*words, "--requests", "200"] if "--simulate" in words else words


def _value(chance: random.Random, values: Sequence[str]) -> str:
    return chance.choice(HOSTILE if chance.random() < 0.03 else values)


def outcome(seed: int) -> str:
    """What came of a command line: "answered" or "infeasible"; raises InputError where it was refused on one line.

    Raises AssertionError for any other end. Of `plan` only the reading is tried: nothing is planned.
    """
    from planner.scenario import load_scenario

    words = drawn(seed)
    if words[0] == "plan":
        load_scenario(SCENARIO, words[3::2])
        return "answered"
    done = CliRunner().invoke(app, words, prog_name="planner")
    if done.exit_code == BAD_INPUT:
        assert not done.stdout and LINE.fullmatch(done.stderr), done.output[-500:]
        raise InputError("command line", "(drawn)", done.stderr)
    assert done.exit_code in (0, INFEASIBLE), f"exit code {done.exit_code}: {done.stderr[-500:]}"
    assert not re.search(r"\bnan\b", done.stdout, re.IGNORECASE), "a number that is none"
    return "answered" if done.exit_code == 0 else "infeasible"
