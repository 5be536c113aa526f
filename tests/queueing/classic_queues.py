"""Closed forms of classical queues, to hold the numerical theory against.

Symbols: rho the load per server, c servers, SCV the squared coefficient of variation. First come, first served unless
said otherwise. Times in seconds, rates per second.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import gammainc, gammaincinv

from planner.core import FloatArray, InputError
from planner.workload import LatencyDistribution, tail_edges

WAIT_EDGES = tail_edges(256)


def pollaczek_khinchine_wait_s(rate_per_s: float, service_s: float, service_scv: float) -> float:
    """Mean wait [s] in M/G/1, first come first served: rho / (1 - rho) * (1 + SCV) / 2 * service.

    Args:
        rate_per_s: Poisson arrivals [1/s].
        service_s: mean service time [s].
        service_scv: squared coefficient of variation of the service time; 0 is M/D/1, 1 is M/M/1.

    Raises InputError when the load rate * service is 1 or more.
    Source: Kleinrock, Queueing Systems I (1975), chapter 5 (Pollaczek-Khinchine mean-value formula).

    >>> pollaczek_khinchine_wait_s(0.5, 1.0, 0.0), pollaczek_khinchine_wait_s(0.5, 1.0, 1.0)
    (0.5, 1.0)
    """
    load = _stable_load(rate_per_s * service_s)
    return load / (1.0 - load) * (1.0 + service_scv) / 2.0 * service_s


def kingman_wait_s(rate_per_s: float, service_s: float, arrival_scv: float, service_scv: float) -> float:
    """Heavy-traffic mean wait [s] in GI/G/1: rho / (1 - rho) * (arrival SCV + service SCV) / 2 * service.

    Arguments and errors as `pollaczek_khinchine_wait_s`, which it equals for Poisson arrivals.
    Source: Kingman, Proc. Cambridge Philosophical Society 57 (1961) 902-904.

    >>> kingman_wait_s(0.5, 1.0, 1.0, 1.0)
    1.0
    """
    load = _stable_load(rate_per_s * service_s)
    return load / (1.0 - load) * (arrival_scv + service_scv) / 2.0 * service_s


def erlang_b(servers: int, offered: float) -> float:
    """Probability that an arrival is lost in M/G/c/c: no waiting room, any distribution of service.

    Args:
        servers: c >= 1.
        offered: load in Erlang, rate * service, > 0; may exceed c.

    B(k) = a B(k-1) / (k + a B(k-1)), B(0) = 1.
    Raises InputError when an argument is out of range.
    Source: Erlang 1917; recursion as in Cooper, Introduction to Queueing Theory (1981), chapter 3. The value below is
    in every table of Erlang B.

    >>> round(erlang_b(15, 10.0), 4)
    0.0365
    """
    _positive("offered", offered)
    if servers < 1:
        raise InputError("servers", servers, "must be >= 1", "a pool has at least one server")
    blocked = 1.0
    for count in range(1, servers + 1):
        blocked = offered * blocked / (count + offered * blocked)
    return blocked


def erlang_c(servers: int, load: float) -> float:
    """Probability that an arrival waits in M/M/c, by the recursion of Erlang B.

    Args:
        servers: c >= 1.
        load: offered load per server, in [0, 1).

    Raises InputError when the load is 1 or more.
    Source: Cooper, Introduction to Queueing Theory (1981), chapter 3.

    >>> erlang_c(1, 0.75), round(erlang_c(2, 0.75), 4)
    (0.75, 0.6429)
    """
    offered = servers * _stable_load(load)
    blocked = 1.0
    for count in range(1, servers + 1):
        blocked = offered * blocked / (count + offered * blocked)
    return blocked / (1.0 - load * (1.0 - blocked))


def mmc_wait_s(rate_per_s: float, service_s: float, servers: int) -> float:
    """Mean wait [s] in M/M/c: C service / (c (1 - rho)), C of Erlang.

    Raises InputError when the load is 1 or more. Source: Cooper (1981), chapter 3.

    >>> round(mmc_wait_s(1.5, 1.0, 2), 4)
    1.2857
    """
    load = _stable_load(rate_per_s * service_s / servers)
    return erlang_c(servers, load) * service_s / (servers * (1.0 - load))


def mmc_wait_cdf(rate_per_s: float, service_s: float, servers: int, wait_s: float) -> float:
    """P(wait <= wait_s) in M/M/c: 1 - C exp(-c (1 - rho) wait / service). M/M/1 with one server.

    Raises InputError when the load is 1 or more. Source: Cooper (1981), chapter 3.

    >>> mmc_wait_cdf(0.5, 1.0, 1, 0.0)
    0.5
    """
    load = _stable_load(rate_per_s * service_s / servers)
    return 1.0 - erlang_c(servers, load) * math.exp(-servers * (1.0 - load) * wait_s / service_s)


def mmc_wait_quantile_s(rate_per_s: float, service_s: float, servers: int, probability: float) -> float:
    """Percentile [s] of the wait in M/M/c: max(0, ln(C / (1 - p)) service / (c (1 - rho))).

    Raises InputError when the load is 1 or more. Source: inverse of `mmc_wait_cdf`.

    >>> round(mmc_wait_quantile_s(0.5, 1.0, 1, 0.99), 4)  # 2 ln 50
    7.824
    """
    load = _stable_load(rate_per_s * service_s / servers)
    excess = erlang_c(servers, load) / (1.0 - probability)
    return math.log(excess) * service_s / (servers * (1.0 - load)) if excess > 1.0 else 0.0


def mm1_sojourn_quantile_s(rate_per_s: float, service_s: float, probability: float) -> float:
    """Percentile [s] of wait and service together in M/M/1, which is exponential of mean service / (1 - rho).

    Raises InputError when the load is 1 or more. Source: Kleinrock, Queueing Systems I (1975), eq. 5.119.

    >>> round(mm1_sojourn_quantile_s(0.5, 1.0, 0.99), 4)  # 2 ln 100
    9.2103
    """
    load = _stable_load(rate_per_s * service_s)
    return -math.log1p(-probability) * service_s / (1.0 - load)


def mdc_wait_s(rate_per_s: float, service_s: float, servers: int) -> float:
    """Mean wait [s] in M/D/c, to about 2 %.

    Half the wait of M/M/c times 1 + (1 - rho)(c - 1)(sqrt(4 + 5c) - 2) / (16 rho c).
    Raises InputError when the load rate * service / servers is 1 or more.
    Source: Cosmetatos, INFOR 13 (1975) 328-331.

    >>> round(mdc_wait_s(0.5, 1.0, 1), 6)  # M/D/1
    0.5
    """
    load = _stable_load(rate_per_s * service_s / servers)
    exponential = erlang_c(servers, load) * service_s / (servers * (1.0 - load))
    spread = (servers - 1) * (np.sqrt(4.0 + 5.0 * servers) - 2.0)
    return float(exponential / 2.0 * (1.0 + (1.0 - load) * spread / (16.0 * load * servers)))


def md1_wait_cdf(rate_per_s: float, service_s: float, wait_s: float) -> float:
    """P(wait <= wait_s) in M/D/1, exact.

    With k = floor(t / D) + 1, u = k D - t and Q(j) the probability of at most j waiting::

        P(W <= t) = exp(-rate u) sum_{j=0}^{k-1} Q(k - 1 - j) (rate u)^j / j!

    Nothing is subtracted, so that it holds at any load and time; Erlang's own sum (1909) alternates in sign.
    Raises InputError when the load is 1 or more.
    Source: Franx, "A simple solution for the M/D/c waiting time distribution", Operations Research Letters 29 (2001)
    221-229, eq. 5. At t < D it is (1 - rho) exp(rate t) (Erlang).

    >>> round(md1_wait_cdf(0.5, 1.0, 0.5), 6)  # (1 - 1/2) exp(1/4)
    0.642013
    """
    load = _stable_load(rate_per_s * service_s)
    periods = math.floor(wait_s / service_s) + 1
    waiting = _md1_waiting_cdf(load, periods)
    mean = rate_per_s * (periods * service_s - wait_s)
    order = np.arange(periods)
    logs = -mean + order * math.log(mean) - np.cumsum(np.log(np.maximum(order, 1)))
    return min(1.0, float(np.exp(logs) @ waiting[::-1]))


def _md1_waiting_cdf(load: float, count: int) -> FloatArray:
    """P(at most 0, 1, ..., count - 1 wait) in M/D/1, shape (count,).

    In the system: pi(0) = 1 - rho, and up-crossings balance down-crossings of every level n,
    a(0) pi(n+1) = pi(0) A(n) + sum_{j=1}^{n} pi(j) A(n + 1 - j), A(n) = P(more than n arrive in a service).
    """
    order = np.arange(count + 1)
    arriving = np.exp(-load + order * math.log(load) - np.cumsum(np.log(np.maximum(order, 1)))) if load > 0.0 else None
    if arriving is None:
        return np.ones(count)
    more = np.maximum(1.0 - np.cumsum(arriving), 0.0)
    distribution = np.zeros(count + 1)
    distribution[0] = 1.0 - load
    for level in range(count):
        crossing = distribution[0] * more[level] + distribution[1 : level + 1] @ more[level:0:-1]
        distribution[level + 1] = crossing / arriving[0]
    return np.asarray(np.minimum(np.cumsum(distribution)[1:], 1.0))


def processor_sharing_sojourn_s(work_s: float, load: float) -> float:
    """Mean time in the system [s] of a request of `work_s` seconds in M/G/1 processor sharing: work / (1 - rho).

    Whatever the distribution of the work. Raises InputError when the load is 1 or more.
    Source: Kleinrock, Queueing Systems II (1976), section 4.4, eq. 4.17.

    >>> processor_sharing_sojourn_s(2.0, 0.75)
    8.0
    """
    return work_s / (1.0 - _stable_load(load))


def allen_cunneen_wait_s(
    rate_per_s: float, service_s: float, servers: int, arrival_scv: float, service_scv: float
) -> float:
    """Mean wait [s] in G/G/c: that of M/M/c times (arrival SCV + service SCV) / 2.

    Exact for M/M/c and M/G/1. Raises InputError when the load is 1 or more.
    Source: Allen, Probability, Statistics, and Queueing Theory (1990), section 5.4 (Allen-Cunneen).

    >>> allen_cunneen_wait_s(0.5, 1.0, 1, 1.0, 0.0)
    0.5
    """
    return (arrival_scv + service_scv) / 2.0 * mmc_wait_s(rate_per_s, service_s, servers)


def whitt_wait_s(rate_per_s: float, service_s: float, servers: int, arrival_scv: float, service_scv: float) -> float:
    """Mean wait [s] in G/G/c: Allen-Cunneen's times a factor phi that is exact for M/M/c and near M/D/c and D/M/c.

    With a, s the two SCVs, phi1 = 1 + g, phi3 = (1 - 4 g) exp(-2 (1 - rho) / (3 rho)), g as in `mdc_wait_s` but at most
    0.24, and psi = min(1, (phi1 + phi3) / 2)^(2 - a - s) where a + s < 2, else 1::

        phi = (4 (a - s) phi1 + s psi) / (4 a - 3 s)                       a >= s
        phi = ((s - a) phi3 + (s + 3 a) psi) / (2 a + 2 s)                 a <= s

    Raises InputError when the load is 1 or more.
    Source: Whitt, "Approximations for the GI/G/m queue", Production and Operations Management 2 (1993) 114-161,
    eqs. 2.16-2.25.

    >>> round(whitt_wait_s(1.5, 1.0, 2, 1.0, 1.0), 4)
    1.2857
    """
    load, a, s = _stable_load(rate_per_s * service_s / servers), arrival_scv, service_scv
    if load == 0.0 or a + s == 0.0:
        return 0.0
    spread = (servers - 1) * (math.sqrt(4.0 + 5.0 * servers) - 2.0) / (16.0 * load * servers)
    gamma = min(0.24, (1.0 - load) * spread)
    deterministic = 1.0 + gamma
    regular = (1.0 - 4.0 * gamma) * math.exp(-2.0 * (1.0 - load) / (3.0 * load))
    psi = math.pow(min(1.0, (deterministic + regular) / 2.0), max(2.0 - a - s, 0.0))
    if a >= s:
        factor = (4.0 * (a - s) * deterministic + s * psi) / (4.0 * a - 3.0 * s)
    else:
        factor = ((s - a) * regular + (s + 3.0 * a) * psi) / (2.0 * a + 2.0 * s)
    return factor * allen_cunneen_wait_s(rate_per_s, service_s, servers, a, s)


def _stable_load(load: float) -> float:
    if not 0.0 <= load < 1.0:
        raise InputError("load", load, "must lie in [0, 1)", "lower the rate: at 1 the queue grows without bound")
    return load


def _positive(name: str, value: float) -> None:
    if not value > 0.0:
        raise InputError(name, value, "must be > 0", "give a positive number")


def pooled_wait_distribution(
    work: LatencyDistribution, load: float, replicas: int, arrival_scv: float = 1.0
) -> LatencyDistribution:
    """Wait in one queue for all servers, the ideal no router beats: mean by Whitt, exponential where one waits.

    The chance of waiting is Erlang's C. Arguments as those of the routers. Source: Whitt (1993).
    """
    chance = erlang_c(replicas, load)
    if chance < 1e-12:
        return LatencyDistribution.constant(0.0)
    scv = (work.std_s / work.mean_s) ** 2
    mean_s = whitt_wait_s(replicas * load / work.mean_s, work.mean_s, replicas, arrival_scv, scv)
    return gamma_wait(mean_s, 2.0 * mean_s**2 / chance, chance)


def gamma_wait(mean_s: float, second_moment_s2: float, chance: float) -> LatencyDistribution:
    """A wait of given first two moments that happens with probability `chance`: gamma where it happens, else none.

    Args:
        mean_s: over all requests [s].
        second_moment_s2: over all requests [s^2]; less than mean^2 / chance counts as a constant.
        chance: probability of waiting, in (0, 1].

    >>> distribution = gamma_wait(1.0, 4.0, 0.5)  # exponential of mean 2: M/M/1 at a load of 1/2
    >>> round(distribution.mean_s, 6), round(distribution.quantile_s(0.99), 1)
    (1.0, 7.8)
    """
    if not 0.0 < chance <= 1.0:
        raise InputError("chance", chance, "must lie in (0, 1]", "give the probability of waiting")
    if mean_s <= 0.0:
        return LatencyDistribution.constant(0.0)
    mean = mean_s / chance
    variance = second_moment_s2 / chance - mean**2
    if variance <= 1e-9 * mean**2:
        return LatencyDistribution.from_samples([0.0, mean], [1.0 - chance, chance])
    waits = gamma_slices(np.array([mean]), np.array([variance]), WAIT_EDGES)[0]
    return LatencyDistribution.from_samples(
        np.append(0.0, waits), np.append(1.0 - chance, chance * np.diff(WAIT_EDGES))
    )


def gamma_slices(mean: FloatArray, variance: FloatArray, edges: FloatArray) -> FloatArray:
    """Slice means of gamma distributions of given mean and variance (both > 0), shape (distributions, slices); exact.

    The mean over a slice of a gamma distribution of shape a is that of its length-biased distribution, of shape a + 1.

    >>> gamma_slices(np.array([1.0]), np.array([1.0]), np.array([0.0, 0.5, 1.0])).round(4).tolist()  # 1 -+ ln 2
    [[0.3069, 1.6931]]
    """
    shape = np.clip(mean**2 / np.maximum(variance, np.finfo(float).tiny), 1e-3, 1e6)[:, None]
    cuts = gammaincinv(shape, edges[None, 1:-1])
    below = np.concatenate([np.zeros((mean.size, 1)), gammainc(shape + 1.0, cuts), np.ones((mean.size, 1))], axis=1)
    return np.asarray(mean[:, None] * np.diff(below, axis=1) / np.diff(edges))
