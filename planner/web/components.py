"""Parts of the page: metrics, tables, charts, choices, uploads and errors, each with its explanation.

A table has a definition behind every heading and number, a chart its data as a table, CSV, PNG and SVG, a metric its
definition, its interval and its source; errors offer fix buttons.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial, wraps
from typing import Any, ParamSpec, TypeVar

import pandas as pd
import streamlit as st
from streamlit.components import v2

from planner.core import InputError, PlannerError, Table, one_line, significant, template_environment
from planner.fleet import Plan
from planner.report import csv_text, html_table, safe_cell
from planner.scenario import Fix, fixes_for_error
from planner.web import fields, session

P = ParamSpec("P")
R = TypeVar("R")
METRIC_WIDTH_PX = 235
"""Keeps four metrics in a row on a wide page and two on a narrow one."""
MEGABYTE = 1_000_000
MAX_UPLOAD_BYTES = 20 * MEGABYTE
"""Largest trace, price list, metrics or log taken: a day of some hundred series for ten replicas. A choice."""


@cache
def _file(name: str) -> str:
    """A style sheet, script or piece of HTML of the page."""
    return template_environment("planner.web", escaped=False).get_template(name).render()


def use_style() -> None:
    """The style sheet of the page."""
    st.html(f"<style>{_file('page.css')}</style>")


# --- metrics ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MetricCard:
    """One number with its definition and its interval.

    Attributes:
        label: what it is.
        value: as text, with its unit unless the label has it.
        hint: unit, definition and source, shown on hover.
        interval: how certain it is, e.g. ``390 to 420 ms (90 %)``, shown under it; or empty.
    """

    label: str
    value: str
    hint: str
    interval: str = ""

    @classmethod
    def named(cls, name: str, value: str, interval: str = "") -> MetricCard:
        """A figure that `page_widgets.csv` names and explains."""
        row = fields.WIDGETS[name]
        return cls(row["label"], value, row["hint"], interval)


def metric_cards(cards: Sequence[MetricCard], key: str) -> None:
    """Metrics in a row, as many as fit, two on a phone; the `key` is unique on the page."""
    with st.container(horizontal=True, key=f"figures-{key}"):
        for card in cards:
            st.metric(
                plain(card.label),
                card.value,
                card.interval or None,
                delta_color="off",
                delta_arrow="off",
                help=plain(card.hint),
                border=True,
                width=METRIC_WIDTH_PX,
            )


# --- sections ---------------------------------------------------------------------------------------------------------


def section(title: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A part of a tab under a heading; on a phone, by its browser's own word, a line that opens."""

    def decorated(part: Callable[P, R]) -> Callable[P, R]:
        @wraps(part)
        def shown(*args: P.args, **kwargs: P.kwargs) -> R:
            if "Mobi" in st.context.headers.get("User-Agent", ""):
                with st.expander(f"**{title}**", key=f"section-{slug(title)}"):
                    return part(*args, **kwargs)
            st.subheader(title)
            return part(*args, **kwargs)

        return shown

    return decorated


# --- tables -----------------------------------------------------------------------------------------------------------


def table(shown: Table, key: str, hints: Mapping[str, str] | None = None, *, numbered_notes: bool = False) -> None:
    """A table under its title, with a definition behind every heading and number, and its CSV.

    Args:
        shown: the table.
        key: unique on the page.
        hints: definitions by heading or by name of a row; they override those of the glossary.
        numbered_notes: the last column is prose, which stands under the table, each text once, with a number in its
            place: rows are then as high as the rest of them. The CSV has every row with its text.
    """
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.markdown(f"**{plain(shown.title)}**", width="content")
        csv_button(shown.title, shown.columns, shown.rows, f"csv-{key}")
    rows, numbers = shown.rows, {}
    if numbered_notes:
        numbers = {
            note: str(number) for number, note in enumerate(dict.fromkeys(row[-1] for row in rows if row[-1]), 1)
        }
        rows = tuple((*row[:-1], numbers.get(row[-1], "")) for row in rows)
    # fields are called as the page calls them, but for the name of a row, by which it is explained
    labelled = tuple((name, *(fields.with_labels(str(cell)) for cell in cells)) for name, *cells in rows)
    st.html(html_table(replace(shown, rows=labelled), hints or {}))
    if shown.note:
        st.caption(plain(shown.note))
    if numbers:
        st.caption("\n".join(f"{number}. {plain(note)}" for note, number in numbers.items()))


def tables(shown: Iterable[Table], key: str, hints: Mapping[str, str] | None = None) -> None:
    """Tables one below the other, as `table` shows each."""
    for number, one in enumerate(shown):
        table(one, f"{key}-{number}", hints)


def with_columns(shown: Table, is_kept: Callable[[int], bool]) -> Table:
    """A table with those of its columns, given by their place, that are kept."""
    kept = [place for place in range(len(shown.columns)) if is_kept(place)]
    rows = tuple(tuple(row[place] for place in kept) for row in shown.rows)
    return replace(shown, columns=tuple(shown.columns[place] for place in kept), rows=rows)


def slug(name: str) -> str:
    """A name in letters of any script, digits and hyphens, as files take it."""
    return re.sub(r"[\W_]+", "-", name.lower()).strip("-")


def csv_button(name: str, columns: Sequence[str], rows: Sequence[Sequence[object]], key: str) -> None:
    """A small button that downloads rows as a CSV."""
    st.download_button(
        **fields.widget("components-csv", key=key),
        data=csv_text(columns, rows),
        file_name=f"{slug(name)}.csv",
        help=f"{plain(name)} as a CSV file",
    )


# --- charts -----------------------------------------------------------------------------------------------------------


def chart(picture: Any, rows: Sequence[Mapping[str, Any]], name: str, key: str) -> None:  # noqa: ANN401
    """A chart with the table and the CSV behind it, and itself as a picture.

    Args:
        picture: an Altair chart; its title says what it shows.
        rows: the data it was drawn from.
        name: of the data, for the file.
        key: unique on the page.
    """
    with st.container(key=f"drawn-{key}"):
        st.altair_chart(picture, width="stretch", key=f"chart-{key}")
    frame = pd.DataFrame([{name: safe_cell(cell) for name, cell in row.items()} for row in rows])
    with st.popover("Data, PNG, SVG", icon=":material/download:", type="tertiary"):
        st.dataframe(frame, hide_index=True, key=f"data-{key}")
        with st.container(horizontal=True, vertical_alignment="center"):
            csv_button(name, list(frame.columns), frame.values.tolist(), f"csv-{key}")
            data = {"chart": f"drawn-{key}", "file": slug(name), "scale": PNG_SCALE}
            _button_in_browser("picture_files")(data=data, key=f"picture-drawn-{key}", width="content")


# --- files made by the browser ---------------------------------------------------------------------------------------

PNG_SCALE = 2
"""Pixels of a PNG for each pixel of the page: sharp on paper. A choice."""


@cache
def _button_in_browser(name: str) -> Any:  # noqa: ANN401
    """Buttons whose work a script in the browser does."""
    html, script = _file(f"{name}.html"), _file(f"{name}.js")
    return v2.component(f"planner_{name}", html=html, css=_file("buttons.css"), js=script, isolate_styles=False)


def print_button() -> None:
    """A button that prints the page as its tab stands; browsers print to PDF files too."""
    _button_in_browser("print")(key="print-page", width="content")


# --- choices ----------------------------------------------------------------------------------------------------------


def choose_one(label: str, options: Sequence[str], key: str, **arguments: Any) -> str:  # noqa: ANN401
    """The chosen one of some options that stand side by side, as far as they fit; the first one at first.

    It is kept while the visit lasts.

    Args:
        label: of the choice.
        options: names.
        key: unique on the page.
        arguments: further ones of `st.segmented_control`.
    """
    chosen = st.segmented_control(
        label, options, default=options[0], required=True, key=key, persist_state="session", wrap=True, **arguments
    )
    return chosen if chosen in options else options[0]


def choose_deployment(label: str, plan: Plan, key: str) -> int:
    """Index of the deployment that a part of the page is about; a choice only where there are several."""
    names = [
        f"{number}: {one.service} on {one.deployment.summary}, {significant(one.workload.rate_per_s)} requests/s"
        for number, one in enumerate(plan.deployments, start=1)
    ]
    if len(names) == 1:
        return 0
    if st.session_state.get(key, 0) not in range(len(names)):  # of a plan with more of them
        del st.session_state[key]
    places = range(len(names))
    chosen = st.selectbox(label, places, format_func=names.__getitem__, key=key, persist_state="session")
    return chosen or 0


def switch(label: str, key: str, hint: str | None = None, *, disabled: bool = False) -> bool:
    """A toggle that stays as it is while the visit lasts."""
    return bool(st.toggle(label, key=key, help=hint, disabled=disabled, persist_state="session"))


# --- uploads ----------------------------------------------------------------------------------------------------------


def uploader(name: str, limit_bytes: int, **options: Any) -> Any:  # noqa: ANN401
    """The uploader of a row of `page_widgets.csv`, with a limit to the size of a file, which it takes in megabytes."""
    most = max(1, math.ceil(limit_bytes / MEGABYTE))
    return st.file_uploader(**fields.widget(name, max_upload_size=most, **options))


def upload(name: str, read: Callable[[str, bytes], str | None], limit_bytes: int = MAX_UPLOAD_BYTES) -> None:
    """An uploader whose file is read in memory; what is wrong with the file is said at the top of the page.

    What was found in a file stands under the uploader for as long as that file is the last one.

    Args:
        name: of its row in `page_widgets.csv`.
        read: gets name and content, returns what was found in words, and raises PlannerError when it cannot use them.
        limit_bytes: largest file taken.
    """
    uploader(name, limit_bytes, on_change=partial(_read_upload, name, limit_bytes, read))
    note = st.session_state.get(f"note-{name}")
    if note:
        st.caption(plain(note))


def _read_upload(key: str, limit_bytes: int, read: Callable[[str, bytes], str | None]) -> None:
    state, refusal = st.session_state, f"refusal-{key}"
    file = state[key]
    if state.complaint is state.get(refusal):  # what was wrong with the file before this one
        state.complaint = None
    state[f"note-{key}"] = None
    if file is None:
        return
    try:
        ((name, content),) = require_small(((file.name, file.getvalue()),), limit_bytes)
        state.complaint = None
        state[f"note-{key}"] = read(name, content)
    except PlannerError as error:
        state.complaint = state[refusal] = error


Files = tuple[tuple[str, bytes], ...]
"""Uploaded files: name and content."""


def uploaded_files(name: str, limit_bytes: int, *, kept: bool = False, several: bool = False) -> Files:
    """An uploader, and its files in the order of their names.

    Args:
        name: of its row in `page_widgets.csv`.
        limit_bytes: largest file taken.
        kept: files stay for this visit, also while another tab is open.
        several: at a time.
    """

    def files(given: Any) -> Files:  # noqa: ANN401
        return tuple(sorted((file.name, file.getvalue()) for file in (given if several else filter(None, [given]))))

    def keep() -> None:
        st.session_state[f"kept-{name}"] = files(st.session_state[name])

    given = uploader(name, limit_bytes, accept_multiple_files=several, on_change=keep)
    found: Files = st.session_state.get(f"kept-{name}", ()) if kept else files(given)
    return found


def require_small(files: Files, limit_bytes: int) -> Files:
    """The files. Raises InputError where all of them together are too large."""
    size = sum(len(content) for _, content in files)
    if size > limit_bytes:
        name = files[0][0] if len(files) == 1 else f"{len(files)} files"
        raise InputError("file", name, f"has {size:,} bytes, more than {limit_bytes:,}", "give a smaller file")
    return files


# --- errors -----------------------------------------------------------------------------------------------------------


def show_complaint() -> None:
    """The error in the address or in the last input, if any."""
    complaint = st.session_state.complaint
    if complaint is not None:
        st.warning(plain(f"Not used: {complaint}"), icon=":material/link_off:")


@contextmanager
def errors_in_place() -> Iterator[None]:
    """A part of the page; where it cannot be shown, the reason in one line."""
    try:
        yield
    except PlannerError as error:
        st.error(plain(str(error)))


def show_error(error: PlannerError) -> None:
    """An error in one line, with buttons that lead out of it."""
    st.error(plain(str(error)))
    with st.container(horizontal=True):
        for number, fix in enumerate(fixes_for_error(error, session.content())):
            fix_button(fix, f"mend-{number}")
        if st.session_state.past:
            st.button("Undo the last change", on_click=session.undo, key="undo-error", icon=":material/undo:")
        st.button("Start over", on_click=session.load, args=(session.DEFAULT,), key="start-over")


def fix_button(fix: Fix, key: str) -> None:
    """A button that makes the changes of a fix."""
    st.button(plain(fix.text), key=key, on_click=session.change, args=(fix.changes,), icon=":material/build:")


# --- text -------------------------------------------------------------------------------------------------------------


def plain(text: str) -> str:
    r"""Text that Streamlit's Markdown shows as it is, on one line: no pictures, formulas, icons, lists or emphasis.

    Words that are an address of plain characters become links, which show where they lead. Fields of the scenario are
    called as the page calls them.

    >>> print(plain("https://a.org/b_c costs $1, https://a.org/![x](https://a.org/d.png)").replace(JOINER, ""))
    https://a.org/b_c costs \$1, https\://a.org/\!\[x\](https\://a.org/d.png)
    """
    return _MARKUP.sub(_escaped, " ".join(fields.with_labels(one_line(text)).split()))


JOINER = "\N{WORD JOINER}"
"""Shown as nothing; keeps a colon from beginning an address or an icon, which Streamlit makes of escaped ones too."""
_MARKUP = re.compile(
    r"(?P<kept>(?<!\S)\(?https://[\w.,/?=%+;@#&~()-]+(?=\s|$))|(?P<colon>:(?=//|[\w+/-]+:))"
    r"|:(?=\w)|[\\`*_\[\]$<>~#|&!^]|^(?P<number>\d+)[.)]|^[-+]",
    re.ASCII,
)
"""What Markdown reads as its own; any punctuation may have a backslash before it (CommonMark, "Backslash escapes")."""


def _escaped(found: re.Match[str]) -> str:
    if found["kept"]:
        return found[0]
    number = found["number"] or ""
    return f"{number}\\{found[0].removeprefix(number)}{JOINER if found['colon'] else ''}"


def bullets(lines: Sequence[str]) -> None:
    """Lines as a list."""
    if lines:
        st.markdown("\n".join(f"- {plain(line)}" for line in lines))
