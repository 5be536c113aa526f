"""Closed forms of classical queues, to hold the numerical theory against.

Symbols: rho the load per server, c servers, SCV the squared coefficient of variation. First come, first served. Times
in seconds, rates per second; loads below 1.
"""

from __future__ import annotations

import math


def pollaczek_khinchine_wait_s(rate_per_s: float, service_s: float, service_scv: float) -> float:
    """Mean wait [s] in M/G/1: rho / (1 - rho) * (1 + SCV) / 2 * service. SCV 0 is M/D/1, 1 is M/M/1.

    Source: Kleinrock, Queueing Systems I (1975), chapter 5 (Pollaczek-Khinchine mean-value formula).

    >>> pollaczek_khinchine_wait_s(0.5, 1.0, 0.0), pollaczek_khinchine_wait_s(0.5, 1.0, 1.0)
    (0.5, 1.0)
    """
    load = rate_per_s * service_s
    return load / (1.0 - load) * (1.0 + service_scv) / 2.0 * service_s


def kingman_wait_s(rate_per_s: float, service_s: float, arrival_scv: float, service_scv: float) -> float:
    """Heavy-traffic mean wait [s] in GI/G/1: rho / (1 - rho) * (arrival SCV + service SCV) / 2 * service.

    Source: Kingman, Proc. Cambridge Philosophical Society 57 (1961) 902-904.
    """
    return pollaczek_khinchine_wait_s(rate_per_s, service_s, arrival_scv + service_scv - 1.0)


def erlang_c(servers: int, load: float) -> float:
    """Probability that an arrival waits in M/M/c, of a load per server, by the recursion of Erlang B.

    Source: Cooper, Introduction to Queueing Theory (1981), chapter 3. The second value: 200 calls an hour of 180 s and
    14 agents (Call Centre Helper, "Erlang C formula made simple with an easy worked example").

    >>> erlang_c(1, 0.75), round(erlang_c(14, 10.0 / 14.0), 3)
    (0.75, 0.174)
    """
    offered = servers * load
    blocked = 1.0
    for count in range(1, servers + 1):
        blocked = offered * blocked / (count + offered * blocked)
    return blocked / (1.0 - load * (1.0 - blocked))


def mmc_wait_s(rate_per_s: float, service_s: float, servers: int) -> float:
    """Mean wait [s] in M/M/c: C service / (c (1 - rho)), C of Erlang. Source: Cooper (1981), chapter 3.

    >>> round(mmc_wait_s(200.0 / 3600.0, 180.0, 14), 1)  # the call centre of `erlang_c`
    7.8
    """
    load = rate_per_s * service_s / servers
    return erlang_c(servers, load) * service_s / (servers * (1.0 - load))


def mdc_wait_s(rate_per_s: float, service_s: float, servers: int) -> float:
    """Mean wait [s] in M/D/c, to about 2 %.

    Half the wait of M/M/c times 1 + (1 - rho)(c - 1)(sqrt(4 + 5c) - 2) / (16 rho c).
    Source: Cosmetatos, INFOR 13 (1975) 328-331.

    >>> round(mdc_wait_s(0.5, 1.0, 1), 6)  # M/D/1
    0.5
    """
    load = rate_per_s * service_s / servers
    spread = (servers - 1) * (math.sqrt(4.0 + 5.0 * servers) - 2.0)
    return mmc_wait_s(rate_per_s, service_s, servers) / 2.0 * (1.0 + (1.0 - load) * spread / (16.0 * load * servers))


def md1_wait_cdf(load: float, wait: float) -> float:
    """P(W <= wait) in M/D/1, times in services, up to some ten of them, beyond which the sum loses its digits.

    (1 - rho) sum_k (-x)^k / k! exp(x), x = rho (wait - k), over whole k up to the wait. Source: Erlang (1909).

    >>> round(md1_wait_cdf(0.5, 0.5), 6)  # (1 - 1/2) exp(1/4)
    0.642013
    """
    terms = ((load * (wait - k), k) for k in range(int(wait) + 1))
    return (1.0 - load) * math.fsum((-x) ** k / math.factorial(k) * math.exp(x) for x, k in terms)
