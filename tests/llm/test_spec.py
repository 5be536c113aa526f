"""Stages of a pipeline hold every layer once, in order, as engines cut them."""

from __future__ import annotations

import pytest

from hardware_db import SpareLayers
from planner.core import InputError
from planner.llm import LlmSpec, load_llm, pipeline_stages
from planner.llm.spec import stage_sizes

MODELS = ["llama-3.1-8b", "deepseek-v3", "gpt-oss-120b", "qwen3-next-80b-a3b-thinking", "gemma-3-27b-it"]


def get_pp_indices(layers: int, stages: int) -> list[int]:
    """vLLM's rule, written out: the layers left over go to the stages before the last, from the back."""
    sizes = [layers // stages] * stages
    for back in range(2, layers % stages + 2):
        sizes[-back] += 1
    return sizes


@pytest.mark.parametrize("layers", range(1, 97, 5))
@pytest.mark.parametrize("stages", range(1, 17))
def test_layers_are_cut_as_each_engine_does(layers: int, stages: int) -> None:
    if stages > layers:
        with pytest.raises(InputError, match=f"the model has {layers} layers"):
            stage_sizes(layers, stages)
        return
    assert list(stage_sizes(layers, stages)) == get_pp_indices(layers, stages)
    left = layers % stages
    for spare in (SpareLayers.FIRST, SpareLayers.LAST):  # torch.tensor_split, and the same from the other end
        more = [layers // stages + 1] * left
        rest = [layers // stages] * (stages - left)
        assert list(stage_sizes(layers, stages, spare)) == (more + rest if spare is SpareLayers.FIRST else rest + more)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("stages", [1, 2, 3, 4, 7, 8])
@pytest.mark.parametrize("spare", list(SpareLayers))
def test_every_layer_is_in_one_stage(model: str, stages: int, spare: SpareLayers) -> None:
    llm = load_llm(model)
    found = pipeline_stages(llm, stages, spare)
    for group in llm.layers:
        alike = [
            held.count
            for stage in found
            for held in stage.layers
            if held.attention == group.attention and held.feed_forward == group.feed_forward
        ]
        assert sum(alike) == group.count
    assert [stage.first for stage in found] == [True] + [False] * (stages - 1)
    assert [stage.last for stage in found] == [False] * (stages - 1) + [True]


def test_stages_hold_consecutive_layers() -> None:
    # Every fourth layer of Qwen3-Next has full attention: of six layers one or two, by turns.
    llm = load_llm("qwen3-next-80b-a3b-thinking")
    full = [
        sum(g.count for g in stage.layers if g.attention == llm.layers[1].attention)
        for stage in pipeline_stages(llm, 8)
    ]
    assert full == [1, 2, 1, 2, 1, 2, 1, 2]
    # The three dense layers of DeepSeek-V3 are its first.
    first, *others = pipeline_stages(load_llm("deepseek-v3"), 4)
    assert [group.count for group in first.layers] == [3, 12]
    assert [[group.count for group in stage.layers] for stage in others] == [[15], [16], [15]]


def test_the_order_of_layers_is_kept_and_checked() -> None:
    llm = load_llm("gpt-oss-120b")
    assert llm.layer_order == (0, 1) * 18  # window, full, window, ...
    fields = {name: getattr(llm, name) for name in LlmSpec.model_fields}
    with pytest.raises(InputError, match="must name every group as often as it has layers"):
        LlmSpec(**{**fields, "layer_order": (0,) * 36})
    plain = LlmSpec(**{**fields, "layer_order": ()})
    assert [[g.count for g in stage.layers] for stage in pipeline_stages(plain, 2)] == [[18], [18]]
