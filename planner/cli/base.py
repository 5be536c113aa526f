"""The base of all commands: errors on one line, options, and where output goes.

Modules that take time to load are imported by the function that needs them, so that `planner --help` is quick.
"""
# ruff: noqa: PLC0415 - imports are late on purpose

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import math
import os
import sys
import traceback
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer
from typer.core import TyperGroup

from planner.cli import installation
from planner.cli.completion import complete_llm, complete_scenario, complete_setting, complete_sku
from planner.core import (
    InputError,
    PlannerError,
    UnknownNameError,
    json_text,
    one_line,
    preset_rows,
    require_writable,
    typed_gpus,
    write_text,
)

if TYPE_CHECKING:
    from hardware_db import HardwareDb
    from planner.analysis import ApiPrice
    from planner.core import Report
    from planner.fleet import Plan, PlanRequest, Progress

T = TypeVar("T")
Command = Callable[..., None]

STOPPED, BAD_INPUT, INFEASIBLE, FAULT, INTERRUPTED, CLOSED = 1, 2, 3, 70, 130, 141
"""Exit codes: a sweep stopped by itself; the input is wrong, or there is no room for an output; no fleet meets the
targets; the planner is at fault (EX_SOFTWARE of sysexits.h); Ctrl-C (128 + SIGINT); the reader of the output has left
as `head` does (128 + SIGPIPE)."""
SMALLEST_DIFFERENCE_USD_PER_HOUR = 0.005
"""Costs that differ by less are printed alike: half a cent."""
STDOUT = "-"
"""File name that stands for standard output."""
USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]
"""Typer's base of all complaints about the command line; of its children it exports only this one."""


NEW_WORDS = {
    "simulate": ("evaluate", "--simulate"),
    **{f"import-{kind}": ("import", kind) for kind in ("trace", "metrics", "prices")},
}
"""Commands by names that they had, which scripts may still use, and the words that they are now."""
SET_INSTEAD = {
    "--llm": "llm",
    "--weights": "precision.weights",
    "--activations": "precision.activations",
    "--kv": "precision.kv_cache",
    "--rate": "workload.rate_per_s",
    "--lengths": "workload.lengths",
    "--scv": "workload.scv",
    "--arrivals": "workload.replay",
    "--concurrency": "workload.concurrency",
    "--think-time": "workload.think_time_s",
    "--max-request-tokens": "max_request_tokens",
    "--memory-fraction": "search.memory_fraction",
    "--eager": "search.eager",
}
"""Options that `planner compare` had, and the fields of a scenario that `--set` gives it in their place."""

PLAN_INSTEAD = {
    "--users": "--rate '300 concurrent users'",
    "--traffic": "--rate '3 billion tokens a day'",
    "--slo": "--targets chat",
    "--gpu": "--gpus h100",
    "--sku": "--gpus h100",
    "--region": "--set prices.region=eu",
    "--growth": "planner forecast SCENARIO --growth 10%",
}
"""What people ask `planner plan` for in the words of other commands, and what it calls it."""


class OneLineErrors(TyperGroup):
    """Commands whose every error is one line on standard error and exit code 2."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401
        """The command named; by a name that it had, after a line that says the new one."""
        if now := NEW_WORDS.get(args[0]):
            typer.echo(f"warning: `planner {args[0]}` is now `planner {' '.join(now)}`", err=True)
            args = [*now, *args[1:]]
        if sum(word.split("=")[0] == "--llm" for word in args) > 1:
            fix = "give one; several are `services` of a scenario: docs/tutorial/three-questions.md"
            raise InputError("--llm", "(given)", "is there more than once", fix)
        return super().resolve_command(ctx, args)

    def main(self, *args: Any, **kwargs: Any) -> NoReturn:  # noqa: ANN401
        """Run a command line and exit."""
        with _LastResort():
            try:
                code = super().main(*args, **{**kwargs, "standalone_mode": False})
                sys.stdout.flush()  # here rather than after the last line of the program, where nobody could say why
            except KeyboardInterrupt:
                code = INTERRUPTED
            except _ReaderLeftError:
                _leave_stdout()
                code = CLOSED
            except PlannerError as error:
                _fail(error)
            except USAGE_ERROR as error:
                _fail(_usage_error(error, kwargs.get("args")))
            sys.exit(code if isinstance(code, int) else 0)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401
        """List the commands under the titles of their groups."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command: Any = self.get_command(ctx, name)
            shown = (name, command.get_short_help_str(formatter.width - len("  calibrate-serving  ")))
            groups.setdefault(command.rich_help_panel, []).append(shown)
        for title, rows in groups.items():
            with formatter.section(title):
                formatter.write_dl(rows)

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401
        """Run the command; Typer would end with code 1 where the reader of its output has left."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError as error:
            raise _ReaderLeftError from error
        return result


class _ReaderLeftError(Exception):
    """Nobody reads standard output any more."""


def _leave_stdout() -> None:
    """Let what is left for standard output go nowhere, or Python would complain about it on its way out."""
    with contextlib.suppress(OSError), Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


class _LastResort:
    """Ends the program with one line about an error that nobody raised on purpose, and with its exit code."""

    def __enter__(self) -> None:
        """Nothing is needed before."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Say what it was; what ends the program anyway does so."""
        if isinstance(error, Exception):
            _fail_otherwise(error)


def _fail_otherwise(error: Exception) -> NoReturn:
    """The one line about such an error; a fault of the planner comes with its traceback."""
    if isinstance(error, MemoryError):
        _fail(InputError("memory", str(error) or "all of it", "is not enough", "ask for less: requests, sizes, points"))
    if isinstance(error, OSError):
        if error.filename is None:
            _leave_stdout()
        place = "standard output" if error.filename is None else str(error.filename)
        _fail(InputError("file", place, f"cannot be used: {error.strerror or error}", "choose another place"))
    if isinstance(error, ImportError) and (extra := installation.extra_with(error.name or "")):
        fix = f"pip install '{installation.DISTRIBUTION}[{extra}]'"
        _fail(InputError("module", error.name, f"is not installed; it is for {installation.EXTRAS[extra]}", fix))
    typer.echo("".join(traceback.format_exception(error)), err=True, nl=False)
    fix = "report it with the lines above and the command"
    typer.echo(f"error: planner = {type(error).__name__}: is at fault, not the input. Fix: {fix}", err=True)
    sys.exit(FAULT)


def _usage_error(error: Any, arguments: list[str] | None) -> InputError:  # noqa: ANN401
    command = error.ctx.command_path if error.ctx else "planner"
    option = getattr(error, "option_name", "")
    if command.endswith("compare") and option in SET_INSTEAD:
        return InputError(
            option, "(given)", "shapes the scenario", f"write --set {SET_INSTEAD[option]}=... in its place"
        )
    if command.endswith(" plan") and option in PLAN_INSTEAD:
        return InputError(option, "(given)", "is no option of planner plan", f"write {PLAN_INSTEAD[option]}")
    given = " ".join(sys.argv[1:] if arguments is None else arguments)
    complaint = error.format_message().replace("Value error, ", "").rstrip(".")
    return InputError("command line", given, complaint, f"see `{command} --help`")


def _fail(error: PlannerError) -> NoReturn:
    typer.echo(f"error: {' '.join(one_line(str(error)).split())}", err=True)
    sys.exit(BAD_INPUT)


app = typer.Typer(
    cls=OneLineErrors,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

# --- options of several commands --------------------------------------------------------------------------------------

ScenarioName = Annotated[
    str, typer.Argument(help="Name of a packaged scenario, or path of a YAML file.", autocompletion=complete_scenario)
]
PlanOrScenario = Annotated[
    str,
    typer.Argument(
        metavar="PLAN_OR_SCENARIO",
        help="Name or file of a scenario, or plan.json of `planner plan`.",
        autocompletion=complete_scenario,
    ),
]
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
    str | None,
    typer.Option("--engine-costs", metavar="FILE", help="Engine costs that planner calibrate-serving wrote."),
]


@dataclass(frozen=True, kw_only=True)
class CommonOptions:
    """How plans are made, and where the answer goes: one field for each option of the commands that plan."""

    json_file: JsonFile = None
    md_file: MarkdownFile = None
    assignments: Assignments = None
    calibrations: CalibrationFiles = None
    engine_costs: CostsFile = None

    def request(self, subject: str) -> PlanRequest:
        """The request of a scenario or a plan document, with what was set."""
        from planner.scenario import load_request

        return load_request(subject, self.assignments or ())

    def hardware(self, request: PlanRequest) -> HardwareDb:
        """The database with what a request and the files named bring."""
        from planner.fleet import planning

        named = hardware_for(request.search.engine, self.calibrations, self.engine_costs)
        return planning.hardware_for(request, named)

    def record(self, subject: str, say: Progress, *, as_written: bool = False) -> tuple[Plan, list[str]]:
        """The plan that a command is about, simulated, and what is to be said of it.

        Of a plan document it is the plan in it, as long as nothing is set otherwise and today's data come to the same
        cost; where they do not, the plan that they come to. `as_written` asks for the plan in it without that check.
        """
        from planner.fleet import planning
        from planner.scenario import load_plan, plan_document_at

        request = self.request(subject)
        hardware = self.hardware(request)
        is_other = bool(self.assignments or self.calibrations or self.engine_costs)
        document = None if is_other else plan_document_at(subject)
        if document is None or document.get("corrections") is None or document.get("cost") is None:
            return planning.plan(request, hardware, say, alternatives=False), []
        written = load_plan(subject, hardware)
        if as_written:
            return written, []
        known = written.corrections
        again = planning.plan(request, hardware, say, simulate=False, alternatives=False, corrections=known)
        costs = [math.inf if one.cost is None else one.cost.usd_per_hour for one in (written, again)]
        if abs(costs[1] - costs[0]) < SMALLEST_DIFFERENCE_USD_PER_HOUR:
            return written, []
        return again, [f"the file says {costs[0]:,.2f} USD/h; made again with today's data it is {costs[1]:,.2f}"]

    def check_outputs(self, *more: str | None) -> None:
        """Refuse what cannot be written before the work is done. Raises InputError."""
        check_outputs(self.json_file, self.md_file, *more)

    def deliver(
        self,
        report: Callable[[], Report] | str,
        document: Callable[[], Mapping[str, Any]],
        page: Callable[[], Report] | None = None,
        *more: tuple[str | None, Callable[[], str | bytes]],
    ) -> None:
        """Print the report and write the document, the page and what else was asked for (see `deliver`)."""
        pages = [] if page is None else [(self.md_file, lambda: page().markdown)]
        deliver(report, (self.json_file, lambda: json_text(document())), *pages, *more)


_COMPLETIONS = {
    "llm": complete_llm,
    "scenario": complete_scenario,
    "setting": complete_setting,
    "sku": complete_sku,
}
"""What a shell offers for a parameter, by the word in `command_options.csv`."""


@cache
def _words() -> dict[tuple[str, str], dict[str, str]]:
    """What `command_options.csv` says of the parameters of commands and records."""
    return {(row["of"], row["parameter"]): row for row in preset_rows("command_options.csv")}


def _worded(parameter: inspect.Parameter, *owners: str) -> inspect.Parameter:
    """The parameter of a command as its option or argument; as it is where it is one, or no owner's row names it."""
    row = next((_words()[owner, parameter.name] for owner in owners if (owner, parameter.name) in _words()), None)
    if row is None or typing.get_origin(parameter.annotation) is Annotated:
        return parameter
    make: Any = typer.Argument if row["kind"] == "argument" else typer.Option
    more: dict[str, Any] = {name: row[name] for name in ("metavar", "help") if row[name]}
    more |= {"min": int(row["min"])} if row["min"] else {}
    more |= {"autocompletion": _COMPLETIONS[row["complete"]]} if row["complete"] else {}
    return parameter.replace(annotation=Annotated[parameter.annotation, make(*row["flags"].split(), **more)])


def _with_parameters(command: Command, parameters: Iterable[inspect.Parameter]) -> Command:
    """The command with a signature for Typer to read."""
    signature = inspect.Signature(list(parameters))
    command.__signature__ = signature  # type: ignore[attr-defined]
    command.__annotations__ = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    return command


def worded(command: Command) -> Command:
    """A command whose parameters are options and arguments in the words of `command_options.csv`."""
    parameters = inspect.signature(command, eval_str=True).parameters.values()
    return _with_parameters(command, (_worded(parameter, command.__name__) for parameter in parameters))


def takes(record: type, without: Iterable[str] = (), **defaults: object) -> Callable[[Command], Command]:
    """A decorator: the fields of a record are options of the command, which gets the record first.

    Typer reads options off a signature, so two signatures are joined instead of being written out in every command.

    Args:
        record: a dataclass whose fields are options in the words of `command_options.csv`.
        without: fields that the command has no option for.
        defaults: of fields that have another one here.
    """
    hints = typing.get_type_hints(record, include_extras=True)
    kind = inspect.Parameter.KEYWORD_ONLY
    fields = []
    for field in dataclasses.fields(record):
        if field.name not in without:
            default = inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
            default = defaults.get(field.name, default)
            fields.append(inspect.Parameter(field.name, kind, annotation=hints[field.name], default=default))

    def joined(command: Command) -> Command:
        options = [_worded(field, command.__name__, record.__name__) for field in fields]
        own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]

        def run(**given: Any) -> None:  # noqa: ANN401
            command(record(**{option.name: given.pop(option.name) for option in options}), **given)

        run.__name__, run.__doc__ = command.__name__, command.__doc__
        return _with_parameters(run, [*options, *(one.replace(kind=kind) for one in own)])

    return joined


# --- what options name ------------------------------------------------------------------------------------------------


def files_in(places: Iterable[Path]) -> list[Path]:
    """The files named, and those in the folders named, in the order of their names."""
    return [
        file
        for place in places
        for file in (sorted(filter(Path.is_file, place.iterdir())) if place.is_dir() else [place])
    ]


def hardware_for(engine: str, calibrations: Iterable[str] | None, engine_costs: str | None = None) -> HardwareDb:
    """The packaged database with the user's own calibrations and engine costs."""
    import hardware_db

    hardware = hardware_db.load_hardware()
    for path in calibrations or ():
        calibration = hardware_db.read_calibration(path)
        look_up("--calibration", calibration.sku, hardware.skus)
        hardware = hardware_db.with_calibration(hardware, calibration)
    if engine_costs is not None:
        from calibration import read_costs

        look_up("--engine", engine, hardware.engines)
        hardware = hardware_db.with_engine_costs(hardware, engine, read_costs(engine_costs))
    return hardware


def look_up(option: str, name: str, table: Mapping[str, T]) -> T:
    """Entry of a table by name. Raises UnknownNameError naming the option."""
    if name not in table:
        raise UnknownNameError(option, name, table)
    return table[name]


def sku_called(option: str, name: str, skus: Mapping[str, T]) -> T:
    """A SKU by its id or as people call it. Raises UnknownNameError naming the option."""
    if name not in skus:
        from planner.supply import typed_sku

        name = typed_sku(name, skus)
    return look_up(option, name, skus)


def gpus_called(option: str, text: str, skus: Mapping[str, T], gpus: int | None = None) -> tuple[T, int | None]:
    """A SKU as people call it and the number they name with it (``8xh100``), else `gpus`; raises as `sku_called`."""
    counted, name = typed_gpus(text)
    if counted is not None and (counted == 0 or gpus not in (None, counted)):
        raise InputError(
            option, text, f"names {counted} GPUs, another option {gpus or 'none'}", "give one number above 0"
        )
    return sku_called(option, name, skus), counted or gpus


# --- output -----------------------------------------------------------------------------------------------------------


def check_outputs(*files: str | None) -> None:
    """Refuse what cannot be written before the work is done. Raises InputError."""
    for file in files:
        if file not in (None, STDOUT):
            require_writable(str(file))
    if files.count(STDOUT) > 1:
        raise InputError("--json, --md", STDOUT, "both go to stdout", "write one of them to a file")


def check_picture(file: str | None) -> None:
    """Refuse a picture that cannot be written as a page before the work is done. Raises InputError."""
    check_outputs(file)
    if file not in (None, STDOUT) and not str(file).endswith(".html"):
        raise InputError("--plot", file, "is written as HTML", "end the name in .html")
    if file is not None:
        from planner import charts  # noqa: F401 - an extra that is missing is said before the work


def shown_text(text: str) -> str:
    r"""A text as a terminal may have it: with blanks for control characters but for tabs and ends of lines.

    >>> shown_text("a\x1b[2J\tb\n")
    'a [2J\tb\n'
    """
    return text.translate({code: " " for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"})


def write(file: str | None, text: Callable[[], str | bytes]) -> None:
    """Write what was asked for, to a file or to stdout."""
    if file == STDOUT:
        content = text()
        if isinstance(content, str):
            sys.stdout.write(shown_text(content))
        else:
            sys.stdout.buffer.write(content)
    elif file is not None:
        write_text(file, text())


def deliver(report: Callable[[], Report] | str, *outputs: tuple[str | None, Callable[[], str | bytes]]) -> None:
    """Write the outputs that were asked for, each a file and its text; print the report unless one goes to stdout.

    A report that is a text is one line, however long.
    """
    from planner.cli.terminal import show

    for file, text in outputs:
        write(file, text)
    if STDOUT in (file for file, _ in outputs):
        return
    if isinstance(report, str):
        sys.stdout.write(f"{one_line(report)}\n")
    else:
        show(report())


def require_fleet(plan: Plan) -> None:
    """End the command where a scenario that had to be planned first has no fleet: its diagnosis is printed."""
    from planner.cli.terminal import show
    from planner.core import Report
    from planner.report import headline, more_reasons

    if not plan.feasible:
        show(Report(headline(plan), lists={"Why, and what would help": more_reasons(plan)}))
        raise typer.Exit(INFEASIBLE)


def api_prices(request: PlanRequest, text: str | None) -> tuple[ApiPrice, ...]:
    """Those of --api-price; where it is not given, those listed for the model. Raises InputError."""
    from planner.analysis import api_prices_of, own_price

    if text is None:
        return api_prices_of(request.llm.id, request.prices.day)
    return (own_price(request.llm.id, text, request.prices.day),)
