"""Links and files with bad values: the page opens with the rest intact and one line about what was dropped."""

from __future__ import annotations

import json
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

import planner
from planner.core import InputError
from planner.scenario import url, value_at
from planner.web import links

DEFAULT = "chat-llama-70b"
GOOD = {"base": DEFAULT, "workload.rate_per_s": "7", "workload.drift": "none", "search.skus": '["h100-sxm"]'}
BAD = {
    "unknown lengths": {"workload.lengths": "nope"},
    "no weight": {"workload.lengths": '{"cells":[[10,10,0]]}'},
    "negative weight": {"workload.lengths": '{"cells":[[10,10,-1]]}'},
    "huge lengths": {"workload.lengths": '{"input_tokens":100000000000,"output_tokens":1}'},
    "commitment twice": {"prices.commitments": '["on_demand","on_demand"]'},
    "unknown model": {"llm": "gpt-9"},
    "a file": {"workload.lengths": '{"trace": "/etc/passwd"}'},
    "percentile": {"slo.0.percentile": "7"},
    "target that is not there": {"slo.7.threshold_s": "1"},
    "not packed": {"slo": "z.bad"},
    "not YAML": {"name": "{a: ["},
    "unknown field": {"workload.colour": "red"},
    "prefixes": {"workload.prefixes": '{"tokens":-1}'},
    "services": {"services": '[{"name":"x"}]'},
    "version": {"schema_version": "99"},
    "base": {"base": "../secrets"},
}


SEVERAL = {"workload.lengths": "nope", "slo.0.percentile": "7", "workload.colour": "red", "growth": "-1"}


@pytest.mark.parametrize("bad", [*BAD.values(), SEVERAL], ids=[*BAD, "several"])
def test_a_bad_value_of_a_link_is_dropped_and_the_rest_stays(bad: dict[str, str]) -> None:
    """The rest is what the link without that value opens, read by the strict reader."""
    opened = links.from_link({**GOOD, **bad}, DEFAULT)
    rest = url.content_of({name: text for name, text in GOOD.items() if name not in bad}, DEFAULT)
    assert opened.content == rest and len(opened.dropped) >= len(bad)


def test_a_good_link_opens_as_the_strict_reader_has_it() -> None:
    for base in ("rag-llama-70b", "agents-qwen3-coder-30b"):
        query = {"base": base, "growth": "2", "llm": "llama-3.1-8b"}
        assert links.from_link(query, DEFAULT) == links.Opened(url.content_of(query, DEFAULT))


def test_what_cannot_stand_together_costs_no_more_than_one_of_them() -> None:
    """Lengths and classes at once: one of them goes, the rate stays."""
    classes = '[{"name":"a","share":1,"lengths":"azure-2023-conv"}]'
    opened = links.from_link({**GOOD, "workload.classes": classes}, DEFAULT)
    assert value_at(opened.content, "workload.rate_per_s") == 7.0 and len(opened.dropped) == 1


@pytest.mark.parametrize(
    ("path", "bad"),
    [
        ("workload.lengths", {"trace": "/etc/passwd"}),
        ("colour", "red"),
        ("confidence", 7),
        ("search.skus", ["h100-sxm", "h100-sxm"]),
    ],
)
def test_a_bad_value_of_a_file_is_dropped_and_the_rest_stays(path: str, bad: Any) -> None:
    content = url.content_of({**GOOD, "growth": "3"}, DEFAULT)
    *holders, last = path.split(".")
    place = content
    for name in holders:
        place = place[name]
    place[last] = bad
    opened = links.from_file("mine.yaml", json.dumps(content).encode(), DEFAULT)
    assert opened.dropped[0].field.startswith(path)
    assert value_at(opened.content, "growth") == 3.0 and value_at(opened.content, "workload.rate_per_s") == 7.0
    planner.load_scenario(opened.content)  # raises where anything is still wrong


@pytest.mark.parametrize("raw", [b"\xff\xfe\x00\xff", b"a: &a [1]\nb: *a\n", b"colour: red\n", b"[1, 2]"])
def test_a_file_that_is_no_scenario_is_refused_as_a_whole(raw: bytes) -> None:
    with pytest.raises(InputError):
        links.from_file("mine.yaml", raw, DEFAULT)


# --- the page ---------------------------------------------------------------------------------------------------------


def sidebar() -> None:
    """All inputs, and what the page says of them."""
    from planner.web import components, inputs, session

    session.start()
    inputs.show()
    components.show_complaint()


@pytest.mark.parametrize("bad", ["a file", "not packed", "base"])
def test_the_sidebar_stands_on_a_bad_link(bad: str) -> None:
    app = AppTest.from_function(sidebar, default_timeout=30)
    for name, text in {**GOOD, **BAD[bad]}.items():
        app.query_params[name] = text
    app.run()
    assert not app.exception and not app.error
    (line,) = [item.value for item in app.warning]
    assert line.startswith("Not used: ") and "\n" not in line
    assert app.number_input(key="rate").value == 7.0
    assert app.slider(key="confidence").value == 0.9


def test_a_part_of_the_sidebar_that_cannot_be_shown_leaves_the_others() -> None:
    app = AppTest.from_function(sidebar, default_timeout=30).run()
    content = app.session_state["scenario"]
    app.session_state["scenario"] = {**content, "workload": {**content["workload"], "lengths": "nope"}}
    app.run()
    assert not app.exception and len(app.error) == 1 and "nope" in app.error[0].value
    assert app.multiselect(key="search.skus").value == content["search"]["skus"]


def test_a_bad_trace_takes_what_was_said_of_the_last_one_away() -> None:
    app = AppTest.from_function(sidebar, default_timeout=30).run()
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    lines += [f"2023-11-16 18:15:{second:02d}.000,{500 + second},100" for second in range(60)]
    app.file_uploader(key="trace-file").set_value(("good.csv", "\n".join(lines).encode(), "text/csv")).run()
    assert any("good.csv" in item.value for item in app.caption)
    app.file_uploader(key="trace-file").set_value(("bad.csv", b"colour\nred\n", "text/csv")).run()
    assert not any("good.csv" in item.value for item in app.caption)
    assert len(app.warning) == 1 and "bad.csv" in app.warning[0].value
