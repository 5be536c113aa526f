"""What the app does not do for a visitor, as `docs/how-to/secure.md` says it, with the tests that it names."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from planner.core import Table
from planner.report import html_table
from planner.web import compare_scenarios, components, latency_growth
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
    assert [event for event in seen if not event.startswith((f"open {ROOT / 'app.py'}", "open /proc/"))] == []


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
