"""Options of an engine for a configuration, in the words of the table of flags.

An option that the table has no row for raises UnsupportedFeatureError, which names it; none is dropped.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from planner.core import UnsupportedFeatureError
from planner.engine import Drafting, ReplicaConfig, memory_share
from planner.launch.flags import EngineFlag, FlagKind, rows_of
from planner.launch.servers import OwnPort
from planner.llm import SIXTEEN_BIT, DraftMethod, LlmSpec, Precision, published_as
from planner.roofline import absorbs_prompts, takes_every_nth
from planner.serving import Role

CHECKPOINT_NAME = re.compile(r"[\w.-]+/[\w.-]+")
"""Owner and name of a repository of weights."""
SMALLEST_LORA_RANK = 8
"""Adapter ranks are rounded up to a power of two, at least this one, which every engine of the table takes."""


@dataclass(frozen=True)
class EngineOption:
    """Something the engine must be told.

    Attributes:
        field: of the configuration, as an error names it.
        value: as an error shows it.
        knobs: the same in one or several knobs of the table, of which an engine has at least one.
    """

    field: str
    value: object
    knobs: Mapping[str, object]


@dataclass
class RenderedOptions:
    """Engine options in the engine's own words, as the rows of the table have them."""

    flags: list[tuple[str, str]] = field(default_factory=list)
    environment: list[tuple[str, str]] = field(default_factory=list)
    address_variables: list[str] = field(default_factory=list)
    own_ports: list[OwnPort] = field(default_factory=list)
    configuration: dict[str, Any] = field(default_factory=dict)

    def add(self, row: EngineFlag, value: object) -> None:
        """Add one row with its value."""
        if row.kind is FlagKind.ARGUMENTS:
            self.flags += _pairs([_filled(word, value) for word in shlex.split(row.flag)])
        elif row.kind is FlagKind.ENVIRONMENT:
            name, _, text = row.flag.partition("=")
            self.environment.append((name, _filled(text, value)))
        elif row.kind is FlagKind.ADDRESS:
            self.address_variables.append(row.flag)
        elif row.kind is FlagKind.PORT:
            self.own_ports.append(OwnPort.of(row.flag))
        elif row.kind is FlagKind.CONFIGURATION:
            set_path(self.configuration, _filled(row.flag, value))


def _filled(text: str, value: object) -> str:
    """A text of the table with its ``{value}``, or with several values by their names.

    >>> _filled("{draft}: {value}", {"value": 3, "draft": "a/b"})
    'a/b: 3'
    """
    for name, part in (value if isinstance(value, Mapping) else {"value": value}).items():
        text = text.replace(f"{{{name}}}", str(part))
    return text


def _pairs(words: Sequence[str]) -> list[tuple[str, str]]:
    """Words as (flag, value) pairs.

    >>> _pairs(["--enable-lora", "--max-loras", "8"])
    [('--enable-lora', ''), ('--max-loras', '8')]
    """
    pairs: list[tuple[str, str]] = []
    for word in words:
        if word.startswith("--"):
            pairs.append((word, ""))
        else:
            pairs[-1] = (pairs[-1][0], word)
    return pairs


def set_path(content: dict[str, Any], assignment: str) -> None:
    """Set ``dotted.path=value`` in nested mappings; the value is YAML.

    >>> content: dict[str, Any] = {}
    >>> set_path(content, "router.use_tokens=false")
    >>> content
    {'router': {'use_tokens': False}}
    """
    path, _, text = assignment.partition("=")
    *parents, last = path.split(".")
    for parent in parents:
        content = content.setdefault(parent, {})
    content[last] = yaml.safe_load(text)


def chosen_options(config: ReplicaConfig, role: Role, max_request_tokens: int) -> list[EngineOption]:
    """Everything the planner chose, the weights apart (see `weights_source`)."""
    kv = config.precision.kv_cache.value
    return [
        *_parallelism_options(config, role),
        *_batching_options(config),
        EngineOption("precision.kv_cache", kv, {f"kv_cache={kv}": kv}),
        EngineOption("memory_fraction", None, {"memory_fraction": memory_share(config)}),
        EngineOption("max_request_tokens", max_request_tokens, {"max_model_len": max_request_tokens}),
        *_tier_options(config, role),
        *_extra_options(config),
        *([] if role is Role.MIXED else [EngineOption("role", role.value, {f"role={role.value}": role.value})]),
    ]


def _parallelism_options(config: ReplicaConfig, role: Role) -> list[EngineOption]:
    """Degrees of parallelism; those of 1 need no word, save the tensor-parallel one."""
    split = config.parallelism
    ranks = split.stage_gpus
    options = [EngineOption("parallelism.tp", split.tp, {"tp": split.tp, "tp_of_all_ranks": ranks})]
    if split.pp > 1:
        options.append(EngineOption("parallelism.pp", split.pp, {"pp": split.pp}))
    if split.dp > 1:
        options.append(EngineOption("parallelism.dp", split.dp, {"dp": split.dp}))
    if split.ep > 1:
        all_ranks = {"ep_all_ranks": split.ep} if split.ep == ranks else {}
        options.append(EngineOption("parallelism.ep", split.ep, {"ep": split.ep, **all_ranks}))
    if config.sends_tokens:
        in_rack = split.pcp == 1 and ranks <= config.sku.scale_up.domain_gpus
        knob = f"all_to_all={'rack' if in_rack else 'network'}"
        options.append(EngineOption("parallelism.ep", split.ep, {knob: split.ep, f"{knob},role={role}": split.ep}))
        if config.engine.overlaps_batches and split.pcp == 1 and not in_rack:
            options.append(EngineOption("parallelism.ep", split.ep, {"two_halves": True}))
    if split.dcp > 1:
        options.append(EngineOption("parallelism.dcp", split.dcp, {"dcp": split.dcp}))
    if split.pcp > 1:
        latent = any(absorbs_prompts(group.attention, split) for group in config.llm.layers)
        shares = "tokens" if takes_every_nth(config.llm) else "latent_blocks" if latent else "blocks"
        options.append(EngineOption("parallelism.pcp", split.pcp, {f"pcp={shares}": split.pcp}))
    if split.redundant_experts:
        copies = split.redundant_experts
        options.append(EngineOption("parallelism.redundant_experts", copies, {"redundant_experts": copies}))
    return options


def _batching_options(config: ReplicaConfig) -> list[EngineOption]:
    """Limits of a step and how it is filled."""
    schedule, dp = config.schedule, config.parallelism.dp
    running, tokens = config.max_running_requests, config.max_batched_tokens
    prompts = "whole_prompts" if schedule.whole_prompts else "chunked_prompts"
    prefixes = "prefix_cache" if schedule.prefix_cache else "no_prefix_cache"
    options = [
        EngineOption(
            "max_running_requests",
            running,
            {"max_running_requests": running, "max_running_requests_per_rank": max(1, running // dp)},
        ),
        EngineOption(
            "max_batched_tokens",
            tokens,
            {"max_batched_tokens": tokens, "max_batched_tokens_per_rank": max(1, tokens // dp)},
        ),
        EngineOption("schedule.whole_prompts", schedule.whole_prompts, {prompts: schedule.whole_prompts}),
        EngineOption("schedule.prefix_cache", schedule.prefix_cache, {prefixes: schedule.prefix_cache}),
    ]
    if schedule.mixed_steps != config.engine.mixed_steps:
        mixed = "mixed_steps" if schedule.mixed_steps else "separate_steps"
        options.append(EngineOption("schedule.mixed_steps", schedule.mixed_steps, {mixed: schedule.mixed_steps}))
    if schedule.stream_interval_steps > 1:
        steps = schedule.stream_interval_steps
        options.append(EngineOption("schedule.stream_interval_steps", steps, {"stream_interval": steps}))
    if schedule.captured_decodes == 0:
        options.append(EngineOption("schedule.captured_decodes", 0, {"eager": True}))
    elif schedule.captured_decodes is not None:
        most = schedule.captured_decodes
        queries = 1 + config.drafting.draft_tokens if config.drafting is not None else 1
        knobs = {"captured_decodes": most, "captured_tokens": most * queries}
        options.append(EngineOption("schedule.captured_decodes", most, knobs))
    return options


def _tier_options(config: ReplicaConfig, role: Role) -> list[EngineOption]:
    """KV tiers, one option for each: what an engine may take of a server's, in the units of engines.

    A pool of its own is another knob: there a connector hands KV caches on as well.
    """
    options = []
    for tier in (tier for tier in config.schedule.kv_tiers if tier.size_bytes):
        of_gpu = tier.size_bytes / config.sku.node.gpus
        sizes = {
            "gib_of_core": f"{of_gpu * config.parallelism.gpus / config.parallelism.dp / 2**30:.0f}",
            "gb_of_gpu": int(of_gpu / 1e9),
            "bytes_of_gpu": int(of_gpu),
        }
        knob = f"kv_tier={tier.kind}" + ("" if role is Role.MIXED else f",role={role}")
        options.append(EngineOption("schedule.kv_tiers", tier.kind.value, {knob: sizes}))
    return options


def _extra_options(config: ReplicaConfig) -> list[EngineOption]:
    """Drafts, adapters, and images that others encode."""
    options = []
    drafts, lora = config.drafting, config.lora
    if drafts is not None:
        options.append(EngineOption("speculation", drafts.draft_tokens, _draft_knobs(drafts)))
    if config.encoders:
        options.append(EngineOption("encoders", config.encoders, {"encoders": ""}))
    if lora is not None:
        rank = max(SMALLEST_LORA_RANK, 1 << (lora.rank - 1).bit_length())
        options.append(EngineOption("lora", lora.held, {"lora_slots": lora.held, "lora_rank": rank}))
    return options


def _draft_knobs(drafts: Drafting) -> dict[str, object]:
    """Knobs of speculation, with the checkpoint that drafts; none where no engine could load it."""
    verified = {"verified_tokens": drafts.draft_tokens + 1}
    if drafts.method is DraftMethod.MTP:
        return {"mtp_tokens": drafts.draft_tokens, **verified}
    checkpoint = drafts.checkpoint
    if drafts.method is DraftMethod.DRAFT_MODEL and drafts.draft is not None:
        checkpoint = drafts.draft.llm.name
    if not CHECKPOINT_NAME.fullmatch(checkpoint):
        return {}
    return {f"{drafts.method}_tokens": {"value": drafts.draft_tokens, "draft": checkpoint}, **verified}


def require_own_schedule(config: ReplicaConfig) -> None:
    """Refuse a schedule that is not the engine's own and that no flag of the table sets."""
    free = {"prefix_cache", "kv_tiers", "whole_prompts", "mixed_steps", "reserve_outputs"}
    free |= {"captured_decodes", "stream_interval_steps"}
    own = type(config.schedule)()
    for name in type(own).model_fields:
        asked = getattr(config.schedule, name)
        if name not in free and asked != getattr(own, name):
            bound = f"{config.engine.name} has no verified flag for it"
            raise UnsupportedFeatureError(f"schedule.{name}", asked, bound, "launch it by hand, or plan without it")
    if config.schedule.reserve_outputs != config.engine.reserves_outputs:
        bound = f"{config.engine.name} has no verified flag for it"
        raise UnsupportedFeatureError(
            "schedule.reserve_outputs", config.schedule.reserve_outputs, bound, "leave it out"
        )


@dataclass(frozen=True)
class WeightsSource:
    """Source of the planned weights.

    Attributes:
        option: that converts those of the published checkpoint.
        checkpoint: in words, the one that has them already; empty where the published one serves. With neither, the
            weights are the model's own.
        repository: of the published checkpoint that has them; empty where it is the model's own or none is known.
    """

    option: EngineOption | None = None
    checkpoint: str = ""
    repository: str = ""


def weights_source(llm: LlmSpec, precision: Precision, engine: str) -> WeightsSource:
    """Source of weights of a precision: a published checkpoint, else the conversion of the engine on loading."""
    native = llm.native_precision
    asked = (precision.weights, precision.activations, precision.parts)
    if asked == (native.weights, native.activations, native.parts):
        return WeightsSource()
    published = published_as(llm, precision)
    if published is not None:
        return WeightsSource(repository="" if published.own else published.repository)
    knob = ""
    if native.weights in SIXTEEN_BIT and not (native.parts or precision.parts):
        if precision.weights in SIXTEEN_BIT:
            knob = f"dtype={precision.weights.value}" if precision.weights == precision.activations else ""
        elif precision.weights.arithmetic is precision.activations.arithmetic:
            knob = f"quantise={precision.weights.value}"
    if knob and rows_of(engine, knob):
        return WeightsSource(
            EngineOption("precision.weights", precision.weights.value, {knob: precision.weights.value})
        )
    parts = "".join(f", {part.part.value} in {part.weights.value}" for part in precision.parts)
    checkpoint = f"{precision.weights.value} weights{parts} and {precision.activations.value} activations"
    return WeightsSource(checkpoint=checkpoint)


def rendered_options(config: ReplicaConfig, options: Iterable[EngineOption]) -> RenderedOptions:
    """Options in the words of the engine. Raises UnsupportedFeatureError for one that it has no row for."""
    rendered = RenderedOptions()
    for option in options:
        rows = [(row, value) for knob, value in option.knobs.items() for row in _rows(config, knob)]
        if not rows:
            bound = f"{config.engine.name} {config.engine.version} has no verified flag for it"
            raise UnsupportedFeatureError(option.field, option.value, bound, "launch it by hand, or plan without it")
        for row, value in rows:
            rendered.add(row, value)
    return rendered


def _rows(config: ReplicaConfig, knob: str) -> tuple[EngineFlag, ...]:
    """Rows of a knob; those of the GPU's vendor, whose image may be of another release, before those of all."""
    engine = config.engine.id
    return rows_of(engine, f"{knob}@{config.sku.vendor}") or rows_of(engine, knob)
