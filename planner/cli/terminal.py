"""Text, tables and lists on a terminal or in a pipe: readable at 100 columns, and no number ever cut."""

from __future__ import annotations

import re
import sys

from rich import box
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from planner.core import Report, Table, one_line

WIDTH = 100
"""Characters of a line in a pipe; on a terminal as many as it has. A choice."""
GAP = 2
"""Blanks between columns of a table, as rich sets them without edges (`box.SIMPLE_HEAD`, padding collapsed)."""


def show(report: Report) -> None:
    """Print a report as it is, without blanks at the ends of lines."""
    console = Console(highlight=False, markup=False, emoji=False)
    console.width = console.width if console.is_terminal else WIDTH
    with console.capture() as captured:
        if report.headline:
            console.print(Text(one_line(report.headline), style="bold"))
        for table in report.tables:
            console.print(Text(f"\n{one_line(table.title)}", style="bold"))
            console.print(_grid(table, console.width), crop=False)
            if table.note:
                console.print(Text(one_line(table.note), style="dim"))
        for title, lines in (*report.lists.items(), *report.notes.items()):
            if lines:
                console.print(Text(f"\n{one_line(title)}", style="bold"))
            for line in lines:
                console.print(Text(f"- {one_line(line)}"))
    sys.stdout.write(re.sub(r" +$", "", captured.get(), flags=re.MULTILINE))


def _grid(table: Table, width: int) -> Grid:
    widths = column_widths(table, width)
    whole = sum(widths) + GAP * (len(widths) - 1)
    grid = Grid(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True, width=whole)
    for name, numeric, columns in zip(table.columns, table.numeric, widths, strict=True):
        grid.add_column(Text(one_line(name)), justify="right" if numeric else "left", width=columns)
    for row in table.rows:
        grid.add_row(*(Text(one_line(cell)) for cell in row))
    return grid


def column_widths(table: Table, width: int) -> list[int]:
    """Widths of the columns in a line of `width`: headings of several words give way first, then cells; words never.

    >>> column_widths(Table("", ("two words", "cell"), (("1", "one more line"),)), 20)
    [5, 13]
    >>> column_widths(Table("", ("two words", "cell"), (("1", "one more line"),)), 15)
    [5, 8]
    """
    columns = list(zip(table.columns, *table.rows, strict=True))
    widths = [max(map(len, cells)) for cells in columns]
    words = [max(len(word) for cell in cells for word in cell.split() or [""]) for cells in columns]
    cells = [max(word, *(len(cell) for cell in column[1:]), 0) for word, column in zip(words, columns, strict=True)]
    for floors in (cells, words):
        while sum(widths) + GAP * (len(widths) - 1) > width and widths != floors:
            widest = max(range(len(widths)), key=lambda index: (widths[index] > floors[index], widths[index]))
            widths[widest] -= 1
    return widths
