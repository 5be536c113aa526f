"""Parts that guess the next tokens of a model: its own modules, EAGLE-3 heads, small models; how often they are right.

Which head was published for which model is in ``presets/draft_heads.csv``, how many of its guesses a model accepted on
which data in ``presets/draft_acceptance.csv``, each with its source. A rate that was measured on something else is used
under a note that says on what.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, lru_cache
from typing import NamedTuple

from pydantic import Field

from planner.core import Frozen, InputError, UnknownNameError, UnsupportedFeatureError, preset_rows, rebuilt
from planner.llm.attention import GroupedQueryAttention
from planner.llm.feed_forward import DenseFeedForward
from planner.llm.formats import Count, Precision
from planner.llm.hf_config import ConfigFields
from planner.llm.layers import LayerGroup
from planner.llm.load import load_llm
from planner.llm.names import list_llms
from planner.llm.sizes import embedding_parameters, parameters
from planner.llm.spec import LlmSpec

FUSED_LAYERS = 3
"""Layers of the model whose hidden states an EAGLE-3 head reads (Li et al. 2025, arXiv:2503.01840, sec. 3.1)."""
_VARIANTS = re.compile(r"-(instruct|it|chat|base|thinking|hf|fp8|fp4|nvfp4|mxfp4|int4|int8|bf16|awq|gptq|\d{4})$")
"""Ends of ids that tell checkpoints of one model apart."""


class DraftMethod(StrEnum):
    """Who guesses."""

    MTP = "mtp"
    """The model's own multi-token-prediction module."""
    EAGLE3 = "eagle3"
    """A layer over the hidden states of three layers of the model (Li et al. 2025, arXiv:2503.01840)."""
    DRAFT_MODEL = "draft_model"
    """A small model with the same tokens (Leviathan et al. 2023, arXiv:2211.17192)."""
    SHARE = "share"
    """Anything whose cost is given as a share of the model's: n-grams, Medusa heads, ..."""


class DraftSpec(Frozen):
    """A draft: layers and an LM head that guess the next token, and how they take in the model's hidden states.

    Attributes:
        llm: layers, norms and LM head of a guess; of a head its `vocab_size` is what it may guess.
        fused_inputs: channels that a matrix of its own brings down to the hidden ones; 0: there is none.
        fused_once: that matrix runs once for each token of the model, not for every guess (EAGLE-3).
        wide: queries, keys and values of the first layer are made of embedding and hidden state side by side (EAGLE-3).
        shares_tables: embeddings are the model's; with `shares_head` the LM head is, too.
        embedding_rows: rows of a table of embeddings of its own besides `llm`'s.
        modules: copies of it that are stored, of which each guess uses one.
    """

    llm: LlmSpec
    fused_inputs: Count = 0
    fused_once: bool = False
    wide: bool = False
    shares_tables: bool = False
    shares_head: bool = False
    embedding_rows: Count = 0
    modules: int = Field(default=1, ge=1)


@lru_cache(maxsize=64)
def own_module(llm: LlmSpec) -> DraftSpec | None:
    """The multi-token-prediction module of a model as what it is: a layer that joins embedding and hidden state.

    Source: DeepSeek-AI 2024, arXiv:2412.19437, eq. 21-23.

    Args:
        llm: the model.

    Returns:
        None for a model without one.

    >>> own_module(load_llm("deepseek-v3")).fused_inputs  # 2 x 7168
    14336
    """
    if llm.mtp is None:
        return None
    own = {"id": f"{llm.id} mtp", "layers": (llm.mtp.model_copy(update={"count": 1}),), "mtp": None, "mtp_layers": 0}
    absent = {"layer_order": (), "encoder": None, "layer_embedding": None, "residual_block_layers": 0}
    body = rebuilt(llm, **own, **absent)
    fused = 2 * llm.hidden_size
    return DraftSpec(llm=body, fused_inputs=fused, shares_tables=True, shares_head=True, modules=llm.mtp_layers)


def draft_parameters(draft: DraftSpec) -> int:
    """Parameters that a draft adds to its model: layers, norms, fusing matrix, and the tables that it does not share.

    An EAGLE-3 head of width h over a model of width H with v words of its own: ``3 H h + 2 h (q + 2 kv) + o + mlp +
    v h + 4 h``. Source: ``llama_eagle3.py`` of vLLM. Raises nothing.

    >>> round(draft_parameters(load_draft("yuhuili/EAGLE3-LLaMA3.1-Instruct-8B")) / 1e6, 1)  # 850 MB in 16 bits
    424.7
    """
    llm = draft.llm
    if draft.shares_head:
        own = parameters(llm) - embedding_parameters(llm) + draft.fused_inputs * llm.hidden_size + 2 * llm.hidden_size
        return draft.modules * own
    total = parameters(llm) + draft.fused_inputs * llm.hidden_size + draft.embedding_rows * llm.hidden_size
    return total + (wide_weights(draft) if draft.wide else 0)


def wide_weights(draft: DraftSpec) -> int:
    """Weights by which the queries, keys and values of a wide first layer outgrow those of a usual one. Raises nothing.

    >>> wide_weights(load_draft("yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"))  # 4096 x 6144
    25165824
    """
    attention, hidden = draft.llm.layers[0].attention, draft.llm.hidden_size
    shapes = attention.matrices(hidden) if draft.wide and attention is not None else {}
    return sum(inputs * outputs for name, (inputs, outputs) in shapes.items() if name in ("q_proj", "k_proj", "v_proj"))


def draft_precision(draft: DraftSpec, precision: Precision) -> Precision:
    """Formats of a draft beside a model in `precision`: those of its own checkpoint, its cache in that of the model's.

    The model's own module is in the formats of the model. Source: vLLM loads drafts with a quantisation of their own
    (``get_draft_quant_config``) and one format of KV cache for both. Raises nothing.
    """
    if draft.shares_head:
        return precision
    return draft.llm.native_precision.model_copy(update={"kv_cache": precision.kv_cache})


def load_draft(draft: str | Mapping[str, object]) -> DraftSpec:
    """A draft by the name of a head of ``presets/draft_heads.csv``, by that of a model, or by the content of a config.

    Raises:
        UnknownNameError: neither a head nor a preset. InputError, UnsupportedFeatureError: as `LlmSpec.from_config`.

    >>> load_draft("qwen3-8b").llm.num_layers, load_draft("yuhuili/EAGLE3-LLaMA3.1-Instruct-8B").llm.num_layers
    (36, 1)
    """
    if isinstance(draft, str):
        return _named_draft(draft)
    if "draft_vocab_size" in draft or "transformer_layer_config" in draft:
        return _eagle3_head(draft)
    return DraftSpec(llm=load_llm(draft))


@cache
def _named_draft(name: str) -> DraftSpec:
    """A head or preset by its name, never a file: scenarios from outside name drafts."""
    head, presets = _heads().get(name), list_llms()
    if head is None and name not in presets:
        raise UnknownNameError("speculation.draft", name, [*_heads(), *presets])
    return head.spec if head else DraftSpec(llm=load_llm(name))


def _eagle3_head(config: Mapping[str, object]) -> DraftSpec:
    """An EAGLE-3 head from its ``config.json``, in SpecForge's form or that of vLLM's speculators."""
    fields = ConfigFields(config)
    layer = fields.section("transformer_layer_config") or fields
    if layer.size("num_hidden_layers", 1) != 1:
        bound = "EAGLE-3 heads of several layers are not modelled"
        raise UnsupportedFeatureError(layer.path("num_hidden_layers"), layer.size("num_hidden_layers"), bound)
    hidden, heads = layer.size("hidden_size"), layer.size("num_attention_heads")
    return _eagle3_spec(
        fields.text("_name") or "eagle3",
        "given",
        hidden_size=hidden,
        target_hidden_size=fields.optional_size("target_hidden_size") or hidden,
        heads=heads,
        kv_heads=layer.size("num_key_value_heads", heads),
        head_dim=layer.size("head_dim", max(1, hidden // heads)),
        intermediate=layer.size("intermediate_size"),
        vocabulary=fields.size("draft_vocab_size"),
        target_vocabulary=layer.size("vocab_size", fields.size("draft_vocab_size")),
        context=layer.size("max_position_embeddings", 131_072),
    )


def _eagle3_spec(
    name: str,
    source: str,
    *,
    hidden_size: int,
    target_hidden_size: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    intermediate: int,
    vocabulary: int,
    target_vocabulary: int = 0,
    context: int = 131_072,
) -> DraftSpec:
    """A head of these shapes. Its own embeddings are stored where they cannot be the model's, which is wider."""
    body = LlmSpec(
        id=name,
        name=name,
        source=source,
        hidden_size=hidden_size,
        vocab_size=vocabulary,
        max_context_tokens=context,
        tied_embeddings=True,  # one table: the LM head
        norms_per_layer=3,  # embedding, hidden state, feed-forward
        layers=(
            LayerGroup(
                count=1,
                attention=GroupedQueryAttention(heads=heads, kv_heads=kv_heads, head_dim=head_dim),
                feed_forward=DenseFeedForward(intermediate=intermediate),
            ),
        ),
    )
    own_rows = target_vocabulary if hidden_size != target_hidden_size else 0
    return DraftSpec(
        llm=body,
        fused_inputs=FUSED_LAYERS * target_hidden_size,
        fused_once=True,
        wide=True,
        shares_tables=True,
        embedding_rows=own_rows,
    )


@dataclass(frozen=True)
class _Head:
    """A row of ``presets/draft_heads.csv``."""

    name: str
    method: DraftMethod
    llms: tuple[str, ...]
    spec: DraftSpec
    note: str


_HEAD_SIZES = ["hidden_size", "target_hidden_size", "heads", "kv_heads", "head_dim", "intermediate", "vocabulary"]
"""Columns of the table that are shapes."""


@cache
def _heads() -> dict[str, _Head]:
    """Published heads by their names."""
    heads = {}
    for row in preset_rows("draft_heads.csv"):
        spec = _eagle3_spec(row["draft"], row["source"], **{name: int(row[name]) for name in _HEAD_SIZES})
        method, llms = DraftMethod(row["method"]), tuple(row["llms"].split("|"))
        heads[row["draft"]] = _Head(row["draft"], method, llms, spec, row["note"])
    return heads


def draft_of(llm: LlmSpec, method: DraftMethod) -> tuple[str, DraftSpec]:
    """The part that guesses for a model by a method, and the name of its checkpoint (empty: the model's own).

    Args:
        llm: the model.
        method: own module, or head.

    Returns:
        Name and shapes.

    Raises:
        InputError: none is known; the message names what to give instead.

    >>> draft_of(load_llm("llama-3.1-8b"), DraftMethod.EAGLE3)[0]
    'yuhuili/EAGLE3-LLaMA3.1-Instruct-8B'
    """
    if method is DraftMethod.MTP:
        own = own_module(llm)
        if own is None:
            fix = "remove it, choose another method, or give its draft_cost"
            raise InputError("speculation", llm.id, "has no multi-token-prediction layer to draft with", fix)
        return "", own
    if method is DraftMethod.DRAFT_MODEL:
        raise InputError("speculation.draft", "(missing)", "which model drafts must be said", "give draft, a preset id")
    for head in _heads().values():
        if head.method is method and _serves(head.llms, llm.id):
            return head.name, head.spec
    known = ", ".join(sorted({one for head in _heads().values() for one in head.llms}))
    fix = f"give draft, the content of its config.json (heads are known of {known})"
    raise InputError("speculation.method", method.value, f"no {method.value} head of {llm.id} is known", fix)


def draft_serves(draft: str, llm: LlmSpec) -> bool:
    """True if acceptance of a checkpoint's guesses was measured with this model. Raises nothing.

    >>> draft_serves("RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3", load_llm("llama-3.1-8b"))
    True
    """
    return any(record.kind.draft == draft and _serves(record.kind.llms, llm.id) for record in _measured() if draft)


def _serves(llms: Sequence[str], id: str) -> bool:
    """True if an id is that of one of the models, in whatever format or tuning."""
    return _family(id) in {_family(one) for one in llms}


def _family(id: str) -> str:
    """An id without what tells checkpoints of one model apart.

    >>> _family("meta-llama-3.1-8b-instruct-fp8")
    'llama-3.1-8b'
    """
    id = id.lower().removeprefix("meta-")
    while (shorter := _VARIANTS.sub("", id)) != id:
        id = shorter
    return id


@dataclass(frozen=True)
class Acceptance:
    """Acceptance of a draft's guesses.

    Attributes:
        by_position: probability that the guess at each position is accepted, those before it too; shape (drafts,).
        draft: checkpoint it was measured with; empty: the model's own module.
        note: what was measured, on what, and what of it is assumed.
        spread: standard deviation of the logarithm of tokens per step, by how far the measurement is from what was
            asked for (`acceptance_spread`).
    """

    by_position: tuple[float, ...]
    draft: str
    note: str
    spread: float


class _Kind(NamedTuple):
    """Measurements that repeat each other are of one kind."""

    method: str
    llms: tuple[str, ...]
    draft: str
    dataset: str
    drafts: int


@dataclass(frozen=True)
class _Measured:
    """A row of ``presets/draft_acceptance.csv``."""

    kind: _Kind
    positions: tuple[float, ...]
    mean: float
    source: str


@cache
def _measured() -> tuple[_Measured, ...]:
    records = []
    for row in preset_rows("draft_acceptance.csv"):
        positions = tuple(float(row[f"p{i}"]) for i in range(1, 8) if row[f"p{i}"])
        mean = float(row["tokens_per_step"]) if row["tokens_per_step"] else 1.0 + sum(positions)
        llms, drafts = tuple(row["llms"].split("|")), int(row["draft_tokens"])
        kind = _Kind(row["method"], llms, row["draft"], row["dataset"], drafts)
        records.append(_Measured(kind, positions, mean, row["source"]))
    return tuple(records)


def list_acceptance_datasets() -> tuple[str, ...]:
    """Data sets that acceptance was measured on, sorted.

    >>> "mt-bench" in list_acceptance_datasets()
    True
    """
    return tuple(sorted({record.kind.dataset for record in _measured()}))


def measured_acceptance(
    llm: LlmSpec, method: DraftMethod, drafts: int, dataset: str | None = None, draft: str = ""
) -> Acceptance:
    """Acceptance by position of a model's guesses, from the nearest measurement there is.

    The model itself comes first, but where a data set is given, one of the same family on that data set comes before
    the model on another. Then the data set, then the draft; a model that was not measured takes the rates of its
    family, else of all models, nearest in parameters. Where only tokens per step
    were counted, or fewer guesses than are wanted, the chance of a guess, those before it right, falls from guess to
    guess as it does for the method where positions were counted (`falling_acceptance`).

    Args:
        llm: the model that checks the guesses.
        method: who guesses.
        drafts: guesses per step.
        dataset: one of `list_acceptance_datasets`; None: the first there is of the model, mt-bench before others.
        draft: name of the checkpoint that guesses, where it is known.

    Returns:
        Probabilities and what they rest on.

    Raises:
        InputError: the method was never measured, or the data set is unknown.

    >>> llama = load_llm("llama-3.1-8b")
    >>> measured_acceptance(llama, DraftMethod.EAGLE3, 3, "mt-bench").by_position
    (0.7296, 0.5208, 0.3545)
    """
    records = [record for record in _measured() if record.kind.method == method.value]
    if not records:
        bound = f"was not measured by {method.value}: nothing says how many guesses are right"
        raise InputError("speculation.acceptance", "(missing)", bound, "give acceptance")
    wanted = re.sub(r"[ _/]+", "-", dataset.strip().lower()) if dataset else None
    if wanted is not None and wanted not in list_acceptance_datasets():
        raise InputError("speculation.dataset", dataset, f"is none of {', '.join(list_acceptance_datasets())}")
    size = parameters(llm)
    preferred = wanted or "mt-bench"

    def distance(record: _Measured) -> tuple[int, float, bool, bool, int, bool]:
        own, asked = _serves(record.kind.llms, llm.id), wanted in (None, record.kind.dataset)
        kin = record.kind.llms[0].split("-")[0] == llm.id.split("-")[0]
        rank = 0 if own and asked else 1 if kin and record.kind.dataset == wanted else 2 if own else 3 if kin else 4
        shape = 0 if len(record.positions) >= drafts else 1 if record.kind.drafts == drafts else 2
        away = 0.0 if own else min(_size_ratio(one, size) for one in record.kind.llms)
        return (
            rank,
            away,
            record.kind.dataset != preferred,
            record.kind.draft != draft != "",
            shape,
            not record.positions,
        )

    first = min(records, key=distance)
    alike = [one for one in records if one.kind == first.kind and len(one.positions) == len(first.positions)]
    own = _serves(first.kind.llms, llm.id)
    said = f"as measured on {first.kind.dataset}" + (f" with {first.kind.draft}" if first.kind.draft else "")
    if not own:
        said += f" for {first.kind.llms[0]}: {llm.id} was not measured"
    if wanted and first.kind.dataset != wanted:
        said += f", not on {wanted}"
    other_draft = bool(draft and first.kind.draft and draft != first.kind.draft)
    if other_draft:
        said += f", not with {draft}"
    if not first.positions:
        said += f", from {first.mean:g} tokens a step at {first.kind.drafts} drafted"
    elif len(first.positions) < drafts:
        said += f", those after the first {len(first.positions)} falling as {method.value} guesses do"
    return Acceptance(
        by_position=_positions(alike, drafts),
        draft=first.kind.draft,
        note=f"{said} ({first.source})",
        spread=acceptance_spread(first.kind.dataset == wanted, own and not other_draft),
    )


@cache
def acceptance_spread(same_dataset: bool, same_model: bool) -> float:
    """Standard deviation of the logarithm of tokens per step about a measurement, from how measurements differ.

    Pooled over ``presets/draft_acceptance.csv``: repeats of one run; besides, one model and draft on other data sets;
    and other models and drafts on one data set, with as many guesses.

    Args:
        same_dataset: the measurement is on the data set that is asked for.
        same_model: it is of the model, with the draft that guesses.

    Returns:
        sqrt(repeats^2 + data sets^2 + models^2), each where it applies [-]. Raises nothing.
    """
    repeats = _pooled_variance(lambda one: one.kind, lambda one: one)
    datasets = _pooled_variance(lambda one: one.kind._replace(dataset=""), lambda one: one.kind)
    models = _pooled_variance(lambda one: one.kind._replace(llms=(), draft=""), lambda one: one.kind)
    return math.sqrt(repeats + (0.0 if same_dataset else datasets) + (0.0 if same_model else models))


def _pooled_variance(group: Callable[[_Measured], Hashable], member: Callable[[_Measured], Hashable]) -> float:
    """Variance of log tokens per step among the members of a group, each the mean of its rows, pooled over groups."""
    groups: dict[Hashable, dict[Hashable, list[float]]] = {}
    for record in _measured():
        groups.setdefault(group(record), {}).setdefault(member(record), []).append(math.log(record.mean))
    squares, free = 0.0, 0
    for members in groups.values():
        means = [sum(values) / len(values) for values in members.values()]
        squares += sum((mean - sum(means) / len(means)) ** 2 for mean in means)
        free += len(means) - 1
    return squares / free


@cache
def _size_ratio(id: str, size: int) -> float:
    """Distance of a model from a size, as the log of their ratio; infinite for one that is no preset."""
    return abs(math.log(parameters(load_llm(id)) / size)) if id in list_llms() else math.inf


def _positions(records: Sequence[_Measured], drafts: int) -> tuple[float, ...]:
    """Means over measurements of a kind, by position; what they do not reach falls as the method's guesses do."""
    kind, fall = records[0].kind, _fall(records[0].kind.method)
    if not records[0].positions:
        mean = sum(record.mean for record in records) / len(records)
        return falling_acceptance(acceptance_of_gain(kind.drafts, mean, fall), drafts, fall)
    columns = zip(*(record.positions for record in records), strict=True)
    means = [sum(column) / len(column) for column in columns][:drafts]
    last = means[-1] / means[-2] if len(means) > 1 and means[-2] else means[-1]
    while len(means) < drafts:
        last *= fall
        means.append(means[-1] * last)
    return tuple(means)


@cache
def _fall(method: str) -> float:
    """Chance of a guess, those before it right, over that of the guess before: geometric mean over drafts measured."""
    falls: dict[tuple[object, ...], list[float]] = {}
    for record in _measured():
        if record.kind.method == method and len(record.positions) > 1:
            first, before, last = record.positions[0], *record.positions[-2:]
            steps = len(record.positions) - 1
            falls.setdefault((record.kind.llms, record.kind.draft), []).append(math.log(last / before / first) / steps)
    means = [sum(values) / len(values) for values in falls.values()]
    return min(1.0, math.exp(sum(means) / len(means))) if means else 1.0


def falling_acceptance(acceptance: float, drafts: int, fall: float) -> tuple[float, ...]:
    """Acceptance by position where the chance of a guess, those before it right, falls from one to the next.

    Args:
        acceptance: a, of the first guess.
        drafts: guesses per step.
        fall: f, of each over the one before.

    Returns:
        ``a^i f^(i (i - 1) / 2)``, shape (drafts,). Raises nothing.

    >>> [round(share, 4) for share in falling_acceptance(0.8, 3, 0.75)]  # 0.8, 0.8 x 0.6, 0.8 x 0.6 x 0.45
    [0.8, 0.48, 0.216]
    """
    return tuple(acceptance**i * fall ** (i * (i - 1) / 2) for i in range(1, drafts + 1))


def geometric_acceptance(acceptance: float, drafts: int) -> tuple[float, ...]:
    """Acceptance by position where each guess is right alike: ``a, a^2, ..., a^drafts``. Raises nothing.

    >>> geometric_acceptance(0.5, 3)
    (0.5, 0.25, 0.125)
    """
    return tuple(acceptance**position for position in range(1, drafts + 1))


def acceptance_of_gain(drafts: int, tokens_per_step: float, fall: float = 1.0) -> float:
    """Probability of the first guess that gives so many tokens a step: the root of ``1 + sum p_i``.

    Source: Leviathan et al. 2023, arXiv:2211.17192, eq. 1, where all guesses are right alike.

    Args:
        drafts: guesses per step.
        tokens_per_step: mean tokens gained, the model's own included.
        fall: as in `falling_acceptance`; where not even a first guess that is always right gives as many, it is 1.

    Returns:
        Between 0 and 1.

    Raises:
        InputError: unless ``1 < tokens_per_step < drafts + 1``.

    >>> round(acceptance_of_gain(3, 2.952), 3)
    0.8
    """
    if not 1.0 < tokens_per_step < drafts + 1.0:
        bound = f"must lie between 1 and {drafts + 1}, which {drafts} guesses can give"
        raise InputError("tokens_per_step", tokens_per_step, bound)
    low, high = 0.0, 1.0
    while high - low > 1e-9:
        middle = (low + high) / 2.0
        less = 1.0 + sum(falling_acceptance(middle, drafts, fall)) < tokens_per_step
        low, high = (middle, high) if less else (low, middle)
    return low
