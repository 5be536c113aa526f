"""The same scenario is planned once: which request a command makes of it, and what it shows, is the command's own."""

from collections.abc import Iterator

import pytest

from tests.cli.shell import planned_once


@pytest.fixture(scope="package", autouse=True)
def _the_same_is_planned_once() -> Iterator[None]:
    with planned_once():
        yield
