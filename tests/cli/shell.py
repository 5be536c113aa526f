"""Commands as a shell runs them, and the one line that is said of bad input."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import planner
from planner.cli.commands import app
from planner.fleet import hardware_for
from tests.builders import SMALL_SCENARIO

GIVEN = ("--llm", "llama-3.1-8b", "--sku", "h100-sxm", "--rate", "5", "--lengths", "1000/100")
"""A deployment and its traffic."""
RESULT = {
    **{"request_rate": "inf", "max_concurrency": 4, "completed": 16, "mean_ttft_ms": 60.0, "mean_tpot_ms": 9.0},
    **{"total_input_tokens": 16 * 1024, "total_output_tokens": 16 * 128},
}
"""A result of vllm bench serve --save-result, without what is not read."""
LINE = re.compile(r"error: (?P<field>\S.*?) = (?P<value>.+?): (?P<bound>.+)\. Fix: (?P<fix>.+)\n")


@contextmanager
def planned_once() -> Iterator[pytest.MonkeyPatch]:
    """A plan depends on nothing but what `planner.plan` is given, which other tests hold it to."""
    real, known = planner.plan, list[tuple[object, planner.Plan]]()

    def plan(request: planner.PlanRequest, hardware: Any = None, progress: Any = None, **options: Any) -> planner.Plan:
        asked = (request, hardware_for(request, hardware), options)
        for before, found in known:
            if before == asked:
                return found
        known.append((asked, real(request, hardware, progress, **options)))
        return known[-1][1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planner, "plan", plan)
        yield patch


def written(path: Path, content: dict[str, Any] = SMALL_SCENARIO) -> str:
    """The path of a file with a scenario."""
    path.write_text(json.dumps(content), encoding="utf-8")  # which is YAML, too
    return str(path)


def run(*words: object, typed: str | None = None, **environment: str) -> Result:
    """A command, in a terminal of 100 columns."""
    given = [str(word) for word in words]
    return CliRunner(env={"COLUMNS": "100", **environment}).invoke(app, given, prog_name="planner", input=typed)


def flat(*words: object) -> str:
    """The output of a command that ends well, on one line."""
    done = run(*words)
    assert done.exit_code == 0, done.output
    return " ".join(done.stdout.split())


def data(*words: object) -> Any:
    """What a command writes as JSON, whether there is a fleet or not."""
    done = run(*words, "--json", "-")
    assert done.exit_code in (0, 3), done.stderr
    return json.loads(done.stdout)


def complaint(*words: object) -> dict[str, str]:
    """Field, value, bound and fix of a refused command: one line on stderr, nothing else anywhere, exit code 2."""
    done = run(*words)
    assert (done.exit_code, done.stdout) == (2, ""), done.output
    found = LINE.fullmatch(done.stderr)
    assert found, done.stderr
    return found.groupdict()


def assert_refused(words: tuple[object, ...], field: str, said: str) -> None:
    """Refused in one line about a field (empty: any), with something that it says."""
    found = complaint(*words)
    assert field in ("", found["field"]), found
    assert any(said in text for text in found.values()), found
