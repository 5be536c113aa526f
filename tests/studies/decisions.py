"""Twenty questions that people who serve models ask, and the plans for them: the figures of `docs/decisions.md`.

    python -m tests.studies.decisions [WORD ...]

plans every question (or those whose names hold a word) at the prices of `AS_OF`, simulated, at the default confidence,
writes what the document quotes into `tests/studies/decisions.json`, and puts each plan under its question in the
document. A test holds the document to that file and plans the quick ones anew.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from planner.analysis.headline import fleet_words, replica_words
from planner.fleet import LossOf, Plan, plan
from planner.scenario import load_scenario
from tests.builders import HARDWARE
from tests.places import DOCS

FIGURES = Path(__file__).with_suffix(".json")
DOCUMENT = DOCS / "decisions.md"
AS_OF = "2026-11-21"
DRIFT = {"cv": 0.25, "correlation_time_s": 120.0}
"""Busy and quiet minutes, as much as the Azure conversation trace has (0.23 by the minute)."""
FP8 = {"weights": "fp8", "activations": "fp8", "kv_cache": "fp8"}
INT4 = {"weights": "int4", "activations": "bf16", "kv_cache": "bf16"}
CLOUD = ["a100-sxm-80gb", "h100-sxm", "h200-sxm", "l40s", "b200-sxm", "mi300x"]
SMALL = ["t4", "l4", "a10g", "l40s", "a100-sxm-80gb", "h100-sxm"]


def targets(ttft_s: float, tpot_s: float, percentile: float = 0.95) -> list[dict[str, Any]]:
    """At most so long a wait for the first token, and between tokens."""
    return [
        {"metric": "ttft", "percentile": percentile, "threshold_s": ttft_s},
        {"metric": "tpot", "percentile": percentile, "threshold_s": tpot_s},
    ]


def serve(
    llm: str,
    rate_per_s: float,
    tokens: tuple[int, int] | str,
    slo: list[dict[str, Any]],
    skus: list[str],
    **more: Any,
) -> dict[str, Any]:
    """A scenario: a model at a rate that drifts, with lengths (constant, or a preset), targets and SKUs."""
    lengths = tokens if isinstance(tokens, str) else {"input_tokens": tokens[0], "output_tokens": tokens[1]}
    search = {"skus": skus, **more.pop("search", {})}
    prices = {"as_of": AS_OF, **more.pop("prices", {})}
    workload = {"rate_per_s": rate_per_s, "drift": DRIFT, "lengths": lengths, **more.pop("workload", {})}
    return {"llm": llm, "workload": workload, "slo": slo, "search": search, "prices": prices, **more}


CONVERSATION = "azure-2023-conv"


def chat_70b(rate_per_s: float, skus: list[str] = CLOUD, **more: Any) -> dict[str, Any]:
    """Llama-3.3-70B in FP8 for conversations."""
    return serve("llama-3.3-70b-instruct", rate_per_s, CONVERSATION, targets(1.0, 0.05), skus, precision=FP8, **more)


QUESTIONS: dict[str, tuple[str | dict[str, Any], tuple[str, ...]]] = {
    "chat": ("chat-llama-70b", ()),
    "rag": ("rag-llama-70b", ()),
    "reasoning": ("reasoning-qwen3-32b", ()),
    "agents": (
        serve("qwen3-coder-30b-a3b-instruct", 10.0, (20_000, 400), targets(3.0, 0.04), CLOUD, precision=FP8)
        | {
            "workload": {
                "rate_per_s": 10.0,
                "drift": DRIFT,
                "prefix_hit_rate": 0.85,
                "lengths": {"input_tokens": 20_000, "output_tokens": 400},
            }
        },
        (),
    ),
    "start-up": (serve("llama-3.1-8b", 1.0, CONVERSATION, targets(2.0, 0.1), SMALL), ()),
    "start-up, growing": (serve("llama-3.1-8b", 10.0, CONVERSATION, targets(1.0, 0.05), SMALL), ()),
    "voice": (
        serve("llama-3.1-8b", 20.0, (600, 80), targets(0.2, 0.02, 0.99), [*SMALL, "h200-sxm"], precision=FP8),
        (),
    ),
    "DeepSeek-R1": (serve("deepseek-r1", 20.0, (2000, 500), targets(2.0, 0.05), ["h200-sxm", "b200-sxm"]), ()),
    "DeepSeek-V4": (serve("deepseek-v4-flash", 20.0, (4000, 800), targets(3.0, 0.05), ["h200-sxm", "b200-sxm"]), ()),
    "gpt-oss": (serve("gpt-oss-120b", 20.0, (1500, 600), targets(1.0, 0.03), CLOUD), ()),
    "Qwen3-235B": (
        serve(
            "qwen3-235b-a22b",
            10.0,
            (2000, 600),
            targets(2.0, 0.05),
            ["h100-sxm", "h200-sxm", "b200-sxm"],
            precision=FP8,
        ),
        (),
    ),
    "AMD only": (
        chat_70b(10.0, ["mi300x", "mi325x", "mi355x"]),
        (),
    ),
    "one provider": (
        chat_70b(
            10.0,
            prices={"provider": "AWS", "granularity": "instance"},
        ),
        (),
    ),
    "owned GPUs": (
        chat_70b(
            20.0,
            prices={"owned": {"h100-sxm": {"count": 16, "capex_usd_per_gpu": 0.0}}},
        ),
        (),
    ),
    "budget": (
        chat_70b(
            100.0,
            objective="max_rate",
            limits={"budget_usd_per_hour": 50.0},
        ),
        (),
    ),
    "offline": (
        serve(
            "llama-3.1-8b",
            4.0,
            CONVERSATION,
            targets(1.0, 0.05),
            SMALL,
            precision=FP8,
            offline=[
                {
                    "name": "summaries",
                    "requests_per_hour": 20_000.0,
                    "lengths": {"input_tokens": 3000, "output_tokens": 300},
                }
            ],
        ),
        (),
    ),
    "two models": (
        chat_70b(
            5.0,
            services=[
                {
                    "name": "small",
                    "llm": "llama-3.1-8b",
                    "precision": FP8,
                    "slo": targets(0.5, 0.03),
                    "workload": {"rate_per_s": 30.0, "drift": DRIFT, "lengths": CONVERSATION},
                }
            ],
        ),
        (),
    ),
    "EU region": (
        chat_70b(
            10.0,
            prices={"provider": "GCP", "region": "europe-west4", "granularity": "instance"},
        ),
        (),
    ),
    "spot": (
        serve(
            "llama-3.1-8b",
            30.0,
            CONVERSATION,
            targets(1.0, 0.05),
            SMALL,
            precision=FP8,
            prices={
                "commitments": ["on_demand", "spot"],
                "spot": {"interruptions_per_hour": 0.05, "recovery_s": 300.0},
            },
        ),
        (),
    ),
    "spares": (
        chat_70b(
            10.0,
            prices={"granularity": "instance"},
            limits={"survives_node_loss": True},
        ),
        (),
    ),
}
"""By name: a packaged scenario or the content of one, and settings on top."""


def planned(name: str) -> Plan:
    """The plan of a question, simulated."""
    scenario, settings = QUESTIONS[name]
    content = scenario if isinstance(scenario, str) else {"name": name, **scenario}
    return plan(load_scenario(content, settings), HARDWARE, alternatives=False)


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
