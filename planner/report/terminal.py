"""How far a long piece of work is, on a terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from planner.core import one_line


@contextlib.contextmanager
def bar(what: str) -> Iterator[Callable[[float], None] | None]:
    """A progress bar that takes shares from 0 to 1; None where standard error is no terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as live:
        task = live.add_task(what, total=1.0)
        yield lambda share: live.update(task, completed=share)


@contextlib.contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """A function that shows what is being done, on a terminal only."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda stage: None
        return
    with console.status("starting") as status:
        yield lambda stage: status.update(escape(one_line(stage)))
