"""Fields of the scenario as the page has them (`planner/presets/page_fields.csv`): label, part, hint and bounds.

Widgets that show no field, and figures, are called and explained by `planner/presets/page_widgets.csv`.

Warnings, notes and fixes come from the engine, which knows fields only; who fills in the sidebar looks for labels.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import streamlit as st

from planner.core import preset_rows
from planner.web import session


@dataclass(frozen=True)
class Field:
    """One field of the scenario.

    Attributes:
        label: of its widget.
        hint: shown on hover.
        bounds: least, most and step of a number, in the type of the field; further ones may be missing.
        empty: what stands in a number that may be left out; empty where it may not.
        part: of the page that holds it.
    """

    label: str
    hint: str | None = None
    bounds: tuple[float | None, ...] = ()
    empty: str = ""
    part: str = ""


FIELDS = {
    row["path"]: Field(
        row["label"], row["hint"] or None, tuple(json.loads(row["bounds"] or "[]")), row["empty"], row["part"]
    )
    for row in preset_rows("page_fields.csv")
}
"""By dotted path."""
WIDGETS = {row["name"]: row for row in preset_rows("page_widgets.csv")}
"""What widgets that show no field, and figures, say: label, hint, and options of Streamlit as JSON."""
_ROOTS = "limits|prices|search|workload|precision|own_hardware|slo"
_PATH = rf"(?:{_ROOTS})(?:\.[a-z_][\w-]*|\.\d+|\[\d+\])+|(?:confidence|growth)(?==)"
_FIELD = re.compile(rf"(?<![\w./`-])(?<!--set )(?:{_PATH})(=[^\s,;:)]+)?")
"""A field in a sentence, with the value that is to be set; not within a path of files or a command."""


# --- inputs -----------------------------------------------------------------------------------------------------------


def bound(path: str, bind: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Label, hint and binding of a widget for a field; `bind` of `session.bind` where it is not the field as it is."""
    return {"label": FIELDS[path].label, "help": FIELDS[path].hint, **(bind or session.bind_field(path))}


def number(path: str, place: Any = st, bind: Mapping[str, Any] | None = None, **other: Any) -> None:  # noqa: ANN401
    """A number input for a field with its bounds, empty where it may be left out.

    Args:
        path: of the field.
        place: where it stands.
        bind: as in `bound`.
        other: further arguments of `st.number_input`, before those of the field.
    """
    field = FIELDS[path]
    bounds = zip(("min_value", "max_value", "step"), field.bounds, strict=False)
    given: dict[str, Any] = {name: value for name, value in bounds if value is not None}
    given |= {"value": None, "placeholder": field.empty} if field.empty else {}
    given |= {"format": "%g"} if isinstance(given.get("min_value"), float) else {}
    place.number_input(**{**bound(path, bind), **given, **other})


def widget(name: str, **other: Any) -> dict[str, Any]:  # noqa: ANN401
    """Label, hint and options of a widget that shows no field, its name as the key; `other` arguments go before."""
    row = WIDGETS[name]
    given = {"label": row["label"], "key": name} | ({"help": row["hint"]} if row["hint"] else {})
    return {**given, **json.loads(row["options"] or "{}"), **other}


# --- words ------------------------------------------------------------------------------------------------------------


def place_of(path: str) -> Field | None:
    """The field of a path, or the nearest one around it; None of one that only the file has.

    >>> place_of("limits.spare_replicas").part
    'Goal and engine › Growth and failures'
    >>> place_of("slo.1.threshold_s").label, place_of("limits.pinned.h100-sxm")
    ('Targets for', None)
    """
    names = re.sub(r"\[(\d+)\]", r".\1", path).split(".")
    known = (FIELDS.get(".".join(names[:count])) for count in range(len(names), 0, -1))
    return next((field for field in known if field is not None), None)


def with_labels(text: str) -> str:
    """A sentence of the engine with every field called as the page calls it; the field itself stands behind.

    >>> with_labels("set confidence=0.9 and plan again")
    'set “Confidence” (sidebar, Goal and engine; in a file confidence=0.9) and plan again'
    >>> with_labels("limits.pinned = 3: too many")
    'limits.pinned (in the scenario file only) = 3: too many'
    """
    return _FIELD.sub(_labelled, text)


def _labelled(found: re.Match[str]) -> str:
    field = place_of(found[0].partition("=")[0])
    if field is None:
        return f"{found[0]} (in the scenario file only)"
    where = field.part if field.part.startswith("tab ") else f"sidebar, {field.part}"
    return f"“{field.label}” ({where}; in a file {found[0]})"


def names_of(paths: Iterable[str]) -> str:
    """Fields as the page calls them, each once.

    >>> names_of(["llm", "services", "slo.0.threshold_s", "slo.1.threshold_s", "limits.pinned"])
    'Model, Other models, Targets for, limits.pinned'
    """
    paths = [re.sub(r"^services\.\d+\.", "", path) for path in paths]
    fields = {path: place_of(path) for path in paths}
    return ", ".join(dict.fromkeys(path if field is None else field.label for path, field in fields.items()))
