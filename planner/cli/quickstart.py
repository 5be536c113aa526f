"""`planner quickstart`: five questions, and a commented scenario that plans."""
# ruff: noqa: D301, PLC0415 - a line of \b keeps the examples of a help text as written; imports are late on purpose

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from planner.cli.base import STDOUT, check_outputs, write
from planner.core import InputError, one_line, shorten

if TYPE_CHECKING:
    from planner.scenario import quickstart as first

FILE = "my-case.yaml"
"""Where the scenario is written unless told otherwise."""


def quickstart(
    llm: str | None = None,
    traffic: str | None = None,
    lengths: str | None = None,
    targets: str | None = None,
    gpus: str | None = None,
    defaults: bool = False,
    force: bool = False,
    out: str = FILE,
) -> None:
    """Ask five questions and write a commented scenario that plans.

    \b
    planner quickstart
    planner quickstart --llm qwen3-32b --traffic 12 --lengths 1500/400 --yes --out chat.yaml
    planner quickstart --targets 'p95 TTFT 500 ms, p50 TPOT 30 ms' --out strict.yaml
    planner quickstart --traffic '50000 users' --targets chat --gpus 'h100-sxm @ Lambda' --out users.yaml

    What an option answers is not asked; an answer that cannot be read is asked for again.
    """
    from planner.scenario import quickstart as first

    check_outputs(None if out == STDOUT else out)
    if out != STDOUT and Path(out).exists() and not force:
        raise InputError("--out", out, "is there already", "give another file, or add --force")
    given = {"llm": llm, "traffic": traffic, "lengths": lengths, "targets": targets, "gpus": gpus}
    answers = {question.option: _answer(question, given[question.option], defaults) for question in first.QUESTIONS}
    place = Path(FILE if out == STDOUT else out)
    text = first.quickstart_text(answers, place.stem, place.parent)
    write(out, lambda: text)
    say_guesses(text)
    if out != STDOUT:
        typer.echo(f"wrote {out}; now: planner plan {out}")


def say_guesses(text: str) -> None:
    """What nobody was asked about in a scenario of five answers, on stderr."""
    from planner.scenario import quickstart as first

    for line in text.splitlines():
        if first.GUESS in line:
            typer.echo(f"a guess, count yours: {line.partition('#')[0].strip()}", err=True)


def _answer(question: first.Question, given: str | None, defaults: bool) -> str:
    """The answer of the option, else the default if all are to be taken, else that of whoever is asked."""
    from planner.scenario import quickstart as first

    if given is not None or defaults:
        answer = question.default if given is None else given
        try:
            first.check_answer(question.option, answer)
        except InputError as error:
            raise InputError(f"--{question.option}", error.value, error.bound, error.fix) from None
        return answer
    return _asked(question)


def _asked(question: first.Question) -> str:
    """Answer of a person, asked again until it can be read. Raises InputError where nobody is there to type."""
    from planner.scenario import quickstart as first

    while True:
        typer.echo(f"{question.text} [{shorten(question.default)[1:-1]}]: ", err=True, nl=False)
        line = sys.stdin.readline()
        if not line:
            typer.echo("", err=True)
            bound = "there is nobody to answer"
            raise InputError(f"--{question.option}", "(missing)", bound, f"give --{question.option}, or --yes")
        answer = line.strip() or question.default
        try:
            first.check_answer(question.option, answer)
        except InputError as error:
            typer.echo(one_line(f"  {error}"), err=True)
            continue
        return answer
