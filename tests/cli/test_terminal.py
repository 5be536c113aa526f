"""What is printed fits, and no word of it is ever cut."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cli import base
from planner.cli.terminal import GAP, WIDTH, column_widths, show
from planner.core import InputError, Report, Table

WORDS = st.lists(st.text("abc0123.,", min_size=1, max_size=12), max_size=6).map(" ".join)
TABLES = st.integers(1, 6).flatmap(
    lambda columns: st.lists(st.tuples(*[WORDS] * columns), min_size=2, max_size=5).map(
        lambda rows: Table("t", rows[0], tuple(rows[1:]))
    )
)


@given(TABLES, st.integers(20, 120))
def test_widths_hold_every_word_and_fit_where_words_do(table: Table, width: int) -> None:
    widths = column_widths(table, width)
    columns = list(zip(table.columns, *table.rows, strict=True))
    words = [max(len(word) for cell in cells for word in cell.split() or [""]) for cells in columns]
    assert all(given >= needed for given, needed in zip(widths, words, strict=True))
    gaps = GAP * (len(widths) - 1)
    assert sum(widths) + gaps <= max(width, sum(words) + gaps)


@settings(max_examples=40)
@given(TABLES)
def test_every_word_of_a_table_is_printed_whole(table: Table) -> None:
    import contextlib
    import io

    with contextlib.redirect_stdout(io.StringIO()) as printed:
        show(Report("", (table,)))
    lines = printed.getvalue().splitlines()
    printed_words = {word for line in lines for word in line.split()}
    assert {word for cells in (table.columns, *table.rows) for cell in cells for word in cell.split()} <= printed_words
    assert all(len(line) <= WIDTH and line == line.rstrip() for line in lines)


def test_words_too_long_for_the_line_make_it_longer(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("a" * 60, "b" * 60)
    show(Report("", (Table("t", ("x", "y"), (words,)),)))
    assert capsys.readouterr().out.splitlines()[-1] == "  ".join(words)


def test_text_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither console markup nor emoji names nor colours."""
    table = Table("[t]", ("[x]",), (("[red]1[/red]",),), "[n]")
    show(Report("[bold]a[/bold] :rocket: 12", (table,), {"[l]": ["[i]"], "none": []}))
    printed = capsys.readouterr().out
    for text in ("[bold]a[/bold] :rocket: 12", "[t]", "[x]", "[red]1[/red]", "[n]", "[l]", "- [i]"):
        assert text in printed
    assert "\x1b" not in printed
    assert "none" not in printed


HOSTILE = "a\x1b[2J\x1b]0;owned\x07b\nc\r\x9bd\u202ee"
"""Clears the screen, names the window, ends the line, and turns what follows around."""


def test_no_name_commands_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """In every part of a report, in an error, in a line by itself and in a text for stdout."""
    show(Report(HOSTILE, (Table(HOSTILE, (HOSTILE,), ((HOSTILE,),), HOSTILE),), {HOSTILE: [HOSTILE]}))
    base.deliver(HOSTILE)
    base.write(base.STDOUT, lambda: HOSTILE.replace("\n", "").replace("\u202e", ""))
    with pytest.raises(SystemExit):
        base._fail(InputError(HOSTILE, HOSTILE, HOSTILE, HOSTILE))
    printed = "".join(capsys.readouterr())
    assert printed.count("owned") >= 10
    assert not [letter for letter in printed if not letter.isprintable() and letter != "\n"]
    assert not re.search("^c", printed, re.MULTILINE)


def test_width_and_colour_follow_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As https://force-color.org and https://no-color.org ask for; COLUMNS is the width of a terminal (POSIX)."""
    for name, value in (("FORCE_COLOR", "1"), ("COLUMNS", "60"), ("TERM", "xterm")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    show(Report("answer " * 20))
    coloured = capsys.readouterr().out
    assert "\x1b[1m" in coloured
    plain = re.sub(r"\x1b\[[\d;]*m", "", coloured).splitlines()
    assert 50 < max(map(len, plain)) <= 60
    monkeypatch.setenv("COLUMNS", "150")
    show(Report("answer " * 40))
    assert 140 < max(len(re.sub(r"\x1b\[[\d;]*m", "", line)) for line in capsys.readouterr().out.splitlines()) <= 150
