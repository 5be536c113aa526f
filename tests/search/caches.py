"""The caches of the search, which tests empty to start cold."""

from __future__ import annotations

from planner.search import cache_keys, capacity, enumerate, step_time_groups


def forget_all() -> None:
    """Forget every latency, family, step-time group and key found in this process."""
    for cache in (
        capacity._MARGINS,
        capacity._TOP_RATES,
        enumerate._FOUND,
        step_time_groups._GROUPS,
        step_time_groups._SAME_TIMES,
        cache_keys._KEYS,
    ):
        cache._kept.clear()
