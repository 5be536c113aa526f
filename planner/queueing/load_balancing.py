"""The wait in front of each of c servers, by how the router picks one.

Work arrives at a pool of c first-come-first-served servers, each used for a share rho of the time. Behind a router that
looks at nothing a server is an M/G/1 queue. One that looks sends a request to a server with fewer requests, so that it
waits only where every server it looked at is busy, and behind few others. With a(i) the probability that i or more
requests are ahead of an arrival where it goes, and R what is left of a service,

    W = sum_i (a(i) - a(i+1)) distribution of R_1 + ... + R_i,        E[W] = E[R] (a(1) + a(2) + ...)

which is Pollaczek-Khinchine for a(i) = rho^i (a random server). The next servers with i + 1 requests come from arrivals
that met i, so the share of servers with i + 1 or more is s(i+1) = rho a(i).

Sources: Mitzenmacher, "The power of two choices in randomized load balancing", IEEE Trans. Parallel and Distributed
Systems 12 (2001) 1094-1104, and Vvedenskaya, Dobrushin and Karpelevich, Problems of Information Transmission 32 (1996)
15-27 (two choices); Kingman, "Two similar queues in parallel", Annals of Mathematical Statistics 32 (1961) 1314-1323
(rho^c); Nelson and Philips, Performance Evaluation 17 (1993) 123-139 (that mean waits scale with (1 + SCV) / 2).

Units: seconds; a load is a share.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from planner.core import FloatArray, root_between
from planner.queueing.lattice import ComplexArray
from planner.queueing.mg1 import (
    lattice_wait,
    mean_cells,
    mg1_wait_distribution,
    residual_transform,
)
from planner.workload import LatencyDistribution

QUEUE_CONCENTRATION = 0.65
"""Where join-the-shortest-queue leaves longer queues: with k servers busy, in proportion to (k / c)^(c^0.65). Agrees
with simulation of exponential services (c = 2 to 16); 0 would spread them evenly, infinity gives Erlang's C."""
TWO_CHOICES_FADING = 1.2
"""The chance that both of two choices are busy differs among c servers from that among very many as (2 / c)^1.2 (agrees
with simulation)."""
BURST_SERVERS = 3.2
"""Bursts reach a server behind two choices by this over c, at most whole: among many servers they spread (agrees with
simulation of SCV 4 at loads of 0.7 to 0.95)."""
TWO_CHOICES_AVOIDANCE = (0.15, 0.25)
"""u and v behind two choices, see below."""
SHORTEST_QUEUE_AVOIDANCE = (0.15, 0.15)
"""Where services vary much, a server held up by a long one has a long queue and is avoided: waits are shorter by the
share (u + v (1 - 2 / c)) (1 - 2 / (1 + SCV)), SCV > 1, with these u and v (agree with simulation at SCV 4 and loads of
0.5 to 0.95)."""
MOST_SERVERS = 1024
"""A larger pool is taken as this many: the chance that all are busy is nil."""
MOST_AHEAD = 12
"""Terms of two choices before their ratio is taken as constant."""
LEAST_CHANCE = 1e-12
"""Probability of waiting below which nobody does; also guards a division by the variability of arrivals and work."""


def all_busy_chance(load: float, replicas: int) -> float:
    """Probability that every server has a request, where arrivals join the shortest queue (exponential services).

    The number k of busy servers is a birth and death process: up at rate c rho, down at k (1 - r_k), r_k the share of
    busy servers with two or more requests. r_k = r (k / c)^m with m = c^0.65, and r such that servers have two or more
    as often as arrivals find all busy: sum pi(k) k r_k = c rho pi(c). With m infinite this is Erlang's C.

    Args:
        load: of a server, in [0, 1).
        replicas: servers, c.

    Returns:
        Probability, in [0, 1).

    >>> round(all_busy_chance(0.75, 1), 6)  # one server: the load
    0.75
    """
    servers = min(replicas, MOST_SERVERS)
    if load == 0.0 or servers == 1:
        return load
    busy = np.arange(1.0, servers + 1.0)
    near = (busy / servers) ** (servers**QUEUE_CONCENTRATION)

    def distribution(longer: float) -> FloatArray:
        logs = np.append(0.0, np.cumsum(np.log(servers * load / (busy * (1.0 - longer * near)))))
        mass = np.exp(logs - logs.max())
        return np.asarray(mass / mass.sum())

    def excess(longer: float) -> float:
        mass = distribution(longer)
        return float(mass[1:] @ (busy * near)) * longer - servers * load * float(mass[-1])

    # All queues longer (r = 1) is too many, none (r = 0) too few.
    longer = root_between(excess, 0.0, 1.0 - 1e-12, xtol=1e-12)
    return float(distribution(longer)[-1])


def two_choices_ahead(load: float, replicas: int) -> FloatArray:
    """The shorter of two queues: a(1), a(2), ..., a(12); beyond, the ratio is rho^c.

    Among very many servers s(i) = rho^(2^i - 1) have i or more requests and both of two do with probability s(i)^2, so
    that a(i+1) / a(i) = rho^(2^(i+1)). Two servers are `shortest_queue_ahead`, with ratio rho^2. In between::

        a(i+1) / a(i) = rho^e_i,   1 / e_i = 1 / 2^(i+1) + (1 - 1 / 2^i) / c

    and a(1) lies between rho^2 and that of two servers, (2 / c)^1.2 of the distance.

    Args:
        load: of a server, in [0, 1).
        replicas: servers, c.

    Returns:
        Probabilities, shape (12,).

    Source: Mitzenmacher (2001), section 2.3, d = 2, for c infinite; the interpolation is ours.

    >>> two_choices_ahead(0.5, 10**9)[:3].round(3).tolist()  # 2^-2, 2^-6, 2^-14
    [0.25, 0.016, 0.0]
    """
    servers = max(replicas, 2)
    first = load**2
    first += (all_busy_chance(load, 2) - first) * (2.0 / servers) ** TWO_CHOICES_FADING
    level = np.arange(1.0, MOST_AHEAD)
    exponent = 1.0 / (0.5 ** (level + 1.0) + (1.0 - 0.5**level) / servers)
    return np.asarray(first * np.append(1.0, np.cumprod(load**exponent)))


def random_wait_distribution(
    work: LatencyDistribution, load: float, replicas: int, arrival_scv: float = 1.0
) -> LatencyDistribution:
    """Wait behind a router that picks any server: M/G/1 with the dispersion of a random split.

    Args:
        work: distribution of a request's work [s].
        load: of a server, in [0, 1).
        replicas: servers, c.
        arrival_scv: index of dispersion of the arrivals at the pool.

    Returns:
        Distribution of the wait [s].

    """
    dispersion = 1.0 + (arrival_scv - 1.0) / replicas
    return mg1_wait_distribution(load / work.mean_s, work, dispersion)


def round_robin_wait_distribution(
    work: LatencyDistribution, load: float, replicas: int, arrival_scv: float = 1.0
) -> LatencyDistribution:
    """Wait behind a router that takes servers in turn: dispersion I = SCV / c at each.

    Regular arrivals wait less often than those of M/G/1: where I < 1 the chance of waiting is cut by
    exp(-2 (1 - rho) (1 - I)^2 / (3 rho (I + service SCV))).

    Args:
        work: distribution of a request's work [s].
        load: of a server, in [0, 1).
        replicas: servers, c.
        arrival_scv: index of dispersion of the arrivals at the pool.

    Returns:
        Distribution of the wait [s].

    Source: Kraemer and Langenbach-Belz, 8th International Teletraffic Congress (1976), 235/1-8.
    """
    dispersion = arrival_scv / replicas
    distribution = mg1_wait_distribution(load / work.mean_s, work, dispersion)
    if dispersion >= 1.0 or load == 0.0:
        return distribution
    spread = max(dispersion + (work.std_s / work.mean_s) ** 2, LEAST_CHANCE)
    kept = math.exp(-2.0 * (1.0 - load) * (1.0 - dispersion) ** 2 / (3.0 * load * spread))
    return LatencyDistribution.mixture([(distribution, kept), (LatencyDistribution.constant(0.0), 1.0 - kept)])


def shortest_queue_wait_distribution(
    work: LatencyDistribution, load: float, replicas: int, arrival_scv: float = 1.0
) -> LatencyDistribution:
    """Wait where each request goes to a server with the fewest requests.

    a(i) = P(all busy) rho^(c (i - 1)); bursty arrivals stretch it by (arrival SCV + service SCV) / (1 + service SCV),
    and `SHORTEST_QUEUE_AVOIDANCE` shortens it. One server is M/G/1.

    Args:
        work: distribution of a request's work [s].
        load: of a server, in [0, 1).
        replicas: servers, c.
        arrival_scv: index of dispersion of the arrivals at the pool.

    Returns:
        Distribution of the wait [s].

    """
    servers = min(replicas, MOST_SERVERS)
    if servers == 1:
        return random_wait_distribution(work, load, 1, arrival_scv)
    distribution = _wait_distribution(work, np.zeros(0), all_busy_chance(load, servers), load**servers)
    return _stretched(distribution, _variability_factor(work, servers, arrival_scv, SHORTEST_QUEUE_AVOIDANCE))


def two_choices_wait_distribution(
    work: LatencyDistribution, load: float, replicas: int, arrival_scv: float = 1.0
) -> LatencyDistribution:
    """Wait where each request goes to the less loaded of two random servers.

    a(i) as `two_choices_ahead`; bursty arrivals stretch it by (I + service SCV) / (1 + service SCV), I = 1 + (arrival
    SCV - 1) min(1, 3.2 / c), and `TWO_CHOICES_AVOIDANCE` shortens it.

    Args:
        work: distribution of a request's work [s].
        load: of a server, in [0, 1).
        replicas: servers, c.
        arrival_scv: index of dispersion of the arrivals at the pool.

    Returns:
        Distribution of the wait [s].

    """
    servers = min(replicas, MOST_SERVERS)
    if servers == 1:
        return random_wait_distribution(work, load, 1, arrival_scv)
    ahead, ratio = two_choices_ahead(load, servers), load**servers
    dispersion = 1.0 + (arrival_scv - 1.0) * min(1.0, BURST_SERVERS / servers)
    distribution = _wait_distribution(work, ahead[:-1], float(ahead[-1]), ratio)
    return _stretched(distribution, _variability_factor(work, servers, dispersion, TWO_CHOICES_AVOIDANCE))


def _wait_distribution(
    work: LatencyDistribution, ahead: FloatArray, chance: float, ratio: float
) -> LatencyDistribution:
    """Distribution of the wait for a(i) = ahead[i - 1] at first, then chance, chance ratio, chance ratio^2, ..."""
    levels = np.append(ahead, chance)
    total = float(levels[0])
    if total < LEAST_CHANCE:
        return LatencyDistribution.constant(0.0)
    residual_s = float(work.support_s**2 @ work.weights) / (2.0 * work.mean_s)
    waiting_s = residual_s * (float(ahead.sum()) + chance / (1.0 - ratio)) / total

    def wait_transform(service: ComplexArray, turn: ComplexArray) -> ComplexArray:
        residual = residual_transform(service, turn, mean_cells(service))
        wait = np.full_like(residual, 1.0 - total)
        power = residual.copy()
        for here, above in pairwise(levels):
            wait += (here - above) * power
            power *= residual
        return np.asarray(wait + chance * (1.0 - ratio) * power / (1.0 - ratio * residual))

    return lattice_wait(work.support_s, work.weights, waiting_s, wait_transform)


def _variability_factor(
    work: LatencyDistribution, servers: int, arrival_scv: float, avoided: tuple[float, float]
) -> float:
    """Factor of bursty arrivals and variable services on a wait derived for Poisson and exponential ones."""
    scv = (work.std_s / work.mean_s) ** 2
    few, many = avoided
    shorter = (few + many * (1.0 - 2.0 / servers)) * max(1.0 - 2.0 / (1.0 + scv), 0.0)
    return (arrival_scv + scv) / (1.0 + scv) * (1.0 - shorter)


def _stretched(distribution: LatencyDistribution, factor: float) -> LatencyDistribution:
    return LatencyDistribution(distribution.support_s * factor, distribution.weights)
