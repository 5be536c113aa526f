"""Are plans, evaluations, comparisons and exports the same before and after a change of the code?

`python -m tests.studies.same_answers FOLDER` asks everything of every packaged scenario through the command line and
writes what it printed into FOLDER; with a second folder, it compares the two and exits with 1 where they differ. The
command line is the only thing it knows of the product, so it runs on any two commits, however far the code has moved:

    git worktree add ../before COMMIT
    (cd ../before && python -m tests.studies.same_answers ../before.answers)
    python -m tests.studies.same_answers ../after.answers ../before.answers

Times that a run took, the day it was made on and the folder it was made in are left out of the comparison; nothing else
is.
"""

from __future__ import annotations

import difflib
import os
import re
import subprocess
import sys
from pathlib import Path

SCENARIOS = ("chat-llama-70b", "rag-llama-70b", "reasoning-qwen3-32b")
CASES = {
    "agents": ("agents-qwen3-coder-30b",),
    "sessions": ("chat-sessions-llama-70b",),
    "vision": ("vision-qwen3-vl-8b",),
    "h100": (SCENARIOS[0], "search.skus=[h100-sxm]"),
    "h100-h200": (SCENARIOS[0], "search.skus=[h100-sxm,h200-sxm]", "workload.rate_per_s=90"),
    "pairs": (SCENARIOS[0], "search.modes=[disaggregated]", "workload.drift=none"),
    "single-gpus": (SCENARIOS[0], "prices.granularity=gpu", "workload.rate_per_s=23"),
    "llama-8b": (SCENARIOS[0], "llm=llama-3.1-8b", "search.skus=[l40s,a100-sxm-80gb]", "workload.rate_per_s=60"),
}
"""Plans beside those of `SCENARIOS`: a scenario and what is set otherwise."""
TARGETS = ("scripts", "compose", "kubernetes", "kserve", "llm-d", "dynamo", "skypilot", "benchmarks")
MIXED = ("--sku", "h100-sxm", "--tp", "4", "--replicas", "4", "--set", "workload.rate_per_s=4")
SPLIT = (*MIXED, "--mode", "disaggregated", "--prefill-sku", "h200-sxm", "--prefill-tp", "2", "--prefill-replicas", "3")
VOLATILE = re.compile(r"elapsed|scenario_folder|\"seconds\"|planned in|Planned by .* in \d|_on\": \"\d{4}-\d\d-\d\d")
"""Lines that tell when or how long."""


def questions(out: Path) -> dict[str, list[str]]:
    """Commands to run, by the name of the file that holds what each printed."""
    asked: dict[str, list[str]] = {
        "skus": ["skus", "--json", "-"],
        "llms": ["llms", "--json", "-"],
        "scenarios": ["scenarios", "--json", "-"],
        "schema": ["schema"],
    }
    for name in SCENARIOS:
        plan = str(out / f"{name}.plan.json")
        asked[f"{name}.plan"] = ["plan", name, "--json", plan, "--md", str(out / f"{name}.plan.md")]
        nvidia = str(out / f"{name}.nvidia.json")
        asked[f"{name}.nvidia"] = ["plan", name, "--set", "search.skus=[h100-sxm,h200-sxm]", "--json", nvidia]
        for label, options in (("mixed", MIXED), ("split", SPLIT)):
            asked[f"{name}.evaluate.{label}"] = ["evaluate", "--scenario", name, *options, "--json", "-"]
            simulate = ["evaluate", "--simulate", "--scenario", name, *options, "--requests", "1500", "--json", "-"]
            asked[f"{name}.simulate.{label}"] = simulate
        asked[f"{name}.compare"] = ["compare", name, *MIXED, "--requests", "500", "--systems", "all", "--json", "-"]
        for target in TARGETS:
            asked[f"{name}.export.{target}"] = ["export", nvidia, "--to", target]
    for name, (scenario, *settings) in CASES.items():
        asked[f"case.{name}"] = [
            "plan",
            scenario,
            *(part for one in settings for part in ("--set", one)),
            "--json",
            "-",
        ]
    first = SCENARIOS[0]
    asked["explain"] = [
        "explain",
        first,
        "--only",
        "marginal,requirements,tornado",
        "--max-solves",
        "30",
        "--json",
        "-",
    ]
    asked["what-if"] = ["what-if", first, "--set", "workload.rate_per_s=50", "--json", "-"]
    asked["sweep"] = ["sweep", first, "--over", "workload.rate_per_s=20,40", "--workers", "1", "--json", "-"]
    asked["infeasible"] = ["plan", first, "--set", "limits.budget_usd_per_hour=10"]
    asked["malformed"] = ["plan", first, "--set", "workload.rate=3"]
    return asked


def answer(out: Path) -> None:
    """Write what every command prints, and with which exit code, into `out`."""
    out.mkdir(parents=True, exist_ok=True)
    out = out.resolve()
    for name, command in questions(out).items():
        done = subprocess.run(
            [str(Path(sys.executable).with_name("planner")), *command],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"COLUMNS": "200", "PYTHONPATH": str(Path.cwd()), "PYTHONHASHSEED": "0"},
        )
        text = f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}".replace(str(out), "OUT")
        (out / f"{name}.txt").write_text(text, encoding="utf-8")
        print(name, done.returncode, flush=True)


def lines_of(path: Path) -> list[str]:
    """Lines of a file that are to be equal."""
    return [line for line in path.read_text(encoding="utf-8").splitlines() if not VOLATILE.search(line)]


def differences(after: Path, before: Path) -> list[str]:
    """Lines of a unified difference over all files of both folders."""
    names = sorted({path.name for folder in (after, before) for path in folder.iterdir()})
    found: list[str] = []
    for name in names:
        if not ((after / name).exists() and (before / name).exists()):
            found.append(f"{name}: in one of the two only")
            continue
        pair = lines_of(before / name), lines_of(after / name)
        found += difflib.unified_diff(*pair, f"before/{name}", f"after/{name}", lineterm="", n=0)
    return found


def main() -> int:
    """Answer, and compare where a second folder is given."""
    folders = [Path(name) for name in sys.argv[1:]]
    if not 1 <= len(folders) <= 2:
        print(__doc__)
        return 2
    answer(folders[0])
    found = differences(*folders) if len(folders) == 2 else []
    print("\n".join(found[:200]))
    print(f"{len(found)} lines differ")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
