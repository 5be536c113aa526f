"""The figures that `docs/tutorial/user-guide.md` quotes: its command lines run, and what they print picked out.

    python -m tests.studies.user_guide [WORD ...]

writes `tests/studies/user_guide.json`; with words only commands that hold one of them run again. A figure is kept as it
was printed, so that a test can hold the guide to it.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from typer.testing import CliRunner

from planner.cli.base import app

FIGURES = Path(__file__).with_suffix(".json")
COMMANDS = "commands"
PAGES = "pages"

NUMBER = r"[\d,.]+"
MONTH = rf"\$ per month +({NUMBER})"
FLEET = r" requests/s on (.+?): [\d,.]+\s+USD/hour"
TTFT = {
    "p99 TTFT by theory [ms]": rf"p99 TTFT \[ms\] +{NUMBER} +({NUMBER})",
    "p99 TTFT simulated [ms]": rf"p99 TTFT \[ms\] +{NUMBER} +{NUMBER} +({NUMBER})",
}
TPOT = {
    "p99 TPOT by theory [ms]": rf"p99 TPOT \[ms\] +{NUMBER} +({NUMBER})",
    "p99 TPOT simulated [ms]": rf"p99 TPOT \[ms\] +{NUMBER} +{NUMBER} +({NUMBER})",
}
PLAN = {"fleet": FLEET, "USD a month": MONTH}
HOLDS = {"holds with": r"holds\s+with\s+(\d+ %)"}
SIMULATED = {
    "p99 TTFT simulated [ms]": rf"p99 TTFT ({NUMBER}) ms",
    "p99 TPOT simulated [ms]": rf"p99 TPOT ({NUMBER}) ms",
}

AFTER = {
    "fleet": r"(?:USD/h|more|changes):\s+([^:]+?)\s+at\s+[\d,.]+\s+USD/h",
    "USD a month": rf"\$ per month +{NUMBER} +({NUMBER})",
}


def _after(target: str) -> str:
    """A percentile after the change, by theory [ms]."""
    return rf"{target} +{NUMBER} m?s of {NUMBER} m?s +({NUMBER}) ms of"


def _at_least(sku: str) -> str:
    """Cost of the best fleet of one SKU or mode, or its bound [USD/h], in the table of alternatives."""
    return rf"\n{sku} +\S[^\n]*?  +{NUMBER} +(?:>= )?({NUMBER}) "


def _pool(role: str) -> str:
    """Utilisation of a pool by theory."""
    return rf"\n{role} +predicted +(\d+ %)"


def _moved(end: str) -> str:
    """Cost of the plan for other output lengths [USD/h]."""
    return rf"output lengths +{end} % +({NUMBER})"


CHAT = "planner plan chat-llama-70b"
RAG = "planner plan rag-llama-70b"
REASONING_IF = "planner what-if reasoning-qwen3-32b"
REASONING = "planner plan reasoning-qwen3-32b"
MIXED_B200 = (
    "planner evaluate --simulate --scenario chat-llama-70b --sku b200-sxm --mode mixed --max-batched-tokens 1024"
)
CHUNKS = f"{RAG} --set search.modes=[mixed] --set search.skus=[b200-sxm] --set search.max_batched_tokens="

PICKS: Mapping[str, Mapping[str, str]] = {
    CHAT: {
        **PLAN,
        **TTFT,
        **TPOT,
        **HOLDS,
        "p99 TTFT with slow steps [ms]": rf"p99 TTFT +{NUMBER} ms +{NUMBER} ms +({NUMBER}) ms",
        "p99 TPOT with slow steps [ms]": rf"p99 TPOT +{NUMBER} ms +{NUMBER} ms +({NUMBER}) ms",
        "share within TPOT with slow steps": rf"p99 TPOT +{NUMBER} ms +{NUMBER} ms +{NUMBER} ms +({NUMBER} %)",
        "share within TTFT": r"p99 TTFT \[ms\].*?99 % +([\d.]+ %)",
        "mixed pool in use": _pool("mixed"),
        "h200-sxm, at least [USD/h]": _at_least("H200 SXM"),
        "h100-sxm, at least [USD/h]": _at_least("H100 SXM"),
        "mi300x, at least [USD/h]": _at_least("MI300X"),
        "disaggregated, at least [USD/h]": _at_least("disaggregated"),
    },
    f"{CHAT} --set confidence=0.5 --set search.skus=[b200-sxm] --set search.modes=[mixed]": {**PLAN, **TTFT, **TPOT},
    f"{CHAT} --set slo.0.threshold_s=0.5": {**PLAN, **TTFT, **HOLDS},
    f"{MIXED_B200} --replicas 10": SIMULATED,
    f"{MIXED_B200} --replicas 11": SIMULATED,
    f"{MIXED_B200} --replicas 13": SIMULATED,
    f"{CHAT} --set workload.drift=none": {**PLAN, **TTFT},
    f"{CHAT} --set prices.commitments=[reserved_1yr]": PLAN,
    f"{CHAT} --set prices.commitments=[reserved]": PLAN,
    RAG: {
        **PLAN,
        **TTFT,
        **TPOT,
        "mixed, at least [USD/h]": _at_least("mixed"),
        "disaggregated, at least [USD/h]": _at_least("disaggregated"),
        "decode pool in use": _pool("2 decode"),
    },
    f"{RAG} --set search.prefix_cache=[false]": PLAN,
    f"{RAG} --set workload.prefixes.groups=2000": PLAN,
    f"{CHUNKS}[1024]": {**PLAN, **TTFT, **TPOT, **HOLDS},
    f"{CHUNKS}[8192]": {**PLAN, **TTFT, **TPOT, **HOLDS},
    REASONING: {
        **PLAN,
        **TTFT,
        **TPOT,
        "mean E2E simulated [s]": rf"E2E \[s\] +simulated +({NUMBER})",
        "running requests of a replica": rf"\n(?:\d )?mixed +predicted +\d+ % +[A-Za-z ]+? +memory +({NUMBER})",
        "disaggregated, at least [USD/h]": _at_least("disaggregated"),
    },
    f"{REASONING_IF} --set precision.kv_cache=bf16": AFTER,
    f"{REASONING_IF} --set slo.0.threshold_s=10": AFTER,
    f"{REASONING_IF} --set slo.1.threshold_s=0.02": {**AFTER, "p99 TPOT [ms]": _after("p99 TPOT")},
    f"{REASONING_IF} --set slo.1.threshold_s=0.08": {**AFTER, "p99 TPOT [ms]": _after("p99 TPOT")},
    "planner explain reasoning-qwen3-32b --only tornado": {
        "20 % shorter answers [USD/h]": _moved("-20"),
        "20 % longer answers [USD/h]": _moved(r"\+20"),
        "demand it carries with 20 % longer answers [1/s]": r"output lengths +\+20 %.*? ([\d.]+)\n",
    },
}
"""Every command line of the guide whose figures it quotes, with what to pick out of the print."""


def printed(command: str) -> str:
    """What a command line prints, of a plan all of it. Raises RuntimeError where it does not end well."""
    words = shlex.split(command)[1:]
    done = CliRunner().invoke(app, [*words, *(["--details"] if words[0] == "plan" else [])])
    if done.exit_code:
        raise RuntimeError(f"{command}: {done.output} {done.exception}")
    return done.stdout


def picked(command: str, text: str, picks: Mapping[str, str]) -> dict[str, str]:
    """The figures of a print. Raises LookupError naming what is not there."""
    found = {}
    for name, pattern in picks.items():
        match = re.search(pattern, "\n" + text, re.DOTALL if name == "fleet" else 0)
        if match is None:
            raise LookupError(f"{command}: no {name} in\n{text}")
        found[name] = " ".join(match[1].split())
    return found


def known() -> dict[str, dict[str, dict[str, str]]]:
    """The committed figures: by ``commands`` or ``pages``, then by command line or address."""
    if not FIGURES.exists():
        return {COMMANDS: {}, PAGES: {}}
    return dict(json.loads(FIGURES.read_text(encoding="utf-8")))


def keep(kind: str, name: str, figures: Mapping[str, str]) -> None:
    """Write figures into the committed file, in place of those of the same name."""
    everything = known()
    everything[kind][name] = dict(figures)
    FIGURES.write_text(json.dumps(everything, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def main(words: list[str]) -> None:
    """Run the commands that hold one of the words, or all."""
    for command, picks in PICKS.items():
        if not words or any(word in command for word in words):
            keep(COMMANDS, command, picked(command, printed(command), picks))
            print(command)


if __name__ == "__main__":
    main(sys.argv[1:])
