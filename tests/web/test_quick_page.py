"""The page of quick answers: what it says is what the commands say, and its links open a scenario."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import parse_qsl

import pytest
from streamlit.testing.v1 import AppTest

import planner
from planner.scenario import url
from planner.serving import USERS
from tests.web.pages import TIMEOUT_S, fine, said

APP = Path(__file__).resolve().parents[2] / "app.py"


def opened(question: str = "") -> AppTest:
    page = AppTest.from_file(str(APP), default_timeout=TIMEOUT_S)
    page.query_params["page"] = "quick"
    if question:
        page.session_state["quick-question"] = question
    page.session_state["quick-llm"] = "llama-3.1-8b"
    return fine(page.run())


@pytest.mark.parametrize("question", ["Where does it fit?", "What does a server give?", "What do tokens cost?"])
def test_every_answer_has_a_way_on_to_a_scenario_of_that_model(question: str) -> None:
    page = opened(question)
    assert not page.error and not page.metric  # no plan is made for it
    (link,) = re.findall(
        r"Plan a fleet for [^(]*\]?\(\?([^)\s]+)\)", "\n".join(str(one.value) for one in page.markdown)
    )
    content = url.content_of(dict(parse_qsl(link)), "chat-llama-70b")
    assert content["llm"] == "llama-3.1-8b" and content["workload"]["rate_per_s"] > 0.0


def test_a_server_gives_what_the_python_function_says() -> None:
    page = opened("What does a server give?")
    page.number_input(key="quick-Users at the same time").set_value(48)
    page.number_input(key="quick-GPUs").set_value(2)
    text = said(fine(page.run()))
    found = planner.box_curve("llama-3.1-8b", "h100-sxm", gpus=2, users=sorted({*USERS, 48}), at=48)
    assert f"{found.at(48).output_tokens_per_s:,.0f}" in text


def test_what_does_not_start_says_why_and_the_page_stands() -> None:
    page = opened("What does a server give?")
    page.selectbox(key="quick-llm").set_value("deepseek-v3")
    page.number_input(key="quick-GPUs").set_value(1)
    fine(page.run())
    assert page.error and page.selectbox(key="quick-llm").value == "deepseek-v3"
