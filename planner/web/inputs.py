"""The sidebar: scenario, model, traffic, targets, hardware and goal, each bound to the scenario."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import streamlit as st

from planner.core import InputError, Metric, significant
from planner.llm import list_llms, load_llm
from planner.optimizer import Objective
from planner.scenario import MAX_SCENARIO_BYTES, SloPreset, formats_with, list_scenarios, slo_presets
from planner.web import components, inputs_formats, inputs_hardware, inputs_traffic, links, session

MAX_CONFIG_BYTES = 1_000_000
"""Largest config.json that is read; published ones have a few thousand bytes."""
UPLOADED = "uploaded config.json"
OWN_MODEL = """
Time and memory follow from the shape of a model, not from what its weights say.

- **A fine-tune, a merge of the same size, LoRA merged in**: choose the base model; it has the same shape.
- **LoRA adapters beside their base**: choose the base, and set `search.lora` in the scenario file
  (e.g. `{adapters: 8, rank: 16}`; *Scenario* above saves and opens it).
- **Another shape, or not in the list**: drop its `config.json` below. No weights are read.
- **Quantised yourself**: its `config.json` says so; or choose the base and the format below.
- **On the Hugging Face Hub**: the command line takes `hf:OWNER/NAME`; here drop the `config.json` of its page.
"""
"""What to choose for a model of one's own; `docs/how-to/fine-tuned.md` at length."""
OWN_TARGETS = "own"
OBJECTIVES = {
    Objective.MIN_COST.value: "Least cost for all requests",
    Objective.MAX_RATE.value: "Most requests for the budget",
    Objective.MAX_RATE_PER_COST.value: "Most requests per dollar",
}
PERCENTILES = {0.5: "p50", 0.9: "p90", 0.95: "p95", 0.99: "p99", 0.999: "p99.9"}
METRICS = {
    Metric.TTFT.value: "Time to first token: from the arrival of a request until its first token reaches the client",
    Metric.TPOT.value: "Time per output token: (end-to-end time - TTFT) / (output tokens - 1) of a request",
    Metric.E2E.value: "End-to-end time: from the arrival of a request until its last token",
    Metric.ITL.value: "Inter-token latency: one gap between two tokens",
}


def show() -> None:
    """All inputs. What one part cannot show is said in its place; the others stand."""
    components.guarded(scenario_menu)
    for title, part in PARTS.items():
        st.subheader(title, divider="gray", anchor=False)
        components.guarded(part)


# --- scenario ---------------------------------------------------------------------------------------------------------


def scenario_menu() -> None:
    """Undo, redo, and the scenario as a file or a link."""
    with st.container(horizontal=True, gap="small"):
        st.button(
            "",
            icon=":material/undo:",
            key="undo",
            on_click=session.undo,
            disabled=not session.has_past(),
            help="Undo the last change",
        )
        st.button(
            "",
            icon=":material/redo:",
            key="redo",
            on_click=session.redo,
            disabled=not session.has_future(),
            help="Redo the last change",
        )
        with st.popover("Scenario", icon=":material/folder_open:", width="stretch"):
            scenario_files()


def scenario_files() -> None:
    """Load and save: packaged scenarios, a YAML file, the link."""
    st.text_input("Name", **session.bind_field("name", "name"))
    names = list(list_scenarios())
    name = st.selectbox("Start from an example", names, key="example", index=None, placeholder="Choose")
    st.button("Open example", on_click=open_example, args=(name,), disabled=name is None, key="open-example")
    components.upload(
        "Open a scenario (YAML) or a plan (JSON)",
        ["yaml", "yml", "json"],
        "scenario-file",
        MAX_SCENARIO_BYTES,
        read_scenario_file,
        "The file that `planner plan` takes, or a plan as `planner plan --json` writes it. Only read as data.",
    )
    text = session.yaml_text()
    st.download_button(
        "Save as YAML",
        text,
        disabled=not text,
        file_name="scenario.yaml",
        mime="application/yaml",
        on_click="ignore",
        icon=":material/download:",
        key="save-scenario",
        help="For `planner plan scenario.yaml` and `planner.load_scenario`.",
    )
    st.caption("The address of this page contains the scenario: bookmark or share it.")


def open_example(name: str | None) -> None:
    """Load a packaged scenario, with the prices of today."""
    if name is not None:
        session.load(name)


def read_scenario_file(name: str, raw: bytes) -> None:
    """An uploaded scenario, or that of an uploaded plan, replaces this one; what it says wrongly is named.

    Raises InputError where the file holds no scenario.
    """
    opened = links.from_file(name, raw, session.DEFAULT)
    session.replace_scenario(opened.content)
    session.name_dropped(opened.dropped)


# --- model ------------------------------------------------------------------------------------------------------------


def model_inputs() -> None:
    """Preset or uploaded config.json, and the number formats."""
    presets = list(list_llms())
    llm = session.value("llm")
    options = presets if isinstance(llm, str) else [UPLOADED, *presets]
    shown = llm if isinstance(llm, str) else UPLOADED
    if shown not in options:
        options = [shown, *options]
    st.selectbox(
        "Model",
        options,
        label_visibility="collapsed",
        format_func=lambda name: _uploaded_name(llm) if name == UPLOADED else name,
        **session.bind("llm", shown, lambda name: {} if name == UPLOADED else _with_llm(name)),
    )
    with st.popover("Fine-tuned, or not in the list?", icon=":material/help:", type="tertiary"):
        st.markdown(OWN_MODEL)
    components.upload(
        "or drop a config.json",
        ["json"],
        "config-file",
        MAX_CONFIG_BYTES,
        read_config,
        "The config.json of a Hugging Face model. Only read as data; nothing in it is run.",
    )
    inputs_formats.show()
    note = other_services_note()
    if note:
        st.caption(components.plain(note))


def _with_llm(llm: Any) -> dict[str, Any]:  # noqa: ANN401
    """Another model, with the formats of the scenario where it can be had in them, and no limit on its requests.

    What was named after an example, or after the model before, is named after it: reports bear that name.
    """
    given = session.value("name") not in [*list_scenarios(), session.value("llm")]
    named = {} if given or not isinstance(llm, str) else {"name": llm}
    return {"llm": llm, "max_request_tokens": None, **formats_with(llm, session.value("precision")), **named}


def other_services_note() -> str:
    """Other models of the scenario, which have no widgets; empty where there are none."""
    services = [_service_in_words(service) for service in session.value("services") or []]
    cascade = session.value("cascade")
    if cascade:
        services.append(f"{_model_name(cascade['llm'])} in front of it (a cascade)")
    if session.value("offline"):
        services.append("work that may wait")
    return f"Also served: {'; '.join(services)}. Edit this in the scenario file." if services else ""


def _service_in_words(service: dict[str, Any]) -> str:
    """A further model of the scenario, in a few words."""
    rate = service["workload"].get("rate_per_s")
    at = f" at {significant(rate)} requests/s" if rate else ""
    return f"{service['name']}, {_model_name(service['llm'])}{at}"


def _model_name(llm: Any) -> str:  # noqa: ANN401
    return llm if isinstance(llm, str) else _uploaded_name(llm)


def _uploaded_name(llm: Any) -> str:  # noqa: ANN401
    return str(llm.get("_name", "model")) + " (uploaded)" if isinstance(llm, dict) else UPLOADED


def read_config(name: str, raw: bytes) -> None:
    """An uploaded config.json becomes the model. Raises InputError when it cannot be read as one."""
    fix = "upload the config.json of a Hugging Face model"
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError):
        raise InputError("config.json", name, "is not JSON", fix) from None
    if not isinstance(content, dict):
        raise InputError("config.json", name, "is not a JSON object", fix)
    llm = {"_name": name.removesuffix(".json"), **content}
    load_llm(dict(llm))  # raises where it cannot be read as a model
    session.change(_with_llm(llm))


# --- targets ----------------------------------------------------------------------------------------------------------


def target_inputs() -> None:
    """Preset targets, then percentile and threshold of each."""
    presets = {preset.name: preset for preset in slo_presets()}
    targets = session.value("slo")
    named = next((name for name, preset in presets.items() if _target_content(preset) == targets), OWN_TARGETS)
    st.selectbox(
        "Targets for",
        [*presets, *([OWN_TARGETS] if named == OWN_TARGETS else [])],
        format_func=lambda name: presets[name].title if name in presets else "Own targets",
        help="Published starting points; change the numbers below.",
        **session.bind("slo", named, lambda name: {"slo": _target_content(presets[name])} if name in presets else {}),
    )
    if named != OWN_TARGETS:
        st.caption(f"[{presets[named].source}]({presets[named].source_url})")
    for index, target in enumerate(targets):
        target_input(index, target)


def _target_content(preset: SloPreset) -> list[dict[str, Any]]:
    return [target.model_dump(mode="json") for target in preset.targets]


def target_input(index: int, target: dict[str, Any]) -> None:
    """Percentile and threshold of one target."""
    name = target["metric"].upper()
    left, right = st.columns([2, 3])
    shares = sorted({*PERCENTILES, target["percentile"]})
    left.selectbox(
        name,
        shares,
        format_func=lambda share: PERCENTILES.get(share, f"p{100 * share:g}"),
        help=METRICS[target["metric"]],
        **session.bind_field(f"slo-{index}-percentile", f"slo.{index}.percentile"),
    )
    seconds = target["metric"] == Metric.E2E.value
    right.number_input(
        f"at most ({'s' if seconds else 'ms'})",
        min_value=0.001,
        max_value=1e7,
        step=5.0,
        format="%g",
        help=f"Threshold of {PERCENTILES.get(target['percentile'], 'the percentile')} {name}",
        **session.bind_field(f"slo-{index}-threshold", f"slo.{index}.threshold_s", 1.0 if seconds else 1000.0),
    )


# --- goal -------------------------------------------------------------------------------------------------------------


def goal_inputs() -> None:
    """Objective, budget and what the fleet must withstand."""
    st.selectbox(
        "Goal",
        list(OBJECTIVES),
        format_func=OBJECTIVES.__getitem__,
        label_visibility="collapsed",
        help="What is optimised within the targets and limits.",
        **session.bind_field("objective", "objective"),
    )
    st.number_input(
        "Budget (USD per hour)",
        value=None,
        min_value=0.01,
        step=10.0,
        format="%g",
        placeholder="no limit",
        help="Most that the fleet may cost.",
        **session.bind_field("budget", "limits.budget_usd_per_hour"),
    )
    st.slider(
        "Confidence",
        min_value=0.5,
        max_value=max(0.99, session.value("confidence")),
        step=0.01,
        format="percent",
        help="Probability with which every target holds, uncertain as step times are. 50 %: as if the estimates were "
        "exact. More confidence costs more: see the tab Why, under Confidence.",
        **session.bind_field("confidence", "confidence"),
    )
    with st.expander("Growth and failures"):
        st.number_input(
            "Growth (factor on every rate)",
            min_value=0.01,
            max_value=1000.0,
            step=0.1,
            format="%g",
            help="The plan is for this multiple of the traffic above.",
            **session.bind_field("growth", "growth"),
        )
        st.number_input(
            "Spare replicas in every pool",
            min_value=0,
            max_value=100,
            help="This many replicas of every pool may fail without a target being missed.",
            **session.bind_field("spares", "limits.spare_replicas"),
        )
        st.checkbox(
            "Survive the loss of a server",
            help="All replicas of any one server may fail at once.",
            **session.bind_field("node-loss", "limits.survives_node_loss"),
        )
    with st.expander("Power and CO2"):
        power_inputs()


POWER_FIELDS = (
    ("power_kw", "Power at most (kW)", 0.1, None, "Of all GPUs at their TDP, times PUE."),
    ("pue", "PUE", 1.0, 1.0, "Power of the building over that of the servers; for power and CO2."),
    ("co2_kg_per_kwh", "CO2 of the grid (kg per kWh)", 0.0, None, "Of your electricity; needed for the limit below."),
    ("co2_kg_per_hour", "CO2 at most (kg per hour)", 0.01, None, "Most that the fleet's power may cause."),
)
"""Of `limits`: field, label, least value, value where the field is emptied, meaning."""


def power_inputs() -> None:
    """Limits of power and emissions."""
    for field, label, least, empty, meaning in POWER_FIELDS:
        is_needless = field == "co2_kg_per_hour" and session.value("limits.co2_kg_per_kwh") is None
        path = f"limits.{field}"
        given = session.value(path)
        st.number_input(
            label,
            value=None,
            min_value=least,
            format="%g",
            placeholder="no limit" if least else "not given",
            help=meaning,
            disabled=is_needless and given is None,
            **session.bind(field, None if given is None else float(given), partial(_power_changes, path, empty)),
        )


def _power_changes(path: str, empty: float | None, given: float | None) -> session.Changes:
    """The change of a limit; without CO2 of the grid there is no limit of CO2."""
    changes: dict[str, Any] = {path: empty if given is None else given}
    if path.endswith("co2_kg_per_kwh") and given is None:
        changes["limits.co2_kg_per_hour"] = None
    return changes


PARTS = {
    "Model": model_inputs,
    "Traffic": inputs_traffic.show,
    "Latency targets": target_inputs,
    "Hardware": inputs_hardware.show,
    "Goal": goal_inputs,
}
"""Of the sidebar, in their order."""
