"""Pages of /metrics that were recorded of servers and are kept as tables (`tests/reference`, each with its source)."""

from __future__ import annotations

import csv

from tests.places import REFERENCE

SINGLE = "vllm_scrape.csv"
"""A vLLM of June 2024 after one request."""
LOADED = "vllm_load.csv"
"""A vLLM 0.32 before and after 1,178 requests under load."""
LOADED_CLIENT = "vllm_load_client.csv"
"""The same requests as their client counted and timed them."""
LOADED_S = 405.367
"""Seconds between the two pages of the load."""
COMMON = {SINGLE: {"model_name": "facebook/opt-125m"}, LOADED: {"engine": "0", "model_name": "tiny-llama"}}
"""Labels that every sample of a page has, and its table leaves out."""


def recorded_rows(name: str) -> list[dict[str, str]]:
    """Lines of a table of `tests/reference` without its comments."""
    lines = (REFERENCE / name).read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def recorded_page(name: str, column: str = "value") -> str:
    """A page in the text form of Prometheus; `column` says which, where a table has several."""
    page = ""
    for row in recorded_rows(name):
        own = dict(pair.split("=") for pair in row["label"].split(",") if pair)
        labels = ",".join(f'{label}="{value}"' for label, value in sorted({**own, **COMMON[name]}.items()))
        page += f"vllm:{row['metric']}{{{labels}}} {row[column]}\n"
    return page
