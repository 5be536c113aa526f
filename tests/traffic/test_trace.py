"""Traces against their statistics, trace files against their limits."""

from __future__ import annotations

import gzip
import io
import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from planner.core import InputError, PlannerError
from planner.traffic import Trace, read_trace
from planner.traffic import trace as traces
from planner.workload import ArrivalProcess
from tests.places import DATA

HEADER = "arrival_s,input_tokens,output_tokens\n"


# --- arrival statistics ---------------------------------------------------------------------------------------------


def _arrivals_only(times_s: np.ndarray) -> Trace:
    ones = np.ones(times_s.size)
    return Trace.from_arrays(times_s, ones, ones)


def test_poisson_arrivals_have_scv_and_dispersion_one() -> None:
    trace = _arrivals_only(ArrivalProcess(rate_per_s=10.0).sample_times_s(200_000, seed=2))
    assert trace.rate_per_s == pytest.approx(10.0, rel=0.015)
    assert trace.arrival_scv() == pytest.approx(1.0, abs=0.03)
    assert trace.dispersion(1.0) == pytest.approx(1.0, abs=5 * math.sqrt(2.0 / 20_000))
    assert trace.dispersion(10.0) == pytest.approx(1.0, abs=5 * math.sqrt(2.0 / 2000))


def test_dispersion_of_a_renewal_process_tends_to_the_scv_of_its_gaps() -> None:
    """Renewal theorem for the variance (Cox, Renewal Theory, 1962, sec. 4.5); 4000 windows of about 100 arrivals."""
    trace = _arrivals_only(ArrivalProcess(rate_per_s=1.0, scv=4.0).sample_times_s(400_000, seed=9))
    assert trace.dispersion(100.0) == pytest.approx(4.0, abs=5 * 4.0 * math.sqrt(2.0 / 4000))


def test_dispersion_sees_drift_that_the_scv_does_not() -> None:
    """Poisson at 5/s and then 15/s: SCV near 1.3 at most, counts in 10 s windows vary as 1 + 10 Var[rate] / E[rate]."""
    slow = ArrivalProcess(rate_per_s=5.0).sample_times_s(10_000, seed=1)
    fast = slow[-1] + ArrivalProcess(rate_per_s=15.0).sample_times_s(30_000, seed=2)
    trace = _arrivals_only(np.concatenate([slow, fast]))
    assert trace.arrival_scv() < 1.7
    assert trace.dispersion(10.0) == pytest.approx(1.0 + 10.0 * 25.0 / 10.0, rel=0.1)


def test_dispersion_by_counting_windows() -> None:
    rng = np.random.default_rng(0)
    times = np.sort(rng.random(500)) * 60.0
    trace = _arrivals_only(times)
    counts = [int(((times - times[0]) // 7.0 == k).sum()) for k in range(int((times[-1] - times[0]) // 7.0))]
    assert trace.dispersion(7.0) == pytest.approx(np.var(counts) / np.mean(counts))


def test_spread_undoes_a_coarse_clock() -> None:
    """Poisson arrivals stamped by a clock of 3 s look far burstier; spreading brings SCV 1 back, counts stay."""
    times = ArrivalProcess(rate_per_s=3.4).sample_times_s(20_000, seed=4)
    ticked = _arrivals_only(np.floor(times / 3.0) * 3.0)
    assert ticked.arrival_scv() > 8.0
    spread = ticked.spread(3.0, seed=0)
    assert spread.arrival_scv() == pytest.approx(1.0, abs=0.05)
    assert spread.rate_per_s == pytest.approx(ticked.rate_per_s, rel=1e-3)
    assert "spread over 3 s" in spread.source
    assert (np.diff(spread.arrival_s) >= 0).all()


def test_trace_hands_over_its_arrivals() -> None:
    trace = Trace.from_arrays([0.0, 1.0, 3.0], [1, 1, 1], [1, 1, 1])
    assert trace.arrivals().rate_per_s == pytest.approx(2 / 3)
    assert trace.arrivals(5.0).rate_per_s == 5.0
    assert trace.arrivals().scv == pytest.approx(1 / 9)
    silent = _arrivals_only(np.append(np.linspace(0, 1, 5000), 1e6))
    assert silent.arrival_scv() > 1000.0
    found = silent.arrivals()
    assert found.drift is not None
    assert found.drift.peak > 1000.0
    assert found.scv <= 1000.0


def test_statistics_refuse_what_has_no_meaning() -> None:
    single = Trace.from_arrays([4.0], [1], [1])
    with pytest.raises(InputError, match=r"arrival_s = 0\.0: first to last arrival must take 1e-09 s or more"):
        _ = single.rate_per_s
    with pytest.raises(InputError, match=r"first to last arrival"):
        single.arrival_scv()
    trace = Trace.from_arrays([0.0, 1.0, 10.0], [1] * 3, [1] * 3)
    for window in (6.0, 0.0, -1.0, math.nan, math.inf, 1e-12):
        with pytest.raises(InputError, match=r"window_s = .*must lie between 1e-08 and 5 s for a trace of 10 s"):
            trace.dispersion(window)
    with pytest.raises(InputError, match=r"step_s = 0\.0: must be > 0"):
        trace.spread(0.0, seed=0)
    with pytest.raises(InputError, match=r"seed = -1: must be >= 0"):
        trace.spread(1.0, seed=-1)


# --- reading --------------------------------------------------------------------------------------------------------


def test_azure_format() -> None:
    """Times differ as the digits of the file say: 18:15:50.995169 - 18:15:46.680590 = 4.314579."""
    trace = read_trace(DATA / "traces" / "azure_2023_conv_head.csv")
    assert trace.arrival_s[:3].tolist() == pytest.approx([0.0, 4.314579, 4.541877], abs=1e-6)
    assert trace.input_tokens.tolist() == [374, 396, 879, 91, 91, 381, 1313, 388]
    assert trace.output_tokens.tolist() == [44, 109, 55, 16, 16, 84, 142, 84]
    assert trace.source == "azure_2023_conv_head.csv"
    assert trace.lengths().mean_input == pytest.approx(np.mean([374, 396, 879, 91, 91, 381, 1313, 388]))


def test_time_zones_and_column_order() -> None:
    text = (
        "Model,Response tokens,Timestamp,Request tokens\n"
        "x,5,2024-05-10 00:00:00+00:00,7\n"
        'x,6,2024-05-10T02:00:01.5+02:00,"8"\n'
    )
    trace = read_trace(io.StringIO(text))
    assert trace.arrival_s.tolist() == [0.0, 1.5]
    assert (trace.input_tokens.tolist(), trace.output_tokens.tolist()) == ([7, 8], [5, 6])


def test_a_packed_table_with_comments_is_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(gzip.compress((HEADER + "1000000000.0,10,1\n\n# a comment\n1000000000.5,20.0,2\n").encode()))
    trace = read_trace(path)
    assert trace.arrival_s.tolist() == [0.0, 0.5] and trace.input_tokens.tolist() == [10, 20]


def test_paths_and_bytes_that_are_no_trace_are_refused(tmp_path: Path) -> None:
    """What else a file may be: `test_text_files`."""
    for path in (tmp_path / "absent.csv", tmp_path):
        with pytest.raises(InputError, match="no such file"):
            read_trace(path)
    with pytest.raises(InputError, match=r"is not text \(invalid start byte"):
        read_trace(io.BytesIO(HEADER.encode() + b"\xff\xfe,1,1\n"))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "trace = 'trace': is empty"),
        (
            "arrival_s,output_tokens\n0,1\n",
            "input_tokens = ['arrival_s', 'output_tokens']: column is missing. Fix: name",
        ),
        (HEADER, "has no requests. Fix: give at least one row below the column names"),
        (HEADER + "0,5,1\n1,5,0\n", "row 3 output_tokens = 0: must be a whole number of tokens from 1 to 100000000"),
        (HEADER + "0,-5,1\n", "row 2 input_tokens = -5: must be a whole number of tokens"),
        (HEADER + "0,2.5,1\n", "row 2 input_tokens = 2.5: must be a whole number of tokens"),
        (HEADER + "0,nan,1\n", "row 2 input_tokens = nan: must be a whole number"),
        (HEADER + "0,1e300,1\n", "row 2 input_tokens = 1000000000"),
        (HEADER + "0,5,1\n\n# note\nnan,5,1\n", "row 5 arrival_s = nan: must be finite. Fix: drop or correct the row"),
        (HEADER + "inf,5,1\n", "row 2 arrival_s = inf: must be finite"),
        (HEADER + "-1,5,1\n", "row 2 arrival_s = -1: must be >= 0 s. Fix: subtract the time of the first request"),
        (HEADER + "3,5,1\n2.5,5,1\n", "row 3 arrival_s = 2.5: is earlier than the row before. Fix: sort the rows"),
        (HEADER + "1700000000000,5,1\n", "must be <= 1e+11 s. Fix: give seconds, not milliseconds"),
        (HEADER + "0,many,1\n", "row 2 input_tokens = 'many': must be a number. Fix: drop or correct the row"),
        (HEADER + "0,5,\n", "row 2 output_tokens = '': must be a number"),
        (HEADER + "0,5\n", "row 2 = '0,5': has 2 of 3 columns. Fix: complete or drop the row"),
        (HEADER + "soon,5,1\n", "row 2 time = 'soon': must be a number of seconds or an ISO date"),
        (HEADER + "2024-01-01,5,1\n7,5,1\n", "row 3 time = '7': must be a number of seconds or an ISO date"),
        (HEADER + "0,5,1\n2024-01-01,5,1\n", "row 3 arrival_s = '2024-01-01': must be a number"),
        (HEADER + '0,5,"' + "1" * 200_000 + '"\n', "is not CSV text (field larger than field limit"),
    ],
)
def test_bad_rows_are_named(text: str, line: str) -> None:
    with pytest.raises(InputError, match=re.escape(line)):
        read_trace(io.StringIO(text))


def test_gzip_bomb_is_refused(tmp_path: Path) -> None:
    """About 100 kB that expand to 110 MB of one endless line."""
    path = tmp_path / "bomb.csv.gz"
    block = gzip.compress(b"1" * 10_000_000)
    path.write_bytes(block * 11)
    assert path.stat().st_size < 200_000
    with pytest.raises(InputError, match=r"bomb\.csv\.gz': is larger than 100 MB"):
        read_trace(path)


def test_limits_count_rows_and_stream_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = HEADER + "".join(f"{i},5,1\n" for i in range(20))
    monkeypatch.setattr(traces, "MAX_TRACE_ROWS", 10)
    with pytest.raises(InputError, match=r"row = 12: a trace holds at most 10 requests\. Fix: cut it to a busy hour"):
        read_trace(io.StringIO(rows))
    monkeypatch.setattr(traces, "KIND", traces.KIND._replace(most_bytes=50))
    for stream in (io.StringIO(rows), io.BytesIO(rows.encode()), io.BytesIO(gzip.compress(rows.encode()))):
        with pytest.raises(InputError, match=r"is larger than 5e-05 MB"):
            read_trace(stream)


junk = st.text(alphabet=st.characters(codec="utf-8"), max_size=60)
cell = st.one_of(st.integers(-3, 50).map(str), st.floats().map(str), st.sampled_from(["", '"', "2024-01-01", "x", "#"]))
table = st.lists(st.lists(cell, min_size=2, max_size=4).map(",".join), max_size=8).map("\n".join)


@settings(max_examples=200)
@given(st.one_of(junk, junk.map(lambda text: HEADER + text), table.map(lambda rows: HEADER + rows)))
@example(HEADER + "0,1\x00,1\n")
@example(HEADER + "1e-320,1,1\n2e-320,1,1\n9,1,1\n")
def test_junk_is_read_or_refused(text: str) -> None:
    """Whatever the text: either a valid trace, or a PlannerError; never another exception, never a warning."""
    try:
        trace = read_trace(io.StringIO(text))
    except PlannerError:
        return
    assert (np.diff(trace.arrival_s) >= 0).all()
    assert min(trace.lengths().output_tokens) >= 1
    try:
        assert trace.rate_per_s > 0
        assert trace.arrival_scv() >= 0
    except PlannerError:
        return


@given(st.binary(max_size=80))
@example(b"\x1f\x8b" + bytes(30))
def test_junk_bytes_are_refused(content: bytes) -> None:
    with pytest.raises(PlannerError):
        read_trace(io.BytesIO(content))


def test_arrays_are_checked_like_rows() -> None:
    with pytest.raises(InputError, match=r"row 2 output_tokens = 0: must be a whole number"):
        Trace.from_arrays([0, 1], [1, 1], [1, 0])
    with pytest.raises(InputError, match=r"trace = \[1, 2\]: needs one or more requests and as many of each column"):
        Trace.from_arrays([0, 1], [1], [1, 1])
    with pytest.raises(InputError, match=r"trace = \['a'\]: must be numbers"):
        Trace.from_arrays(["a"], [1], [1])
