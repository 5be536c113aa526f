"""What the app does not do for a visitor, as `docs/how-to/secure.md` says it, with the tests that it names."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt
from streamlit.testing.v1 import AppTest

from hardware_db import load_hardware
from planner.core import Table, preset
from planner.report import html_table
from planner.web import compare_scenarios, compare_systems, components, latency_growth
from tests.builders import SMALL_CHAT
from tests.fuzz.guard import watched
from tests.places import ROOT

PAGE = (ROOT / "docs" / "how-to" / "secure.md").read_text(encoding="utf-8")
SCRIPT = "<img src=x onerror=alert(1)><script>alert(1)</script>"
TIMEOUT_S = 240


def opened(**more: str) -> AppTest:
    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=TIMEOUT_S)
    for setting in SMALL_CHAT:
        name, _, text = setting.partition("=")
        app.query_params[name] = text
    for name, text in more.items():
        app.query_params[name] = text
    return app.run()


def test_every_test_that_the_page_names_is_there() -> None:
    rows = [row.split("|")[3] for row in PAGE.splitlines() if row.startswith("| ") and "tested by" not in row]
    assert len(rows) >= 9
    for row in rows:
        named = re.findall(r"`([^`]+)`", row)
        assert named, row
        for name in named:
            assert _is_there(name), name


def _is_there(name: str) -> bool:
    if not name.startswith("test_"):
        return (ROOT / name).is_file()
    return any(f"def {name}(" in path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))


def test_a_visit_touches_no_file_process_or_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    """A visit whose address names files: planned, and tabs opened. Reading what is installed is let be."""
    monkeypatch.setattr(latency_growth.latencies, "BAND_POINTS", 3)
    monkeypatch.setattr(latency_growth, "SIMULATED_LOADS", (0.5,))
    monkeypatch.setattr(compare_systems, "PRESELECTED", ("engine",))

    def visited(**address: str) -> AppTest:
        app = opened(**address)
        for tab in ("Why", "Latency", "Compare", "Hardware"):
            app.query_params["tab"] = tab
            app.run()
        return app

    visited()  # what is loaded once is loaded
    with watched() as seen:
        app = visited(**{"workload.rate_per_s": "3.25", "prices.file": "/etc/passwd", "name": "/etc/shadow"})
    assert not app.exception
    streamlit = (f"open {ROOT / 'app.py'}", f"os.stat {ROOT / 'app.py'}", f"os.stat {ROOT / 'pages'}", "open /proc/")
    assert [event for event in seen if not event.startswith(streamlit)] == []


def test_visits_do_not_see_each_other() -> None:
    one = opened(name="mine alone")
    kept = {"id": 1, "name": "kept", "content": one.session_state["scenario"]}
    one.session_state[compare_scenarios.SAVED] = [kept]
    one.run()
    other = opened()
    assert compare_scenarios.SAVED not in other.session_state or not other.session_state[compare_scenarios.SAVED]
    assert other.session_state["scenario"]["name"] != "mine alone"
    assert not any("mine alone" in item.value for item in (*other.markdown, *other.caption))


def test_a_name_is_shown_as_text() -> None:
    """In tables, in sentences, and on a page with a hostile name in every place that takes one."""
    table = html_table(Table(SCRIPT, (SCRIPT, "b"), ((SCRIPT, "1"),), SCRIPT), {SCRIPT: SCRIPT})
    assert "<script" not in table and "<img" not in table
    assert "<" not in components.plain(SCRIPT).replace("\\<", "")
    app = opened(name=SCRIPT)
    assert not app.exception
    shown = [item.value for item in (*app.markdown, *app.caption)]
    assert not any(re.search(r"(?<!\\)<(script|img)", text) for text in shown)


MARKDOWN = "https://e.test/![m](https://e.test/p.png)$m$:red[m]:material/home:"
"""A word that begins as an address and goes on as a picture from elsewhere, a formula, a colour and an icon."""
NO_MARKDOWN = {"TextInput", "Selectbox", "MultiSelect", "Html", "VegaLiteChart", "ArrowVegaLiteChart", "Arrow"}
"""Kinds of elements whose text Streamlit does not read as Markdown: inputs, HTML that is escaped, charts and frames."""


def _texts(message: Any) -> Iterator[str]:
    """Every text in an element as it goes to the browser, but for ids."""
    for field, value in message.ListFields():
        for item in value if isinstance(value, Sequence) and not isinstance(value, str) else [value]:
            if hasattr(item, "ListFields"):
                yield from _texts(item)
            elif isinstance(item, str) and field.name != "id":
                yield item


def test_no_name_from_outside_is_read_as_markdown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name in every place that takes one, in a plan and in what is refused, over tabs, labels, hints and notes.

    Any word that began with ``https://`` was left as it was.
    """
    monkeypatch.setenv("PLANNER_APP_WORKERS", "0")
    h100 = json.loads(load_hardware().skus["h100-sxm"].model_dump_json())
    h100 |= {
        "id": "mine",
        "name": MARKDOWN,
        "note": MARKDOWN,
        "hbm_bandwidth_bytes_per_s": {**h100["hbm_bandwidth_bytes_per_s"], "source": MARKDOWN, "note": MARKDOWN},
    }
    llm = {**json.loads(preset("llms", "llama-3.1-8b.json").read_text()), "_name": MARKDOWN, "_source": MARKDOWN}
    cells = {"cells": [[1000, 200, 1.0], [500, 100, 2.0]], "source": MARKDOWN}
    named = {"name": MARKDOWN, "description": MARKDOWN, "llm": json.dumps(llm), "workload.lengths": json.dumps(cells)}
    mine = {"search.skus": "[mine]", "own_hardware.skus": json.dumps([h100]), "prices.usd_per_gpu_hour": "{mine: 2}"}
    refused = {"search.skus": json.dumps(["h100-sxm", MARKDOWN]), "workload.scv": json.dumps(MARKDOWN)}
    for address in ({**named, **mine, "search.tp": "[1]"}, refused):
        app = opened(**{"workload.rate_per_s": "10", **address})
        for tab in ("Plan", "Hardware"):
            app.query_params["tab"] = tab
            assert not app.run().exception
            nodes = [app._tree]
            while nodes:
                node = nodes.pop()
                nodes += getattr(node, "children", {}).values()
                kind = type(getattr(node, "proto", None)).__name__
                for text in _texts(node.proto) if hasattr(getattr(node, "proto", None), "ListFields") else ():
                    shown = MARKDOWN in text or any(part in text for part in ("[m]", "$m$", ":material/home:"))
                    assert kind in NO_MARKDOWN or not shown, f"{tab}, {kind}: {text}"


@pytest.mark.parametrize(
    "text",
    ["1. a", "12) a", "- a", "+ a", "a &lt; b", "a\n\n# b", "(https://a.org/b_c)", ":smile:", "http://x/y", "x^[1]"],
)
def test_plain_text_has_no_block_link_icon_or_entity(text: str) -> None:
    """By a Markdown reader of CommonMark's own kind: one paragraph of text, and nothing in it but addresses."""
    (paragraph, inline, _) = MarkdownIt().parse(components.plain(text))
    assert paragraph.type == "paragraph_open"
    assert {one.type for one in inline.children or ()} <= {"text", "text_special"}
    assert "".join(one.content for one in inline.children or ()).replace(components.JOINER, "") == " ".join(
        text.split()
    )


def test_the_proxy_of_the_page_is_one_that_nginx_takes(tmp_path: Path) -> None:
    """The block as printed, but for its certificate, in a whole configuration; skipped where there is no nginx."""
    nginx = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
    if nginx is None:
        pytest.skip("no nginx on this machine")
    (block,) = re.findall(r"```nginx\n(.*?)```", PAGE, re.DOTALL)
    block = re.sub(r"listen 443 ssl;", "listen 127.0.0.1:0;", block)
    block = "\n".join(line for line in block.splitlines() if "ssl_certificate" not in line)
    block = block.replace("127.0.0.1:0", "127.0.0.1:18443")
    whole = f"events {{}}\npid {tmp_path}/pid;\nhttp {{\n{block}\n}}\n"
    file = tmp_path / "nginx.conf"
    file.write_text(whole, encoding="utf-8")
    done = subprocess.run(
        [nginx, "-t", "-q", "-c", str(file), "-e", str(tmp_path / "log")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
