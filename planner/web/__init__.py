"""The web app, part by part; `app.py` at the top puts them on the page.

    links       scenarios from outside, with what is wrong in them put right
    session     the scenario of one visitor, its history and its link; widgets that show and change one field
    inputs      the sidebar: scenario, model, traffic, targets, hardware, goal, and the button that plans
    bounds      largest requests that this server takes
    fields      fields of the scenario as the page has them: labels, hints and bounds of inputs
    results     plans and everything else that takes time: cached by scenario, with progress
    components  metrics, tables, charts, choices, uploads and errors, each with what explains it
    summary     the answer: a sentence, its warnings, four metrics and the fleet; without a fleet `infeasible`
    *_tab       one tab each; compare_*, cost_*, hardware_*, latency_* and roofline_* are sections of theirs

Nothing here computes: numbers come from the engine, tables from its reports, pictures from `planner.charts`. Nothing is
written to disk, and what a visitor changes stays in the visitor's session.
"""
