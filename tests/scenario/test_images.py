"""Images in a scenario."""

from __future__ import annotations

from typing import Any

import pytest

from planner.core import InputError
from planner.scenario import load_scenario, read_scenario, scenario_of_text, scenario_text
from planner.traffic import mean_images
from planner.workload import Images

BASE: dict[str, Any] = {
    "llm": "qwen3-vl-8b-instruct",
    "workload": {
        "rate_per_s": 2,
        "lengths": {"input_tokens": 100, "output_tokens": 50},
        "images": {"size": "1024x768"},
    },
    "slo": [{"metric": "ttft", "percentile": 0.95, "threshold_s": 2}],
    "search": {"skus": ["h100-sxm"]},
}
TOKENS = 32 * 24 + 2
"""Of an image of 1024 x 768 pixels in Qwen3-VL: 24 x 32 merged patches, its start and its end."""


def test_images_add_to_the_prompt() -> None:
    lengths = load_scenario(BASE).workload.lengths
    assert lengths.input_tokens == (100 + TOKENS,)
    assert lengths.images == (Images(width=1024, height=768),)


def test_overrides_say_how_many_and_of_what_size() -> None:
    lengths = load_scenario(BASE, ["workload.images.per_request=0.5", "workload.images.size=640x480"]).workload.lengths
    assert mean_images(lengths) == 0.5
    assert set(lengths.images) == {None, Images(width=640, height=480)}
    two = load_scenario(BASE, ["workload.images={per_request: 2, size: {1024x768: 3, 640x480: 1}}"]).workload.lengths
    assert mean_images(two) == 2
    assert two.probabilities.tolist() == [0.75, 0.25]


def test_no_images_are_as_if_nothing_was_said() -> None:
    none = load_scenario(BASE, ["workload.images.per_request=0"])
    without = load_scenario({**BASE, "workload": {**BASE["workload"], "images": None}})
    assert none.workload == without.workload
    assert load_scenario(BASE, ["llm=llama-3.1-8b", "workload.images.per_request=0"]).llm.encoder is None


def test_classes_have_images_of_their_own() -> None:
    lengths = {"input_tokens": 100, "output_tokens": 50}
    classes = [
        {"name": "text", "share": 0.75, "lengths": lengths},
        {"name": "pictures", "share": 0.25, "lengths": lengths, "images": {"size": "1024x768"}},
    ]
    workload = load_scenario({**BASE, "workload": {"rate_per_s": 2, "classes": classes}}).workload
    assert [kind.lengths.has_images for kind in workload.classes] == [False, True]
    assert workload.lengths.mean_input == pytest.approx(100 + 0.25 * TOKENS)
    with pytest.raises(InputError, match="say it of each class"):
        load_scenario({**BASE, "workload": {"rate_per_s": 2, "classes": classes, "images": {"size": "8x8"}}})


def test_the_small_model_of_a_cascade_sees_the_images_in_its_own_tokens() -> None:
    points = [{"escalated": 0.3, "quality": 0.9}, {"escalated": 0.5, "quality": 0.95}]
    cascade = {"llm": "gemma-4-26b-a4b", "points": points, "least_quality": 0.9}
    request = load_scenario({**BASE, "cascade": cascade})
    assert request.cascade is not None
    assert request.workload.lengths.mean_input == 100 + TOKENS
    assert 100 < request.cascade.small.workload.lengths.mean_input <= 100 + 282


def test_a_scenario_is_written_back_as_it_was_read() -> None:
    for size in ("1024x768", {"1024x768": 0.7, "640x480": 0.3}):
        content = {**BASE, "workload": {**BASE["workload"], "images": {"per_request": 1.5, "size": size}}}
        scenario, _ = read_scenario(content)
        assert scenario_of_text(scenario_text(scenario.model_dump(mode="json"))) == scenario


@pytest.mark.parametrize(
    "size", ["big", "1024", "1024x", "x768", "-1x5", "0x5", {}, {"1024x768": "much"}, 7, [1, 2], None]
)
def test_sizes_that_cannot_be_read_are_refused_with_an_example(size: object) -> None:
    content = {**BASE, "workload": {**BASE["workload"], "images": {"size": size}}}
    with pytest.raises(InputError, match=r"workload\.images\.size.*Fix: "):
        load_scenario(content)


def test_a_model_without_an_encoder_is_refused() -> None:
    with pytest.raises(InputError, match=r"workload\.images.*llama-3\.1-8b has no vision encoder.*Fix: choose"):
        load_scenario(BASE, ["llm=llama-3.1-8b"])


def test_recorded_requests_bring_no_images(tmp_path: Any) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("timestamp,input_tokens,output_tokens\n0,10,5\n1,20,5\n")
    workload = {"replay": str(trace), "images": {"size": "8x8"}}
    with pytest.raises(InputError, match=r"workload\.images.*does not go with workload\.replay"):
        load_scenario({**BASE, "workload": workload})
