"""Packaged lengths against published statistics and against the full traces."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np
import pytest

from planner.core import UnknownNameError
from planner.traffic import Trace, list_lengths, load_lengths, preset_scv, read_trace
from planner.traffic.length_presets import preset_info
from planner.workload import TokenLengths
from tests.places import REFERENCE, ROOT
from tests.traffic.weighted_statistics import correlation, quantile

FULL_TRACES = {
    "azure-2023-code": "azure_2023_code",
    "azure-2023-conv": "azure_2023_conv",
    "mooncake-conversation": "mooncake_conversation",
    "mooncake-synthetic": "mooncake_synthetic",
    "servegen-deepseek-r1": "servegen_deepseek_r1_synth",
    "servegen-m-large": "servegen_m_large_synth",
}


def _statistics(name: str) -> dict[str, float]:
    lengths, info = load_lengths(name), preset_info(name)
    found = {
        "requests": float(sum(lengths.weights)),
        "rate_per_s": info.rate_per_s,
        "interarrival_cv": info.interarrival_scv**0.5,
        "dispersion_10s": info.dispersion_10s,
        "correlation": correlation(lengths),
        "input_mean": lengths.mean_input,
        "output_mean": lengths.mean_output,
    }
    weights = np.asarray(lengths.weights)
    for label, probability in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        found[f"input_{label}"] = quantile(lengths.inputs, weights, probability)
        found[f"output_{label}"] = quantile(lengths.outputs, weights, probability)
    return found


def _reference() -> list[dict[str, str]]:
    with (REFERENCE / "trace_statistics.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


@pytest.mark.parametrize("row", _reference(), ids=lambda row: f"{row['preset']}-{row['statistic']}-{row['value']}")
def test_presets_match_published_statistics(row: dict[str, str]) -> None:
    found, value = _statistics(row["preset"])[row["statistic"]], float(row["value"])
    if row["statistic"] == "correlation":
        assert found == pytest.approx(value, abs=0.01)
    else:
        assert found == pytest.approx(value, rel=float(row["relative_tolerance"]), abs=1e-9)


def test_every_preset_has_published_statistics() -> None:
    assert {row["preset"] for row in _reference()} == set(list_lengths()) == set(FULL_TRACES)


@pytest.mark.parametrize("name", list_lengths())
def test_presets_carry_their_source_and_stay_small(name: str) -> None:
    info, lengths = preset_info(name), load_lengths(name)
    assert info.source_url.startswith("https://")
    assert info.licence in {"CC-BY-4.0", "Apache-2.0"}
    assert re.search(r"20\d\d|arXiv", info.citation)
    assert len(lengths.weights) <= 2000
    assert info.requests == sum(lengths.weights)
    assert lengths.source == f"preset {name}"
    file = ROOT / "planner" / "presets" / "lengths" / f"{name}.csv"
    assert file.stat().st_size <= 60_000
    assert ("published distributions" in info.origin) == name.startswith("servegen")


@pytest.mark.parametrize("name", list_lengths())
def test_presets_are_the_compressed_traces(name: str, shared: Path) -> None:
    """The packaged file is what `read_trace` and `compress` make of the full trace, header figures included."""
    trace = read_trace(shared / "traces" / f"{FULL_TRACES[name]}.csv.gz")
    info, packaged, fresh = preset_info(name), load_lengths(name), trace.lengths()
    assert fresh.max_total == packaged.max_total == int((trace.input_tokens + trace.output_tokens).max())
    assert fresh.mean_input == pytest.approx(packaged.mean_input, rel=1e-6)
    assert correlation(fresh) == pytest.approx(correlation(packaged), abs=1e-6)
    assert packaged.mean_decode_context == pytest.approx(_full(trace).mean_decode_context, rel=2e-3)
    timed = trace.spread(3.0, seed=0) if name == "mooncake-conversation" else trace
    assert trace.rate_per_s == pytest.approx(info.rate_per_s, rel=1e-4)
    assert timed.arrival_scv() == pytest.approx(info.interarrival_scv, rel=1e-4)
    assert timed.dispersion(1.0) == pytest.approx(info.dispersion_1s, rel=1e-4)
    assert timed.dispersion(10.0) == pytest.approx(info.dispersion_10s, rel=1e-4)


def _full(trace: Trace) -> TokenLengths:
    return TokenLengths.from_pairs(trace.input_tokens, trace.output_tokens)


def test_readme_of_presets_repeats_their_figures() -> None:
    text = (ROOT / "planner" / "presets" / "lengths" / "README.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]
    tables = {row[0]: row for row in rows if row[0] in FULL_TRACES}
    assert set(tables) == set(list_lengths())
    for name, row in tables.items():
        info, lengths = preset_info(name), load_lengths(name)
        figures = (info.requests, lengths.mean_input, lengths.mean_output, info.interarrival_scv)
        for shown, exact in zip(row[1:7], (*figures, info.dispersion_1s, info.dispersion_10s), strict=True):
            assert float(shown) == pytest.approx(exact, rel=2e-3)


@pytest.mark.parametrize("ask", [load_lengths, preset_info, preset_scv])
def test_unknown_presets_suggest_names(ask: object) -> None:
    assert callable(ask)
    with pytest.raises(UnknownNameError, match=r"lengths = 'azure-conv': unknown name\. Fix: .*azure-2023-conv"):
        ask("azure-conv")
    with pytest.raises(UnknownNameError, match=r"unknown name"):
        ask("../lengths/azure-2023-conv")
