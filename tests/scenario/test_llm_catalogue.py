"""Models to choose from: what fits is worked out by hand, sorted lists are sorted, and every preset says its source."""

from __future__ import annotations

import csv
import json
import re

import pytest

from hardware_db import Dtype, load_hardware
from planner.core import InputError, UnknownNameError, preset
from planner.llm import active_parameters, list_llms, parameters
from planner.scenario.llm_catalogue import LlmOrder, find_llms, llm_list, llm_table

DB = load_hardware()


def test_a_70b_model_fits_as_arithmetic_says() -> None:
    """141 GB in BF16 need two H100s; 72.7 GB in FP8 fit on one, of whose 79.18 GiB vLLM takes 0.92.

    Beside them: a step of 8,192 tokens, 4 hidden and 3 intermediate values each in 16 bits, 4.125 bytes kept for each
    of 256 rows of logits, memory outside PyTorch and graphs as the logs of servers have it, a table of positions.
    """
    (alone,) = find_llms(llm="llama-3.3-70b-instruct", fits="h100-sxm")
    assert all(held.checkpoint.precision.weights is not Dtype.BF16 for held in alone.fitting)
    fp8 = next(held for held in alone.fitting if held.checkpoint.repository == "nvidia/Llama-3.3-70B-Instruct-FP8")
    step, kept = 8192 * 2 * (4 * 8192 + 3 * 28_672), 256 * 128_256 * 4.125
    left = 0.92 * 79.18 * 2**30 - 72.66e9 - step - kept - (0.17 + 1.06) * 2**30 - 131_072 * 128 * 2
    assert fp8.kv_tokens * 80 * 2 * 8 * 128 == pytest.approx(left, rel=0.02)  # 80 layers, 8 heads of 128, one byte
    (pair,) = find_llms(llm="llama-3.3-70b-instruct", fits="h100:2")  # a bare chip is the SXM form
    assert pair.fitting[0].checkpoint.own and pair.fitting[0].parallelism.tp == 2


def test_more_gpus_hold_more_models_and_more_tokens() -> None:
    one, eight = (
        {
            (found.llm.id, held.checkpoint.repository, held.checkpoint.precision): held.kv_tokens
            for found in find_llms(family="qwen3", fits=f"h200-sxm:{count}")
            for held in found.fitting
        }
        for count in (1, 8)
    )
    assert one and all(eight[key] > kv_tokens for key, kv_tokens in one.items())


def test_nothing_fits_where_the_weights_do_not() -> None:
    assert not find_llms(llm="deepseek-v3", fits="h100-sxm")
    assert "deepseek-v3" not in {found.llm.id for found in find_llms(fits="l4")}


@pytest.mark.parametrize(
    ("order", "key"),
    [
        (LlmOrder.PARAMETERS, lambda found: parameters(found.llm)),
        (LlmOrder.ACTIVE, lambda found: active_parameters(found.llm)),
        (LlmOrder.CONTEXT, lambda found: found.llm.max_context_tokens),
        (LlmOrder.RELEASED, lambda found: found.released),
    ],
)
def test_lists_are_sorted_largest_or_latest_first(order: LlmOrder, key: object) -> None:
    found = find_llms(sort=order)
    assert len(found) == len(list_llms())
    values = list(map(key, found))  # type: ignore[call-overload]
    assert values == sorted(values, reverse=True)


def test_families_are_found_by_model_type_maker_and_name() -> None:
    by_type = {found.llm.id for found in find_llms(family="qwen3_moe")}
    assert "qwen3-235b-a22b" in by_type and "qwen3-8b" not in by_type
    by_name = {found.llm.id for found in find_llms(family="Qwen3")}
    assert {"qwen3-8b", "qwen3-235b-a22b"} <= by_name and "qwen3.5-27b" not in by_name
    assert {found.llm.id for found in find_llms(family="openai")} == {"gpt-oss-120b", "gpt-oss-20b"}
    with pytest.raises(UnknownNameError, match="--family = 'lama'"):
        find_llms(family="lama")


def test_formats_are_those_of_most_weights() -> None:
    assert {found.llm.id for found in find_llms(family="openai", format="mxfp4")} == {"gpt-oss-120b", "gpt-oss-20b"}
    assert not find_llms(family="openai", format="bf16")
    kinds = {item.precision.weights for item in find_llms(llm="qwen3-32b", format="fp8")[0].checkpoints}
    assert kinds == {Dtype.FP8, Dtype.FP8_BLOCK}
    with pytest.raises(UnknownNameError, match="--format"):
        find_llms(format="fp5")


@pytest.mark.parametrize("place", ["h100-sxm:0", "h100-sxm:many", "h100-sxm:9999"])
def test_a_number_of_gpus_that_is_none_is_refused(place: str) -> None:
    with pytest.raises(InputError, match="--fits"):
        find_llms(fits=place)


def test_tables_and_lists_show_what_was_found() -> None:
    found = find_llms(family="gpt-oss", fits="h100-sxm:2")
    assert [row[0].partition(": ")[0] for row in llm_table(found).rows] == ["gpt-oss-120b", "gpt-oss-20b"]
    listed = llm_list(found)
    assert json.loads(json.dumps(listed, allow_nan=False)) == listed
    assert listed[0]["fits"][0]["format"] == "mxfp4" and listed[0]["fits"][0]["kv_tokens"] > 0
    assert len(llm_table(find_llms(llm="qwen3-32b")).rows) == len(find_llms(llm="qwen3-32b")[0].checkpoints)


def test_every_preset_and_every_date_says_where_it_comes_from() -> None:
    for name in list_llms():
        config = json.loads(preset("llms", f"{name}.json").read_text(encoding="utf-8"))
        assert len(config["_source"]) >= 8
        assert re.fullmatch(r"20\d\d-\d\d(-\d\d)?", config["_collected"])
    with preset("llm_releases.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len({row["llm"] for row in rows}) == len(rows)
    for row in rows:
        assert row["source_url"].startswith("https://") and re.fullmatch(r"20\d\d-\d\d(-\d\d)?", row["released"])
    assert len({row["llm"] for row in rows} & set(list_llms())) >= 50
