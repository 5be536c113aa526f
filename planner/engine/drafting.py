"""Speculation of one model: the draft, and the share of its guesses that is accepted."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from planner.core import InputError, significant
from planner.engine.scheduler import Speculation
from planner.llm import (
    FUSED_LAYERS,
    DraftMethod,
    DraftSpec,
    LlmSpec,
    draft_of,
    draft_parameters,
    draft_serves,
    geometric_acceptance,
    load_draft,
    measured_acceptance,
)


@dataclass(frozen=True)
class Drafting:
    """Speculation of one model.

    Attributes:
        method: who guesses.
        draft_tokens: guesses per step.
        accepted: probability that the guess at each position is accepted, those before it too; shape (draft_tokens,).
        draft: what guesses; None: only its cost is known.
        cost: of one draft step, as a share of a decode step of the model, where only that is known.
        checkpoint: that guesses, where it has a name and is not the model's own.
        note: what acceptance rests on, in words.
        spread: standard deviation of the logarithm of `tokens_per_step`; 0: given.
    """

    method: DraftMethod
    draft_tokens: int
    accepted: tuple[float, ...]
    draft: DraftSpec | None
    cost: float | None
    checkpoint: str
    note: str
    spread: float

    @property
    def tokens_per_step(self) -> float:
        """Tokens a sequence gains in a step on average: one of the model's own and every guess that is accepted."""
        return 1.0 + sum(self.accepted)

    @property
    def words(self) -> str:
        """E.g. ``3 guesses a step by its own module (11.6 B parameters): 2.96 tokens a step, as measured on ...``."""
        parts = ""
        if self.draft is not None:
            size = draft_parameters(self.draft) / 1e9
            parts = f" by {self.checkpoint or 'its own module'} ({significant(size)} B parameters)"
        guesses = "1 guess" if self.draft_tokens == 1 else f"{self.draft_tokens} guesses"
        return f"{guesses} a step{parts}: {self.tokens_per_step:.2f} tokens a step, {self.note}"


def _require_match(draft: DraftSpec, kind: DraftMethod, llm: LlmSpec) -> None:
    """Refuse a head or model that cannot guess for this one, as engines do."""
    if draft.fused_once != (kind is DraftMethod.EAGLE3):
        bound = f"is {'a head' if draft.fused_once else 'no EAGLE-3 head'}"
        raise InputError("speculation.draft", draft.llm.id, bound, "leave method out")
    if draft.fused_once and draft.fused_inputs != FUSED_LAYERS * llm.hidden_size:
        bound = f"reads {draft.fused_inputs} channels, {FUSED_LAYERS} layers of {llm.id} have {llm.hidden_size} each"
        raise InputError("speculation.draft", draft.llm.id, bound, "give a head made for the model")
    if not draft.fused_once and draft.llm.vocab_size != llm.vocab_size:
        bound = f"has {draft.llm.vocab_size} tokens, {llm.id} has {llm.vocab_size}"
        raise InputError("speculation.draft", draft.llm.id, bound, "choose a model of the same vocabulary")


@lru_cache(maxsize=256)
def drafting_of(speculation: Speculation, llm: LlmSpec) -> Drafting:
    """Who guesses for a model, and how many guesses it accepts.

    Source: Leviathan et al. 2023, arXiv:2211.17192, eq. 1 (one probability for all guesses); else the measurements of
    `planner.llm.measured_acceptance`.

    Args:
        speculation: as asked for.
        llm: the model that checks the guesses.

    Returns:
        Parts and probabilities.

    Raises:
        InputError: the model has no such part, or nothing says how often it is right.
    """
    kind, draft, checkpoint = speculation.kind, None, ""
    if speculation.draft is not None:
        named = isinstance(speculation.draft, str)
        draft = load_draft(speculation.draft) if isinstance(speculation.draft, str) else speculation.draft
        checkpoint = str(speculation.draft) if named else draft.llm.name
        _require_match(draft, kind, llm)
    elif kind is not DraftMethod.SHARE:
        checkpoint, draft = draft_of(llm, kind)
    if speculation.acceptance is not None:
        given = speculation.acceptance
        accepted = given if isinstance(given, tuple) else geometric_acceptance(given, speculation.draft_tokens)
        note, spread = "as given", 0.0
    else:
        wanted = checkpoint if speculation.draft is not None else ""
        measured = measured_acceptance(llm, kind, speculation.draft_tokens, speculation.dataset, wanted)
        accepted, note, spread = measured.by_position, measured.note, measured.spread
        if speculation.draft is None and draft_serves(measured.draft, llm):
            checkpoint = measured.draft
    return Drafting(
        method=kind,
        draft_tokens=speculation.draft_tokens,
        accepted=accepted,
        draft=draft,
        cost=speculation.draft_cost,
        checkpoint=checkpoint,
        note=note,
        spread=spread,
    )
