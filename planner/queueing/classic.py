"""Closed forms of classical queues, to hold the numerical theory against."""

from __future__ import annotations

import numpy as np

from planner.errors import InputError


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


def kingman_wait_s(rate_per_s: float, service_s: float, arrival_scv: float, service_scv: float) -> float:
    """Heavy-traffic mean wait [s] in GI/G/1: rho / (1 - rho) * (arrival SCV + service SCV) / 2 * service.

    Arguments and errors as `pollaczek_khinchine_wait_s`, which it equals for Poisson arrivals.
    Source: Kingman, Proc. Cambridge Philosophical Society 57 (1961) 902-904.

    >>> kingman_wait_s(0.5, 1.0, 1.0, 1.0)
    1.0
    """
    load = _stable_load(rate_per_s * service_s)
    return load / (1.0 - load) * (arrival_scv + service_scv) / 2.0 * service_s


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


def _stable_load(load: float) -> float:
    if not 0.0 <= load < 1.0:
        raise InputError("load", load, "must lie in [0, 1)", "lower the rate: at 1 the queue grows without bound")
    return load
