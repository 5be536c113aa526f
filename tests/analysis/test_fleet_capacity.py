"""A kept fleet against its own queues: what it serves within its targets, and no more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.analysis.fleet_capacity import kept_fleet
from planner.core import Metric, rebuilt
from planner.fleet import plan
from planner.serving import evaluate, sustainable_rate_per_s
from planner.workload import LatencyTarget, RequestClass, Slo, TokenLengths, Workload
from tests.builders import small_request
from tests.made_up_plans import QUICK, REAL, REQUEST

REAL_REPLICAS = REAL.deployments[0].deployment.pools[0].replicas


class TestKeptFleet:
    """Each deployment is held to the targets of its own requests."""

    def test_a_kept_fleet_serves_up_to_the_rate_said_and_no_more(self) -> None:
        kept = kept_fleet(REAL)
        (planned,) = REAL.deployments
        slo = REQUEST.slo
        assert kept.holds
        assert kept.rate_per_s >= 30.0
        assert evaluate(planned.deployment, planned.workload.at_rate(kept.rate_per_s)).meets(slo)
        assert not evaluate(planned.deployment, planned.workload.at_rate(1.01 * kept.rate_per_s)).meets(slo)
        over = kept_fleet(REAL, workload=lambda load: load.at_rate(1.05 * kept.rate_per_s))
        assert not over.holds
        assert over.rate_per_s == pytest.approx(kept.rate_per_s, rel=0.005)

    def test_a_class_alone_is_held_to_its_own_targets(self) -> None:
        (planned,) = REAL.deployments
        (kind,) = planned.workload.classes
        strict = REQUEST.slo.model_copy(
            update={"targets": (REQUEST.slo.targets[0].model_copy(update={"threshold_s": 1e-4}),)}
        )
        served = planned.workload.model_copy(update={"classes": (kind.model_copy(update={"slo": strict}),)})
        kept = kept_fleet(REAL, workload=lambda _: served)
        assert not kept.holds
        assert kept.rate_per_s == 0.0

    def test_every_service_is_held_to_its_own_targets(self) -> None:
        """A lax second service beside a strict one: each deployment's headroom is what its own queue says."""
        lax = [{"metric": "ttft", "percentile": 0.9, "threshold_s": 5.0}]
        load = {"rate_per_s": 0.5, "lengths": {"input_tokens": 40_000, "output_tokens": 100}}
        second = {"name": "second", "llm": "llama-3.1-8b", "workload": load, "slo": lax}
        found = plan(small_request(search=QUICK, services=[second]), simulate=False, alternatives=False)
        strict, other = sorted(found.deployments, key=lambda one: one.service == "second")
        assert other.slo.targets[0].threshold_s == 5.0
        kept = kept_fleet(found)
        assert kept.holds  # the second misses p95 TTFT of 0.5 s, which does not apply to it
        assert not other.predicted.meets(found.request.slo)
        own = [sustainable_rate_per_s(one.surviving, one.workload, one.slo) for one in (strict, other)]
        growth = min(rate / one.workload.rate_per_s for rate, one in zip(own, (strict, other), strict=True))
        assert kept.rate_per_s == pytest.approx(growth * (30.0 + 0.5))

    def test_replicas_that_may_fail_are_no_headroom(self) -> None:
        (one,) = REAL.deployments
        spare = rebuilt(one.deployment, pools=(rebuilt(one.deployment.pools[0], replicas=2 * REAL_REPLICAS),))
        kept = kept_fleet(replace(REAL, deployments=(replace(one, deployment=spare),)))
        assert kept == kept_fleet(REAL)

    def test_targets_of_several_classes_are_held_against_their_own_latencies(self) -> None:
        """Two classes in one deployment: long prompts miss the short ones' target, which does not apply to them."""
        (one,) = REAL.deployments
        kinds = {"short": (200, 0.3), "long": (6000, 30.0)}
        classes = tuple(
            RequestClass(
                name=name,
                share=0.5,
                lengths=TokenLengths.constant(tokens, 50),
                slo=Slo(targets=(LatencyTarget(metric=Metric.TTFT, percentile=0.9, threshold_s=limit_s),)),
            )
            for name, (tokens, limit_s) in kinds.items()
        )
        load = Workload(arrivals=one.workload.arrivals.at_rate(4.0), classes=classes)
        kept = kept_fleet(replace(REAL, deployments=(replace(one, workload=load),)))
        seen = {kind.name: kind.ttft.quantile_s(0.9) for kind in evaluate(one.surviving, load).classes}
        assert kept.tightest_ratio == pytest.approx(max(seen[name] / limit_s for name, (_, limit_s) in kinds.items()))
        assert kept.holds
        more = evaluate(one.surviving, load.at_rate(1.02 * kept.rate_per_s)).classes
        assert any(kind.ttft.quantile_s(0.9) > kinds[kind.name][1] for kind in more)
        just = evaluate(one.surviving, load.at_rate(0.99 * kept.rate_per_s)).classes
        assert all(kind.ttft.quantile_s(0.9) <= kinds[kind.name][1] for kind in just)
