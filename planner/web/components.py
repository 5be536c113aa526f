"""What the page is made of: tables, charts, figures and files, each with what explains it.

A table has a definition behind every heading and number, a chart the table and the CSV it was drawn from, a figure its
definition, its interval and where it comes from.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import streamlit as st

from planner.core import Table
from planner.report import csv_text, html_table

__all__ = ["Figure", "bullets", "chart", "csv_button", "csv_text", "figures", "html_table", "plain", "table"]

FIGURE_WIDTH_PX = 235
"""Keeps four figures in a row on a wide page and two on a narrow one."""
STYLE = """<style>
.stMainBlockContainer {padding: 4rem 2rem 4rem}
.planner-table {overflow-x: auto; max-width: 100%}
.planner-table table {border-collapse: collapse; min-width: max-content; font-size: 0.85rem;
    font-variant-numeric: tabular-nums}
.planner-table th, .planner-table td {padding: 0.3rem 0.7rem; text-align: left; vertical-align: top;
    border-bottom: 1px solid rgba(128, 128, 128, 0.25); max-width: 26rem; overflow-wrap: normal; word-break: keep-all}
.planner-table th {font-weight: 600; border-bottom-color: rgba(128, 128, 128, 0.6); max-width: 7rem;
    vertical-align: bottom; line-height: 1.3}
.planner-table .number {text-align: right}
.planner-table td.number, .planner-table td.short {white-space: nowrap}
.planner-table [title] {cursor: help}
.planner-table th[title] {text-decoration: underline dotted rgba(128, 128, 128, 0.8); text-underline-offset: 3px}
@media (max-width: 1100px) {
    .planner-table th, .planner-table td {padding: 0.3rem 0.45rem; max-width: 20rem}
    .planner-table th {max-width: 5.5rem}
}
</style>"""


@dataclass(frozen=True)
class Figure:
    """One number with all that is to be said about it.

    Attributes:
        label: what it is.
        value: as text, with its unit unless the label has it.
        hint: unit, definition and provenance, shown on hover.
        interval: how sure it is, e.g. ``390 to 420 ms (90 %)``, shown under it; or empty.
    """

    label: str
    value: str
    hint: str
    interval: str = ""


def figures(shown: Sequence[Figure]) -> None:
    """Figures in a row, as many as fit."""
    with st.container(horizontal=True):
        for one in shown:
            st.metric(
                plain(one.label),
                one.value,
                one.interval or None,
                delta_color="off",
                delta_arrow="off",
                help=plain(one.hint),
                border=True,
                width=FIGURE_WIDTH_PX,
            )


# --- tables -----------------------------------------------------------------------------------------------------------


def table(shown: Table, key: str, hints: Mapping[str, str] | None = None) -> None:
    """A table under its title, a definition behind every heading and number, and its CSV.

    Args:
        shown: what to show.
        key: unique on the page.
        hints: definitions by heading or by name of a row, before those of the glossary.
    """
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.markdown(f"**{plain(shown.title)}**", width="content")
        csv_button(shown.title, csv_text(shown.columns, shown.rows), f"csv-{key}")
    st.html(html_table(shown, hints or {}))
    if shown.note:
        st.caption(plain(shown.note))


def csv_button(name: str, text: str, key: str) -> None:
    """A small button that downloads a CSV."""
    file = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    st.download_button(
        "CSV",
        text,
        file_name=f"{file}.csv",
        mime="text/csv",
        key=key,
        on_click="ignore",
        type="tertiary",
        icon=":material/download:",
        help=f"{plain(name)} as a CSV file",
    )


# --- charts -----------------------------------------------------------------------------------------------------------


def chart(picture: Any, rows: Sequence[Mapping[str, Any]], name: str, key: str) -> None:  # noqa: ANN401
    """A chart with the table and the CSV behind it.

    Args:
        picture: an Altair chart; its title says what it shows.
        rows: the data it was drawn from.
        name: of the data, for the file.
        key: unique on the page.
    """
    st.altair_chart(picture, width="stretch", key=f"chart-{key}")
    frame = pd.DataFrame(list(rows))
    with st.popover("Data", icon=":material/table:", type="tertiary"):
        st.dataframe(frame, hide_index=True, key=f"data-{key}")
        csv_button(name, csv_text(list(frame.columns), frame.values.tolist()), f"csv-{key}")


# --- text -------------------------------------------------------------------------------------------------------------


def plain(text: str) -> str:
    """Text that Streamlit's Markdown shows as it is: no formulas, colours or emphasis; addresses become links."""
    return " ".join(word if word.startswith("https://") else _escaped(word) for word in text.split(" "))


def _escaped(word: str) -> str:
    """A word with a backslash before every mark that Markdown would read."""
    return re.sub(r"([\\`*_\[\]$<>~#|]|:(?=\w))", r"\\\1", word)


def bullets(lines: Sequence[str]) -> None:
    """Lines as a list."""
    if lines:
        st.markdown("\n".join(f"- {plain(line)}" for line in lines))
