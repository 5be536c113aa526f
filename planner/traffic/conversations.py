"""Conversations as requests: what chat logs and ShareGPT-like data sets hold instead of token counts.

Every answer is a request: its input is the whole conversation before it, its output the answer. Recognised are objects
with a list of turns:

- ShareGPT: ``conversations``, a list of ``from`` (human, gpt) and ``value``. `vllm/benchmarks/datasets.py` and
  `benchmarks/README.md` of vllm-project/vllm, ShareGPT_V3_unfiltered_cleaned_split.json. (Its benchmark sends the first
  two turns only; here every answer counts.)
- OpenAI chat format: ``messages``, a list of ``role`` (user, assistant) and ``content``, a string or a list of parts
  with ``text``. OpenAI API reference, "chat completion object". WildChat and LMSYS-Chat-1M name the list
  ``conversation``; their data cards on huggingface.co (allenai/WildChat-1M, lmsys/lmsys-chat-1m).

A turn that says ``tokens`` (or ``num_tokens``, ``token_count``) is taken at its word. All else is text, whose tokens
depend on the model: they are counted by a function that the caller gives, or estimated from the characters at a rate
that the caller states. Nothing is assumed unasked (OpenAI's rule of thumb is four characters of English a token, "What
are tokens and how to count them?", help.openai.com, article 4936856). Tokens of the chat template are not counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from planner.core import InputError
from planner.traffic.fields import TIME_NAMES, Row, as_number, normalised_name
from planner.traffic.requests import RequestColumns

LIST_NAMES = ("conversations", "conversation", "messages")
ROLE_NAMES, TEXT_NAMES = ("from", "role"), ("value", "content")
COUNT_NAMES = ("tokens", "num_tokens", "token_count")
ANSWERING_ROLES = frozenset({"gpt", "assistant", "chatgpt", "bing", "bard", "model", "bot"})
"""Roles that answer, in the data sets named above."""
MOST_TOKENS_PER_CHARACTER = 4.0
"""A character has at most four bytes of UTF-8, and a byte-level tokenizer makes at most one token of a byte."""
COUNTING_FIX = (
    "give tokens_per_character, such as 0.25 for English text (OpenAI's rule of thumb), or count_tokens with the "
    "model's tokenizer"
)

Tokenizer = Callable[[str], int]
"""Tokens of a text."""


@dataclass(frozen=True)
class TokenCount:
    """Counting of the tokens of a text.

    Attributes:
        per_character: tokens of one character; None where nothing was said.
        count: a tokenizer: text to tokens. It goes before `per_character`.
    """

    per_character: float | None = None
    count: Tokenizer | None = None

    def __post_init__(self) -> None:
        rate = self.per_character
        if rate is not None and not 0.0 < rate <= MOST_TOKENS_PER_CHARACTER:
            bound = f"must be > 0 and <= {MOST_TOKENS_PER_CHARACTER:g}"
            raise InputError("tokens_per_character", rate, bound, "give e.g. 0.25: four characters a token")

    def tokens(self, text: str) -> int:
        """Tokens of a text, at least 1 unless it is empty. Raises InputError without a tokenizer and without a rate.

        >>> TokenCount(per_character=0.25).tokens("ten letters")
        3
        """
        if not text:
            return 0
        if self.count is not None:
            return int(self.count(text))
        if self.per_character is None:
            raise InputError("tokens_per_character", None, "conversations hold text, not token counts", COUNTING_FIX)
        return max(1, round(self.per_character * len(text)))

    @property
    def note(self) -> str:
        """The way tokens were counted, as a sentence."""
        if self.count is not None:
            return "tokens counted by the tokenizer given, without those of a chat template"
        return f"tokens estimated as {self.per_character:g} a character, without those of a chat template"


def turns_of(row: Row) -> Sequence[Row]:
    """The turns of a conversation; none where the object is no conversation.

    >>> len(turns_of({"id": "a", "conversations": [{"from": "human", "value": "Hi"}]}))
    1
    """
    for name in LIST_NAMES:
        turns = row.get(name)
        if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
            continue
        if turns and all(any(isinstance(turn.get(role), str) for role in ROLE_NAMES) for turn in turns):
            return turns
    return ()


class ConversationReader:
    """Conversations -> `RequestColumns`, one for each answer."""

    def __init__(self, counting: TokenCount) -> None:
        self.columns = RequestColumns()
        self.conversations = 0
        self.estimated = False
        self._counting = counting

    def add(self, number: int, turns: Sequence[Row]) -> None:
        """The answers of one conversation. Raises InputError naming it for a count that is no number."""
        self.conversations += 1
        before, known = 0.0, 0.0  # tokens so far, and those that the request before this one had or made
        asked_at: object = None
        for turn in turns:
            tokens = self._tokens(turn, number)
            role = next(str(turn[name]) for name in ROLE_NAMES if isinstance(turn.get(name), str))
            if role.strip().lower() in ANSWERING_ROLES and before > 0.0:
                time = _time_of(turn) if asked_at is None else asked_at
                self.columns.append(number, time, (before, tokens), known, None)
                known = before + tokens
            else:
                asked_at = _time_of(turn)
            before += tokens

    def _tokens(self, turn: Row, number: int) -> float:
        for name in COUNT_NAMES:
            counted = as_number(turn.get(name), name, number)
            if counted is not None:
                return counted
        self.estimated = True
        return float(self._counting.tokens(_text(turn)))

    def notes(self) -> list[str]:
        """Origin of the requests, one sentence each."""
        notes = [
            f"{len(self.columns.row_numbers):,} answers of {self.conversations:,} conversations, "
            "each with all before it as input",
            "input tokens seen before: earlier turns of a conversation",
        ]
        return [*notes, self._counting.note] if self.estimated else notes


def _text(turn: Row) -> str:
    """The text of a turn; of a list of parts, their texts together."""
    content = next((turn[name] for name in TEXT_NAMES if turn.get(name) is not None), "")
    if isinstance(content, list):
        texts = (item.get("text") for item in content if isinstance(item, dict))
        return "".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""


def _time_of(turn: Row) -> object:
    """The time a turn says; None where it says none."""
    for key, value in turn.items():
        if value is not None and normalised_name(str(key)) in TIME_NAMES and not isinstance(value, dict | list):
            return None if isinstance(value, float) and math.isnan(value) else value
    return None
