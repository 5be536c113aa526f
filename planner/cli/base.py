"""What all commands share: errors on one line, options, and where output goes.

Modules that take time to load are imported by the function that needs them, so that `planner --help` is quick.
"""
# ruff: noqa: PLC0415 - imports are late on purpose

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer
from typer.core import TyperGroup

from planner.cli.completion import complete_setting
from planner.core import InputError, PlannerError, UnknownNameError

if TYPE_CHECKING:
    from hardware_db import HardwareDb

T = TypeVar("T")

BAD_INPUT = 2
INFEASIBLE = 3
STDOUT = "-"
USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]
"""Typer's base of all complaints about the command line; of its children it exports only this one."""


class OneLineErrors(TyperGroup):
    """Commands whose every error is one line on standard error and exit code 2."""

    def main(self, *args: Any, **kwargs: Any) -> NoReturn:  # noqa: ANN401
        """Run a command line and exit."""
        try:
            code = super().main(*args, **{**kwargs, "standalone_mode": False})
        except PlannerError as error:
            _fail(error)
        except USAGE_ERROR as error:
            _fail(_usage_error(error, kwargs.get("args")))
        sys.exit(code if isinstance(code, int) else 0)


def _usage_error(error: Any, arguments: list[str] | None) -> InputError:  # noqa: ANN401
    command = error.ctx.command_path if error.ctx else "planner"
    given = " ".join(sys.argv[1:] if arguments is None else arguments)
    complaint = error.format_message().replace("Value error, ", "").rstrip(".")
    return InputError("command line", given, complaint, f"see `{command} --help`")


def _fail(error: PlannerError) -> NoReturn:
    typer.echo(f"error: {' '.join(str(error).split())}", err=True)
    sys.exit(BAD_INPUT)


app = typer.Typer(
    cls=OneLineErrors,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


JsonFile = Annotated[str | None, typer.Option("--json", metavar="FILE", help="Write JSON to FILE; - for stdout.")]
MarkdownFile = Annotated[
    str | None, typer.Option("--md", metavar="FILE", help="Write a Markdown report to FILE; - for stdout.")
]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a field of the scenario; VALUE is YAML. Repeatable.",
        autocompletion=complete_setting,
    ),
]
CalibrationFiles = Annotated[
    list[str] | None,
    typer.Option("--calibration", metavar="FILE", help="Use this calibration for its SKU. Repeatable."),
]
CostsFile = Annotated[
    str | None, typer.Option("--engine-costs", metavar="FILE", help="Engine costs of planner calibrate-serving.")
]


def hardware_for(engine: str, calibrations: Iterable[str], engine_costs: str | None) -> HardwareDb:
    """The packaged database with the user's own calibrations and engine costs."""
    import hardware_db
    from planner.validation import read_costs

    hardware = hardware_db.load_hardware()
    for path in calibrations:
        calibration = hardware_db.read_calibration(path)
        known("--calibration", calibration.sku, hardware.skus)
        hardware = hardware_db.with_calibration(hardware, calibration)
    if engine_costs is not None:
        known("--engine", engine, hardware.engines)
        hardware = hardware_db.with_costs(hardware, engine, read_costs(engine_costs))
    return hardware


def known(option: str, name: str, table: Mapping[str, T]) -> T:
    """What a table holds under a name. Raises UnknownNameError naming the option."""
    if name not in table:
        raise UnknownNameError(option, name, table)
    return table[name]


def check_outputs(*files: str | None) -> None:
    """Refuse what cannot be written before the work is done."""
    from planner.report import require_writable

    for file in files:
        if file not in (None, STDOUT):
            require_writable(str(file))
    if len(files) > 1 and files.count(STDOUT) == len(files):
        raise InputError("--json, --md", STDOUT, "both go to stdout", "write one of them to a file")


def write(file: str | None, text: Callable[[], str]) -> None:
    """Write what was asked for, to a file or to stdout."""
    from planner.report import write_text

    if file == STDOUT:
        sys.stdout.write(text())
    elif file is not None:
        write_text(file, text())
