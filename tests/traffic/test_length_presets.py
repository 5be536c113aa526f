"""Packaged lengths against published statistics and against the full traces."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np
import pytest

from planner.core import InputError, UnknownNameError
from planner.traffic import (
    Trace,
    list_lengths,
    list_recordings,
    load_lengths,
    load_recording,
    preset_arrivals,
    preset_scv,
    read_any_trace,
    read_trace,
    recorded_arrivals,
)
from planner.traffic.length_presets import MAX_SUPERPOSED, preset_info
from planner.workload import Scaling, TokenLengths
from tests.places import REFERENCE, ROOT
from tests.traffic.weighted_statistics import correlation, quantile

RECORDINGS = ROOT / "planner" / "presets" / "recordings"
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


# --- recordings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list_recordings())
def test_recordings_are_the_public_traces(name: str, shared: Path) -> None:
    """Every request, to the millisecond; the ticks of one clock spread as its README says."""
    full = read_trace(shared / "traces" / f"{FULL_TRACES[name]}.csv.gz")
    full = full.spread(3.0, seed=0) if name == "mooncake-conversation" else full
    packaged = load_recording(name)
    assert packaged.arrival_s == pytest.approx(full.arrival_s, abs=0.00051)
    assert np.array_equal(packaged.input_tokens, full.input_tokens)
    assert np.array_equal(packaged.output_tokens, full.output_tokens)


def test_shared_prefixes_are_counted_where_they_are_public() -> None:
    """Mooncake's: 37.4 % of the tokens of prompts were in an earlier one (planner/presets/lengths/README.md)."""
    found = {name: read_any_trace(RECORDINGS / f"{name}.csv.gz").prefix_share for name in list_recordings()}
    assert found.pop("mooncake-conversation") == pytest.approx(0.374, abs=0.001)
    assert found.pop("mooncake-synthetic") == pytest.approx(0.651, abs=0.001)
    assert set(found.values()) == {None}


@pytest.mark.parametrize("name", list_recordings())
def test_recordings_and_lengths_of_one_name_are_the_same_requests(name: str) -> None:
    recording, lengths, info = load_recording(name), load_lengths(name), preset_info(name)
    assert recording.arrival_s.size == info.requests
    assert recording.input_tokens.mean() == pytest.approx(lengths.mean_input, rel=1e-3)
    assert recording.output_tokens.mean() == pytest.approx(lengths.mean_output, rel=1e-3)
    assert recording.rate_per_s == pytest.approx(info.rate_per_s, rel=2e-3)
    assert recording.arrival_scv() == pytest.approx(info.interarrival_scv, rel=1e-3)
    process = recorded_arrivals(name).process
    assert process.scv == pytest.approx(info.scv, abs=1e-3) == preset_scv(name)
    drift = (process.drift.window_s, process.drift.cv, process.drift.peak) if process.drift else (0.0, 0.0, 1.0)
    assert drift == pytest.approx((info.drift_window_s, info.drift_cv, info.drift_peak), abs=1e-3)


def test_every_packaged_trace_has_lengths_and_requests_in_little_space() -> None:
    assert list_recordings() == list_lengths()
    assert sum(file.stat().st_size for file in RECORDINGS.glob("*.csv.gz")) < 700_000


def test_readme_of_recordings_repeats_their_figures() -> None:
    text = (RECORDINGS / "README.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]
    tables = {row[0]: row for row in rows if row[0] in list_recordings()}
    assert set(tables) == set(list_recordings())
    for name, row in tables.items():
        info, recording = preset_info(name), load_recording(name)
        shown = [0.0 if cell == "none" else float(cell.removesuffix(" s")) for cell in row[1:8]]
        exact = [info.requests, recording.arrival_s[-1], info.drift_window_s, info.drift_cv, info.drift_peak]
        assert shown == pytest.approx([*exact, info.interarrival_scv, info.scv], rel=5e-3, abs=6e-4)


def test_preset_arrivals_have_the_drift_and_what_is_left_of_the_bursts() -> None:
    """Azure's chat: minutes of 0.58 to 1.53 times the mean stay at 40/s, gaps are those of Poisson arrivals."""
    arrivals = preset_arrivals("azure-2023-conv", 40.0)
    assert (arrivals.rate_per_s, arrivals.source) == (40.0, "preset azure-2023-conv")
    assert arrivals.scv == pytest.approx(1.0, abs=0.1)
    assert arrivals.drift is not None
    assert arrivals.drift.cv == pytest.approx(preset_info("azure-2023-conv").drift_cv, abs=0.03)
    with pytest.raises(InputError, match=r"rate_per_s = 0\.0: Input should be greater than 0"):
        preset_arrivals("azure-2023-conv", 0.0)


def test_arrivals_at_a_very_high_rate_are_those_of_the_most_copies() -> None:
    most_per_s = MAX_SUPERPOSED / recorded_arrivals("mooncake-synthetic").duration_s
    arrivals = preset_arrivals("mooncake-synthetic", 1e5)
    assert arrivals.rate_per_s == 1e5
    assert arrivals.scv == preset_arrivals("mooncake-synthetic", most_per_s).scv


def test_a_recording_can_be_stretched_instead() -> None:
    """Its minutes pass as fast as requests come more often."""
    stretched = recorded_arrivals("azure-2023-conv", 40.0, Scaling.STRETCH)
    once = recorded_arrivals("azure-2023-conv")
    assert stretched.duration_s == pytest.approx(once.duration_s * once.rate_per_s / 40.0)
    assert stretched.input_tokens == once.input_tokens
