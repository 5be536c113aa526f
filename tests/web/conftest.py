"""Pages without a browser compute in the process of the test, where a test can see and replace what is computed."""

import pytest

from planner.web import bounds


@pytest.fixture(autouse=True)
def _no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"{bounds.VARIABLE}WORKERS", "0")
