"""CPU time and memory of common work in two checkouts, and a picture of where a plan's time goes.

    python -m tests.studies.speed BEFORE AFTER     each work in a fresh process of either folder in turn: a table
    python -m tests.studies.speed --picture        profiles the default plan into docs/images/plan-time.svg

A machine that is busy takes more CPU for the same work, so that only ratios within one run of this script say anything.
"""

from __future__ import annotations

import cProfile
import json
import os
import pstats
import subprocess
import sys
import time
from pathlib import Path

from planner.core import Table, markdown_table, significant
from planner.fleet import plan
from planner.scenario import load_scenario

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs" / "images" / "plan-time.svg"
NARROW = ["search.skus=[b200-sxm]", "search.modes=[mixed]"]
IN_ONE_PROCESS = """
import json, resource, time, planner
took, theory = {{}}, dict(simulate=False, alternatives=False)
def plan(name, *changes, **options):
    request, began = planner.load_scenario("chat-llama-70b", [*{narrow}, *changes]), time.process_time()
    planner.plan(request, **options)
    took[name] = time.process_time() - began
plan("plan by theory, first", **theory)
plan("plan by theory, same again", **theory)
plan("plan by theory, another rate", "workload.rate_per_s=43", **theory)
plan("plan by theory, another target", "slo.1.threshold_s=0.045", **theory)
plan("simulated plan")
plan("simulated plan, same again")
plan("simulated plan, another rate", "workload.rate_per_s=42")
took["memory [MB]"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps(took))
"""
STAGES = {
    "steady queues": ("queueing/mixed.py:mixed_pool", "queueing/decode.py:decode_pool"),
    "mixing over the drift": ("serving/drift.py:latencies",),
    "simulations": ("simulator/run.py:simulate",),
    "integer programs": ("optimizer/solving.py:solve",),
    "grid and families": ("search/enumerate.py:find_families",),
    "bounds made tighter": ("fleet/columns.py:_tighten",),
    "loading compiled code": ("numba/core/dispatcher.py:_compile_for_args",),
    "judging confidence": ("fleet/confidence.py:counted_draws",),
    "alternatives": ("fleet/alternatives.py:alternatives_of",),
}
"""Stages of a plan by the functions whose time they are. The last two ask for queues and programs of their own."""


def of_process(folder: Path, *command: str) -> tuple[float, float, str]:
    """CPU time [s] of a process of a checkout, most memory [MB], and what it printed."""
    started = subprocess.Popen(
        [sys.executable, *command], cwd=folder, env={**os.environ, "PYTHONPATH": str(folder)}, stdout=subprocess.PIPE
    )
    assert started.stdout is not None
    printed = started.stdout.read().decode()
    _, _, used = os.wait4(started.pid, 0)
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024.0, printed


def figures(folder: Path) -> dict[str, float]:
    """CPU seconds of every work, of short ones the least of three, and megabytes."""
    names = "import planner; planner.plan, planner.load_scenario"
    found = {"names of the API": min(of_process(folder, "-c", names)[0] for _ in range(3))}
    found["`planner --help`"] = min(of_process(folder, "-m", "planner.cli", "--help")[0] for _ in range(3))
    found |= json.loads(of_process(folder, "-c", IN_ONE_PROCESS.format(narrow=NARROW))[2].splitlines()[-1])
    return found


def table(before: dict[str, float], after: dict[str, float]) -> str:
    """Both in Markdown."""
    rows = [
        {"work": name, "before": significant(value), "after": significant(after[name]), "ratio": after[name] / value}
        for name, value in before.items()
    ]
    columns = {
        "work": lambda row: row["work"],
        "before [s]": lambda row: row["before"],
        "after [s]": lambda row: row["after"],
        "ratio": lambda row: f"{row['ratio']:.2f}",
    }
    return markdown_table(Table.of("Speed", rows, columns))


def shares() -> dict[str, float]:
    """Shares of the CPU time of the default plan by stage, the largest first."""
    profile, began = cProfile.Profile(time.process_time), time.process_time()
    profile.enable()
    plan(load_scenario("chat-llama-70b"))
    profile.disable()
    total = time.process_time() - began
    spent: dict[str, float] = dict.fromkeys(STAGES, 0.0)
    for (file, _, name), (_, _, _, cumulative_s, _) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        for stage, functions in STAGES.items():
            if any(f"{file}:{name}".endswith(each) for each in functions):
                spent[stage] = max(spent[stage], cumulative_s / total)
    return dict(sorted(spent.items(), key=lambda each: -each[1]))


def svg(spent: dict[str, float]) -> str:
    """Bars of shares."""
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" width="560" height="{28 * len(spent) + 10}" font-size="14">']
    for place, (stage, share) in enumerate(spent.items()):
        y, width = 28 * place + 8, 320.0 * share / max(spent.values())
        lines.append(f'<text x="170" y="{y + 15}" text-anchor="end">{stage}</text>')
        lines.append(f'<rect x="180" y="{y}" width="{width:.0f}" height="20" fill="#4c78a8"/>')
        lines.append(f'<text x="{186 + width:.0f}" y="{y + 15}">{share:.0%}</text>')
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    if sys.argv[1:] == ["--picture"]:
        PICTURE.write_text(svg(shares()), encoding="utf-8")
    else:
        print(table(*(figures(Path(folder).resolve()) for folder in sys.argv[1:3])))
