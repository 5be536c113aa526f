"""An unknown field is answered with the one that was meant, at every level and in every engine's words."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from planner.core import ENGINE_LIMITS, InputError, engine_limit_names
from planner.launch import engine_flags
from planner.scenario import Scenario, load_scenario, read_scenario
from planner.scenario.field_names import EXAMPLES

MISSPELLED = [
    ("prices.providers=[aws]", "did you mean prices.provider?"),
    ("slo.0.treshold_s=1", "did you mean slo[0].threshold_s?"),
    ("workload.rate=3", "did you mean workload.rate_per_s?"),
    ("workload.lengths={input_token: 3, output_tokens: 3}", "did you mean workload.lengths.input_tokens?"),
    ("workload.sessions={turn: 3}", "did you mean workload.sessions.turns?"),
    ("workload.images={sizes: 512x512}", "did you mean workload.images.size?"),
    ("profile={factor: [1]}", "did you mean profile.factors?"),
    ("forecast={growth: 1}", "did you mean forecast.growth_per_month or forecast.growth_uncertainty?"),
    ("residency={europe: [eu]}", "did you mean demand.NAME.residency?"),
    ("services=[{nme: chat}]", "did you mean services[0].name?"),
    ("precision={weight: fp8}", "did you mean precision.weights?"),
    ("limits.budget_per_hour=3", "did you mean limits.budget_usd_per_hour?"),
    ("own_hardware.sku=[]", "did you mean own_hardware.skus?"),
    ("rate_per_s=3", "did you mean workload.rate_per_s?"),
    ("budget_usd_per_hour=3", "did you mean limits.budget_usd_per_hour?"),
]


@pytest.mark.parametrize(("setting", "fix"), MISSPELLED, ids=[setting for setting, _ in MISSPELLED])
def test_the_nearest_name_is_suggested_at_every_level(setting: str, fix: str) -> None:
    with pytest.raises(InputError) as refused:
        load_scenario("chat-llama-70b", [setting])
    assert refused.value.bound == "unknown field"
    assert refused.value.fix.startswith(fix)


def _fields(record: type[BaseModel]) -> set[str]:
    return set(record.model_fields)


@pytest.mark.parametrize("name", sorted(_fields(Scenario)))
def test_a_letter_too_many_is_recognised_in_every_field_of_a_scenario(name: str) -> None:
    with pytest.raises(InputError) as refused:
        load_scenario("chat-llama-70b", [f"{name}x=1"])
    assert refused.value.fix.startswith(f"did you mean {name}?")


def test_where_nothing_is_near_the_fields_are_listed() -> None:
    with pytest.raises(InputError, match=r"prices has .*provider"):
        load_scenario("chat-llama-70b", ["prices.zzz=1"])


ENGINE_WORDS = [
    ("vllm", "search.max_num_seqs", "search.max_running_requests", ""),
    ("sglang", "search.max_num_seqs", "search.max_running_requests", "sglang calls it max_running_requests"),
    ("tensorrt-llm", "search.max_num_seqs", "search.max_running_requests", "tensorrt-llm calls it max_batch_size"),
    ("tensorrt-llm", "search.max_batch_size", "search.max_running_requests", ""),
    ("sglang", "search.chunked_prefill_size", "search.max_batched_tokens", ""),
    ("sglang", "search.max_num_batched_tokens", "search.max_batched_tokens", "sglang calls it chunked_prefill_size"),
    ("tensorrt-llm", "max_model_len", "max_request_tokens", "tensorrt-llm calls it max_seq_len"),
]


@pytest.mark.parametrize(("engine", "word", "field", "said"), ENGINE_WORDS, ids=[" ".join(w[:2]) for w in ENGINE_WORDS])
def test_words_of_engines_are_understood_and_follow_the_engine(engine: str, word: str, field: str, said: str) -> None:
    with pytest.raises(InputError) as refused:
        load_scenario("chat-llama-70b", [f"search.engine={engine}", f"{word}=1"])
    fix, _, rest = refused.value.fix.partition("; ")
    assert fix == f"write {field}, its name here"
    assert rest == said


def test_every_engine_names_every_limit_as_its_flags_do() -> None:
    """The flags that `planner export` writes are the truth."""
    names = engine_limit_names()
    assert set(names) == {flag.engine for flag in engine_flags()}
    for engine, limits in names.items():
        assert set(limits) == set(ENGINE_LIMITS)
        flags = " ".join(flag.flag for flag in engine_flags() if flag.engine == engine).replace("-", "_").split()
        assert {f"__{name}" for name in limits.values()} <= set(flags)


def test_whoever_adds_each_missing_field_as_shown_ends_with_a_scenario() -> None:
    """From an empty file on: every error names a field and how it may look, until nothing is missing."""
    content: dict[str, Any] = {}
    asked = []
    while len(asked) <= len(EXAMPLES):
        try:
            read_scenario(content)
            break
        except InputError as error:
            assert f"add e.g. {EXAMPLES[error.field]}; `planner " in str(error)
            asked.append(error.field)
            content |= yaml.safe_load(EXAMPLES[error.field])
    assert sorted(asked) == sorted(field for field in EXAMPLES if "." not in field)
    assert read_scenario(content | {"search": {}})[0].search == read_scenario(content)[0].search


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("cp", "write search.pcp for prompts"),
        ("attn_cp_size", "write search.pcp for prompts"),
        ("enable_prefill_cp", "write search.pcp for prompts"),
        ("dcp_size", "write search.dcp"),
        ("decode_context_parallel_size", "write search.dcp"),
        ("prefill_context_parallel_size", "write search.pcp for prompts"),
        ("encoder_pools", "write search.encoders"),
        ("epd", "write search.encoders"),
    ],
)
def test_what_engines_call_otherwise_is_refused_by_its_name(name: str, said: str) -> None:
    """People write what engines call them: a list of all other fields would not tell them that they are there."""
    with pytest.raises(InputError, match=said):
        load_scenario("chat-llama-70b", [f"search.{name}=2"])
