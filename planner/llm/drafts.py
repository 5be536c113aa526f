"""Parts that guess the next tokens of a model: its own modules, EAGLE-3 heads, small models; how often they are right.

Which head was published for which model is in ``presets/draft_heads.csv``, how many of its guesses a model accepted on
which data in ``presets/draft_acceptance.csv``, each with its source. A rate that was measured on something else is used
under a note that says on what.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, lru_cache

from pydantic import Field

from planner.core import Frozen, InputError, UnknownNameError, UnsupportedFeatureError, preset_rows, rebuilt
from planner.llm.attention import GroupedQueryAttention
from planner.llm.feed_forward import DenseFeedForward
from planner.llm.formats import Count, Precision
from planner.llm.hf_config import ConfigFields
from planner.llm.layers import LayerGroup
from planner.llm.load import list_llms, load_llm
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
    return any(record.draft == draft and _serves(record.llms, llm.id) for record in _measured() if draft)


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
    """

    by_position: tuple[float, ...]
    draft: str
    note: str


@dataclass(frozen=True)
class _Measured:
    """A row of ``presets/draft_acceptance.csv``."""

    method: str
    llms: tuple[str, ...]
    draft: str
    dataset: str
    drafts: int
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
        records.append(
            _Measured(row["method"], llms, row["draft"], row["dataset"], drafts, positions, mean, row["source"])
        )
    return tuple(records)


def list_acceptance_datasets() -> tuple[str, ...]:
    """Data sets that acceptance was measured on, sorted.

    >>> "mt-bench" in list_acceptance_datasets()
    True
    """
    return tuple(sorted({record.dataset for record in _measured()}))


def measured_acceptance(
    llm: LlmSpec, method: DraftMethod, drafts: int, dataset: str | None = None, draft: str = ""
) -> Acceptance:
    """Acceptance by position of a model's guesses, from the nearest measurement there is.

    The model itself comes before the data set, the data set before the draft; a model that was not measured takes the
    rates of the one nearest in parameters. Where only tokens per step t were counted, or fewer guesses, each further
    guess is right with one probability a given those before it: ``1 + a + ... + a^drafts = t`` (Leviathan et al. 2023,
    arXiv:2211.17192, eq. 1), or that of the last position measured.

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
    records = [record for record in _measured() if record.method == method.value]
    if not records:
        bound = f"was not measured by {method.value}: nothing says how many guesses are right"
        raise InputError("speculation.acceptance", "(missing)", bound, "give acceptance")
    wanted = re.sub(r"[ _/]+", "-", dataset.strip().lower()) if dataset else None
    if wanted is not None and wanted not in list_acceptance_datasets():
        raise InputError("speculation.dataset", dataset, f"is none of {', '.join(list_acceptance_datasets())}")
    size = parameters(llm)
    preferred = wanted or "mt-bench"

    def distance(record: _Measured) -> tuple[bool, float, bool, bool, int, bool]:
        own = _serves(record.llms, llm.id)
        shape = 0 if len(record.positions) >= drafts else 1 if record.drafts == drafts else 2
        away = 0.0 if own else min(_size_ratio(one, size) for one in record.llms)
        return not own, away, record.dataset != preferred, record.draft != draft != "", shape, not record.positions

    first = min(records, key=distance)
    alike = [record for record in records if distance(record) == distance(first) and record.llms == first.llms]
    alike = [one for one in alike if (one.draft, one.dataset, one.drafts) == (first.draft, first.dataset, first.drafts)]
    positions = _positions(alike, drafts)
    said = f"as measured on {first.dataset}" + (f" with {first.draft}" if first.draft else "")
    if not _serves(first.llms, llm.id):
        said += f" for {first.llms[0]}: {llm.id} was not measured"
    if wanted and first.dataset != wanted:
        said += f", not on {wanted}"
    if draft and first.draft and draft != first.draft:
        said += f", not with {draft}"
    if not first.positions:
        said += f", from {first.mean:g} tokens a step at {first.drafts} drafted"
    elif len(first.positions) < drafts:
        said += f", those after the first {len(first.positions)} as the last of these"
    return Acceptance(positions, first.draft, f"{said} ({first.source})")


@cache
def _size_ratio(id: str, size: int) -> float:
    """Distance of a model from a size, as the log of their ratio; infinite for one that is no preset."""
    return abs(math.log(parameters(load_llm(id)) / size)) if id in list_llms() else math.inf


def _positions(records: Sequence[_Measured], drafts: int) -> tuple[float, ...]:
    """Means over measurements of a kind, by position."""
    if not records[0].positions:
        mean = sum(record.mean for record in records) / len(records)
        return geometric_acceptance(acceptance_of_gain(records[0].drafts, mean), drafts)
    columns = zip(*(record.positions for record in records), strict=True)
    means = [sum(column) / len(column) for column in columns][:drafts]
    last = means[-1] / means[-2] if len(means) > 1 and means[-2] else means[-1]
    while len(means) < drafts:
        means.append(means[-1] * last)
    return tuple(means)


def geometric_acceptance(acceptance: float, drafts: int) -> tuple[float, ...]:
    """Acceptance by position where each guess is right alike: ``a, a^2, ..., a^drafts``. Raises nothing.

    >>> geometric_acceptance(0.5, 3)
    (0.5, 0.25, 0.125)
    """
    return tuple(acceptance**position for position in range(1, drafts + 1))


def acceptance_of_gain(drafts: int, tokens_per_step: float) -> float:
    """Probability of a guess, those before it right, that gives so many tokens a step: the root of eq. 1.

    Source: Leviathan et al. 2023, arXiv:2211.17192, eq. 1.

    Args:
        drafts: guesses per step.
        tokens_per_step: mean tokens gained, the model's own included.

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
        less = 1.0 + sum(geometric_acceptance(middle, drafts)) < tokens_per_step
        low, high = (middle, high) if less else (low, middle)
    return low
