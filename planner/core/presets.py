"""Packaged data that a scenario can name: models, lengths, demand profiles, targets, scenarios, flags of engines.

Every file says where its content comes from, in a column, a comment or the README beside it.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment


def preset(*parts: str) -> Traversable:
    """The place of a packaged file or folder.

    Args:
        parts: names of folders and the file, from `planner/presets` on.

    >>> preset("scenarios", "chat-llama-70b.yaml").is_file()
    True
    """
    return files("planner").joinpath("presets", *parts)


def preset_rows(name: str) -> list[dict[str, str]]:
    """Rows of a packaged table (CSV) by its headings.

    >>> preset_rows("slos.csv")[0]["metric"]
    'ttft'
    """
    return list(csv.DictReader(preset(name).read_text(encoding="utf-8").splitlines()))


def table_names(folder: Traversable) -> tuple[str, ...]:
    """Names of the tables (CSV) in a folder of packaged data, sorted."""
    names = (entry.name for entry in folder.iterdir())
    return tuple(sorted(name.removesuffix(".csv") for name in names if name.endswith(".csv")))


def table_facts(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Facts in the ``# key: value`` lines of a packaged table."""
    for line in lines:
        if line.startswith("# "):
            key, _, value = line.removeprefix("# ").partition(":")
            yield key, value.strip()


ENGINE_LIMITS = ("max_running_requests", "max_batched_tokens", "max_model_len")
"""Limits that every engine has under a name of its own: requests that decode, tokens of a step, tokens of a request."""


@cache
def engine_limit_names() -> dict[str, dict[str, str]]:
    """Names of the limits of each engine: by engine, then by limit, as `engine_flags.csv` cites it.

    >>> engine_limit_names()["tensorrt-llm"]["max_running_requests"]
    'max_batch_size'
    """
    names: dict[str, dict[str, str]] = {}
    for row in preset_rows("engine_flags.csv"):
        limit = row["knob"].removesuffix("_per_rank")
        if limit in ENGINE_LIMITS and row["kind"] == "arguments":
            flag = row["flag"].removesuffix("{value}").strip()
            names.setdefault(row["engine"], {}).setdefault(limit, flag.lstrip("-").replace("-", "_"))
    return names


def template_environment(package: str, *, escaped: bool) -> Environment:
    """An environment for the templates of a package; a name that a template lacks is an error.

    Args:
        package: dotted name, e.g. ``planner.report``.
        escaped: every text is escaped for HTML.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415 - only pages and exports need it

    return Environment(
        loader=PackageLoader(package),
        autoescape=escaped,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
