"""The sidebar: scenario, model, traffic, targets and GPUs; and, in groups that open, what fewer need."""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Any

import streamlit as st

from planner.core import InputError, Metric, PlannerError, percent, significant
from planner.llm import Precision, checkpoint_bytes, checkpoints_of, format_words, list_llms, packaged_llm
from planner.optimizer import Objective
from planner.report import glossary
from planner.scenario import MAX_SCENARIO_BYTES, NARROWER, formats_with, list_scenarios, service_names, slo_presets, url
from planner.web import components, fields, inputs_hardware, inputs_traffic, links, results, session

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
"""Advice for a model of one's own; `docs/how-to/fine-tuned.md` at length."""
AS_PUBLISHED = "As published"
WITH_NARROWER = "As published, or narrower where a GPU runs it well"
OF_SCENARIO = "As in the scenario file: no checkpoint of it is known"
KV_FORMATS = {"bf16": "16 bits", "fp8": "FP8"}
"""Formats of the KV cache that every engine has; others stand in the scenario file."""
OWN_TARGETS = "own"
SECOND_MODEL = "llama-3.1-8b"
"""Model that is added first, to be changed. A choice."""
OBJECTIVES = {
    Objective.MIN_COST.value: "Least cost for all requests",
    Objective.MAX_RATE.value: "Most requests for the budget",
    Objective.MAX_RATE_PER_COST.value: "Most requests per dollar",
}
PERCENTILES = (0.5, 0.9, 0.95, 0.99, 0.999)


def show() -> None:
    """All inputs. A part that cannot be shown shows its error; the others stand."""
    with components.errors_in_place():
        scenario_menu()
    model_choice()
    for title, part in PARTS.items():
        st.subheader(title, divider="gray", anchor=False)
        with components.errors_in_place():
            part()
    for title, (part, words) in GROUPS.items():
        head = f"{title} :small[:gray[{components.plain(words())}]]"
        with components.errors_in_place(), st.expander(head, key=f"group-{components.slug(title)}"):
            part()
    plan_bar()


# --- changes that are not planned yet ---------------------------------------------------------------------------------


def plan_bar() -> None:
    """At the end of the sidebar and always in sight: the button, whether each change is planned at once, what waits.

    The button looks the same whether or not there is anything to plan: a field is left by clicking it, and what it
    becomes between press and release would lose the click.
    """
    with st.container(key="plan-bar", gap="small"):
        with st.container(horizontal=True, vertical_alignment="center"):
            st.button("Plan", key="plan-now", type="primary", on_click=_plan, width=70)
            st.toggle(**fields.widget("inputs-at-each-change", key=session.AT_EACH_CHANGE), on_change=_plan)
        if session.is_pending():
            st.caption(f":orange[{components.plain(_changed())}: not planned yet]")
        else:
            is_answered = results.is_planned(session.key())
            st.caption("The answer is for these inputs." if is_answered else "These inputs have no answer yet.")


def _plan() -> None:
    """Plan what was gathered, also what was stopped."""
    st.session_state[results.STOPPED] = None
    session.plan_changes()


def _changed() -> str:
    """The inputs that were changed, as the page calls them."""
    paths = [path for path, _ in url.differences(session.planned_content(), session.content()) if path != "name"]
    if "workload.concurrency" in paths:  # whose users come as their answers do
        paths = [path for path in paths if path.partition(".drift")[0] not in ("workload", "workload.scv")]
    return fields.names_of(paths or ["name"])


def mark_pending(*, has_answer: bool) -> None:
    """Above an answer to other inputs than the sidebar shows, or where it would stand: that, and the two ways on."""
    with st.container(key="inputs-changed", horizontal=True, vertical_alignment="center"):
        st.markdown(
            f":orange[:material/edit:] **The inputs have changed** ({components.plain(_changed())}). "
            + ("What stands below is for those before." if has_answer else "Press Plan once they are complete."),
            width="stretch",
        )
        st.button("Plan", key="plan-changes", type="primary", on_click=_plan, icon=":material/calculate:")
        st.button(**fields.widget("drop-changes"), on_click=session.replace_scenario, args=(session.planned_content(),))


# --- scenario ---------------------------------------------------------------------------------------------------------


def scenario_menu() -> None:
    """Undo, redo, and the scenario as a file or a link."""
    state = st.session_state
    steps = {"undo": (session.undo, state.past), "redo": (session.redo, state.future)}
    with st.container(horizontal=True, gap="small"):
        for name, (step, can) in steps.items():
            hint, icon = f"{name.capitalize()} the last change", f":material/{name}:"
            st.button("", icon=icon, key=name, on_click=step, disabled=not can, help=hint)
        with st.popover("Scenario", icon=":material/folder_open:", width="stretch"):
            scenario_files()
    st.markdown("[:material/bolt: Quick answers](?page=quick): fits, tokens/s, price")


def scenario_files() -> None:
    """Load and save: packaged scenarios, a YAML file, the link."""
    st.text_input(**fields.bound("name"))
    name = st.selectbox(**fields.widget("example"), options=list(list_scenarios()))
    st.button("Open example", on_click=session.load, args=(name,), disabled=name is None, key="open-example")
    components.upload("scenario-file", read_scenario_file, MAX_SCENARIO_BYTES)
    text = session.yaml_text()
    st.download_button(**fields.widget("save-scenario"), data=text, disabled=not text)
    st.caption("The address of this page contains the scenario: bookmark or share it.")


def read_scenario_file(name: str, raw: bytes) -> None:
    """An uploaded scenario, or that of an uploaded plan, replaces this one; what it says wrongly is named.

    Raises InputError where the file holds no scenario.
    """
    opened = links.from_file(name, raw, session.DEFAULT)
    session.replace_scenario(opened.content)
    session.name_dropped(opened.dropped)


# --- several models ---------------------------------------------------------------------------------------------------


def model_choice() -> None:
    """Which model the sidebar shows where there are several; a button for one more, and one without it."""
    services = session.content().get("services") or []
    place = st.session_state[session.MODEL] = session.shown_model()
    with st.container(horizontal=True, gap="small", vertical_alignment="center"):
        if services:
            main = _uploaded_name(session.content()["llm"])
            named = [(service.get("name"), _uploaded_name(service["llm"])) for service in services]
            names = [main, *service_names(main, named)]
            places, name_of = range(len(names)), names.__getitem__
            st.segmented_control(
                "Model shown", places, format_func=name_of, key=session.MODEL, required=True, wrap=True
            )
        st.button("Add a model", key="add-model", on_click=_add_model, type="tertiary", icon=":material/add:")
        if place:
            gone = {"services": [*services[: place - 1], *services[place:]]}
            icon = ":material/remove:"
            st.button("Remove", key="drop-model", on_click=session.gather, args=(gone,), type="tertiary", icon=icon)


def _add_model() -> None:
    """Another model with the traffic and targets of the first, to be changed."""
    content = session.content()
    services = content.get("services") or []
    service = {name: content[name] for name in ("workload", "slo")} | {"precision": None, "max_request_tokens": None}
    service |= {"llm": SECOND_MODEL, "name": ""}
    session.gather({"services": [*services, service]})
    st.session_state[session.MODEL] = len(services) + 1


# --- model ------------------------------------------------------------------------------------------------------------


def model_inputs() -> None:
    """The model: a preset or an uploaded config.json."""
    llm = session.value("llm")
    shown = llm if isinstance(llm, str) else UPLOADED
    options = list(dict.fromkeys([*([shown] if shown not in list_llms() else []), *list_llms()]))
    st.selectbox(
        options=options,
        label_visibility="collapsed",
        format_func=lambda name: _uploaded_name(llm) if name == UPLOADED else name,
        **fields.bound("llm", session.bind("llm", shown, lambda name: {} if name == UPLOADED else _with_llm(name))),
    )
    with st.popover("Fine-tuned, or not in the list?", icon=":material/help:", type="tertiary"):
        st.markdown(OWN_MODEL)
        components.upload("config-file", read_config, MAX_CONFIG_BYTES)
    if note := other_services_note():
        st.caption(components.plain(note))


def _with_llm(llm: Any) -> dict[str, Any]:  # noqa: ANN401
    """Another model, with the formats of the scenario where it can be had in them, and no limit on its requests.

    What was named after an example, or after the model before, is named after it: reports bear that name.
    """
    place, before = session.shown_model(), _uploaded_name(session.value("llm"))
    named: dict[str, Any] = {}
    if place:
        path = f"services.{place - 1}.name"
        named = {path: ""} if re.fullmatch(rf"{re.escape(before)}( \d+)?", session.value(path, "")) else {}
    elif isinstance(llm, str) and session.value("name") in [*list_scenarios(), before]:
        named = {"name": llm}
    return {"llm": llm, "max_request_tokens": None, **formats_with(llm, session.value("precision")), **named}


def other_services_note() -> str:
    """What else the scenario serves, which has no widgets; empty where there is nothing."""
    services = []
    cascade = session.value("cascade")
    if cascade:
        services.append(f"{_uploaded_name(cascade['llm'])} in front of it (a cascade)")
    if session.value("offline"):
        services.append("work that may wait")
    return f"Also served: {'; '.join(services)}. Edit this in the scenario file." if services else ""


def _uploaded_name(llm: Any) -> str:  # noqa: ANN401
    """A model's name: of a preset its own, of an uploaded one that of its file."""
    return str(llm.get("_name", "model")) + " (uploaded)" if isinstance(llm, dict) else str(llm)


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
    packaged_llm(llm)  # raises where it cannot be read as a model
    session.change(session.of_shown_model(_with_llm(llm)))


# --- number formats ---------------------------------------------------------------------------------------------------

Written = dict[str, Any] | str | None
"""Number formats as a scenario writes them."""
Formats = dict[str, Written]
"""The same by the name of their checkpoint."""


def format_inputs() -> None:
    """The checkpoints there are of the model with their bytes, the KV cache, and the longest request."""
    precision = session.value("precision")
    choices = _checkpoints(session.value("llm"))
    named, own = AS_PUBLISHED if precision is None else WITH_NARROWER, {}
    if isinstance(precision, dict):  # the KV cache is chosen apart
        own, known = precision, choices.items()
        same = (name for name, formats in known if isinstance(formats, dict) and _weights(formats) == _weights(own))
        named = next(same, OF_SCENARIO)
    bind = session.bind(
        "precision", named, lambda name: {"precision": with_checkpoint(precision, named, name, choices)}
    )
    st.selectbox(options=list(dict.fromkeys([*choices, named])), **fields.bound("precision", bind))
    kept = own.get("kv_cache")
    path = "precision.kv_cache"
    bind = session.bind(path, kept, lambda name: {"precision": {**own, "kv_cache": name or kept}})
    st.selectbox(
        options=list(KV_FORMATS) if kept in (None, *KV_FORMATS) else [kept, *KV_FORMATS],
        format_func=lambda name: KV_FORMATS.get(name, name),
        index=None,
        placeholder="as the checkpoint",
        disabled=not own,
        **fields.bound(path, bind),
    )
    fields.number("max_request_tokens")


def format_words_set() -> str:
    """The formats that are set, in a word or two."""
    precision = session.value("precision")
    if not isinstance(precision, dict):
        return "as published" if precision is None else "or narrower"
    weights, cache = (precision[name].partition("_")[0].upper() for name in ("weights", "kv_cache"))
    return f"{weights} weights, {cache} KV cache"


def _checkpoints(llm: Any) -> Formats:  # noqa: ANN401
    """Every checkpoint of a model, e.g. by ``block-scaled FP8, 34.3 GB: Qwen/Qwen3-32B-FP8``."""
    choices: Formats = {AS_PUBLISHED: None, WITH_NARROWER: NARROWER}
    try:
        model = packaged_llm(llm)
    except PlannerError:
        return choices
    for checkpoint in checkpoints_of(model):
        size = f"{significant(1e-9 * checkpoint_bytes(model, checkpoint))} GB"
        made = ", converted on loading" if checkpoint.made_on_load else ""
        name = f"{format_words(model, checkpoint.precision)}, {size}: {checkpoint.repository}{made}"
        choices[name] = checkpoint.precision.model_dump(mode="json")
    return choices


def with_checkpoint(precision: Written, named: str, name: str, choices: Formats) -> Written:
    """The formats of another checkpoint; a KV cache that was not that of the one before is kept."""
    chosen, before = choices.get(name, precision), choices.get(named)
    if not isinstance(chosen, dict) or not isinstance(precision, dict):
        return chosen
    own = before["kv_cache"] if isinstance(before, dict) else None
    return chosen if precision.get("kv_cache") in (None, own) else {**chosen, "kv_cache": precision["kv_cache"]}


def _weights(precision: dict[str, Any]) -> Precision:
    return Precision.model_validate({**precision, "kv_cache": "bf16"})


# --- targets ----------------------------------------------------------------------------------------------------------


def target_inputs() -> None:
    """Preset targets, then percentile and threshold of each."""
    presets = {preset.name: preset for preset in slo_presets()}
    contents = {name: [target.model_dump(mode="json") for target in preset.targets] for name, preset in presets.items()}
    targets = session.value("slo")
    named = next((name for name, content in contents.items() if content == targets), OWN_TARGETS)
    st.selectbox(
        options=[*presets, *([OWN_TARGETS] if named == OWN_TARGETS else [])],
        format_func=lambda name: presets[name].title if name in presets else "Own targets",
        **fields.bound(
            "slo", session.bind("slo", named, lambda name: {"slo": contents[name]} if name in presets else {})
        ),
    )
    if named != OWN_TARGETS:
        st.caption(f"[{presets[named].source}]({presets[named].source_url})")
    for index, target in enumerate(targets):
        _target_input(index, target)


def _target_input(index: int, target: dict[str, Any]) -> None:
    """Percentile and threshold of one target."""
    name, share = target["metric"].upper(), target["percentile"]
    left, right = st.columns([2, 3])
    left.selectbox(
        name,
        sorted({*PERCENTILES, share}),
        format_func=lambda share: f"p{100 * share:g}",
        help=glossary.meaning(name),
        **session.bind_field(f"slo.{index}.percentile"),
    )
    seconds = target["metric"] == Metric.E2E.value
    right.number_input(
        f"at most ({'s' if seconds else 'ms'})",
        min_value=0.001,
        max_value=1e7,
        step=5.0,
        format="%g",
        help=f"Threshold of p{100 * share:g} {name}",
        **session.bind_field(f"slo.{index}.threshold_s", 1.0 if seconds else 1000.0),
    )


# --- goal -------------------------------------------------------------------------------------------------------------


def goal_inputs() -> None:
    """Objective, budget, what the fleet must withstand, and how it may serve."""
    st.selectbox(
        options=list(OBJECTIVES),
        format_func=OBJECTIVES.__getitem__,
        label_visibility="collapsed",
        **fields.bound("objective"),
    )
    fields.number("limits.budget_usd_per_hour")
    most = max(0.99, session.value("confidence"))
    st.slider(min_value=0.5, max_value=most, step=0.01, format="percent", **fields.bound("confidence"))
    with st.expander("Growth and failures"):
        fields.number("growth")
        fields.number("limits.spare_replicas")
        st.checkbox(**fields.bound("limits.survives_node_loss"))
    with st.expander("Power and CO2"):
        power_inputs()
    inputs_hardware.engine_inputs()


def goal_words() -> str:
    """Confidence, and what limits the fleet beyond its targets."""
    limits, growth = session.value("limits"), session.value("growth")
    budget, spares = limits["budget_usd_per_hour"], limits["spare_replicas"] + limits["survives_node_loss"]
    said = [percent(session.value("confidence")), f"${significant(budget)}/h at most" if budget else ""]
    said += [f"growth {growth:g}" if growth != 1.0 else "", "survives losses" if spares else ""]
    return ", ".join(filter(None, said))


def power_inputs() -> None:
    """Limits of power and emissions."""
    grid = "limits.co2_kg_per_kwh"
    for path in ("limits.power_kw", "limits.pue", grid, "limits.co2_kg_per_hour"):
        given = session.value(path)
        is_needless = path == "limits.co2_kg_per_hour" and session.value(grid) is None and given is None
        bind = session.bind(path, None if given is None else float(given), partial(_power_changes, path))
        fields.number(path, bind=bind, disabled=is_needless)


def _power_changes(path: str, given: float | None) -> session.Changes:
    """The change of a limit; without CO2 of the grid there is no limit of CO2. An empty PUE is 1."""
    changes: dict[str, Any] = {path: 1.0 if given is None and path == "limits.pue" else given}
    if path.endswith("co2_kg_per_kwh") and given is None:
        changes["limits.co2_kg_per_hour"] = None
    return changes


PARTS = {
    "Model": model_inputs,
    "Traffic": inputs_traffic.show,
    "Latency targets": target_inputs,
    "Hardware": inputs_hardware.show,
}
"""Of the sidebar, in their order; they stand open."""
GROUPS = {
    "Formats": (format_inputs, format_words_set),
    "Traffic in detail": (inputs_traffic.show_details, inputs_traffic.detail_words),
    "Buying": (inputs_hardware.price_inputs, inputs_hardware.price_words),
    "Goal and engine": (goal_inputs, goal_words),
}
"""Below them, behind a click: what each holds, and what is set there, for its head."""
