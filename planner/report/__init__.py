"""Results as records, tables, JSON, data frames and HTML. Nothing is computed here that a result does not hold.

`records` names the fields that JSON documents and data frames show. `plan`, `performance`, `explanation`, `what_if` and
`comparison` each put one type of result into a headline and tables; `layout` lays them out in Markdown.
"""

from planner.report import (
    autoscaling,
    comparison,
    explanation,
    glossary,
    growth,
    html_page,
    plan,
    plan_summary,
    purchase_tables,
    records,
    regions,
    running_fleet,
    terminal,
    what_if,
)
from planner.report.data_frames import frame, frames
from planner.report.explanation import quantity
from planner.report.html_page import csv_text, html, html_table, safe_cell
from planner.report.performance import (
    LIMITS,
    class_table,
    confidence_table,
    encoder_words,
    limit_name,
    performance_report,
)
from planner.report.plan import (
    COST_COLUMNS,
    ROUNDING,
    diagnosis,
    headline,
    more_reasons,
    page,
    plan_assumptions,
    planner_version,
    sold_in_blocks,
    tables,
    token_distributions,
)
from planner.report.records import evaluation_to_dict, plan_schema, plan_to_dict
from planner.report.regions import regions_to_dict
from planner.report.robustness import target_name
from planner.report.workbook import plan_workbook
