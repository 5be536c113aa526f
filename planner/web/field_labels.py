"""Fields of the scenario file by what the page calls them, and where on it they stand.

Warnings, notes and fixes come from the engine, which knows fields only; who fills in the sidebar looks for labels.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_GROWTH, _SEARCH = "Goal › Growth and failures", "Hardware › Engine and search"
PLACES: Mapping[str, tuple[str, str]] = {
    "llm": ("Model", "Model"),
    "name": ("Name", "Scenario"),
    "max_request_tokens": ("Longest request (tokens)", "Model"),
    "precision": ("Checkpoint and number format", "Model"),
    "precision.kv_cache": ("KV cache", "Model"),
    "workload.rate_per_s": ("Traffic in", "Traffic"),
    "workload.concurrency": ("Users waiting at the same time", "Traffic"),
    "workload.lengths": ("Token lengths", "Traffic"),
    "workload.lengths.mean_input_tokens": ("Mean input tokens", "Traffic"),
    "workload.lengths.mean_output_tokens": ("Mean output tokens", "Traffic"),
    "workload.lengths.input_tokens": ("Input tokens", "Traffic"),
    "workload.lengths.output_tokens": ("Output tokens", "Traffic"),
    "workload.scv": ("Burstiness (SCV of arrival gaps)", "Traffic"),
    "workload.drift": ("Drift of the rate (CV)", "Traffic"),
    "workload.images": ("Images per request", "Traffic"),
    "workload.prefixes": ("Shared tokens at the start of a prompt", "Traffic › Shared prefixes"),
    "search.prefix_cache": ("Engines keep prefixes (prefix cache)", "Traffic › Shared prefixes"),
    "slo": ("Targets for", "Latency targets"),
    "search.skus": ("SKUs", "Hardware"),
    "search.modes": ("Ways of serving", "Hardware"),
    "prices.provider": ("Provider", "Hardware"),
    "prices.region": ("Region", "Hardware"),
    "prices.providers_at_most": ("Providers at most", "Hardware"),
    "prices.granularity": ("Bought as", "Hardware"),
    "prices.commitments": ("Commitment", "Hardware"),
    "prices.spot": ("Interruptions per hour", "Hardware"),
    "prices.rdma_gbps_per_gpu": ("RDMA between its servers (Gbit/s a GPU)", "Hardware"),
    "prices.usd_per_gpu_hour": ("Your own prices", "Hardware"),
    "own_hardware.prices": ("Your own prices", "Hardware"),
    "prices.owned": ("GPUs you own", "Hardware"),
    "search.engine": ("Engine", _SEARCH),
    "search.memory_fraction": ("Memory fraction", _SEARCH),
    "search.eager": ("No CUDA graphs (eager)", _SEARCH),
    "search.tp": ("Tensor-parallel degrees (none: as the model needs)", _SEARCH),
    "search.pp": ("Pipeline-parallel degrees (none: as the model needs)", _SEARCH),
    "search.ep": ("Expert-parallel degrees (none: as the model needs)", _SEARCH),
    "search.max_running_requests": ("Batch limits", _SEARCH),
    "search.max_batched_tokens": ("Chunk budgets (tokens)", _SEARCH),
    "objective": ("Goal", "Goal"),
    "limits.budget_usd_per_hour": ("Budget (USD per hour)", "Goal"),
    "confidence": ("Confidence", "Goal"),
    "growth": ("Growth (factor on every rate)", _GROWTH),
    "limits.spare_replicas": ("Spare replicas in every pool", _GROWTH),
    "limits.survives_node_loss": ("Survive the loss of a server", _GROWTH),
    "limits.power_kw": ("Power at most (kW)", "Goal › Power and CO2"),
    "limits.pue": ("PUE", "Goal › Power and CO2"),
    "limits.co2_kg_per_kwh": ("CO2 of the grid (kg per kWh)", "Goal › Power and CO2"),
    "limits.co2_kg_per_hour": ("CO2 at most (kg per hour)", "Goal › Power and CO2"),
    "profile": ("Recorded demand", "tab Cost"),
}
"""By dotted path: the label of the widget, and the part of the page that holds it."""
_ROOTS = "limits|prices|search|workload|precision|own_hardware|slo"
_PATH = rf"(?:{_ROOTS})(?:\.[a-z_][\w-]*|\.\d+|\[\d+\])+|(?:confidence|growth)(?==)"
_FIELD = re.compile(rf"(?<![\w./`-])(?<!--set )(?:{_PATH})(=[^\s,;:)]+)?")
"""A field in a sentence, with the value that is to be set; not within a path of files or a command."""


def place_of(path: str) -> tuple[str, str] | None:
    """Label and part of the page of a field; None of one that only the file has.

    >>> place_of("limits.spare_replicas")
    ('Spare replicas in every pool', 'Goal › Growth and failures')
    >>> place_of("slo.1.threshold_s"), place_of("limits.pinned.h100-sxm")
    (('Targets for', 'Latency targets'), None)
    """
    names = re.sub(r"\[(\d+)\]", r".\1", path).split(".")
    known = (PLACES.get(".".join(names[:count])) for count in range(len(names), 0, -1))
    return next((place for place in known if place is not None), None)


def with_labels(text: str) -> str:
    """A sentence of the engine with every field called as the page calls it; the field itself stands behind.

    >>> with_labels("set confidence=0.9 and plan again")
    'set “Confidence” (sidebar, Goal; in a file confidence=0.9) and plan again'
    >>> with_labels("limits.pinned = 3: too many")
    'limits.pinned (in the scenario file only) = 3: too many'
    """
    return _FIELD.sub(_labelled, text)


def _labelled(found: re.Match[str]) -> str:
    path = found[0].partition("=")[0]
    place = place_of(path)
    if place is None:
        return f"{found[0]} (in the scenario file only)"
    label, part = place
    where = part if part.startswith("tab ") else f"sidebar, {part}"
    return f"“{label}” ({where}; in a file {found[0]})"


def names_of(paths: Iterable[str]) -> str:
    """Fields as the page calls them, each once.

    >>> names_of(["llm", "slo.0.threshold_s", "slo.1.threshold_s", "limits.pinned"])
    'Model, Targets for, limits.pinned'
    """
    return ", ".join(dict.fromkeys((place_of(path) or (path,))[0] for path in paths))
