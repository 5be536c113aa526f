"""A pool moved to another SKU: what stays, what is measured there, and why it may not fit."""

from __future__ import annotations

import numpy as np
import pytest

from planner.engine import ReplicaConfig
from planner.roofline import Parallelism
from planner.search import PoolOnSku, on_sku
from planner.serving import Pool, Role, pool_model
from planner.workload import TokenLengths
from tests.builders import FP8, HARDWARE, calibrated, replica

LENGTHS = TokenLengths.constant(1000, 100)


def on(config: ReplicaConfig, sku: str, fits: bool = False, role: Role = Role.MIXED) -> PoolOnSku:
    return on_sku(Pool(role=role, config=config, replicas=3), LENGTHS, sku, HARDWARE, calibrated=fits)


def test_on_its_own_sku_a_pool_stays_as_it_is() -> None:
    config = calibrated(sku="h100-sxm")
    own = on(config, "h100-sxm", fits=True)
    assert own.config is config and own.model is not None and own.model.pool.replicas == 3
    assert not own.reason


def test_elsewhere_kernels_are_as_measured_there() -> None:
    other = on(calibrated(sku="h100-sxm"), "b200-sxm", fits=True)
    assert other.config is not None and other.config.calibration is not None
    assert (other.config.sku.id, other.config.calibration.sku) == ("b200-sxm", "b200-sxm")
    assert other.config.parallelism == calibrated(sku="h100-sxm").parallelism
    bound = on(calibrated(sku="h100-sxm"), "b200-sxm")
    assert bound.config is not None and bound.config.calibration is None


def test_a_step_that_waits_for_memory_shortens_as_bandwidth_grows() -> None:
    """Same chip, other memory: 4.8 TB/s of the H200 over 3.35 TB/s of the H100 (NVIDIA datasheets)."""
    step_s = {}
    for sku in ("h100-sxm", "h200-sxm"):
        model = on(replica(), sku).model
        assert model is not None
        step_s[sku] = float(model.server.step_s(np.array(1.0), np.array(0.0)))
    assert step_s["h100-sxm"] / step_s["h200-sxm"] == pytest.approx(4.8 / 3.35, rel=1e-3)


def test_a_decode_pool_sees_only_requests_that_decode() -> None:
    """Answers of one token end with the prefill: the mean context is that of the others alone."""
    pairs = TokenLengths.from_pairs([1000, 1000], [1, 100], [0.5, 0.5])
    pool = Pool(role=Role.DECODE, config=replica(), replicas=1)
    moved = on_sku(pool, pairs, "h100-sxm", HARDWARE, calibrated=False)
    assert moved.model is not None
    assert moved.model.kv_running == pytest.approx(pool_model(pool, LENGTHS).kv_running)


def test_a_group_too_large_for_the_sku_has_no_replica_there() -> None:
    small = next(s for s in HARDWARE.skus.values() if max(s.node.gpus, s.scale_up.domain_gpus) < 8)
    config = calibrated("llama-3.3-70b-instruct", "h100-sxm", precision=FP8, parallelism=Parallelism(tp=8))
    found = on(config, small.id)
    assert found.config is None and found.model is None and "in one fast domain" in found.reason


def test_weights_that_do_not_fit_leave_a_replica_without_a_model() -> None:
    """70.55e9 weights of 8 bit (model card of Llama-3.3-70B) are more than the 48 GB of an L40S."""
    found = on(replica("llama-3.3-70b-instruct", precision=FP8), "l40s")
    assert found.config is not None and found.model is None and "no KV cache" in found.reason
