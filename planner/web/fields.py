"""Fields of the scenario as the page has them: label, part of the page, hint and bounds of each input, stated once.

Warnings, notes and fixes come from the engine, which knows fields only; who fills in the sidebar looks for labels.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import streamlit as st

from planner.web import session
from planner.workload import MAX_IMAGES, MAX_RATE_CV, MAX_SCV, MAX_TOKENS, MAX_TURNS


@dataclass(frozen=True)
class Field:
    """One field of the scenario.

    Attributes:
        label: of its widget.
        hint: shown on hover.
        bounds: least, most and step of a number, in the type of the field; further ones may be missing.
        empty: what stands in a number that may be left out; empty where it may not.
        part: of the page that holds it.
    """

    label: str
    hint: str | None = None
    bounds: tuple[float | None, ...] = ()
    empty: str = ""
    part: str = ""


_ASSUMED = "An assumption until you enter your provider's figure."
_FIELDS: Mapping[str, Mapping[str, Field]] = {
    "Model": {
        "llm": Field("Model"),
        "max_request_tokens": Field(
            "Longest request (tokens)",
            "Input and output of one request that engines are told to take (max_model_len). Empty: the longest "
            "of the traffic with headroom, as far as the KV cache holds it.",
            bounds=(1, None, 1024),
            empty="as the traffic needs",
        ),
        "precision": Field(
            "Checkpoint and number format",
            "The checkpoints there are of this model, with the bytes of their weights, and what engines make of"
            " its 16-bit weights on loading. Any other format can be asked for in the scenario file.",
        ),
        "precision.kv_cache": Field("KV cache", "Number format of the keys and values that are kept of every token."),
    },
    "Scenario": {
        "name": Field("Name"),
    },
    "Traffic": {
        "workload.rate_per_s": Field(
            "Traffic in",
            "The unit in which you know your traffic; the plan is for the mean, unless the tab Cost gives a "
            "day. Users at the same time: each sends its next request as soon as it has its answer.",
        ),
        "workload.concurrency": Field("Users waiting at the same time", bounds=(1, 1_000_000)),
        "workload.lengths": Field(
            "Token lengths",
            "Joint distribution of input and output tokens: a packaged trace, your own, or every request alike.",
        ),
        "workload.lengths.mean_input_tokens": Field("Mean input tokens"),
        "workload.lengths.mean_output_tokens": Field("Mean output tokens"),
        "workload.lengths.input_tokens": Field("Input tokens", bounds=(1, MAX_TOKENS)),
        "workload.lengths.output_tokens": Field("Output tokens", bounds=(1, MAX_TOKENS)),
        "workload.sessions.turns": Field("Turns", "Mean requests of a session.", bounds=(1.0, float(MAX_TURNS))),
        "workload.sessions.think_time_s": Field(
            "Think time [s]",
            "Mean time from an answer to the next request; of an agent, what a tool takes.",
            bounds=(0.0, 1e7),
        ),
        "workload.scv": Field(
            "Burstiness (SCV of arrival gaps)",
            "Variance / mean² of the time between arrivals, at a steady rate. 0: evenly spaced, 1: Poisson, "
            "above 1: bursty.",
            bounds=(0.0, MAX_SCV, 0.5),
        ),
        "workload.drift": Field(
            "Drift of the rate (CV)",
            "Standard deviation / mean of the rate over minutes to hours. 0: none of your own, as the recording"
            " that gives the burstiness has it. 0.2 is a calm hour, 0.6 a day.",
            bounds=(0.0, MAX_RATE_CV, 0.1),
        ),
        "workload.drift.correlation_time_s": Field(
            "over (seconds)", "Correlation time: how long the rate stays high or low.", bounds=(1.0, 1e6, 60.0)
        ),
        "workload.scaling": Field(
            "Another rate than recorded means",
            "More users: copies of the requests, shifted against each other, or some left out; minutes stay "
            "minutes. A faster clock: the same requests, closer together, and the drift of minutes with them.",
        ),
        "workload.images": Field(
            "Images per request",
            "Mean number beside the text. Their tokens and the encoder's time are added to the prompt; 0: text only.",
            bounds=(0.0, float(MAX_IMAGES), 0.5),
        ),
    },
    "Traffic › Shared prefixes": {
        "workload.prefixes": Field(
            "Shared tokens at the start of a prompt",
            "A system prompt, tenant or document that many prompts begin with. 0: no shared prefix.",
            bounds=(0, MAX_TOKENS, 256),
        ),
        "workload.prefixes.groups": Field(
            "Different prefixes", "1: one system prompt; more: tenants, documents, tools.", bounds=(1, 1_000_000)
        ),
        "search.prefix_cache": Field("Engines keep prefixes (prefix cache)"),
    },
    "Latency targets": {
        "slo": Field("Targets for", "Published starting points; change the numbers below."),
    },
    "Hardware": {
        "search.skus": Field(
            "SKUs", "Only these are considered. The tab Hardware shows all of them, and adds your own."
        ),
        "search.modes": Field("Ways of serving"),
        "prices.provider": Field("Provider", "Whose prices apply. Any: the lowest listed price of each SKU."),
        "prices.region": Field(
            "Region",
            "Where GPUs are rented: an area of the world, or a region as its provider calls it. Of sellers "
            "whose price holds in all their regions, those count that are listed in the region too; in an area "
            "also those of which no region is known: the plan then says what to check.",
        ),
        "prices.providers_at_most": Field(
            "Providers at most",
            "1: everything from one provider and region. More: pools that share nothing may be elsewhere.",
            bounds=(1, 10),
        ),
        "prices.granularity": Field("Bought as"),
        "prices.commitments": Field(
            "Commitment", "Purchase options that may be used; of several, the cheapest mix is found."
        ),
        "prices.spot": Field("Interruptions per hour"),
        "prices.spot.interruptions_per_hour": Field(
            "Interruptions per hour", f"Of one instance. {_ASSUMED}", bounds=(0.0001, 60.0)
        ),
        "prices.spot.recovery_s": Field(
            "Recovery (s)", f"From an interruption until a replacement serves. {_ASSUMED}", bounds=(1.0, 1e6)
        ),
        "prices.rdma_gbps_per_gpu": Field(
            "RDMA between its servers (Gbit/s a GPU)",
            "What your contract has. Replicas that span servers, and pools that hand KV caches from one server "
            "to another, are planned only where the network between these is known.",
            bounds=(1.0, None, 100.0),
            empty="as the provider states it",
        ),
        "prices.usd_per_gpu_hour": Field("Your own prices"),
        "own_hardware.prices": Field("Your own prices"),
        "prices.owned": Field("GPUs you own"),
    },
    "Hardware › Engine and search": {
        "search.engine": Field("Engine"),
        "search.memory_fraction": Field(
            "Memory fraction",
            "Share of GPU memory that the engine may take, as it reads it (--gpu-memory-utilization of vLLM, "
            "--mem-fraction-static of SGLang, free_gpu_memory_fraction of TensorRT-LLM). Empty: the engine's "
            "own.",
            bounds=(0.01, 1.0, 0.01),
            empty="the engine's own",
        ),
        "search.eager": Field(
            "No CUDA graphs (eager)",
            "Every kernel of a step is launched by itself (--enforce-eager of vLLM): slower steps, and no "
            "memory for captured graphs.",
        ),
        "search.tp": Field("Tensor-parallel degrees (none: as the model needs)"),
        "search.pp": Field("Pipeline-parallel degrees (none: as the model needs)"),
        "search.ep": Field("Expert-parallel degrees (none: as the model needs)"),
        "search.max_running_requests": Field("Batch limits"),
        "search.max_batched_tokens": Field("Chunk budgets (tokens)"),
    },
    "Goal": {
        "objective": Field("Goal", "What is optimised within the targets and limits."),
        "limits.budget_usd_per_hour": Field(
            "Budget (USD per hour)", "Most that the fleet may cost.", bounds=(0.01, None, 10.0), empty="no limit"
        ),
        "confidence": Field(
            "Confidence",
            "Probability with which every target holds, uncertain as step times are. 50 %: as if the estimates "
            "were exact. More confidence costs more: see the tab Why, under Confidence.",
        ),
    },
    "Goal › Growth and failures": {
        "growth": Field(
            "Growth (factor on every rate)",
            "The plan is for this multiple of the traffic above.",
            bounds=(0.01, 1000.0, 0.1),
        ),
        "limits.spare_replicas": Field(
            "Spare replicas in every pool",
            "This many replicas of every pool may fail without a target being missed.",
            bounds=(0, 100),
        ),
        "limits.survives_node_loss": Field(
            "Survive the loss of a server", "All replicas of any one server may fail at once."
        ),
    },
    "Goal › Power and CO2": {
        "limits.power_kw": Field(
            "Power at most (kW)", "Of all GPUs at their TDP, times PUE.", bounds=(0.1,), empty="no limit"
        ),
        "limits.pue": Field(
            "PUE", "Power of the building over that of the servers; for power and CO2.", bounds=(1.0,), empty="no limit"
        ),
        "limits.co2_kg_per_kwh": Field(
            "CO2 of the grid (kg per kWh)",
            "Of your electricity; needed for the limit below.",
            bounds=(0.0,),
            empty="not given",
        ),
        "limits.co2_kg_per_hour": Field(
            "CO2 at most (kg per hour)", "Most that the fleet's power may cause.", bounds=(0.01,), empty="no limit"
        ),
    },
    "tab Cost": {
        "profile": Field("Recorded demand"),
    },
}
FIELDS = {path: replace(field, part=part) for part, fields in _FIELDS.items() for path, field in fields.items()}
"""By dotted path."""
_ROOTS = "limits|prices|search|workload|precision|own_hardware|slo"
_PATH = rf"(?:{_ROOTS})(?:\.[a-z_][\w-]*|\.\d+|\[\d+\])+|(?:confidence|growth)(?==)"
_FIELD = re.compile(rf"(?<![\w./`-])(?<!--set )(?:{_PATH})(=[^\s,;:)]+)?")
"""A field in a sentence, with the value that is to be set; not within a path of files or a command."""


# --- inputs -----------------------------------------------------------------------------------------------------------


def bound(path: str, bind: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Label, hint and binding of a widget for a field; `bind` of `session.bind` where it is not the field as it is."""
    return {"label": FIELDS[path].label, "help": FIELDS[path].hint, **(bind or session.bind_field(path))}


def number(path: str, place: Any = st, bind: Mapping[str, Any] | None = None, **other: Any) -> None:  # noqa: ANN401
    """A number input for a field with its bounds, empty where it may be left out.

    Args:
        path: of the field.
        place: where it stands.
        bind: as in `bound`.
        other: further arguments of `st.number_input`, before those of the field.
    """
    field = FIELDS[path]
    bounds = zip(("min_value", "max_value", "step"), field.bounds, strict=False)
    given: dict[str, Any] = {name: value for name, value in bounds if value is not None}
    given |= {"value": None, "placeholder": field.empty} if field.empty else {}
    given |= {"format": "%g"} if isinstance(given.get("min_value"), float) else {}
    place.number_input(**{**bound(path, bind), **given, **other})


# --- words ------------------------------------------------------------------------------------------------------------


def place_of(path: str) -> Field | None:
    """The field of a path, or the nearest one around it; None of one that only the file has.

    >>> place_of("limits.spare_replicas").part
    'Goal › Growth and failures'
    >>> place_of("slo.1.threshold_s").label, place_of("limits.pinned.h100-sxm")
    ('Targets for', None)
    """
    names = re.sub(r"\[(\d+)\]", r".\1", path).split(".")
    known = (FIELDS.get(".".join(names[:count])) for count in range(len(names), 0, -1))
    return next((field for field in known if field is not None), None)


def with_labels(text: str) -> str:
    """A sentence of the engine with every field called as the page calls it; the field itself stands behind.

    >>> with_labels("set confidence=0.9 and plan again")
    'set “Confidence” (sidebar, Goal; in a file confidence=0.9) and plan again'
    >>> with_labels("limits.pinned = 3: too many")
    'limits.pinned (in the scenario file only) = 3: too many'
    """
    return _FIELD.sub(_labelled, text)


def _labelled(found: re.Match[str]) -> str:
    field = place_of(found[0].partition("=")[0])
    if field is None:
        return f"{found[0]} (in the scenario file only)"
    where = field.part if field.part.startswith("tab ") else f"sidebar, {field.part}"
    return f"“{field.label}” ({where}; in a file {found[0]})"


def names_of(paths: Iterable[str]) -> str:
    """Fields as the page calls them, each once.

    >>> names_of(["llm", "slo.0.threshold_s", "slo.1.threshold_s", "limits.pinned"])
    'Model, Targets for, limits.pinned'
    """
    fields = {path: place_of(path) for path in paths}
    return ", ".join(dict.fromkeys(path if field is None else field.label for path, field in fields.items()))
