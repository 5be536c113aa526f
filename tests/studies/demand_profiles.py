"""Makes the packaged profiles of demand (`planner/presets/profiles/*.csv`) from recorded demand curves.

Prints the table of the README there. Run from the root of the checkout, with the folder that holds
`azure_2024_rates_10min.csv.gz`, `burstgpt_rates_hourly.csv.gz` and `servegen_rates_10min.csv.gz`, a second:

    python -m tests.studies.demand_profiles traces-folder [output-folder]
"""

from __future__ import annotations

import csv
import gzip
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from planner.traffic import HOURS_PER_DAY, MeasuredProfile
from planner.traffic.profiles import HOURS_PER_WEEK, measured_from_rates

PERIOD_HOURS = 1.0
CYCLES = {"day": HOURS_PER_DAY, "week": HOURS_PER_WEEK}
PRESETS = Path(__file__).resolve().parents[2] / "planner" / "presets" / "profiles"
AZURE = {
    "origin": "digitised from the published figure (one pixel is 7.2 minutes), scaled to the published row count",
    "source_url": "https://github.com/Azure/AzurePublicDataset",
    "licence": "CC-BY-4.0",
    "citation": "Stojkovic et al., DynamoLLM, HPCA 2025",
    "retrieved_on": "2025-10-20",
}
BURST = {
    "origin": "rebuilt from a published hourly table of sessions: turns counted in the hour their session starts",
    "source_url": "https://github.com/HPMLL/BurstGPT",
    "licence": "CC-BY-4.0",
    "citation": "Wang et al., BurstGPT, arXiv 2401.17644",
    "retrieved_on": "2026-02-26",
}
SERVEGEN = {
    "origin": "sum over clients of the published rates",
    "source_url": "https://github.com/alibaba/ServeGen",
    "licence": "Apache-2.0",
    "citation": "Xiang et al., ServeGen, arXiv 2505.09999",
    "recorded_on": "",
    "retrieved_on": "2025-06-09",
}


@dataclass(frozen=True)
class Curve:
    """One recorded demand curve: its file, the workload in it, and what is said of it."""

    file: str
    workload: str
    facts: dict[str, str]


CURVES = {
    "azure-2024-code": Curve(
        "azure_2024_rates_10min",
        "azure_2024_code",
        {
            **AZURE,
            "description": "Coding assistant at Azure",
            "recorded_on": "one week from 2024-05-10 (a Friday)",
            "note": "calm at night and at the weekend; the weekly profile has one sample of each hour",
        },
    ),
    "azure-2024-conv": Curve(
        "azure_2024_rates_10min",
        "azure_2024_conv",
        {
            **AZURE,
            "description": "Conversation service at Azure",
            "recorded_on": "one week from 2024-05-12 (a Sunday)",
            "note": "the weekly profile has one sample of each hour",
        },
    ),
    "burstgpt": Curve(
        "burstgpt_rates_hourly",
        "",
        {
            **BURST,
            "description": "Azure OpenAI GPT services of a region",
            "recorded_on": "61 days; weekday of the first unknown",
            "note": "a few hours carry much of all requests, and single days are unlike the mean one: no forecast",
        },
    ),
    **{
        f"servegen-{name}": Curve(
            "servegen_rates_10min", name, {**SERVEGEN, "description": f"Pool {name} at Alibaba", "note": note}
        )
        for name, note in (
            ("deepseek-r1", "one day"),
            ("m-large", "daily pattern weaker than the change from day to day"),
            ("m-mid", "no daily pattern to speak of; has steps at rate 0"),
            ("m-small", "has steps at rate 0"),
            ("mm-image", "one day"),
        )
    },
}
OFFICE_SHARES = (0.0,) * 6 + (0.1, 0.2) + (0.95,) * 4 + (0.5,) + (0.95,) * 4 + (0.3, 0.1, 0.1) + (0.05,) * 4
"""Of the people of an office, who are there in each hour of a weekday: BLDG_OCC_SCH of the file named below."""
OFFICE = Curve(
    "",
    "",
    {
        "origin": "people present by the schedule of a reference building (BLDG_OCC_SCH, weekdays), no recording",
        "source_url": "https://github.com/NREL/EnergyPlus/blob/develop/testfiles/RefBldgSmallOfficeNew2004_Chicago.idf",
        "licence": "BSD-3-Clause",
        "citation": "Deru et al., U.S. DOE Commercial Reference Building Models, NREL/TP-5500-46861, 2011",
        "recorded_on": "",
        "retrieved_on": "2026-11-30",
        "description": "Weekday of an office, by its own clock: as many requests as people are there",
        "note": "that requests follow the people present is an assumption; factor 1 stands for no rate",
    },
)


def read_curve(folder: Path, curve: Curve) -> tuple[NDArray[np.float64], float]:
    """Rates [1/s] and their step [s] of one curve."""
    columns: dict[str, list[tuple[float, float]]] = defaultdict(list)
    with gzip.open(folder / f"{curve.file}.csv.gz", "rt", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            columns[row.get("workload", "")].append((float(row["t_s"]), float(row["rate_rps"])))
    times_s, rates_per_s = np.array(columns[curve.workload]).T
    step_s = float(times_s[1] - times_s[0])
    assert np.allclose(np.diff(times_s), step_s), "the curve has a gap"
    return rates_per_s, step_s


def profiles(folder: Path) -> Iterator[tuple[str, str, MeasuredProfile]]:
    """Name, content of the file, and the profile, for every curve and cycle that it holds."""
    for base, curve in CURVES.items():
        rates_per_s, step_s = read_curve(folder, curve)
        for label, cycle_hours in CYCLES.items():
            if rates_per_s.size * step_s < cycle_hours * 3600.0:
                continue
            found = measured_from_rates(rates_per_s, step_s / 3600.0, PERIOD_HOURS, cycle_hours=cycle_hours)
            peak = float(rates_per_s.max() / rates_per_s.mean())
            yield f"{base}-{label}", _content(curve, found, cycle_hours, peak, step_s), found
    shares = np.array(OFFICE_SHARES) / np.mean(OFFICE_SHARES)
    found = measured_from_rates(shares, PERIOD_HOURS)
    yield "office", _content(OFFICE, found, HOURS_PER_DAY, float(shares.max()), 3600.0), found


def _content(curve: Curve, found: MeasuredProfile, cycle_hours: float, peak: float, step_s: float) -> str:
    facts = {
        **curve.facts,
        "cycle_hours": f"{cycle_hours:g}",
        "period_hours": f"{PERIOD_HOURS:g}",
        "cycles": str(max(found.seen)),
        "mean_per_s": f"{found.mean_per_s:.6g}",
        "recorded_peak_to_mean": f"{peak:.4g}",
        "step_s": f"{step_s:g}",
    }
    if found.between_cycles is not None:
        facts["between_cycles"] = f"{found.between_cycles:.4f}"
    lines = [f"# {key}: {value}" for key, value in facts.items()] + ["period,factor,seen,spread,highest"]
    rows = zip(found.profile.factors, found.seen, found.spread, found.highest, strict=True)
    for place, (factor, seen, spread, highest) in enumerate(rows):
        lines.append(f"{place},{factor:.5f},{seen},{'' if spread is None else f'{spread:.5f}'},{highest:.5f}")
    return "\n".join(lines) + "\n"


def table_row(name: str, found: MeasuredProfile, peak: float) -> str:
    """One row of the table in the README of the profiles."""
    factors = found.profile.factors
    spread = "" if found.between_cycles is None else f"{found.between_cycles:.2f}"
    cells = (
        name,
        str(max(found.seen)),
        f"{found.mean_per_s:.4g}",
        f"{max(factors):.2f}",
        f"{1.0 - 1.0 / max(factors):.0%}",
        spread,
        f"{max(found.highest):.2f}",
        f"{peak:.2f}",
    )
    return "| " + " | ".join(cells) + " |"


def main(folder: Path, output: Path) -> None:
    """Write every profile and print its row."""
    output.mkdir(parents=True, exist_ok=True)
    for name, content, found in profiles(folder):
        (output / f"{name}.csv").write_text(content, encoding="utf-8")
        peak = next(line for line in content.splitlines() if line.startswith("# recorded_peak_to_mean: "))
        print(table_row(name, found, float(peak.rpartition(" ")[2])))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else PRESETS)
