"""The section *Memory of one server*: what it says is what `planner.engine.memory` says."""

from __future__ import annotations

import time
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from calibration import log_table, memory_of_log, read_startup_log
from planner.core import Table
from planner.engine import StartUp, formats_of, formats_table, memory, memory_tables, request_limit
from planner.report import glossary
from planner.web import components, roofline_memory, roofline_tab
from planner.web.roofline_memory import HINTS
from tests.web.test_roofline import MIXED, figures, html, page_of

SECTION = "Memory of one server"
NO_FLEET = "slo=[{metric: tpot, percentile: 0.99, threshold_s: 0.0001}]"
LOG = """\
INFO 11-28 10:00:03 [core.py:77] Initializing a V1 LLM engine (v0.11.0) with config: model='org/m', \
speculative_config=None, max_seq_len=4096, tensor_parallel_size=4, pipeline_parallel_size=1, data_parallel_size=1, \
quantization=fp8, enforce_eager=False, kv_cache_dtype=auto
INFO 11-28 10:00:20 [gpu_model_runner.py:2653] Model loading took 16.5000 GiB and 9.123456 seconds
INFO 11-28 10:00:40 [gpu_worker.py:298] Available KV cache memory: 49.25 GiB
INFO 11-28 10:00:41 [kv_cache_utils.py:1087] GPU KV cache size: 645,500 tokens
INFO 11-28 10:00:51 [core.py:210] init engine (profile, create kv cache, warmup model) took 30.0 seconds
"""
"""Lines as vLLM 0.11 writes them, with figures put in by hand."""


def script(changes: tuple[str, ...]) -> None:
    from planner.web import roofline_tab
    from tests.web.test_roofline import page_of

    roofline_tab.show(page_of(*changes))


def shown(*changes: str) -> AppTest:
    app = AppTest.from_function(script, args=(changes,), default_timeout=30)
    app.session_state["roofline-section"] = SECTION
    app.run()
    assert not app.exception
    return app


@pytest.fixture(scope="module")
def planned() -> AppTest:
    return shown(MIXED)


def labelled(elements: Any, label: str) -> Any:
    return next(one for one in elements if one.label == label)


def set_to(app: AppTest, label: str, value: float) -> AppTest:
    labelled(app.number_input, label).set_value(value).run()
    assert not app.exception
    return app


def expected(**changes: Any) -> StartUp:
    """The replica of the plan by the API, with the limits that exports write."""
    (chosen,) = roofline_tab.pools_of(page_of(MIXED))
    config, lengths = chosen.pool.config, chosen.planned.workload.lengths
    settings: dict[str, Any] = {
        "tp": config.parallelism.tp,
        "precision": config.precision,
        "max_request_tokens": request_limit(config, lengths.max_total).tokens,
        "max_running_requests": config.max_running_requests,
        "max_batched_tokens": config.max_batched_tokens,
        "sku": config.sku.id,
    }
    settings |= changes
    return memory(config.llm, settings.pop("sku"), **settings)


def cells(table: Table) -> list[str]:
    return [str(cell) for row in table.rows for cell in row if cell and "#" not in str(cell)]


def says(app: AppTest, found: StartUp, at_tokens: int) -> None:
    """The figures and both tables are those of a start."""
    shown_figures = figures(app)
    assert shown_figures["Tokens of KV cache"] == f"{found.kv_tokens:,}"
    assert shown_figures["Longest requests at once"] == f"{found.concurrency:,.2f}"
    assert shown_figures["Largest batch"] == f"{found.batch_of(at_tokens):,}"
    text = html(app)
    for table in memory_tables(found, at_tokens):
        assert all(cell in text for cell in cells(table))


def mean_tokens(app: AppTest) -> int:
    return int(labelled(app.number_input, "Typical request").value)


def test_values_are_those_of_the_api(planned: AppTest) -> None:
    found = expected()
    assert found.starts and not planned.warning and not planned.error
    says(planned, found, mean_tokens(planned))
    assert "GPU KV cache size" in html(planned)
    assert labelled(planned.selectbox, "GPU of the server").value == "h100-sxm"


def test_inputs_change_what_is_shown() -> None:
    app = shown(MIXED)
    set_to(app, "Batched tokens", 16_384)
    set_to(app, "Memory fraction", 0.8)
    set_to(app, "Longest request", 50_000)
    set_to(app, "Running requests", 64)
    set_to(app, "Typical request", 700)
    limits = {"max_batched_tokens": 16_384, "max_request_tokens": 50_000, "max_running_requests": 64}
    says(app, expected(memory_fraction=0.8, **limits), 700)
    labelled(app.toggle, "Eager (no captured graphs)").set_value(True).run()
    says(app, expected(memory_fraction=0.8, eager=True, **limits), 700)
    labelled(app.selectbox, "GPU of the server").set_value("h200-sxm").run()
    says(app, expected(memory_fraction=0.8, eager=True, sku="h200-sxm", **limits), 700)


def test_a_server_that_does_not_start_says_why_and_each_button_makes_it_start() -> None:
    found = expected(tp=1, max_request_tokens=100_000)
    assert not found.starts and len(found.fixes) > 1
    for place, fix in enumerate(found.fixes):
        app = shown(MIXED)
        labelled(app.selectbox, "GPUs per layer (TP)").set_value(1).run()
        set_to(app, "Longest request", 100_000)
        assert "does not start" in app.warning[0].value
        says(app, found, mean_tokens(app))
        buttons = [one for one in app.button if str(one.key).startswith("memory-fix-")]
        assert [one.label for one in buttons] == [one.words for one in found.fixes]
        buttons[place].click().run()
        assert not app.exception and not app.warning
        changes = {"tp": 1, "max_request_tokens": 100_000, fix.field.removeprefix("parallelism."): fix.value}
        says(app, expected(**changes), mean_tokens(app))


def test_weights_that_exceed_the_memory_are_shown_all_the_same() -> None:
    app = shown(MIXED)
    labelled(app.selectbox, "GPU of the server").set_value("a10").run()
    labelled(app.selectbox, "GPUs per layer (TP)").set_value(1).run()
    set_to(app, "Memory fraction", 0.3)
    found = expected(sku="a10", tp=1, memory_fraction=0.3)
    assert found.weights_bytes > found.seen_bytes and not found.fixes
    assert "does not start" in app.warning[0].value
    assert any("No change of one setting" in one.value for one in app.caption)
    says(app, found, mean_tokens(app))


def test_every_format_is_one_of_the_choices_and_changes_the_weights() -> None:
    app = shown(MIXED)
    choice = labelled(app.selectbox, "Format")
    int4 = next(place for place, name in enumerate(choice.options) if "w4a16" in name)
    choice.set_value(int4).run()
    assert not app.exception
    says(app, expected(precision="int4"), mean_tokens(app))


def test_all_formats_are_worked_out_once_they_are_looked_at() -> None:
    app = shown(MIXED)
    assert "RedHatAI" not in html(app)
    app.session_state["memory-formats-llama-3.3-70b-instruct"] = True
    app.run()
    assert not app.exception
    limits = expected().replica
    found = formats_of(
        "llama-3.3-70b-instruct",
        "h100-sxm",
        tp=4,
        max_request_tokens=limits.max_request_tokens,
        max_running_requests=limits.max_running_requests,
        max_batched_tokens=limits.max_batched_tokens,
    )
    assert len(found) > 5
    text = html(app)
    assert all(str(cell) in text for row in formats_table(found).rows for cell in row[:-1])


def test_without_a_fleet_the_model_is_shown_on_the_first_gpu() -> None:
    app = shown(MIXED, NO_FLEET)
    assert not app.error and not app.warning
    assert labelled(app.selectbox, "GPU of the server").value == "h100-sxm"
    assert labelled(app.selectbox, "GPUs per layer (TP)").value == 4  # the only one of the search
    assert labelled(app.number_input, "Running requests").value is None  # the engine's own
    assert int(figures(app)["Tokens of KV cache"].replace(",", "")) > 0


def upload(app: AppTest, content: bytes) -> AppTest:
    app.file_uploader(key="memory-log").set_value(("vllm.log", content, "text/plain")).run()
    assert not app.exception
    return app


def test_a_log_is_shown_beside_the_prediction() -> None:
    app = upload(shown(MIXED), LOG.encode())
    said = read_startup_log(LOG)
    found = memory_of_log(said, "llama-3.3-70b-instruct", "h100-sxm", precision=expected().replica.precision)
    text = html(app)
    assert any("Predicted and measured" in one.value for one in app.markdown)
    assert all(cell in text for cell in cells(log_table(found, said)))
    assert any("vllm 0.11.0" in one.value.replace("\\", "") for one in app.caption)
    app.number_input[0].set_value(0.5).run()  # the log says its own
    assert all(cell in html(app) for cell in cells(log_table(found, said)))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"nothing of the kind\n", "log"),
        (b"\xff\xfe\x00", "log"),
        (b" " * (components.MAX_UPLOAD_BYTES + 1), "give a smaller file"),
    ],
)
def test_a_bad_log_gets_one_line(content: bytes, words: str) -> None:
    app = upload(shown(MIXED), content)
    (error,) = app.error
    assert words in error.value and "Fix: " in error.value and "\n" not in error.value
    assert figures(app)


def test_a_change_takes_no_time() -> None:
    """Nothing is planned: every checkpoint of the model is tried while the page is still felt to answer at once."""
    page = page_of(MIXED)
    (chosen,) = roofline_tab.pools_of(page)
    server = roofline_memory.planned_server(page, chosen.pool.config, chosen.planned.workload)
    server.started(page.hardware)
    begun_s = time.process_time()
    server.started(page.hardware)
    assert time.process_time() - begun_s < 1.0


def test_every_heading_and_part_is_explained() -> None:
    found = expected()
    parts, cache = memory_tables(found)
    parts = roofline_memory.without_bars(parts)
    formats = formats_table(formats_of("llama-3.3-70b-instruct", "h100-sxm", tp=4))
    log = log_table(found, read_startup_log(LOG))
    for table in (parts, cache, formats, log):
        assert all(HINTS.get(name) or glossary.hint(name) for name in table.columns)
        assert all(len(row) == len(table.columns) for row in table.rows)
    assert all(HINTS.get(str(row[0])) for row in parts.rows)
