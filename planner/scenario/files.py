"""Scenario files as plain data: packaged ones by name, YAML by path, and ``--set`` assignments on top.

What the fields mean is `planner.scenario.read`'s business.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from planner.core import InputError, UnknownNameError, preset
from planner.scenario.types import in_seconds

MAX_SCENARIO_BYTES = 1_000_000
"""Largest scenario that is read."""
MAX_NODES = 100_000
"""Most keys and values of a scenario: a histogram of 2000 cells has 8000."""
MAX_DIGITS = 1000
"""Most characters of a whole number, far above what any field takes."""
MAX_DEPTH = 60
"""Most records and lists inside one another: a scenario with a config.json and a calibration in it has some 10."""


def list_scenarios() -> tuple[str, ...]:
    """Names of the packaged scenarios, sorted."""
    folder = preset("scenarios")
    return tuple(sorted(item.name.removesuffix(".yaml") for item in folder.iterdir() if item.name.endswith(".yaml")))


def check_depth(content: object) -> None:
    """Raise InputError for content nested deeper than `MAX_DEPTH`, which nothing that works by recursion would survive.

    >>> check_depth({"workload": {"classes": [{"name": "chat"}]}})
    """
    level: list[object] = [content]
    for _ in range(MAX_DEPTH):
        holders = [item for item in level if isinstance(item, Mapping | list | tuple)]
        level = [item for holder in holders for item in (holder.values() if isinstance(holder, Mapping) else holder)]
        if not level:
            return
    raise InputError("scenario", "(nested)", f"has more than {MAX_DEPTH} levels", "flatten it")


_OTHER_WORDS = {"model": "llm", "models": "services", "costs": "prices", "slos": "slo"}
"""What people call a field of a scenario."""


def in_own_words(content: Mapping[str, Any]) -> dict[str, Any]:
    """A scenario whose fields are called as they are here, where people call them otherwise.

    >>> in_own_words({"model": "qwen3-32b"})
    {'llm': 'qwen3-32b'}
    """
    own = {_OTHER_WORDS[key] if _OTHER_WORDS.get(key, key) not in content else key: content[key] for key in content}
    if isinstance(services := own.get("services"), list):
        own["services"] = [in_own_words(one) if isinstance(one, Mapping) else one for one in services]
    return own


def with_overrides(content: Mapping[str, Any], assignments: Sequence[str]) -> dict[str, Any]:
    """A copy of a scenario's content with ``dotted.key=value`` assignments applied in order.

    A value is YAML (``80``, ``[h100-sxm]``, ``{input_tokens: 1000, output_tokens: 100}``); an element of a list is
    named by its number from 0 (``slo.0.threshold_s=0.5``). Validation of the whole finds keys that do not exist.

    Raises InputError: no ``=``, no such element, a value on the way that holds no fields, or a value that is not YAML.

    >>> with_overrides({"workload": {"rate_per_s": 40}}, ["workload.rate_per_s=80", "search.skus=[l4, l40s]"])
    {'workload': {'rate_per_s': 80}, 'search': {'skus': ['l4', 'l40s']}}
    """
    changed = copy.deepcopy(dict(content))
    for assignment in assignments:
        key, equals, text = (side.strip() for side in assignment.partition("="))
        if not (equals and key):
            raise InputError("--set", assignment, "must read key=value", "write e.g. workload.rate_per_s=80")
        head, dot, rest = key.partition(".")
        *holders, last = f"{_OTHER_WORDS.get(head, head)}{dot}{rest}".split(".")
        place: Any = changed
        for depth, name in enumerate(holders):
            if isinstance(place, dict):
                place.setdefault(name, {})
            place = place[_key_in(place, name, ".".join(holders[:depth]))]
        place[_key_in(place, last, ".".join(holders))] = in_seconds(last, _parse_yaml(text, key))
    return changed


def _key_in(holder: object, name: str, key: str) -> str | int:
    """How `name` is looked up in a mapping or list that stands at `key`."""
    if isinstance(holder, dict):
        return name
    if not isinstance(holder, list):
        raise InputError(f"--set {key}", holder, f"holds no field {name}", f"set {key} as a whole: {key}={{...}}")
    if name not in map(str, range(len(holder))):
        bound = f"no such element of {key}, which has {len(holder)}"
        raise InputError(f"--set {key}", name, bound, f"count from 0, or set {key} as a whole: {key}=[...]")
    return int(name)


def scenario_content(scenario: str | Path | Mapping[str, Any]) -> tuple[dict[str, Any], Path]:
    """The fields as written, and the folder relative paths start from.

    Args:
        scenario: fields, the name of a packaged scenario, or the path of a YAML file.

    Raises InputError: no file, too large, not UTF-8, not plain YAML or no mapping; UnknownNameError: no such name.
    """
    if isinstance(scenario, Mapping):
        return dict(scenario), Path()
    if str(scenario) in list_scenarios():
        text = preset("scenarios", f"{scenario}.yaml").read_text(encoding="utf-8")
        return parse_fields(text), Path()
    path = Path(scenario)
    try:
        return parse_fields(_read(path)), path.parent
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        reason = f"cannot be read: {getattr(error, 'strerror', error)}"
        bound = "is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else reason
        raise InputError("scenario", str(scenario), bound, "give a YAML file") from None


def _read(path: Path) -> str:
    if path.is_dir():
        raise InputError("scenario", str(path), "is a folder", "give the YAML file in it")
    if not path.is_file():
        if path.suffix or len(path.parts) > 1:
            raise InputError(
                "scenario", str(path), "no such file", "give a YAML file, or a name of `planner scenarios`"
            )
        raise UnknownNameError("scenario", str(path), list_scenarios())
    size = path.stat().st_size
    if size > MAX_SCENARIO_BYTES:
        raise InputError("scenario", f"{size} bytes", f"larger than {MAX_SCENARIO_BYTES} bytes", "give a scenario file")
    return path.read_text(encoding="utf-8")


class _PlainLoader(yaml.SafeLoader):
    """Safe YAML without aliases, of which a few bytes can stand for gigabytes, and of bounded depth and number.

    What a token costs PyYAML's scanner grows with the brackets that are open around it.
    """

    _depth = 0
    _nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Refuse aliases, and what is too deep or too much; compose the rest."""
        if self.check_event(yaml.events.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not allowed")
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise yaml.YAMLError(f"it holds more than {MAX_NODES} values")
        if self._depth > MAX_DEPTH:
            raise yaml.YAMLError(f"it is nested too deeply: more than {MAX_DEPTH} levels")
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


def _whole_number(loader: _PlainLoader, node: yaml.ScalarNode) -> int:
    """An integer. YAML counts in sixties too (``1:30``), in time that grows with the square of the length."""
    if len(node.value) > MAX_DIGITS:
        raise yaml.YAMLError(f"a number has {len(node.value)} characters, more than {MAX_DIGITS}")
    return int(loader.construct_yaml_int(node))


_PlainLoader.add_constructor("tag:yaml.org,2002:int", _whole_number)


def _parse_yaml(text: str, field: str) -> Any:  # noqa: ANN401
    """Plain YAML as Python values. A tag or number that PyYAML fails on is malformed input like any other."""
    try:
        return yaml.load(text, Loader=_PlainLoader)  # noqa: S506 - a child of SafeLoader
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise InputError(field, text[:40], f"is not plain YAML: {reason}", "correct it") from None
    except (ValueError, TypeError, LookupError, AttributeError):
        raise InputError(field, text[:40], "holds a number, date or tag that cannot be read", "correct it") from None
    except RecursionError:
        raise InputError(field, text[:40], "is nested too deeply", "flatten it") from None


def parse_fields(text: str) -> dict[str, Any]:
    """The fields of a YAML text. Raises InputError: not plain YAML, or no mapping."""
    content = _parse_yaml(text, "scenario")
    if not isinstance(content, dict):
        raise InputError("scenario", content, "must be a mapping of fields", "start from a packaged scenario")
    return content


def path_in(folder: Path | None, name: str, field: str = "trace") -> Path:
    """The path of a file that a scenario names. Raises InputError without a folder: the scenario comes from outside."""
    if folder is None:
        fix = "upload the file in the sidebar instead, or plan with the command line"
        raise InputError(field, name, "names a file, which the web app does not open", fix)
    return folder / name


@contextlib.contextmanager
def naming_field(field: str) -> Iterator[None]:
    """Errors inside name the field of the scenario, not only their own."""
    try:
        yield
    except InputError as error:
        inner = "" if error.field in ("lengths", "trace", "recording") else f" {error.field}"
        raise InputError(f"{field}{inner}", error.value, error.bound, error.fix) from None
