"""The page *Quick answers*: one question of one model, without a scenario: where it fits, what a server gives, a price.

The functions are those of `planner fit`, `planner box` and `planner price`; every answer has a way on to a plan.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from urllib.parse import urlencode

import streamlit as st

from hardware_db import load_hardware, sku_words, usual_price
from planner.charts import box_chart
from planner.core import significant
from planner.engine import USUAL_CONTEXT_TOKENS, fit_gpus, fit_headline, fit_table
from planner.llm import api_prices_of, list_llms, load_llm
from planner.scenario import url
from planner.serving import USERS, box_curve, box_headline, box_record, box_table, price_tables, token_prices
from planner.web import components, session

ADDRESS = {"page": "quick"}
"""Parameters of an address that open this page."""
MOST_TOKENS = 1_000_000
"""Of a request, input or output: longer than the context of every packaged model."""


def show() -> None:
    """The question, its inputs and the answer."""
    st.markdown("#### Quick answers")
    st.caption("One model, one question, in seconds. [Plan a fleet](./) for traffic and latency targets.")
    question = st.segmented_control(
        "Question", list(QUESTIONS), default=next(iter(QUESTIONS)), key="quick-question", label_visibility="collapsed"
    )
    with components.errors_in_place():
        QUESTIONS[question or next(iter(QUESTIONS))]()


def _model() -> str:
    models, first = list(list_llms()), url.packaged_content(session.DEFAULT)["llm"]
    return st.selectbox("Model", models, models.index(first), key="quick-llm", width=300)


def _count(label: str, value: int, most: int, width_px: int = 150) -> int:
    """A whole number from 1 on."""
    return int(st.number_input(label, 1, most, value, key=f"quick-{label}", width=width_px))


def _lengths() -> tuple[int, int]:
    return _count("Input tokens", 1024, MOST_TOKENS), _count("Output tokens", 1024, MOST_TOKENS)


def _on_to_a_plan(llm: str, rate_per_s: float, lengths: tuple[int, int], sku: str = "") -> None:
    fields = {"llm": llm, "workload.rate_per_s": significant(rate_per_s).replace(",", "")}
    fields["workload.lengths"] = f"{{input_tokens: {lengths[0]}, output_tokens: {lengths[1]}}}"
    fields |= {"search.skus": f"[{sku}]"} if sku else {}
    st.markdown(
        f"[:material/calculate: Plan a fleet for {fields['workload.rate_per_s']} requests/s](?{urlencode(fields)})"
    )


def _fits() -> None:
    skus = ["all GPUs", *load_hardware().skus]
    with st.container(horizontal=True):
        llm = _model()
        context = _count(
            "Tokens of a request", min(USUAL_CONTEXT_TOKENS, load_llm(llm).max_context_tokens), MOST_TOKENS
        )
        sku = st.selectbox("GPU", skus, format_func=sku_words, key="quick-fit-gpu", width=200)
    only = "" if sku == skus[0] else sku
    fits = fit_gpus(llm, context, [only] if only else [], hardware=load_hardware())
    st.markdown(components.plain(fit_headline(load_llm(llm), fits)))
    components.table(fit_table(fits), "quick-fits")
    _on_to_a_plan(llm, 20.0, (1500, 400), only)


def _server() -> None:
    skus = list(load_hardware().skus)
    with st.container(horizontal=True):
        llm = _model()
        sku = st.selectbox("GPU", skus, skus.index("h100-sxm"), format_func=sku_words, key="quick-box-gpu", width=200)
        gpus, users, lengths = _count("GPUs", 8, 8, 110), _count("Users at the same time", 64, 256, 180), _lengths()
    curve = sorted({*USERS, users})
    found = box_curve(llm, sku, gpus=gpus, lengths=lengths, users=curve, at=users, hardware=load_hardware())
    st.markdown(components.plain(box_headline(found, users)))
    points = box_record(found)["points"]
    components.chart(box_chart(points, f"{llm} on {gpus} × {sku_words(sku)}"), points, "One server", "quick-box")
    components.table(box_table(found), "quick-box-table")
    _on_to_a_plan(llm, found.at(users).requests_per_s, lengths, sku)


def _price() -> None:
    with st.container(horizontal=True):
        llm, lengths = _model(), _lengths()
    hardware = load_hardware()
    prices = {sku: price for sku in hardware.skus if (price := usual_price(hardware, sku, date.today()))}
    found = token_prices(llm, prices, lengths=lengths, hardware=hardware)
    if not found:
        st.info(f"{llm} fits on no server with a price and measured step times.")
        return
    best = found[0]
    said = f"From {significant(best.least_usd)} USD per million output tokens, on {best.box.config.sku.short_name}."
    st.markdown(components.plain(said))
    components.tables(price_tables(found, api_prices_of(llm, date.today()), lengths), "quick-prices")
    _on_to_a_plan(llm, best.box.points[-1].requests_per_s, lengths)


QUESTIONS: dict[str, Callable[[], None]] = {
    "Where does it fit?": _fits,
    "What does a server give?": _server,
    "What do tokens cost?": _price,
}
"""By what is asked, what asks for the rest and answers."""
