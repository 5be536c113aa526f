"""Twenty-one questions that people who serve models ask, and the plans for them: the figures of `docs/decisions.md`.

    python -m tests.studies.decisions [WORD ...]

plans every question of `decisions.yaml` (or those whose names hold a word) at the prices of the day it names,
simulated, at the default confidence, writes what the document quotes into `tests/studies/decisions.json`, and puts each
plan under its question. A test holds the document to that file and plans the quick ones anew.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

from planner.analysis.headline import fleet_words, replica_words
from planner.fleet import LossOf, Plan, plan
from planner.scenario import load_scenario
from tests.builders import HARDWARE
from tests.places import DOCS

FIGURES = Path(__file__).with_suffix(".json")
DOCUMENT = DOCS / "decisions.md"
QUESTIONS: dict[str, str | dict[str, Any]] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
"""By name: a packaged scenario or the content of one."""


def planned(name: str) -> Plan:
    """The plan of a question, simulated."""
    scenario = QUESTIONS[name]
    content = scenario if isinstance(scenario, str) else {"name": name, **scenario}
    return plan(load_scenario(content), HARDWARE, alternatives=False)


def figures_of(found: Plan) -> dict[str, str]:
    """What the document says of a plan, as it says it."""
    if found.cost is None:
        return {"fleet": "none", "why": found.diagnosis[0]}
    said = {
        "fleet": fleet_words(found),
        "pools": replica_words(found),
        "USD per hour": f"{found.cost.usd_per_hour:,.2f}",
        "bought": ", ".join(sorted({f"{one.price.provider}" if one.price else one.purchase for one in found.bought})),
        "loss of a replica": _survives(found),
    }
    if found.confidence is not None:
        said["holds with"] = found.confidence.words
    if found.allocation is not None and found.request.objective == "max_rate":
        said["requests per second"] = f"{found.allocation.rate_per_s:.3g}"
    return said


def _survives(found: Plan) -> str:
    """Whether it survives the loss of a replica with the confidence asked, only as estimated, or not."""
    (loss,) = (loss for loss in found.losses if loss.of is LossOf.REPLICA)
    return "yes" if loss.holds else "as estimated" if loss.holds_as_estimated else "no"


def known() -> dict[str, dict[str, str]]:
    """The committed figures, by question."""
    return dict(json.loads(FIGURES.read_text(encoding="utf-8"))) if FIGURES.exists() else {}


SURVIVAL = {
    "yes": "survives the loss of a replica",
    "as estimated": "survives the loss of a replica, as estimated",
    "no": "no replica may fail",
}


def sentence_of(figures: dict[str, str]) -> str:
    """A plan in one line."""
    if "pools" not in figures:
        return f"**Plan.** None: {figures['why']}."
    served = f" {figures['requests per second']} requests/s." if "requests per second" in figures else ""
    survives = SURVIVAL[figures["loss of a replica"]]
    return (
        f"**Plan.** {figures['fleet']}: {figures['pools']}. {figures['USD per hour']} USD/h ({figures['bought']}); "
        f"holds with {figures['holds with']}; {survives}.{served}"
    )


def marker(name: str) -> str:
    """What stands above the plan of a question in the document."""
    return f"<!-- plan: {name} -->"


def write_document() -> None:
    """Put the plans that are known under their questions."""
    lines = DOCUMENT.read_text(encoding="utf-8").split("\n")
    for name, figures in known().items():
        if marker(name) in lines:
            lines[lines.index(marker(name)) + 1] = sentence_of(figures)
    DOCUMENT.write_text("\n".join(lines), encoding="utf-8")


def main(words: list[str]) -> None:
    """Plan the questions named, or all, and write what was found after each."""
    for name in QUESTIONS:
        if words and not any(word in name for word in words):
            continue
        found = planned(name)
        everything = known() | {name: figures_of(found)}
        ordered = {each: everything[each] for each in QUESTIONS if each in everything}
        FIGURES.write_text(json.dumps(ordered, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"{name}: {everything[name]}, {found.elapsed_s:.0f} s", flush=True)
    write_document()


if __name__ == "__main__":
    main(sys.argv[1:])
