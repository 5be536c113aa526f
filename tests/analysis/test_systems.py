"""The catalogue of serving systems: each makes what its paper describes, on the same GPUs."""

from __future__ import annotations

import pytest

from planner.analysis import SYSTEMS
from planner.analysis.systems import TOKENS_PER_STEP, Variant, chosen_systems, eagle_draft_cost, speculation_of_gain
from planner.core import InputError, UnknownNameError
from planner.engine import (
    Batching,
    KvAllocation,
    Preemption,
    Speculation,
    memory_footprint,
)
from planner.llm import load_llm
from planner.serving import Deployment, Role, evaluate
from planner.workload import ArrivalProcess, RequestClass, SharedPrefixes, TokenLengths, Workload
from tests.builders import chat, disaggregated, mixed, replica

LENGTHS = TokenLengths.constant(1000, 200)
BASE = mixed(4)


def _classes(**of_the_second: object) -> Workload:
    first = RequestClass(name="chat", lengths=LENGTHS, share=0.5)
    second = RequestClass(name="batch", lengths=LENGTHS, share=0.5, **of_the_second)
    return Workload(arrivals=ArrivalProcess(rate_per_s=8.0), classes=(first, second))


RICH = _classes(priority=1, weight=2.0, prefixes=SharedPrefixes(tokens=500, groups=4))
"""Traffic that every system but `mtp` has something to do with."""


def _variant(name: str, deployment: Deployment = BASE, workload: Workload = RICH) -> Variant:
    return SYSTEMS[name].variant(deployment, workload, None)


@pytest.mark.parametrize("name", sorted(set(SYSTEMS) - {"mtp"}))
def test_every_system_uses_the_same_gpus_and_says_what_it_is(name: str) -> None:
    system, variant = SYSTEMS[name], _variant(name)
    assert variant.deployment.gpus == BASE.gpus
    assert all(text.strip() for text in (system.citation, system.summary, system.theory))
    assert system.summary.endswith(".")
    assert variant.workload.classes == RICH.classes


@pytest.mark.parametrize("name", ["static", "orca", "disaggregated"])
def test_no_system_brings_back_the_graphs_of_an_engine_that_runs_without(name: str) -> None:
    schedule = replica().schedule.model_copy(update={"captured_decodes": 0})
    variant = _variant(name, mixed(4, own_schedule=schedule))
    assert {pool.config.captured_decodes for pool in variant.deployment.pools} == {0.0}


@pytest.mark.parametrize(
    ("names", "text"), [([], "one or more"), (["orca", "orca"], "different"), (["orka"], "unknown name.*orca")]
)
def test_bad_choices_are_refused(names: list[str], text: str) -> None:
    with pytest.raises((InputError, UnknownNameError), match=text):
        chosen_systems(names)


def test_schedules_are_those_of_the_papers() -> None:
    static, orca, vllm, swap, sarathi = (
        _variant(name).deployment.pools[0].config for name in ("static", "orca", "vllm", "vllm-swap", "sarathi")
    )
    assert (static.schedule.batching, static.schedule.kv) == (Batching.STATIC, KvAllocation.CONTIGUOUS)
    assert (orca.schedule.batching, orca.schedule.kv) == (Batching.CONTINUOUS, KvAllocation.CONTIGUOUS)
    assert orca.schedule.whole_prompts and orca.schedule.mixed_steps
    assert vllm.schedule.kv is KvAllocation.PAGED
    assert vllm.schedule.whole_prompts and not vllm.schedule.mixed_steps and not vllm.schedule.reserve_outputs
    assert vllm.schedule.watermark == 0.01  # vLLM's own default
    assert (vllm.schedule.on_preemption, swap.schedule.on_preemption) == (Preemption.RECOMPUTE, Preemption.SWAP)
    assert _variant("constrained").deployment.pools[0].config.mask_s == pytest.approx(50e-6)
    assert sarathi.max_batched_tokens == 512 and not sarathi.schedule.whole_prompts and sarathi.schedule.mixed_steps


def test_contiguous_memory_has_room_for_as_many_as_fit() -> None:
    """Slots of the longest request: a closed form of the batch limit."""
    lengths = TokenLengths.from_pairs([200, 30_000], [100, 2_000], [0.99, 0.01])
    config = _variant("orca", mixed(), Workload.of(1.0, lengths)).deployment.pools[0].config
    slots = memory_footprint(config).kv_capacity_tokens // 32_000
    assert config.max_running_requests == slots < 256
    assert config.max_batched_tokens >= 30_000  # a whole prompt fits in a step


def test_the_split_is_the_best_there_is() -> None:
    """Against trying them all."""
    workload = Workload.of(30.0, LENGTHS)
    chosen = _variant("disaggregated", BASE, workload)
    means = []
    for prefill in (1, 2, 3):
        config = BASE.pools[0].config
        found = evaluate(Deployment.disaggregated(config, config, (prefill, 4 - prefill)), workload)
        means.append((not found.stable, found.e2e.mean_s, prefill))
    assert chosen.deployment.pools[0].replicas == min(means)[2]
    assert [pool.role for pool in chosen.deployment.pools] == [Role.PREFILL, Role.DECODE]
    assert "3 splits" in chosen.note


@pytest.mark.parametrize(
    ("name", "deployment", "workload", "text"),
    [
        ("disaggregated", mixed(1), RICH, "needs two replicas"),
        ("jsq", mixed(1), RICH, "nothing to route"),
        ("priority", BASE, _classes(), "one priority"),
        ("fair-share", BASE, chat(1.0), "nobody to share with"),
        ("prefix-cache", BASE, chat(1.0), "share no prefixes"),
        ("mtp", BASE, chat(1.0), "no multi-token-prediction module"),
        ("eagle", BASE, Workload.of(1.0, TokenLengths.constant(9, 1)), "one output token"),
        ("orca", disaggregated(), chat(1.0), "starts from a mixed pool"),
    ],
)
def test_what_does_not_apply_says_why(name: str, deployment: Deployment, workload: Workload, text: str) -> None:
    with pytest.raises(InputError, match=text):
        _variant(name, deployment, workload)


@pytest.mark.parametrize("drafter", sorted(TOKENS_PER_STEP))
def test_drafts_gain_what_was_published(drafter: str) -> None:
    """Leviathan's eq. 1, (1 - a^(k + 1)) / (1 - a), at the acceptance that was solved for."""
    speculation = _variant(drafter).deployment.pools[0].config.speculation
    assert speculation is not None
    a, k = speculation.acceptance, speculation.draft_tokens
    assert (1 - a ** (k + 1)) / (1 - a) == pytest.approx(TOKENS_PER_STEP[drafter], rel=1e-6)


def test_an_eagle_draft_is_a_layer_and_the_head() -> None:
    """Llama-3.1-70B: 80 layers of 855.6 M weights, a head of 1.05 billion (its config.json)."""
    assert eagle_draft_cost(load_llm("llama-3.1-70b")) == pytest.approx(
        (0.8556 + 1.0507) / (80 * 0.8556 + 1.0507), rel=2e-3
    )


def test_retries_offer_more_of_which_less_is_useful() -> None:
    """Answers right with chance p are asked for 1 / p times: the mean of a geometric distribution."""
    variant = _variant("retry")
    assert variant.workload.rate_per_s * variant.useful_share == pytest.approx(RICH.rate_per_s)
    assert variant.useful_share == pytest.approx(0.6106)  # Lu et al. 2025, GPT-4o


def test_a_draft_takes_its_share_of_a_plain_step() -> None:
    """With drafts of cost c a step takes tau(k + 1 tokens each) + k c tau(1 token each), Leviathan's (c gamma + 1)."""
    plain, checked, drafted = (
        replica(speculation=one).timer.decode_s(8.0, 8000.0)
        for one in (
            None,
            Speculation(draft_tokens=4, acceptance=0.5, draft_cost=0.0),
            Speculation(draft_tokens=4, acceptance=0.5, draft_cost=0.1),
        )
    )
    assert drafted - checked == pytest.approx(4 * 0.1 * plain)
    assert checked == pytest.approx(plain, rel=0.1)  # memory-bound: five tokens for the price of one


def test_speculation_stops_paying_as_the_batch_grows() -> None:
    """Its gain over plain decoding falls with the batch, from well above 1 to below it (compute-bound steps)."""
    gains = []
    for running in (1, 32, 256, 2048):
        speculation = speculation_of_gain(5, TOKENS_PER_STEP["ngram"], 0.0)
        plain, drafted = (
            replica(speculation=one).timer.decode_s(running, 500.0 * running) for one in (None, speculation)
        )
        gains.append(plain / drafted * TOKENS_PER_STEP["ngram"])
    assert gains == sorted(gains, reverse=True)
    assert gains[0] > 1.5 and gains[-1] < 1.0
