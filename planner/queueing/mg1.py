"""The waiting time of one server, first come first served: exact M/G/1, by one discrete Fourier transform.

Units: seconds and requests per second.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from planner.core import FloatArray
from planner.queueing.distributions import lattice_distribution
from planner.queueing.lattice import ComplexArray, lattice_probabilities
from planner.workload import LatencyDistribution

LATTICE_CELLS = 2**13
"""Cells of the lattice that a waiting time is solved on. A choice: resolution against time."""
REACH_WAITS = 20.0
"""First length of the lattice in mean waits of those who wait: exp(-20) is beyond it."""
CUT_OFF = 1e-7
"""Most probability in the last eighth of the lattice; else a longer one is taken, as the transform wraps around."""
DOUBLINGS = 8
"""Most times that the lattice is made twice as long."""
SMALLEST_CUT = 0.05
"""Services of a very regular stream are not cut into more than 1 / this pieces."""


def mg1_wait_distribution(
    rate_per_s: float, service_s: LatencyDistribution, dispersion: float = 1.0, cells: int = LATTICE_CELLS
) -> LatencyDistribution:
    """Distribution of the wait in M/G/1, first come first served; its smallest point is no wait, if that happens.

    The wait is a geometric number of residual services (Pollaczek-Khinchine)::

        E exp(-s W) = (1 - rho) / (1 - rho R(s)),   R(s) = (1 - S(s)) / (s E[S])

    solved by one discrete Fourier transform on a lattice. Bursty arrivals come in geometric batches of mean b =
    (dispersion + 1) / 2, so that their counts have this index of dispersion; a member waits for the companions before
    it as well. Regular ones (dispersion I < 1) are services cut to kappa = 1 - (1 - I) / (1 + SCV) and 1 / kappa times
    as often, which keeps the mean and the variance of the work.

    Args:
        rate_per_s: arrivals [1/s]; the load is below 1.
        service_s: distribution of the service time [s].
        dispersion: index of dispersion of the arrival counts; 1 is Poisson.
        cells: of the lattice.

    Returns:
        Distribution of the wait [s].

    Source: Kleinrock, Queueing Systems I (1975), section 5.7, eq. 5.111 (number of residual services); batches: Burke,
    Operations Research 23 (1975) 830-833.

    >>> distribution = mg1_wait_distribution(0.5, LatencyDistribution.constant(1.0))
    >>> round(distribution.mean_s, 4), round(float(distribution.weights[distribution.support_s == 0].sum()), 2)
    (0.5, 0.5)
    """
    load = rate_per_s * service_s.mean_s
    if load == 0.0:
        return LatencyDistribution.constant(0.0)
    points, weights, batch = service_s.support_s, service_s.weights, max((dispersion + 1.0) / 2.0, 1.0)
    second = float(points**2 @ weights)
    if dispersion < 1.0:
        cut = 1.0 - (1.0 - dispersion) * service_s.mean_s**2 / second
        cut = max(cut, SMALLEST_CUT)
        points, second = points * cut, second * cut**2
    mean = float(points @ weights)
    waiting_s = (second / mean + 2.0 * (batch - 1.0) * mean) / (2.0 * (1.0 - load)) + batch * mean

    def wait_transform(service: ComplexArray, turn: ComplexArray) -> ComplexArray:
        companions = batch - (batch - 1.0) * service
        residual = residual_transform(service / companions, turn, mean_cells(service) * batch)
        return np.asarray((1.0 - load) / (1.0 - load * residual) / companions)

    return lattice_wait(points, weights, waiting_s, wait_transform, cells)


def lattice_wait(
    points_s: FloatArray,
    weights: FloatArray,
    waiting_s: float,
    transform: Callable[[ComplexArray, ComplexArray], ComplexArray],
    cells: int = LATTICE_CELLS,
) -> LatencyDistribution:
    """Distribution of a wait whose transform is a function of that of the service, by one discrete Fourier transform.

    Args:
        points_s: service times [s], rising, shape (n,).
        weights: their probabilities, shape (n,).
        waiting_s: approximate mean wait of those who wait [s]; sets the length of the lattice.
        transform: of the wait, from that of the service on the lattice and the powers of exp(-2 pi i / cells).
        cells: of the lattice.

    Returns:
        Distribution of the wait [s]; the atom at 0 stays apart.
    """
    reach_s = REACH_WAITS * waiting_s + 2.0 * float(points_s[-1])
    turn = np.exp(-2j * np.pi * np.arange(cells // 2 + 1) / cells)
    for _ in range(DOUBLINGS):
        service = np.fft.rfft(lattice_probabilities(points_s, weights, reach_s / cells, cells))
        distribution = np.maximum(np.fft.irfft(transform(service, turn), cells), 0.0)
        distribution /= distribution.sum()
        if distribution[-cells // 8 :].sum() < CUT_OFF:
            break
        reach_s *= 2.0
    return lattice_distribution(distribution, reach_s / cells)


def mean_cells(transform: ComplexArray) -> float:
    """Mean of a lattice distribution [cells] from its transform; exact, by one inverse transform.

    Args:
        transform: of the distribution, shape (cells // 2 + 1,).

    >>> mean_cells(np.fft.rfft([0.25, 0.0, 0.75, 0.0]))
    1.5
    """
    distribution = np.fft.irfft(transform, 2 * (transform.size - 1))
    return float(distribution @ np.arange(distribution.size))


def residual_transform(service: ComplexArray, turn: ComplexArray, mean: float) -> ComplexArray:
    """Transform of what is left of a service met at a random instant, (1 - S) / (s E[S]), on the lattice.

    Within a cell it is even; half of it on either end keeps its mean.

    Args:
        service: transform of the service, shape (n,).
        turn: powers of exp(-2 pi i / cells), shape (n,).
        mean: mean service [cells].

    Returns:
        Shape (n,).
    """
    residual = np.ones_like(service)
    residual[1:] = (1.0 - service[1:]) / (1.0 - turn[1:]) * (1.0 + turn[1:]) / (2.0 * mean)
    return residual
