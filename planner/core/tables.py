"""Tables of text, and numbers as text: where seconds become milliseconds, and bytes GiB.

Everything shown to a person goes through here, so the command line, the report and the web app write a number alike.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from planner.core.formats import Metric

Shown = TypeVar("Shown")
Part = TypeVar("Part")
MOST_DECIMALS = 6
"""Of a percentage that is nearly what was asked. A choice."""
_SHOWN_IN_S = frozenset({Metric.E2E})
"""Metrics shown in seconds; the others last milliseconds."""
_NUMBER = re.compile(r"(> )?[-+]?[\d,]*\.?\d+( ± [\d.]+)?( %| x)?|unbounded|undefined|-|")
"""Cells of a column of numbers."""


Columns: TypeAlias = Mapping[str, Callable[[Shown], str]]
"""Columns of a table: by heading, what makes the cell of a record."""


def columns_of(part: Callable[[Shown], Part], columns: Columns[Part]) -> dict[str, Callable[[Shown], str]]:
    """Columns of a part of each record.

    >>> Table.of("Lengths", ("ab",), columns_of(len, {"length": str})).rows
    (('2',),)
    """

    def of(cell: Callable[[Part], str]) -> Callable[[Shown], str]:
        return lambda record: cell(part(record))

    return {name: of(cell) for name, cell in columns.items()}


@dataclass(frozen=True)
class Table:
    """Rows of text under named columns.

    Attributes:
        title: of the table.
        columns: headings, with units where a column has one.
        rows: one string per column.
        note: how to read it, or empty.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""

    @classmethod
    def of(cls, title: str, records: Iterable[Shown], columns: Columns[Shown], note: str = "") -> Table:
        """A table declared by its columns: a heading, and what makes the cell of a record, whose row it is.

        >>> Table.of("Squares", (2, 3), {"n": str, "n x n": lambda n: str(n * n)}).rows
        (('2', '4'), ('3', '9'))
        """
        rows = tuple(tuple(cell(record) for cell in columns.values()) for record in records)
        return cls(title, tuple(columns), rows, note)

    @property
    def numeric(self) -> tuple[bool, ...]:
        """Per column, whether it holds numbers only (and is best aligned to the right)."""
        return tuple(
            any(row[index] for row in self.rows) and all(_NUMBER.fullmatch(row[index]) for row in self.rows)
            for index in range(len(self.columns))
        )


@dataclass(frozen=True)
class Report:
    """A result as every face shows it.

    Attributes:
        headline: the answer in one sentence, or empty.
        tables: the answer in numbers.
        lists: further findings, by title; an empty list is not shown. In a document before the tables.
        title: of a document.
        notes: the same as `lists`, but always last.
    """

    headline: str
    tables: tuple[Table, ...] = ()
    lists: Mapping[str, Sequence[str]] = field(default_factory=dict)
    title: str = ""
    notes: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def markdown(self) -> str:
        r"""It as a page of GitHub Markdown.

        >>> Report("It fits.", lists={"Why": ["It is small."], "Warnings": []}, title="Plan").markdown
        '# Plan\n\n**It fits.**\n\n## Why\n\n- It is small.\n'
        """
        lists, notes = ([_markdown_list(*one) for one in of.items() if one[1]] for of in (self.lists, self.notes))
        head = [f"# {markdown_text(self.title)}", f"**{markdown_text(self.headline)}**"]
        return "\n\n".join([*head, *lists, *map(markdown_table, self.tables), *notes]) + "\n"


def _markdown_list(title: str, lines: Sequence[str]) -> str:
    return "\n".join([f"## {title}", "", *(f"- {markdown_text(line)}" for line in lines)])


ROUNDING = 1e-12
"""Relative difference up to which a number is whole: sums of floats are not exact. A guard, not a choice."""


def significant(value: float, digits: int = 3) -> str:
    """A number to `digits` significant digits, in full, with thousands separators; whole numbers are never cut.

    >>> significant(0.0123456), significant(12.3456), significant(1234567.8), significant(28.9 + 11.1)
    ('0.0123', '12.3', '1,234,568', '40')
    """
    if math.isnan(value):
        return "undefined"
    if math.isinf(value):
        return "unbounded"
    if math.isclose(value, round(value), rel_tol=ROUNDING):
        return f"{value:,.0f}"
    return f"{value:,.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}"


def money(usd: float) -> str:
    """US dollars: cents from one dollar on, three significant digits below.

    >>> money(17476.2), money(0.0108)
    ('17,476.20', '0.0108')
    """
    return f"{usd:,.2f}" if 1.0 <= abs(usd) < math.inf or usd == 0.0 else significant(usd)


def percent(fraction: float, *, signed: bool = False) -> str:
    """A fraction in percent, with one decimal below 10 % and two between 99 % and 100 %.

    >>> percent(0.0123), percent(0.5), percent(0.9987), percent(0.25, signed=True)
    ('1.2 %', '50 %', '99.87 %', '+25 %')
    """
    value = 100.0 * fraction
    if not math.isfinite(value):
        return significant(value)
    return f"{value:{'+' if signed else ''},.{_decimals(value)}f} %"


def _decimals(value: float) -> int:
    """Decimals of a percentage."""
    return 2 if 99.0 < value < 99.995 else 1 if 0.0 < abs(value) < 9.95 else 0


def rough_share(share: float, error: float, asked: float) -> str:
    """A share that is known within an error, for a sentence: whole percents at most, or as many digits as are known.

    Args:
        share: as found, 0 to 1.
        error: its standard error, or the half-width of an interval.
        asked: the share it is compared with; a share below it is never rounded up to it.

    >>> rough_share(0.9913, 0.005, 0.9), rough_share(0.9988, 0.0025, 0.9), rough_share(0.8962, 0.015, 0.9)
    ('99 %', 'over 99 %', '89.6 %')
    """
    decimals = max(0, math.floor(-math.log10(200.0 * error))) if error > 0.0 else _decimals(100.0 * share)
    decimals = min(decimals, _decimals(100.0 * share))
    if float(f"{100.0 * share:.{decimals}f}") >= 100.0 and share < 1.0:
        return f"over {math.floor(100.0 * (share - error) * 10**decimals) / 10**decimals:g} %"
    return f"{100.0 * share:.{_told_apart(share, asked, decimals)}f} %"


def share_with_error(share: float, error: float, asked: float) -> str:
    """A share with the half-width of its interval, in as many digits as that supports; without an error as it is.

    Args:
        share: as found, 0 to 1.
        error: half-width of its interval; 0: it was counted, not sampled.
        asked: the share it is compared with; neither a share nor the end of an interval below it is rounded up to it.

    >>> share_with_error(0.9913, 0.0048, 0.99), share_with_error(0.9998, 0.002, 0.99)
    ('99.1 ± 0.5 %', '> 99.7 %')
    >>> share_with_error(0.9896, 0.002, 0.99), share_with_error(0.9496, 0.0, 0.95)
    ('98.96 ± 0.20 %', '94.96 %')
    """
    if error <= 0.0:
        decimals = _decimals(100.0 * share)
        return f"{100.0 * share:.{_told_apart(share, asked, decimals)}f} %"
    decimals = max(0, -math.floor(math.log10(100.0 * error)))
    if share + error >= 1.0:
        return f"> {math.floor(100.0 * (share - error) * 10**decimals) / 10**decimals:.{decimals}f} %"
    decimals = _told_apart(share, asked, decimals, error)
    return f"{100.0 * share:.{decimals}f} ± {100.0 * error:.{decimals}f} %"


def _told_apart(share: float, asked: float, decimals: int, error: float = 0.0) -> int:
    """Decimals from which on a share below what was asked, or one that may be within its error, does not look like it.

    Those of percentages, at least as many as given.
    """
    for below in (0.0, error):
        while share - below < asked and decimals < MOST_DECIMALS and _reaches(share, below, asked, decimals):
            decimals += 1
    return decimals


def _reaches(share: float, below: float, asked: float, decimals: int) -> bool:
    said = round(100.0 * share, decimals) - round(100.0 * below, decimals)
    return said >= 100.0 * asked - 0.1**MOST_DECIMALS


def change(fraction: float) -> str:
    """A change in percent for people to read: with its sign, a true minus (U+2212) below zero.

    >>> change(0.085), change(-0.21)
    ('+8.5 %', '−21 %')
    """
    return percent(fraction, signed=True).replace("-", "−")


def duration(seconds: float, metric: Metric) -> str:
    """A latency in the unit of its metric (see `unit`), without the unit.

    >>> duration(0.41234, Metric.TTFT), duration(12.345, Metric.E2E)
    ('412', '12.3')
    """
    return significant(seconds if metric in _SHOWN_IN_S else 1e3 * seconds)


def unit(metric: Metric) -> str:
    """The unit a metric is shown in: seconds for E2E, milliseconds for the others."""
    return "s" if metric in _SHOWN_IN_S else "ms"


LONG_S = 10.0
"""From which on a latency in words is in seconds, however its metric is tabulated [s]."""


def with_unit(seconds: float, metric: Metric) -> str:
    """A latency with its unit; in seconds from ten of them on.

    >>> with_unit(0.05, Metric.TPOT), with_unit(228.5, Metric.TTFT)
    ('50 ms', '228 s')
    """
    if LONG_S <= seconds < math.inf:
        return f"{significant(seconds)} s"
    return f"{duration(seconds, metric)} {unit(metric)}" if math.isfinite(seconds) else significant(seconds)


SCALES = {"k": 1e3, "thousand": 1e3, "m": 1e6, "million": 1e6, "bn": 1e9, "b": 1e9, "billion": 1e9, "trillion": 1e12}
"""What people write behind a number, and how much it is."""
MOST_TYPED_TOKENS = 1e9
"""Larger ones are typing errors."""
_COUNT = re.compile(rf"([\d.,]+)\s*({'|'.join(SCALES)})", re.IGNORECASE)


def typed_count(text: str) -> float | None:
    """A count as people type it; None for what is none.

    >>> typed_count("32k"), typed_count("1.5 million"), typed_count("8,192"), typed_count("many")
    (32000.0, 1500000.0, 8192.0, None)
    """
    scaled = _COUNT.fullmatch(text.strip())
    try:
        return float((scaled[1] if scaled else text).replace(",", "")) * (SCALES[scaled[2].lower()] if scaled else 1.0)
    except ValueError:
        return None


_TIME = re.compile(r"(?:<=?|≤|under|below|within)?\s*([\d.,]+)\s*(ms|s)?", re.IGNORECASE)


def typed_seconds(text: str, unit: str = "s") -> float | None:
    """A time as people type it, in `unit` where they name none; None for what is none [s].

    >>> typed_seconds("500ms"), typed_seconds("2 s"), typed_seconds("< 50", "ms"), typed_seconds("soon")
    (0.5, 2.0, 0.05, None)
    """
    time = _TIME.fullmatch(text.strip())
    count = typed_count(time[1]) if time else None
    return None if time is None or count is None else count / (1e3 if (time[2] or unit).lower() == "ms" else 1.0)


_TOKEN_RATE = re.compile(
    r"(?:>=?|≥|at least|over|above)?\s*([\d.,]+)\s*(?:(?:tokens?|toks?)\s*(?:/|per)\s*s(?:ec(?:ond)?)?|tps)"
    r"(?:\s*(?:(?:/|per|for each)\s*user|each))?",
    re.IGNORECASE,
)


def typed_token_time_s(text: str, unit: str = "ms") -> float | None:
    """Time of a token as people type it, or the tokens a second that one user is to see; None for what is none [s].

    >>> typed_token_time_s("50"), typed_token_time_s("20 tokens/s"), typed_token_time_s("at least 40 tok/s per user")
    (0.05, 0.05, 0.025)
    """
    rate = _TOKEN_RATE.fullmatch(text.strip())
    per_s = typed_count(rate[1]) if rate else None
    return 1.0 / per_s if per_s else typed_seconds(text, unit)


_SHARE = re.compile(r"(-?[\d.]+)\s*(%|percent)?(?:\s*(?:a|per|/)\s*month)?", re.IGNORECASE)


def typed_share(text: str) -> float | None:
    """A share, or a growth per month, as people type it; None for what is none.

    >>> typed_share("10 % a month"), typed_share("0.1"), typed_share("fast")
    (0.1, 0.1, None)
    """
    share = _SHARE.fullmatch(text.strip())
    count = typed_count(share[1]) if share else None
    return None if share is None or count is None else count / (100.0 if share[2] else 1.0)


_COUNTED = re.compile(r"(\d{1,6})(?:\s*[x×*]\s*|\s+(?=[a-z]))(.+)|(.+?)(?:\s+[x×*]\s*|:)(\d{1,6})", re.IGNORECASE)


def typed_gpus(text: str) -> tuple[int | None, str]:
    """Number of GPUs and their name, as people type them; None where they give no number.

    >>> typed_gpus("8xh100"), typed_gpus("H100 x 8"), typed_gpus("RTX 4090")
    ((8, 'h100'), (8, 'H100'), (None, 'RTX 4090'))
    """
    counted = _COUNTED.fullmatch(text.strip())
    return (int(counted[1] or counted[4]), counted[2] or counted[3]) if counted else (None, text)


_LENGTHS = re.compile(
    r"(.+?)(?: ?tokens)?(?: ?in(?:put)?)?(?: ?/ ?| and | )([\d.,]+ ?[a-z]*?)(?: ?tokens)?(?: ?out(?:put)?)?",
    re.IGNORECASE,
)


def typed_lengths(text: object) -> tuple[int, int] | None:
    """Tokens in and out of every request as people type them; None for what is no pair of counts.

    >>> typed_lengths("1500/400"), typed_lengths("6k in / 300 out"), typed_lengths("azure-2023-conv")
    ((1500, 400), (6000, 300), None)
    """
    sides = _LENGTHS.fullmatch(" ".join(text.split())) if isinstance(text, str) else None
    counts = [typed_count(side) for side in sides.groups()] if sides else [None]
    whole = [int(count) for count in counts if count is not None and 0.0 <= count < MOST_TYPED_TOKENS]
    return (whole[0], whole[1]) if len(whole) == len(counts) else None


def number_of(number: int, noun: str) -> str:
    """A number with its noun, in the plural where it is not one.

    >>> number_of(1, "replica"), number_of(1200, "replica")
    ('1 replica', '1,200 replicas')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


# --- Markdown -------------------------------------------------------------------------------------------------------


def markdown_table(table: Table) -> str:
    """A table with its title and note as GitHub Markdown."""
    lines = [
        _markdown_row(table.columns),
        _markdown_row(["---:" if numeric else "---" for numeric in table.numeric]),
        *(_markdown_row(row) for row in table.rows),
    ]
    blocks = [f"## {table.title}", "\n".join(lines)]
    if table.note:
        blocks.append(markdown_text(table.note))
    return "\n\n".join(blocks)


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(markdown_text(cell) for cell in cells) + " |"


def markdown_text(text: str) -> str:
    r"""Text on one line that Markdown shows as it is: no tags, no cell borders, no emphasis, no links, no pictures.

    >>> markdown_text("a|b <script> x_y [s] ![a](b)")
    'a\\|b &lt;script> x_y [s] ![a\\](b)'
    """
    line = " ".join(one_line(text).split())
    marks = r"([|*`\\]|\](?=[(\[:])|(?<![^\W_])_|_(?![^\W_]))"  # an underscore inside a word is none
    return re.sub(marks, r"\\\1", re.sub(r"<(?=[A-Za-z/!?])", "&lt;", line))


def one_line(text: str) -> str:
    r"""Text on one line: a blank for every control, format or line-breaking character, which a terminal might obey.

    >>> one_line("a\x1b[2Jb\nc")
    'a [2Jb c'
    """
    return text if text.isprintable() else "".join(letter if letter.isprintable() else " " for letter in text)
