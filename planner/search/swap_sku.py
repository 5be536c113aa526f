"""A pool of a plan on another SKU: the same model, formats, parallelism and limits, with kernels as measured there."""

from __future__ import annotations

from dataclasses import dataclass

from hardware_db import HardwareDb, select_calibration
from planner.core import InputError, PlannerError, UnknownNameError, rebuilt
from planner.engine import ReplicaConfig
from planner.roofline import step_operators
from planner.serving import Pool, PoolModel, Role, decoding_only, pool_model
from planner.workload import TokenLengths


@dataclass(frozen=True)
class PoolOnSku:
    """A pool moved to a SKU.

    Attributes:
        sku: id.
        config: of its replicas; None where no replica can be built there (the group of GPUs is too large).
        model: the pool as the queueing model sees it; None where it does not fit.
        reason: why not, or empty.
    """

    sku: str
    config: ReplicaConfig | None
    model: PoolModel | None
    reason: str = ""


def on_sku(pool: Pool, lengths: TokenLengths, sku: str, hardware: HardwareDb, calibrated: bool = True) -> PoolOnSku:
    """The same pool on another SKU: model, formats, parallelism and limits as they are, kernels as measured there.

    Args:
        pool: of a plan.
        lengths: of its workload.
        sku: id; of the pool's own SKU the pool stays as it is.
        hardware: where the SKU and its calibration (or a relative's) are.
        calibrated: False for datasheet rooflines.

    Returns:
        The pool there. What does not fit is an answer with a reason.

    Raises:
        UnknownNameError: the database has no such SKU.
    """
    if sku not in hardware.skus:
        raise UnknownNameError("sku", sku, sorted(hardware.skus))
    config = pool.config
    try:
        if sku != config.sku.id:
            fits = select_calibration(hardware, sku, config.engine.id) if calibrated else None
            config = rebuilt(config, sku=hardware.skus[sku], calibration=fits)
            pool = rebuilt(pool, config=config)
        step_operators(config.llm, config.sku, config.precision, config.parallelism)
    except PlannerError as error:
        return PoolOnSku(sku, None, None, _reason(error))
    try:
        served = decoding_only(lengths)[0] if pool.role is Role.DECODE else lengths
        return PoolOnSku(sku, config, pool_model(pool, served))
    except PlannerError as error:
        return PoolOnSku(sku, config, None, _reason(error))


def _reason(error: PlannerError) -> str:
    return error.bound if isinstance(error, InputError) else str(error)
