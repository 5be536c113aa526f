"""Presets against published statistics, compression against the uncompressed distribution, trace files against their limits."""

from __future__ import annotations

import csv
import gzip
import io
import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from planner.core import InputError, PlannerError, UnknownNameError
from planner.traffic import Trace, list_lengths, load_lengths, preset_scv, read_trace
from planner.traffic import trace as traces
from planner.traffic.trace import compress, preset_arrivals, preset_info
from planner.workload import MAX_TOKENS, ArrivalProcess, TokenLengths
from tests.places import DATA, REFERENCE, ROOT

HEADER = "arrival_s,input_tokens,output_tokens\n"
FULL_TRACES = {
    "azure-2023-code": "azure_2023_code",
    "azure-2023-conv": "azure_2023_conv",
    "mooncake-conversation": "mooncake_conversation",
    "mooncake-synthetic": "mooncake_synthetic",
    "servegen-deepseek-r1": "servegen_deepseek_r1_synth",
    "servegen-m-large": "servegen_m_large_synth",
}


def _quantile(values: np.ndarray, weights: np.ndarray, probability: float) -> float:
    """Smallest value whose cumulative probability reaches `probability`."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order]) / weights.sum() >= probability - 1e-12
    return float(values[order][np.argmax(reached)])


def _correlation(lengths: TokenLengths) -> float:
    p = lengths.probabilities
    x, y = lengths.inputs - lengths.mean_input, lengths.outputs - lengths.mean_output
    return float((x * y) @ p / math.sqrt((x**2 @ p) * (y**2 @ p)))


def _statistics(name: str) -> dict[str, float]:
    lengths, info = load_lengths(name), preset_info(name)
    found = {
        "requests": float(sum(lengths.weights)),
        "rate_per_s": info.rate_per_s,
        "interarrival_cv": info.interarrival_scv**0.5,
        "dispersion_10s": info.dispersion_10s,
        "correlation": _correlation(lengths),
        "input_mean": lengths.mean_input,
        "output_mean": lengths.mean_output,
    }
    weights = np.asarray(lengths.weights)
    for label, probability in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        found[f"input_{label}"] = _quantile(lengths.inputs, weights, probability)
        found[f"output_{label}"] = _quantile(lengths.outputs, weights, probability)
    return found


def _reference() -> list[dict[str, str]]:
    with (REFERENCE / "trace_statistics.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


# --- presets --------------------------------------------------------------------------------------------------------


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
    assert _correlation(fresh) == pytest.approx(_correlation(packaged), abs=1e-6)
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


def test_preset_arrivals_are_as_bursty_at_any_rate() -> None:
    arrivals = preset_arrivals("azure-2023-conv", 40.0)
    assert (arrivals.rate_per_s, arrivals.scv) == (40.0, preset_scv("azure-2023-conv"))
    assert arrivals.source == "preset azure-2023-conv"
    with pytest.raises(InputError, match=r"rate_per_s = 0\.0: Input should be greater than 0"):
        preset_arrivals("azure-2023-conv", 0.0)


@pytest.mark.parametrize("ask", [load_lengths, preset_info, preset_scv, lambda name: preset_arrivals(name, 1.0)])
def test_unknown_presets_suggest_names(ask: object) -> None:
    assert callable(ask)
    with pytest.raises(UnknownNameError, match=r"lengths = 'azure-conv': unknown name\. Fix: .*azure-2023-conv"):
        ask("azure-conv")
    with pytest.raises(UnknownNameError, match=r"unknown name"):
        ask("../lengths/azure-2023-conv")


# --- compression ----------------------------------------------------------------------------------------------------


def _random_lengths(seed: int, count: int = 30_000) -> TokenLengths:
    """Heavy-tailed, correlated, with a spike, as traces are."""
    rng = np.random.default_rng(seed)
    shared_part = rng.normal(size=count)
    inputs = np.exp(6.5 + 1.2 * (0.6 * shared_part + 0.8 * rng.normal(size=count)))
    outputs = np.exp(4.8 + 0.9 * (0.6 * shared_part + 0.8 * rng.normal(size=count)))
    inputs = np.where(rng.random(count) < 0.1, 4096, inputs)
    return TokenLengths.from_pairs(np.ceil(inputs), np.ceil(outputs), rng.integers(1, 4, count))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_compress_keeps_the_distribution(seed: int) -> None:
    full = _random_lengths(seed)
    small = compress(full)
    assert len(small.weights) <= 2000
    assert sum(small.weights) == pytest.approx(sum(full.weights), rel=1e-12)
    assert small.mean_input == pytest.approx(full.mean_input, rel=1e-3)
    assert small.mean_output == pytest.approx(full.mean_output, rel=1e-3)
    assert _correlation(small) == pytest.approx(_correlation(full), abs=0.01)
    assert small.mean_decode_context == pytest.approx(full.mean_decode_context, rel=0.005)
    for probability in (0.5, 0.9, 0.95, 0.99):
        for axis in ("inputs", "outputs"):
            kept = _quantile(getattr(small, axis), np.asarray(small.weights), probability)
            exact = _quantile(getattr(full, axis), np.asarray(full.weights), probability)
            assert kept == pytest.approx(exact, rel=0.02)


pairs = st.tuples(
    st.integers(min_value=1, max_value=MAX_TOKENS),
    st.integers(min_value=1, max_value=3000),
    st.floats(min_value=0.0, max_value=1e6, allow_subnormal=False),
)


@given(st.lists(pairs, min_size=1, max_size=400), st.integers(min_value=100, max_value=150))
def test_compress_keeps_totals(rows: list[tuple[int, int, float]], cells: int) -> None:
    """Total weight, both means to half of the heaviest cell, and the ranges, whatever the distribution."""
    inputs, outputs, weights = zip(*rows, strict=True)
    if not any(weights):
        return
    full = TokenLengths.from_pairs(inputs, outputs, weights)
    small = compress(full, cells)
    assert len(small.weights) <= cells
    assert sum(small.weights) == pytest.approx(sum(weights), rel=1e-9)
    slack = float(small.probabilities.max()) / 2.0
    assert abs(small.mean_input - full.mean_input) <= slack + 1e-9 * full.mean_input
    assert abs(small.mean_output - full.mean_output) <= slack + 1e-9 * full.mean_output
    assert min(small.input_tokens) >= min(inputs)
    assert max(small.output_tokens) <= max(outputs)


def test_few_pairs_are_kept_exactly() -> None:
    full = TokenLengths.from_pairs([5, 5, 9, 5], [1, 2, 3, 1], [1.0, 2.0, 3.0, 4.0])
    small = compress(full, 100)
    assert dict(zip(zip(small.input_tokens, small.output_tokens, strict=True), small.weights, strict=True)) == {
        (5, 1): 5.0,
        (5, 2): 2.0,
        (9, 3): 3.0,
    }


def test_compress_does_not_depend_on_the_order() -> None:
    full = _random_lengths(4, 5000)
    shuffled = np.random.default_rng(0).permutation(5000)
    other = TokenLengths.from_pairs(full.inputs[shuffled], full.outputs[shuffled], np.asarray(full.weights)[shuffled])
    assert compress(full, 500) == compress(other, 500)


def test_compress_refuses_too_few_cells() -> None:
    with pytest.raises(InputError, match=r"cells = 99: must be >= 100\. Fix: give 100 or more"):
        compress(TokenLengths.constant(1, 1), 99)


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
    with pytest.raises(InputError, match=r"arrival_scv = .*must be <= 1000\. Fix: cut out silences"):
        silent.arrivals()


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


@pytest.mark.parametrize("wrap", ["text", "bytes", "bom", "gzip", "path", "gzip path"])
def test_every_way_in_reads_the_same(wrap: str, tmp_path: Path) -> None:
    text = HEADER + "1000000000.0,10,1\n\n# a comment\n1000000000.5,20.0,2\n"
    path = tmp_path / "trace.csv"
    if wrap == "gzip path":
        path = tmp_path / "trace.csv.gz"
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text, encoding="utf-8")
    source = {
        "text": io.StringIO(text),
        "bytes": io.BytesIO(text.encode()),
        "bom": io.BytesIO(text.encode("utf-8-sig")),
        "gzip": io.BytesIO(gzip.compress(text.encode())),
        "path": str(path),
        "gzip path": path,
    }[wrap]
    trace = read_trace(source)  # type: ignore[arg-type]
    assert trace.arrival_s.tolist() == [0.0, 0.5]
    assert trace.input_tokens.tolist() == [10, 20]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "arrival_s = []: column is missing. Fix: name one column arrival_s or timestamp"),
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
        (HEADER + "soon,5,1\n", "row 2 arrival_s = 'soon': must be seconds or an ISO date"),
        (HEADER + "2024-01-01,5,1\n7,5,1\n", "row 3 arrival_s = '7': must be seconds or an ISO date"),
        (HEADER + "0,5,1\n2024-01-01,5,1\n", "row 3 arrival_s = '2024-01-01': must be a number"),
        (HEADER + '0,5,"' + "1" * 200_000 + '"\n', "is not CSV text (field larger than field limit"),
    ],
)
def test_bad_rows_are_named(text: str, line: str) -> None:
    with pytest.raises(InputError, match=re.escape(line)):
        read_trace(io.StringIO(text))


def test_files_that_are_no_traces(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no such file\. Fix: give the path of a CSV file"):
        read_trace(tmp_path / "absent.csv")
    with pytest.raises(InputError, match=r"no such file"):
        read_trace(tmp_path)
    with pytest.raises(InputError, match=r"cannot be read .*File name too long"):
        read_trace("x" * 5000)
    with pytest.raises(InputError, match=r"is not CSV text \('utf-8' codec can't decode"):
        read_trace(io.BytesIO(HEADER.encode() + b"\xff\xfe,1,1\n"))
    packed = gzip.compress(HEADER.encode() * 50)
    for damaged in (packed[:-20], packed[:12] + b"\x00" * 40, packed[:-8] + b"\x00" * 8):
        with pytest.raises(InputError, match=r"cannot be read .*compress it again"):
            read_trace(io.BytesIO(damaged))


def test_large_files_are_refused_before_reading(tmp_path: Path) -> None:
    path = tmp_path / "large.csv"
    with path.open("wb") as file:
        file.truncate(traces.MAX_TRACE_BYTES + 1)
    with pytest.raises(InputError, match=r"large\.csv': is larger than 100 MB\. Fix: cut it to a busy hour"):
        read_trace(path)


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
    monkeypatch.setattr(traces, "MAX_TRACE_BYTES", 50)
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
