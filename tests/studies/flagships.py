"""Fleets for the flagships of 2026: what is planned for each on H200 and on B200, beside what public recipes run.

Ten requests a second of 4,000 prompt and 1,000 answer tokens, p99 TTFT 3 s and TPOT 50 ms, the checkpoint as its
publisher wrote it, every degree of parallelism left to the planner. Writes `flagships.csv`, which
docs/studies/flagships.md shows. From the root of the checkout:

    python -m tests.studies.flagships          # some three minutes; CPU seconds are of a process of its own each
    python -m tests.studies.flagships table    # the table of the document, from the rows
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import planner
from planner.fleet import Plan
from tests.studies.rows import read_rows, table_lines, write_rows

ROWS = Path(__file__).with_suffix(".csv")
SKUS = ("h200-sxm", "b200-sxm")
ENGINE = "vllm"
FLAGSHIPS = (
    "deepseek-v4-flash",
    "deepseek-v4-pro",
    "glm-5.2",
    "kimi-k2.6",
    "minimax-m3",
    "nvidia-nemotron-3-super-120b-a12b-fp8",
)
_DYNAMO = "https://docs.nvidia.com/dynamo/recipes"
RECIPES: Mapping[tuple[str, str], tuple[str, str]] = {
    ("deepseek-v4-flash", "h200-sxm"): ("DP4 EP4 on 4", f"{_DYNAMO}/deepseek-v4-flash"),
    ("deepseek-v4-flash", "b200-sxm"): ("TP4 EP4 on 4; 2 + 1 of TP4 disaggregated", f"{_DYNAMO}/deepseek-v4-flash"),
    ("deepseek-v4-pro", "b200-sxm"): ("TP8 EP8 on 8; 1 + 1 disaggregated", f"{_DYNAMO}/deepseek-v4-pro"),
    ("deepseek-v4-pro", "h200-sxm"): (
        "two servers, 16 GPUs",
        "https://docs.sglang.io/cookbook/autoregressive/DeepSeek/DeepSeek-V4",
    ),
    ("glm-5.2", "b200-sxm"): (
        "8 GPUs (TensorRT-LLM)",
        "https://nvidia.github.io/TensorRT-LLM/deployment-guide/deployment-guide-for-glm-5-on-trtllm.html",
    ),
    ("kimi-k2.6", "h200-sxm"): (
        "TP8 on 8",
        "https://huggingface.co/moonshotai/Kimi-K2.6/blob/main/docs/deploy_guidance.md",
    ),
    ("minimax-m3", "b200-sxm"): (
        "8 GPUs (GB200), attention TP8 or DP8, EP8 (TensorRT-LLM)",
        "https://nvidia.github.io/TensorRT-LLM/deployment-guide/deployment-guide-for-minimax-m3-on-trtllm.html",
    ),
    ("nvidia-nemotron-3-super-120b-a12b-fp8", "h200-sxm"): ("TP4 EP4 on 4", f"{_DYNAMO}/nemotron-3-super"),
    ("nvidia-nemotron-3-super-120b-a12b-fp8", "b200-sxm"): ("TP4 EP4 on 4 (NVFP4)", f"{_DYNAMO}/nemotron-3-super"),
}
"""What the engines' and vendors' guides run, read on 2026-11-22. Their loads differ from the one planned for."""


def scenario(llm: str, sku: str) -> dict[str, object]:
    """The question, as a scenario."""
    return {
        "name": f"{llm} on {sku}",
        "llm": llm,
        "workload": {"rate_per_s": 10, "lengths": {"input_tokens": 4000, "output_tokens": 1000}},
        "slo": [
            {"metric": "ttft", "percentile": 0.99, "threshold_s": 3.0},
            {"metric": "tpot", "percentile": 0.99, "threshold_s": 0.050},
        ],
        "search": {
            "skus": [sku],
            "engine": ENGINE,
            "max_running_requests": [64, 128, 256, 512, 1024],
            "max_batched_tokens": [2048, 4096, 8192, 16384],
        },
        "objective": "min_cost",
    }


def row(llm: str, sku: str) -> dict[str, str]:
    """One plan, as a row of the file."""
    begun = time.process_time()
    answer = planner.plan(planner.load_scenario(scenario(llm, sku)))
    spent_s = time.process_time() - begun
    return {"llm": llm, "sku": sku, "engine": ENGINE, **_answer_cells(answer), "cpu_s": f"{spent_s:.1f}"}


def _answer_cells(answer: Plan) -> dict[str, str]:
    if answer.cost is None:
        none = dict.fromkeys(("usd_per_hour", "ttft_ms", "tpot_ms"), "")
        return {"fleet": "none: " + " ".join(answer.diagnosis), "gpus": "0", **none}
    seen = answer.deployments[0].simulated
    return {
        "fleet": " + ".join(
            f"{pool.replicas} x {pool.config.parallelism.label} {pool.role.value}" for pool in answer.pools
        ),
        "gpus": str(sum(answer.gpus.values())),
        "usd_per_hour": f"{answer.cost.usd_per_hour:.2f}",
        "ttft_ms": f"{1e3 * seen.ttft.quantile_s(0.99):.0f}",
        "tpot_ms": f"{1e3 * seen.tpot.quantile_s(0.99):.1f}",
    }


def table(rows: list[dict[str, str]]) -> Iterator[str]:
    """The rows as the table of the document."""
    heads = ("model", "GPU", "planned", "GPUs", "USD/h", "p99 TTFT, TPOT", "CPU", "public recipe")
    return table_lines(heads, map(_cells, rows))


def _cells(one: Mapping[str, str]) -> Iterator[str]:
    text, url = RECIPES.get((one["llm"], one["sku"]), ("none found", ""))
    yield from (one[name] for name in ("llm", "sku", "fleet", "gpus", "usd_per_hour"))
    yield f"{one['ttft_ms']}, {one['tpot_ms']} ms" if one["ttft_ms"] else ""
    yield f"{one['cpu_s']} s"
    yield f"[{text}]({url})" if url else text


def main() -> None:
    """Plan everything, or print the table."""
    if sys.argv[1:] == ["table"]:
        print("\n".join(table(read_rows(ROWS))))
        return
    questions = [(llm, sku) for llm in FLAGSHIPS for sku in SKUS]
    with ProcessPoolExecutor(max_workers=1, max_tasks_per_child=1) as pool:
        rows = list(pool.map(row, *zip(*questions, strict=True)))
    write_rows(ROWS, rows)


if __name__ == "__main__":
    main()
