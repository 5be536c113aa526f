"""The web app, part by part; `app.py` at the top puts them on the page.

    session   the scenario of one visitor, its history and its link; widgets that show and change one field
    inputs    the sidebar: model, traffic, targets, hardware, goal
    work      plans and everything else that takes time: cached by scenario, with progress
    parts     tables, charts, figures and files, each with what explains it
    answer    the sentence, four figures and the fleet; or why there is none and what would help
    *_tab     one question each

Nothing here computes: numbers come from the engine, tables from its reports, pictures from `planner.charts`. Nothing is
written to disk, and what a visitor changes stays in the visitor's session.
"""

from planner.web import (
    compare_gpus,
    compare_scenarios,
    compare_systems,
    compare_tab,
    components,
    cost_tab,
    error_view,
    hardware_tab,
    inputs,
    latency_growth,
    latency_prompt,
    latency_tab,
    latency_targets,
    plan_tab,
    results,
    roofline_tab,
    session,
    summary,
    what_if,
    why_tab,
)

__all__ = [
    "compare_gpus",
    "compare_scenarios",
    "compare_systems",
    "compare_tab",
    "components",
    "cost_tab",
    "error_view",
    "hardware_tab",
    "inputs",
    "latency_growth",
    "latency_prompt",
    "latency_tab",
    "latency_targets",
    "plan_tab",
    "results",
    "roofline_tab",
    "session",
    "summary",
    "what_if",
    "why_tab",
]
