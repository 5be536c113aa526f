"""Packaged recordings against the public traces they were made from, and against the packaged lengths."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from planner.core import InputError, UnknownNameError
from planner.traffic import (
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
from planner.traffic.length_presets import preset_info
from planner.traffic.recordings import MAX_SUPERPOSED
from planner.workload import Scaling
from tests.places import ROOT
from tests.traffic.test_length_presets import FULL_TRACES

FOLDER = ROOT / "planner" / "presets" / "recordings"


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
    found = {name: read_any_trace(FOLDER / f"{name}.csv.gz").prefix_share for name in list_recordings()}
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
    assert sum(file.stat().st_size for file in FOLDER.glob("*.csv.gz")) < 700_000


def test_readme_of_recordings_repeats_their_figures() -> None:
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
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


@pytest.mark.parametrize("ask", [load_recording, recorded_arrivals, lambda name: preset_arrivals(name, 1.0)])
def test_unknown_recordings_suggest_names(ask: object) -> None:
    assert callable(ask)
    with pytest.raises(UnknownNameError, match=r"recording = 'azure-conv': unknown name\. Fix: .*azure-2023-conv"):
        ask("azure-conv")
    with pytest.raises(UnknownNameError, match=r"unknown name"):
        ask("../recordings/azure-2023-conv")
