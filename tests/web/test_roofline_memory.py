"""The section *Memory of one server*: what it says is what `planner.engine.memory` says."""

from __future__ import annotations

from typing import Any

from streamlit.testing.v1 import AppTest

from calibration import log_table, memory_of_log, read_startup_log
from planner.core import Table
from planner.engine import StartUp, formats_of, formats_table, memory, memory_tables, request_limit
from planner.report import glossary
from planner.web import components, roofline_tab
from planner.web.roofline_memory import HINTS
from tests.web import pages
from tests.web.pages import fine, html, values
from tests.web.test_roofline import SMALL, page_of

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


def shown(*changes: str) -> AppTest:
    section = {"roofline-section": "Memory of one server"}
    return pages.shown("roofline_tab", pages.small(*SMALL, *changes), state=section)


def labelled(elements: Any, label: str) -> Any:
    return next(one for one in elements if one.label == label)


def set_to(app: AppTest, **given: object) -> AppTest:
    """Inputs by label, with underscores for spaces, set one after the other."""
    for name, value in given.items():
        kinds = (app.number_input, app.selectbox, app.toggle)
        label = next(one.label for kind in kinds for one in kind if one.label.startswith(name.replace("_", " ")))
        (widget,) = (one for kind in kinds for one in kind if one.label == label)
        fine(widget.set_value(value).run())
    return app


def expected(**changes: Any) -> StartUp:
    """The replica of the plan by the API, with the limits that exports write."""
    (chosen,) = roofline_tab.pools_of(page_of())
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


def says(app: AppTest, found: StartUp) -> None:
    """The figures and both tables are those of a start."""
    at_tokens = int(labelled(app.number_input, "Typical request").value)
    assert values(app)["Tokens of KV cache"] == f"{found.kv_tokens:,}"
    assert values(app)["Longest requests at once"] == f"{found.concurrency:,.2f}"
    assert values(app)["Largest batch"] == f"{found.batch_of(at_tokens):,}"
    text = html(app)
    for table in memory_tables(found, at_tokens):
        assert all(cell in text for cell in cells(table))


def test_values_are_those_of_the_api_and_follow_the_inputs() -> None:
    app, found = shown(), expected()
    assert found.starts and not app.warning and not app.error
    says(app, found)
    assert "GPU KV cache size" in html(app)
    assert labelled(app.selectbox, "GPU of the server").value == "h100-sxm"
    set_to(app, Batched_tokens=16_384, Memory_fraction=0.8, Longest_request=50_000, Running_requests=64)
    set_to(app, Typical_request=700)
    limits = {"max_batched_tokens": 16_384, "max_request_tokens": 50_000, "max_running_requests": 64}
    says(app, expected(memory_fraction=0.8, **limits))
    says(set_to(app, Eager=True), expected(memory_fraction=0.8, eager=True, **limits))
    set_to(app, GPU_of_the_server="h200-sxm")
    says(app, expected(memory_fraction=0.8, eager=True, sku="h200-sxm", **limits))


def test_a_server_that_does_not_start_says_why_and_each_button_makes_it_start() -> None:
    asked = {"tp": 1, "max_request_tokens": 100_000}
    found = expected(**asked)
    assert not found.starts and len(found.fixes) > 1
    for place, fix in enumerate(found.fixes):
        app = set_to(shown(), GPUs_per_layer=1, Longest_request=100_000)
        assert "does not start" in app.warning[0].value
        says(app, found)
        buttons = [one for one in app.button if str(one.key).startswith("memory-fix-")]
        assert [one.label for one in buttons] == [one.words for one in found.fixes]
        fine(buttons[place].click().run())
        assert not app.warning
        says(app, expected(**{**asked, fix.field.removeprefix("parallelism."): fix.value}))


def test_weights_that_exceed_the_memory_are_shown_all_the_same() -> None:
    app = set_to(shown(), GPU_of_the_server="a10", GPUs_per_layer=1, Memory_fraction=0.3)
    found = expected(sku="a10", tp=1, memory_fraction=0.3)
    assert found.weights_bytes > found.seen_bytes and not found.fixes
    assert "does not start" in app.warning[0].value
    assert any("No change of one setting" in one.value for one in app.caption)
    says(app, found)


def test_formats_are_choices_and_are_worked_out_once_they_are_looked_at() -> None:
    app = shown()
    assert "RedHatAI" not in html(app)
    app.session_state["memory-formats-llama-3.3-70b-instruct"] = True
    fine(app.run())
    limits = expected().replica
    names = ("max_request_tokens", "max_running_requests", "max_batched_tokens")
    found = formats_of("llama-3.3-70b-instruct", "h100-sxm", tp=4, **{name: getattr(limits, name) for name in names})
    assert len(found) > 5
    text = html(app)
    assert all(str(cell) in text for row in formats_table(found).rows for cell in row[:-1])
    choice = labelled(app.selectbox, "Format")
    fine(choice.set_value(next(place for place, name in enumerate(choice.options) if "w4a16" in name)).run())
    says(app, expected(precision="int4"))


def test_without_a_fleet_the_model_is_shown_on_the_first_gpu() -> None:
    app = shown("slo=[{metric: tpot, percentile: 0.99, threshold_s: 0.0001}]")
    assert not app.error and not app.warning
    assert labelled(app.selectbox, "GPU of the server").value == "h100-sxm"
    assert labelled(app.selectbox, "GPUs per layer (TP)").value == 4  # the only one of the search
    assert labelled(app.number_input, "Running requests").value is None  # the engine's own
    assert int(values(app)["Tokens of KV cache"].replace(",", "")) > 0


def test_a_log_is_shown_beside_the_prediction_and_a_bad_one_gets_one_line() -> None:
    app = shown()

    def upload(content: bytes) -> None:
        fine(app.file_uploader(key="memory-log").set_value(("vllm.log", content, "text/plain")).run())

    for bad, words in ((b"\xff\xfe\x00", "log"), (b" " * (components.MAX_UPLOAD_BYTES + 1), "give a smaller file")):
        upload(bad)
        (error,) = app.error
        assert words in error.value and "Fix: " in error.value and "\n" not in error.value
        assert values(app)
    upload(LOG.encode())
    said = read_startup_log(LOG)
    found = memory_of_log(said, "llama-3.3-70b-instruct", "h100-sxm", precision=expected().replica.precision)
    assert any("Predicted and measured" in one.value for one in app.markdown)
    assert any("vllm 0.11.0" in one.value.replace("\\", "") for one in app.caption)
    set_to(app, Memory_fraction=0.5)  # the log says its own
    assert all(cell in html(app) for cell in cells(log_table(found, said)))


def test_every_heading_and_part_is_explained() -> None:
    found = expected()
    parts, cache = memory_tables(found)
    formats = formats_table(formats_of("llama-3.3-70b-instruct", "h100-sxm", tp=4))
    for table in (parts, cache, formats, log_table(found, read_startup_log(LOG))):
        assert all(HINTS.get(name) or glossary.hint(name) for name in table.columns if name)  # bars have none
        assert all(len(row) == len(table.columns) for row in table.rows)
    assert all(HINTS.get(str(row[0])) for row in parts.rows)
