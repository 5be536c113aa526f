"""A given fleet, against the plan it may be, against `evaluate`, and in what is refused."""

from __future__ import annotations

import pytest

from hardware_db import Dtype
from planner.core import InputError
from planner.engine import ReplicaConfig
from planner.fleet import Plan, deployment_in_words, plan, plan_of_given
from planner.roofline import Parallelism
from planner.scenario import load_scenario
from planner.serving import Deployment, evaluate, sustainable_rate_per_s
from tests.builders import HARDWARE, SMALL_CHAT, calibrated

REQUEST = load_scenario("chat-llama-70b", [*SMALL_CHAT, "search.tp=[4]", "confidence=0.5"])


def replica(sku: str = "h100-sxm", tp: int = 4) -> ReplicaConfig:
    return calibrated(REQUEST.llm.id, sku, precision=REQUEST.precision, parallelism=Parallelism(tp=tp))


@pytest.fixture(scope="module", params=["mixed", "disaggregated"])
def planned(request: pytest.FixtureRequest) -> Plan:
    return plan(
        load_scenario(
            "chat-llama-70b", [*SMALL_CHAT, "search.tp=[4]", "confidence=0.5", f"search.modes=[{request.param}]"]
        ),
        simulate=False,
        alternatives=False,
    )


def test_the_fleet_of_a_plan_is_what_the_plan_says_of_it(planned: Plan) -> None:
    (one,) = planned.deployments
    given = plan_of_given(planned.request, one.deployment, simulate=False)
    assert [check.predicted_s for check in given.targets] == [check.predicted_s for check in planned.targets]
    assert given.cost is not None and planned.cost is not None
    assert given.cost.usd_per_hour == pytest.approx(planned.cost.usd_per_hour)
    assert given.servers == planned.servers and given.gpus == planned.gpus
    assert [loss.holds for loss in given.losses] == [loss.holds for loss in planned.losses]


@pytest.mark.parametrize("replicas", [3, 6, 12])
def test_it_meets_its_targets_where_evaluate_says_so_and_up_to_the_rate_that_it_sustains(replicas: int) -> None:
    given = plan_of_given(REQUEST, Deployment.mixed(replica(), replicas), simulate=False)
    (one,) = given.deployments
    held = evaluate(one.deployment, one.workload)
    assert all(check.met for check in given.targets) is (held.stable and held.meets(one.slo))
    most_per_s = sustainable_rate_per_s(one.deployment, one.workload, one.slo, at_most=4.0 * one.workload.rate_per_s)
    assert one.sustained_per_s == most_per_s
    assert all(check.met for check in given.targets) is (most_per_s >= one.workload.rate_per_s)


def test_what_does_not_keep_up_is_an_answer_and_is_not_simulated() -> None:
    given = plan_of_given(REQUEST, Deployment.mixed(replica(), 1))
    assert not given.simulated and not any(check.met for check in given.targets)
    assert given.confidence is not None and given.confidence.holds < 0.01


def test_a_fleet_with_room_is_simulated_and_holds_more_surely_than_one_without() -> None:
    tight, ample = (plan_of_given(REQUEST, Deployment.mixed(replica(), count)) for count in (6, 12))
    assert ample.simulated and all(check.met for check in ample.targets)
    assert tight.confidence is not None and ample.confidence is not None
    assert tight.confidence.holds < ample.confidence.holds > 0.9
    assert [check.predicted_s for check in ample.slow_targets] == [check.predicted_s for check in ample.targets], (
        "confidence 0.5 is no slower than estimated"
    )


def test_the_fleet_of_a_plan_holds_as_surely_and_as_narrowly_as_the_plan_says() -> None:
    """Slow steps are simulated for both: near its targets theory alone is more hopeful than a simulation."""
    asked = (*SMALL_CHAT, "confidence=0.9", "search.tp=[4]", "workload.rate_per_s=24")
    request = load_scenario("chat-llama-70b", asked)
    planned = plan(request, alternatives=False)
    (pool,) = planned.pools
    limits = f"c{pool.config.max_batched_tokens} b{pool.config.max_running_requests}"
    words = f"{pool.replicas} x {pool.config.label} {limits}"
    given = plan_of_given(request, deployment_in_words(words, request, HARDWARE))
    assert given.targets == planned.targets and given.slow_targets == planned.slow_targets
    assert given.confidence == planned.confidence
    assert any(slow.simulated_s != slow.predicted_s for slow in given.slow_targets), "simulated"


def test_limits_of_what_is_bought_do_not_count() -> None:
    limits = REQUEST.limits.model_copy(update={"budget_usd_per_hour": 1.0, "gpus": {"h100-sxm": 0}})
    given = plan_of_given(REQUEST.model_copy(update={"limits": limits}), Deployment.mixed(replica(), 6), simulate=False)
    assert given.cost is not None and given.cost.usd_per_hour > 1.0


def test_what_cannot_be_answered_is_refused_with_the_way_out() -> None:
    day = load_scenario("chat-llama-70b", [*SMALL_CHAT, "profile={factors: [0.5, 1.0], period_hours: 12}"])
    with pytest.raises(InputError, match="profile"):
        plan_of_given(day, Deployment.mixed(replica(), 6), simulate=False)
    unpriced = REQUEST.prices.model_copy(update={"provider": "AWS"})
    with pytest.raises(InputError, match="mi300x"):
        plan_of_given(
            REQUEST.model_copy(update={"prices": unpriced}), Deployment.mixed(replica("mi300x"), 2), simulate=False
        )
    with pytest.raises(InputError, match="memory"):
        plan_of_given(REQUEST, Deployment.mixed(replica("l40s", tp=1), 2), simulate=False)


IMAGES = load_scenario(
    "vision-qwen3-vl-8b",
    ["search.engine=sglang", "search.skus=[h100-sxm]", "workload.rate_per_s=20", "confidence=0.5"],
)


def test_encoders_are_bought_with_their_pool() -> None:
    words = "3 x h100-sxm TP1 E0.5 c8192 b128 mixed"
    deployment = deployment_in_words(words, IMAGES, HARDWARE)
    given = plan_of_given(IMAGES, deployment, simulate=False)
    (pool,) = given.pools
    assert (pool.replicas, pool.encoders, given.gpus, given.servers) == (3, 2, {"h100-sxm": 5}, 1)
    plain = plan_of_given(IMAGES, deployment_in_words("5 x h100-sxm TP1 c8192 b128", IMAGES, HARDWARE), simulate=False)
    assert given.cost is not None and plain.cost is not None
    assert given.cost.usd_per_hour == pytest.approx(plain.cost.usd_per_hour)
    assert any("on GPUs of its own" in note for note in given.assumptions)
    assert given.summary == "5 × H100 SXM (3 mixed TP1 E0.5)"


def test_prompts_are_shared_out_in_prefill_pools_as_typed() -> None:
    long = load_scenario("chat-llama-70b", ["llm=deepseek-v3.2", "search.engine=sglang"])
    pair = deployment_in_words("2 x h200-sxm TP1 EP8 PCP8 prefill + 1 x h200-sxm TP8 decode", long, HARDWARE)
    assert [pool.config.parallelism.pcp for pool in pair.pools] == [8, 1]
    assert pair.summary == "16 × H200 SXM (2 prefill TP1 EP8 PCP8) + 8 × H200 SXM (1 decode TP8)"
    with pytest.raises(InputError, match="only prefill pools share out prompts"):
        deployment_in_words("2 x h200-sxm TP1 EP8 PCP8 mixed", long, HARDWARE)


# --- in words ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        "12 x h100-sxm TP4 mixed",
        "13 x b200-sxm TP1 prefill + 3 x b200-sxm TP2 decode",
        "2 x h200-sxm TP2 PP2 mixed",
        "2 x gb200-nvl72 TP16 DCP2 mixed",
    ],
)
def test_fleets_are_read_as_typed_and_as_plans_name_them(words: str) -> None:
    read = deployment_in_words(words, REQUEST, HARDWARE)
    assert " + ".join(f"{pool.replicas} x {pool.config.label} {pool.role}" for pool in read.pools) == words
    assert deployment_in_words(read.summary, REQUEST, HARDWARE) == read


def test_limits_of_a_replica_are_read_and_have_defaults() -> None:
    (pool,) = deployment_in_words("2 x h100-sxm TP4 c2048 b128", REQUEST, HARDWARE).pools
    assert (pool.config.max_batched_tokens, pool.config.max_running_requests) == (2048, 128)
    (pool,) = deployment_in_words("2 x h100-sxm TP4", REQUEST, HARDWARE).pools
    assert (pool.config.max_batched_tokens, pool.config.max_running_requests) == (8192, 256)
    assert pool.config.calibration is not None


@pytest.mark.parametrize("words", ["", "h100-sxm TP4", "0 x h100-sxm", "2 x h100-sxm TP4 serving", "2 x h100-sxm + "])
def test_words_that_are_no_pools_are_refused_with_an_example(words: str) -> None:
    with pytest.raises(InputError, match="12 x h100-sxm TP4"):
        deployment_in_words(words, REQUEST, HARDWARE)


def test_what_words_leave_open_is_set_up_as_the_plan_sets_it_up() -> None:
    """A plan that chose NVFP4 and drafts of the model's own, said again in the words of its fleet, is the same fleet.

    In the model's own format, which stands in the request, it would not even fit.
    """
    degrees = ["search.skus=[b200-sxm]", "search.tp=[1]", "search.dp=[4]", "search.ep=[4]"]
    request = load_scenario(
        "chat-llama-70b",
        [*SMALL_CHAT, "llm=deepseek-v3.1", "precision=narrower", "confidence=0.5", "search.modes=[mixed]", *degrees],
    )
    (planned,) = plan(request, simulate=False, alternatives=False).deployments
    (pool,) = planned.deployment.pools
    own = pool.config
    assert own.precision.weights is Dtype.NVFP4 and own.speculation is not None, "else nothing is shown"
    limits = f"c{own.max_batched_tokens} b{own.max_running_requests}"
    words = f"{pool.replicas} x {own.label} {limits} {pool.role}"
    (given,) = deployment_in_words(words, request, HARDWARE).pools
    assert given.config == own and given.replicas == pool.replicas
    asked = request.model_copy(update={"precision": given.config.precision, "published": ()})
    (same,) = deployment_in_words(words, asked, HARDWARE).pools
    assert same.config == own, "a format that is asked for stays"


# --- what may fail ----------------------------------------------------------------------------------------------------


def test_a_given_fleet_is_looked_at_without_what_may_fail() -> None:
    """Six replicas of half a server each on three servers: with one lost, four are left."""
    limits = REQUEST.limits.model_copy(update={"survives_node_loss": True})
    request = REQUEST.model_copy(update={"limits": limits})
    given = plan_of_given(request, Deployment.mixed(replica(), 6), simulate=False)
    (one,) = given.deployments
    assert [pool.replicas for pool in one.surviving.pools] == [4]
    bare = plan_of_given(REQUEST, Deployment.mixed(replica(), 4), simulate=False)
    assert [check.predicted_s for check in given.targets] == [check.predicted_s for check in bare.targets]
    with pytest.raises(InputError, match="nothing is left"):
        plan_of_given(request, Deployment.mixed(replica(), 2), simulate=False)
