"""Which decoder layers each stage of a pipeline holds.

A stage holds whole, consecutive layers; the first has the embeddings too, the last the head. A model whose layers are
of several kinds has stages of unlike cost: the fullest decides how much fits, the slowest how fast the pipeline is.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import accumulate

from hardware_db import SpareLayers
from planner.core import InputError
from planner.llm.layers import LayerGroup
from planner.llm.spec import LlmSpec


@dataclass(frozen=True)
class PipelineStage:
    """One stage of a pipeline.

    Attributes:
        layers: its decoder layers, by group.
        first: it has the embeddings.
        last: it has the final norm and the head.
    """

    layers: tuple[LayerGroup, ...]
    first: bool
    last: bool


def stage_sizes(layers: int, stages: int, spare: SpareLayers = SpareLayers.BEFORE_LAST) -> tuple[int, ...]:
    """Layers of each stage: as many everywhere, and what is left over one each.

    Sources: `get_pp_indices` of vLLM (vllm/distributed/utils.py: those before the last) and of SGLang
    (python/sglang/srt/distributed/utils.py: "the last N partitions will have one extra layer"); `Mapping.pp_layers` of
    TensorRT-LLM (tensorrt_llm/mapping.py: "first n ranks get one extra layer").

    Args:
        layers: of the model [-].
        stages: of the pipeline [-].
        spare: where the ones left over are.

    Returns:
        One number for each stage [-].

    Raises:
        InputError: there are fewer layers than stages.

    >>> stage_sizes(61, 4), stage_sizes(61, 4, SpareLayers.FIRST)
    ((15, 15, 16, 15), (16, 15, 15, 15))
    """
    if stages > layers:
        raise InputError("parallelism.pp", stages, f"the model has {layers} layers", f"use at most {layers}")
    each, left = divmod(layers, stages)
    first = {SpareLayers.FIRST: 0, SpareLayers.BEFORE_LAST: stages - 1 - left, SpareLayers.LAST: stages - left}[spare]
    return tuple(each + (first <= stage < first + left) for stage in range(stages))


def pipeline_stages(
    llm: LlmSpec, stages: int, spare: SpareLayers = SpareLayers.BEFORE_LAST
) -> tuple[PipelineStage, ...]:
    """The stages of a pipeline, in order.

    Args:
        llm: model.
        stages: of the pipeline [-].
        spare: which stages have one layer more where layers do not divide evenly.

    Returns:
        One record for each stage.

    Raises:
        InputError: the model has fewer layers than stages.

    >>> from planner.llm import load_llm
    >>> [[group.count for group in stage.layers] for stage in pipeline_stages(load_llm("deepseek-v3"), 4)]
    [[3, 12], [15], [16], [15]]
    """
    order = llm.layer_order or tuple(i for i, group in enumerate(llm.layers) for _ in range(group.count))
    ends = tuple(accumulate(stage_sizes(len(order), stages, spare)))
    held = [Counter(order[start:end]) for start, end in zip((0, *ends), ends, strict=False)]
    return tuple(
        PipelineStage(
            layers=tuple(llm.layers[i].model_copy(update={"count": count}) for i, count in sorted(counts.items())),
            first=stage == 0,
            last=stage == stages - 1,
        )
        for stage, counts in enumerate(held)
    )
