"""Refit the engine constants that ship, from the measured serving points, and show what they predict elsewhere.

    python -m tests.studies.engine_costs POINTS.csv [vllm|tensorrt-llm|sglang ...] [--most 24]

Each engine is fitted to the groups named in `FITS`, to at most so many runs of each, drawn at random but always the
same; every other group of the engine is held out. `hardware_db/engines/*.toml` holds the outcome. The last digits
depend on which runs are drawn: constants that trade off against each other (gap, sequence, launch) move together by
tens of percent, the errors in `docs/studies/accuracy.md` by one or two points.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

from hardware_db import EngineCosts, load_hardware
from planner.validation import read_serving_points
from planner.validation.engine_fit import fit_costs
from planner.validation.measured_runs import ServingPoint

FITS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "vllm": (("Llama-3.1-70B @ h100-sxm", "MiniMax-M2.5 @ h200-sxm"), ()),
    "tensorrt-llm": (
        ("Qwen3-32B @ h100-sxm", "Qwen3-235B-A22B-FP8 @ h100-sxm", "DeepSeek-R1 @ h200-sxm"),
        ("latent_s", "latent_prompt_s"),
    ),
    "tensorrt-llm on Blackwell": (("Llama-3.1-70B @ b200-sxm",), ()),
    "sglang": (
        ("Llama-3.1-8B-Instruct @ h200-sxm", "DeepSeek-R1 @ h200-sxm"),
        ("latent_s", "latent_prompt_s", "handover_s"),
    ),
    "sglang on Blackwell": (("DeepSeek-R1 @ b200-sxm",), ("latent_s", "latent_prompt_s")),
}
"""Groups each engine is fitted to, and the constants beside the common ones."""
COMMON = ("sequence_s", "gap_s", "launch_s", "request_s", "admission_s", "prompt_stretch")
MOST_USERS = 160
"""Runs with more users are left out of the fit: they take most of the time and say little about the constants."""


def drawn(points: Sequence[ServingPoint], most: int) -> list[ServingPoint]:
    """At most so many points, the same ones for every call."""
    order = np.random.default_rng(1).permutation(len(points))
    return [points[index] for index in order[:most]]


def of_group(points: Sequence[ServingPoint], engine: str, group: str) -> list[ServingPoint]:
    """Runs of an engine on one model and SKU, without speculation."""
    model, sku = group.split(" @ ")
    return [
        point
        for point in points
        if (point.engine, point.model.rsplit("/", 1)[-1], point.sku) == (engine, model, sku)
        and not point.draft_tokens
        and 1 < point.concurrency <= MOST_USERS
    ]


def main() -> None:
    """Fit, print constants with intervals and errors before and after."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("points")
    parser.add_argument("fits", nargs="*", default=list(FITS), help="which of the fits")
    parser.add_argument("--most", type=int, default=24, help="runs of each group")
    given = parser.parse_args()
    points, db = read_serving_points(given.points), load_hardware()
    for name in given.fits:
        (groups, more), engine = FITS[name], name.split(" on ")[0]
        chosen = [point for group in groups for point in drawn(of_group(points, engine, group), given.most)]
        captured = db.engines[engine].costs.captured_tokens
        start = EngineCosts(lag_steps=1, handover_s=0.5, captured_tokens=captured)
        found = fit_costs(chosen, db, engine, (*COMMON, *more), start)
        print(f"\n{name}: {len(chosen)} runs of {', '.join(groups)}")
        for constant, (low, high) in found.intervals.items():
            print(f"  {constant:16} {getattr(found.costs, constant):10.3g}  [{low:.3g}, {high:.3g}]")
        for one in found.comparisons:
            print(f"  {one.metric:12} {100 * one.before.median:5.1f} % -> {100 * one.after.median:5.1f} % (median)")


if __name__ == "__main__":
    main()
