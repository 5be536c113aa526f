"""A sweep is the plans of its points and nothing else: held against plans made by hand, whatever the executor does."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from planner.analysis import REFUSED
from planner.core import InputError, PlannerError, UnknownNameError, json_text, write_text
from planner.fleet import plan
from planner.report import plan_to_dict
from planner.scenario import load_scenario, sweeps
from planner.scenario.sweep_points import Task, with_fields
from planner.scenario.sweep_result import FAILED, UNPLANNED, Sweep, SweepLog, SweepPoint
from planner.scenario.sweeps import _executor, portions, process_pool, sweep
from tests.builders import SMALL_SCENARIO
from tests.places import ROOT

SCENARIO = SMALL_SCENARIO
RATE, TTFT, TPOT = "workload.rate_per_s", "slo.0.threshold_s", "slo.1.threshold_s"
NEVER = 1e-6
"""A TPOT [s] that nothing keeps."""


class Here(Executor):
    """An executor that works while it is asked, and remembers what it was asked."""

    def __init__(self, breaks_after: int = 1000, error: BaseException | None = None) -> None:
        self.asked: list[tuple[int, ...]] = []
        self._breaks_after, self._error = breaks_after, error

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.asked.append(tuple(task.number for task in args[0]))
        future: Future[Any] = Future()
        if len(self.asked) > self._breaks_after:
            future.set_exception(self._error or BrokenProcessPool("a process was killed"))
        else:
            future.set_result(fn(*args, **kwargs))
        return future


class Elsewhere:
    """As little as an executor can be: `submit` alone, whose futures are filled by another thread."""

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        threading.Thread(target=lambda: future.set_result(fn(*args))).start()
        return future


def figures(found: Sweep) -> list[SweepPoint]:
    """Points without what differs from run to run."""
    return [replace(point, seconds=0.0) for point in found.points]


def by_hand(rate: float) -> dict[str, Any]:
    made = plan(load_scenario(SCENARIO, [f"{RATE}={rate}"]), simulate=False, alternatives=False)
    assert made.cost is not None
    return {
        "usd_per_hour": made.cost.usd_per_hour,
        "usd_per_month": made.cost.usd_per_month,
        "usd_per_million_tokens": made.cost.usd_per_million_tokens,
        "usd_per_million_output_tokens": made.cost.usd_per_million_output_tokens,
        "gpus": made.gpus,
    }


class TestPoints:
    """What a sweep says of each point is what its plan says."""

    def test_every_point_is_the_plan_made_by_hand(self) -> None:
        found = sweep(SCENARIO, {RATE: [20, 60]}, Here())
        for point, rate in zip(found.points, (20, 60), strict=True):
            expected = by_hand(rate)
            assert {name: getattr(point, name) for name in expected} == expected
            assert (point.feasible, point.values, point.rate_per_s) == (True, {RATE: rate}, pytest.approx(rate))

    def test_the_last_field_moves_fastest_and_a_list_is_taken_as_it_is(self) -> None:
        product = sweep(SCENARIO, {RATE: [20, 40], TTFT: [1, 2]}, Here())
        assert [tuple(point.values.values()) for point in product.points] == [(20, 1), (20, 2), (40, 1), (40, 2)]
        listed = sweep(SCENARIO, [{RATE: 40, TTFT: 2}, {RATE: 20}], Here())
        assert listed.paths == (RATE, TTFT)
        assert figures(listed)[0].usd_per_hour == product.points[3].usd_per_hour
        assert [row[TTFT] for row in listed.records()] == [2, None]

    def test_an_infeasible_point_is_a_row_with_its_reason(self) -> None:
        found = sweep(SCENARIO, {TPOT: [0.05, NEVER]}, Here())
        good, bad = found.points
        assert good.feasible and not bad.feasible
        assert (bad.status, bad.usd_per_hour, bad.gpus) == ("infeasible", None, {})
        assert "p95 TPOT" in bad.reason and "relax that target" in bad.reason
        assert found.best() is good

    def test_a_refused_point_is_a_row_and_nothing_is_planned_for_it(self) -> None:
        executor = Here()
        found = sweep(SCENARIO, [{RATE: 20}, {RATE: -1}, {"search.skus": ["h1000"]}], executor)
        assert [point.status for point in found.points] == ["optimal", REFUSED, REFUSED]
        assert "workload.rate_per_s = -1" in found.points[1].reason  # as it is read
        assert "h1000" in found.points[2].reason  # as it is planned
        assert sorted(number for part in executor.asked for number in part) == [0, 2]

    def test_a_point_that_breaks_the_planner_does_not_end_the_others(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def breaks(request: Any, *_: Any, **__: Any) -> Any:
            if request.workload.rate_per_s > 30:
                raise ZeroDivisionError("float division")
            return plan(request, simulate=False, alternatives=False)

        monkeypatch.setattr(sweeps, "plan", breaks)
        found = sweep(SCENARIO, {RATE: [20, 40]}, Here())
        assert [point.status for point in found.points] == ["optimal", FAILED]
        assert found.points[1].reason == "ZeroDivisionError: float division"

    def test_values_may_be_numpy_numbers_dates_lists_and_small(self) -> None:
        over = {RATE: np.array([20, 40]), "prices.as_of": [date(2026, 11, 20)], "search.tp": [[1], [1, 2]]}
        points = sweep(SCENARIO, over, Here()).points
        assert [point.values[RATE] for point in points] == [20, 20, 40, 40]
        assert points[0].values["prices.as_of"] == "2026-11-20"
        assert all(point.feasible for point in points)
        (small,) = sweep(SCENARIO, {TPOT: [1e-5]}, Here()).points  # YAML reads 1e-05 as text
        assert small.status == "infeasible"

    def test_alternatives_and_simulation_are_as_in_a_plan(self) -> None:
        (point,) = sweep(SCENARIO, {RATE: [20]}, Here(), simulate=True, alternatives=True).points
        made = plan(load_scenario(SCENARIO))
        assert point.alternatives == {one.restriction: one.usd_per_hour for one in made.alternatives}
        assert made.cost is not None
        assert point.goodput_per_s == made.cost.goodput_per_s
        assert point.targets_met is all(check.met for check in made.targets)

    def test_a_file_and_a_plan_document_are_read_where_they_lie(self, tmp_path: Path) -> None:
        (tmp_path / "trace.csv").write_text("arrival_s,input_tokens,output_tokens\n0,1000,100\n1,1000,100\n")
        workload = {"rate_per_s": 20, "lengths": {"trace": "trace.csv"}}
        (tmp_path / "s.yaml").write_text(yaml.safe_dump({**SCENARIO, "workload": workload}), encoding="utf-8")
        (from_file,) = sweep(tmp_path / "s.yaml", {RATE: [40]}, Here()).points
        document = {**plan_to_dict(plan(load_scenario(tmp_path / "s.yaml"))), "scenario": {**SCENARIO}}
        write_text(tmp_path / "plan.json", json_text(document))
        (from_plan,) = sweep(tmp_path / "plan.json", {RATE: [40]}, Here()).points
        assert from_file.usd_per_hour == from_plan.usd_per_hour == by_hand(40)["usd_per_hour"]


class TestBadInput:
    """Refused at once, before anything is planned."""

    @pytest.mark.parametrize(
        ("over", "said"),
        [
            ({}, "names no point"),
            ({RATE: []}, "must be a list of values"),
            ({RATE: "20,40"}, "must be a list of values"),
            ([RATE], "is no list of points"),
            ({RATE: [object()]}, "is neither number, text"),
            ({RATE: range(1000), TTFT: range(1000)}, "are more than 100000 points"),
            ({"workload.rate": [20]}, "unknown field"),
            ({"slo.7.threshold_s": [1]}, "no such element of slo"),
        ],
    )
    def test_it_instructs(self, over: Any, said: str) -> None:
        executor = Here()
        with pytest.raises(InputError, match=said):
            sweep(SCENARIO, over, executor)
        assert executor.asked == []

    def test_names_sizes_and_figures_are_checked(self) -> None:
        with pytest.raises(UnknownNameError, match="chat-llama-70b"):
            sweep("chat-llama", {RATE: [1]}, Here())
        with pytest.raises(InputError, match="workers = 0: must be >= 1"):
            process_pool(0)
        with pytest.raises(InputError, match="portion = 0: must be >= 1"):
            sweep(SCENARIO, {RATE: [20]}, Here(), portion=0)
        with pytest.raises(InputError, match=r"by = 'fleet': is no figure of a point.*usd_per_month"):
            Sweep("", (), ()).best("fleet")


class TestExecutors:
    """Where points are planned changes nothing but the time it takes."""

    def test_processes_threads_and_a_bare_submit_agree(self) -> None:
        over = {RATE: [20, 60], TPOT: [0.05, NEVER]}
        expected = figures(sweep(SCENARIO, over, Here()))
        with process_pool(1) as processes:
            assert figures(sweep(SCENARIO, over, processes)) == expected
        with ThreadPoolExecutor(2) as threads:
            assert figures(sweep(SCENARIO, over, threads, portion=1)) == expected
        assert figures(sweep(SCENARIO, over, Elsewhere())) == expected  # type: ignore[arg-type]

    def test_a_portion_that_nobody_waits_for_any_more_ends(self) -> None:
        """Ctrl-C in a terminal reaches the workers too; a signal to the sweep alone left it waiting for them."""
        with pytest.raises(KeyboardInterrupt), _executor(None, 1) as pool:
            future = pool.submit(time.sleep, 60.0)
            while not future.running():
                time.sleep(0.01)
            raise KeyboardInterrupt
        assert isinstance(future.exception(), BrokenProcessPool)

    def test_points_that_share_latencies_stay_together(self) -> None:
        request = load_scenario(SCENARIO)
        values = [{RATE: rate, TTFT: limit} for rate in (1, 2, 3) for limit in (0.5, 1.0)]
        tasks = [Task(number, one, request) for number, one in enumerate(values)]
        assert [[task.number for task in part] for part in portions(tasks, 3)] == [[0, 2, 4], [1, 3, 5]]
        assert [len(part) for part in portions(tasks, 2)] == [2, 1, 2, 1]
        assert [len(part) for part in portions(tasks, 16)] == [6]
        assert portions([], 4) == []

    def test_small_groups_share_a_portion_and_no_point_is_lost(self) -> None:
        request = load_scenario(SCENARIO)
        tasks = [Task(number, {TTFT: number % 7, RATE: number}, request) for number in range(50)]
        found = portions(tasks, 8)
        assert sorted(task.number for part in found for task in part) == list(range(50))
        assert max(map(len, found)) <= 8 and len(found) == 7  # groups of 7 or 8, which do not fit together

    def test_progress_counts_to_the_number_of_points(self) -> None:
        told: list[tuple[int, int]] = []
        sweep(SCENARIO, {RATE: [20, 40, -1]}, Here(), progress=lambda done, of: told.append((done, of)), portion=1)
        assert told == [(1, 3), (2, 3), (3, 3)]


class TestStopping:
    """What was planned is kept, and the same call goes on from there."""

    def test_a_broken_executor_leaves_what_was_done_and_resume_does_the_rest(self, tmp_path: Path) -> None:
        over, path = {RATE: [20, 40, 60]}, tmp_path / "points.jsonl"
        first = sweep(SCENARIO, over, Here(breaks_after=1), resume=path, portion=1)
        assert [point.status for point in first.points] == ["optimal", UNPLANNED, UNPLANNED]
        assert first.stopped == first.points[1].reason == "BrokenProcessPool: a process was killed"
        rest = Here()
        second = sweep(SCENARIO, over, rest, resume=path, portion=1)
        assert rest.asked == [(1,), (2,)]
        assert second.stopped == ""
        assert figures(second) == figures(sweep(SCENARIO, over, Here()))
        assert second.points[0] == first.points[0]  # the time it took too: it was not planned again

    def test_an_interrupt_leaves_what_was_done(self, tmp_path: Path) -> None:
        def press(done: int, of: int) -> None:
            if done == 2:
                raise KeyboardInterrupt

        path = tmp_path / "points.jsonl"
        found = sweep(SCENARIO, {RATE: [20, 40, 60]}, Here(), progress=press, resume=path, portion=1)
        assert [point.status for point in found.points] == ["optimal", "optimal", UNPLANNED]
        assert found.stopped == "interrupted"
        assert len(path.read_text(encoding="utf-8").splitlines()) == 2

    def test_two_processes_add_to_one_file_at_once(self, tmp_path: Path) -> None:
        """Points longer than a buffer, 100 from each: all are there, each whole."""
        path = tmp_path / "points.jsonl"
        code = (
            "import os, sys; from planner.scenario.sweep_result import SweepLog\n"
            "other = os.fork()\n"
            "name = 'a' if other else 'b'\n"
            "with SweepLog(sys.argv[1]) as log:\n"
            "    for number in range(100): log.write({f'{name}{number}': {'x': name * 30_000}})\n"
            "sys.exit(os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]) if other else 0)"
        )
        subprocess.run([sys.executable, "-c", code, str(path)], cwd=ROOT, check=True, timeout=60)
        with SweepLog(path) as log:
            assert log.rows == {f"{name}{number}": {"x": name * 30_000} for name in "ab" for number in range(100)}

    def test_only_what_would_be_the_same_is_taken_from_a_file(self, tmp_path: Path) -> None:
        path = tmp_path / "points.jsonl"
        sweep(SCENARIO, {RATE: [20, 40]}, Here(), resume=path)
        more, other, deeper = Here(), Here(), Here()
        sweep(SCENARIO, {RATE: [60, 40, 20]}, more, resume=path)
        assert more.asked == [(0,)]
        sweep({**SCENARIO, "llm": "qwen3-8b"}, {RATE: [20]}, other, resume=path)
        assert other.asked == [(0,)]
        sweep(SCENARIO, {RATE: [20]}, deeper, alternatives=True, resume=path)
        assert deeper.asked == [(0,)]

    def test_a_line_that_was_cut_off_is_planned_again(self, tmp_path: Path) -> None:
        path = tmp_path / "points.jsonl"
        whole = sweep(SCENARIO, {RATE: [20, 40]}, Here(), resume=path)
        text = path.read_text(encoding="utf-8")
        path.write_text(text[:-30], encoding="utf-8")
        executor = Here()
        assert figures(sweep(SCENARIO, {RATE: [20, 40]}, executor, resume=path)) == figures(whole)
        assert executor.asked == [(1,)]
        keys = [json.loads(line)["key"] for line in path.read_text(encoding="utf-8").splitlines()]
        assert keys == [json.loads(line)["key"] for line in text.splitlines()]

    @pytest.mark.parametrize("text", ["name: a scenario\n", "name: a scenario", '{"key": 1}\n', "\xff"])
    def test_a_file_of_something_else_is_left_alone(self, tmp_path: Path, text: str) -> None:
        path = tmp_path / "s.yaml"
        path.write_bytes(text.encode("latin-1"))
        with pytest.raises(InputError, match=r"line 1 is no point of a sweep\. Fix: name a new file"):
            sweep(SCENARIO, {RATE: [20]}, Here(), resume=path)
        assert path.read_bytes() == text.encode("latin-1")

    def test_a_file_that_cannot_be_written_is_said_before_planning(self, tmp_path: Path) -> None:
        executor = Here()
        with pytest.raises(InputError, match=r"resume = .*cannot be used"):
            sweep(SCENARIO, {RATE: [20]}, executor, resume=tmp_path / "none" / "points.jsonl")
        assert executor.asked == []


def made_up() -> Sweep:
    """Two SKUs, an infeasible point, and a text that a spreadsheet would run."""
    points = (
        SweepPoint(0, {RATE: 1, "name": "=1+1"}, "optimal", True, usd_per_hour=4.0, rate_per_s=1.0, gpus={"a": 2}),
        SweepPoint(1, {RATE: 2, "name": "b"}, "infeasible", reason="too slow"),
        SweepPoint(2, {RATE: 3, "name": "c"}, "optimal", True, usd_per_hour=6.0, rate_per_s=3.0, gpus={"b": 3}),
    )
    return Sweep("made up", (RATE, "name"), points)


class TestResults:
    """Rows, files and words."""

    def test_best_is_the_cheapest_or_the_fastest_feasible_one(self) -> None:
        found = made_up()
        assert found.best() is found.points[0]
        assert found.best("rate_per_s") is found.points[2]
        assert found.best("usd_per_month") is None

    def test_csv_reads_back_as_the_rows(self, tmp_path: Path) -> None:
        found = made_up()
        text = found.to_csv(tmp_path / "out.csv")
        assert (tmp_path / "out.csv").read_text(encoding="utf-8") == text
        rows = list(csv.DictReader(io.StringIO(text)))
        assert [row["gpus_a"] for row in rows] == ["2", "", "0"]  # none of it, and nothing known
        assert [row["usd_per_hour"] for row in rows] == ["4.0", "", "6.0"]
        assert rows[0]["name"] == "'=1+1"
        assert found.frame()["usd_per_hour"].dropna().tolist() == [4.0, 6.0]


# --- requests made in Python ------------------------------------------------------------------------------------------


def test_a_request_is_swept_like_the_scenario_it_came_from() -> None:
    rates, limits = [10, 30], [0.5, 1.0]
    own = sweep(
        load_scenario(SCENARIO), {"workload.arrivals.rate_per_s": rates, "slo.targets.0.threshold_s": limits}, Here()
    )
    scenario = sweep(SCENARIO, {RATE: rates, TTFT: limits}, Here())
    assert [one.usd_per_hour for one in own.points] == [one.usd_per_hour for one in scenario.points]
    assert (own.name, own.paths) == ("small", ("workload.arrivals.rate_per_s", "slo.targets.0.threshold_s"))


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("workload.rate", 1, "workload.rate = 'rate': .*arrivals, classes"),
        ("slo.targets.7.threshold_s", 1, "is no position of 2. Fix: count from 0"),
        ("seed.deeper", 1, "has no fields"),
        ("workload.arrivals.rate_per_s", -1, "rate_per_s = -1"),
    ],
)
def test_a_field_that_a_request_has_not_is_named(path: str, value: object, said: str) -> None:
    with pytest.raises(PlannerError, match=said):
        with_fields(load_scenario(SCENARIO), {path: value})


def test_overrides_are_for_scenarios() -> None:
    with pytest.raises(InputError, match="give the scenario it came from"):
        sweep(load_scenario(SCENARIO), {"seed": [1]}, Here(), overrides=["seed=2"])
