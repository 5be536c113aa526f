"""Formats as they are chosen: what a visitor set stays, what came with a checkpoint goes with it; several models."""

from __future__ import annotations

from typing import Any

from streamlit.testing.v1 import AppTest

import planner
from planner.web.inputs import AS_PUBLISHED, with_checkpoint
from tests.web.pages import fine, scenario

OWN_FP8 = {"weights": "fp8", "activations": "fp8", "kv_cache": "fp8"}
OWN_16_BITS = {"weights": "fp8_block", "activations": "fp8", "kv_cache": "bf16"}
CHOICES: dict[str, dict[str, Any] | None] = {AS_PUBLISHED: None, "one": OWN_FP8, "other": OWN_16_BITS}


def test_the_cache_of_a_checkpoint_goes_with_it_and_comes_back_with_it() -> None:
    there = with_checkpoint(OWN_FP8, "one", "other", CHOICES)
    assert there == OWN_16_BITS
    assert with_checkpoint(there, "other", "one", CHOICES) == OWN_FP8


def test_a_cache_that_was_set_stays_whatever_checkpoint_is_taken() -> None:
    """FP8 keys and values beside a checkpoint that keeps 16 bits: another checkpoint does not undo that."""
    set_apart = {**OWN_16_BITS, "kv_cache": "fp8"}
    assert with_checkpoint(set_apart, "other", "one", CHOICES) == OWN_FP8
    assert with_checkpoint({**OWN_FP8, "kv_cache": "bf16"}, "one", "other", CHOICES) == OWN_16_BITS
    third = {**CHOICES, "third": {**OWN_16_BITS, "weights": "int8"}}
    kept = with_checkpoint(set_apart, "other", "third", third)
    assert kept is not None and kept["kv_cache"] == "fp8"


def test_as_published_has_no_formats_of_its_own() -> None:
    assert with_checkpoint(OWN_FP8, "one", AS_PUBLISHED, CHOICES) is None
    assert with_checkpoint(None, AS_PUBLISHED, "other", CHOICES) == OWN_16_BITS


# --- several models ---------------------------------------------------------------------------------------------------


def _sidebar() -> None:
    from planner.web import inputs, session

    session.start()
    inputs.show()


def test_a_second_model_is_entered_with_traffic_and_targets_of_its_own_and_leaves_again() -> None:
    app = fine(AppTest.from_function(_sidebar, default_timeout=60).run())
    first = planner.load_scenario(scenario(app))
    fine(app.button(key="add-model").click().run())
    assert app.session_state["planned"] != scenario(app)  # gathered: it is not filled in yet
    fine(app.selectbox(key="llm").set_value("qwen3-32b").run())
    fine(app.number_input(key="rate").set_value(3.0).run())
    fine(app.number_input(key="slo.0.threshold_s").set_value(450.0).run())
    request = planner.load_scenario(scenario(app))
    (second,) = request.services
    assert (second.name, second.llm.id, second.workload.rate_per_s) == ("qwen3-32b", "qwen3-32b", 3.0)
    assert second.slo.targets[0].threshold_s == 0.45
    assert request.main == first.main  # which is another one's now
    fine(app.button_group(key="model-shown").set_value(0).run())
    assert app.selectbox(key="llm").value == first.llm.id and app.number_input(key="rate").value == 40.0
    fine(app.button_group(key="model-shown").set_value(1).run())
    fine(app.button(key="drop-model").click().run())
    assert planner.load_scenario(scenario(app)) == first
    assert app.selectbox(key="llm").value == first.llm.id


def _names(app: AppTest) -> list[str]:
    """Services as the answer calls them, which the switch above the sidebar has to agree with."""
    names = [service.name for service in planner.load_scenario(scenario(app)).all_services]
    assert [option.content for option in app.button_group(key="model-shown").proto.options] == names
    return names


def test_a_service_is_called_as_its_model_unless_somebody_named_it() -> None:
    """The name is made when it is read: one that is stored goes stale when another model gets free, or is chosen."""
    app = fine(AppTest.from_function(_sidebar, default_timeout=60).run())
    fine(app.selectbox(key="llm").set_value("llama-3.1-8b").run())
    fine(app.button(key="add-model").click().run())
    assert _names(app) == ["llama-3.1-8b", "llama-3.1-8b 2"]
    fine(app.button_group(key="model-shown").set_value(0).run())
    fine(app.selectbox(key="llm").set_value("phi-4").run())
    assert _names(app) == ["phi-4", "llama-3.1-8b"]
    (service,) = scenario(app)["services"]
    for stored, then in (("llama-3.1-8b 2", "qwen3-32b"), ("documents", "documents")):  # of an older link; of a person
        app.session_state["scenario"] = {**scenario(app), "services": [{**service, "name": stored}]}
        fine(app.button_group(key="model-shown").set_value(1).run())
        fine(app.selectbox(key="llm").set_value("qwen3-32b").run())
        assert _names(app) == ["phi-4", then]
