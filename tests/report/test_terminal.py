"""How far a piece of work is shows on a terminal only."""

from __future__ import annotations

import pytest

from planner.report.terminal import progress


def test_progress_is_silent_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    with progress() as say:
        say("working")
    assert capsys.readouterr() == ("", "")
