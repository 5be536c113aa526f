"""Kernels slower (or faster) than fitted, as far as their measurements scatter: what a robust plan is made for.

`planner.serving.uncertainty` says how far a mean may be off; here the calibration itself is moved, so that queues feel
it too.
"""

from __future__ import annotations

from statistics import NormalDist

from hardware_db import Calibration, Correction, HardwareDb, KernelFit
from planner.core import InputError, rebuilt
from planner.engine import ReplicaConfig
from planner.serving import Deployment


def deviations_of(probability: float) -> float:
    """Standard deviations above the mean that a normal distribution stays below with a probability.

    Raises InputError unless it lies strictly between 0 and 1.

    >>> round(deviations_of(0.95), 3)  # the one-sided 95 % quantile
    1.645
    """
    if not 0.0 < probability < 1.0:
        raise InputError("probability", probability, "must lie strictly between 0 and 1", "write 0.95 for 95 %")
    return NormalDist().inv_cdf(probability)


def shifted_calibration(calibration: Calibration, deviations: float) -> Calibration:
    """A calibration whose every kernel takes exp(deviations * spread) times as long.

    The spread of a fit is the standard deviation of log(measured / fitted) over held-out measurements
    (`hardware_db` KernelFit), so that 1.645 deviations are the slow end of the middle 90 %. All fits are shifted
    together: for a step of seconds t_f by fit f, of log-normal factors with any correlation, the quantile of the whole
    is to first order at most that of the sum of quantiles,

        sqrt(sum_fg t_f t_g r_fg s_f s_g) <= sum_f t_f s_f        (|r_fg| <= 1),

    so a step is no slower than this with at least the probability of that many deviations. The factor goes on top of
    the form's correction, which never takes a kernel below its roofline.

    Args:
        calibration: as fitted.
        deviations: standard deviations; positive is slower.
    """
    kernels = {name: _shifted(fit, deviations) for name, fit in calibration.kernels.items()}
    return calibration.model_copy(update={"kernels": kernels})


def _shifted(fit: KernelFit, deviations: float) -> KernelFit:
    shift = deviations * fit.spread
    table = fit.correction or Correction(first_log2=(0.0,), second_log2=(0.0,), log_factor=((0.0,),))
    factors = tuple(tuple(value + shift for value in row) for row in table.log_factor)
    return fit.model_copy(update={"correction": table.model_copy(update={"log_factor": factors})})


def pessimistic_hardware(hardware: HardwareDb, deviations: float) -> HardwareDb:
    """The database with every calibration shifted (see `shifted_calibration`); negative is optimistic."""
    calibrations = tuple(shifted_calibration(one, deviations) for one in hardware.calibrations)
    return hardware.model_copy(update={"calibrations": calibrations})


def shifted_deployment(deployment: Deployment, deviations: float) -> Deployment:
    """A deployment whose calibrated replicas are slower (or faster) by so many deviations of every kernel."""

    def slower(config: ReplicaConfig) -> ReplicaConfig:
        if config.calibration is None:
            return config
        return rebuilt(config, calibration=shifted_calibration(config.calibration, deviations))

    pools = tuple(rebuilt(pool, config=slower(pool.config)) for pool in deployment.pools)
    return rebuilt(deployment, pools=pools)
