"""How long requests are: input and output tokens as histograms on a logarithmic axis."""

from __future__ import annotations

import altair as alt
import numpy as np

from planner.charts.marks import BLUE, GREY, ORANGE, Row, inline_chart
from planner.workload import TokenLengths

BINS_PER_DOUBLING = 2
"""Bars for each doubling of the length: a choice."""
HEIGHT_PX = 70


def length_rows(lengths: TokenLengths) -> list[Row]:
    """Shares of requests by input and by output length.

    Returns rows with side ("input" or "output"), from_tokens, to_tokens (of the bar) and share (of all requests); the
    shares of a side sum to 1. Bars without requests are left out.
    """
    rows: list[Row] = []
    for side, tokens in (("input", lengths.inputs), ("output", lengths.outputs)):
        bins = np.floor(BINS_PER_DOUBLING * np.log2(tokens) + 1e-9).astype(np.int64)
        shares = np.bincount(bins, lengths.probabilities)
        for place in np.flatnonzero(shares):
            ends = [2.0 ** (edge / BINS_PER_DOUBLING) for edge in (place, place + 1)]
            rows.append({"side": side, "from_tokens": ends[0], "to_tokens": ends[1], "share": float(shares[place])})
    return rows


def length_histogram(lengths: TokenLengths, side: str) -> alt.LayerChart:
    """One side of `length_rows` ("input" or "output") as a small histogram with its mean marked."""
    rows = [{**row, "none": 0.0} for row in length_rows(lengths) if row["side"] == side]
    mean = lengths.mean_input if side == "input" else lengths.mean_output
    axis = alt.Axis(title=f"{side.capitalize()} tokens", format="~s", tickCount=5, grid=False)
    x = alt.X("from_tokens:Q", scale=alt.Scale(type="log", nice=False), axis=axis)
    bars = (
        inline_chart(rows)
        .mark_bar(color=BLUE if side == "input" else ORANGE, binSpacing=0)
        .encode(
            x=x,
            x2="to_tokens:Q",
            y=alt.Y("share:Q", axis=None),
            y2="none:Q",
            tooltip=[
                alt.Tooltip("from_tokens:Q", title="From (tokens)", format=",.0f"),
                alt.Tooltip("to_tokens:Q", title="To (tokens)", format=",.0f"),
                alt.Tooltip("share:Q", title="Share of requests", format=".1%"),
            ],
        )
    )
    line = inline_chart([{"from_tokens": mean}]).mark_rule(color=GREY, strokeDash=[4, 3]).encode(x=x)
    return alt.LayerChart(layer=[bars, line], height=HEIGHT_PX, description=f"{side} tokens per request")
