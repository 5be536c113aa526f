"""A long prompt that arrives while answers run: the gap it makes in them, taken whole or in chunks."""

from __future__ import annotations

import math
from dataclasses import dataclass

from planner.core import InputError
from planner.engine import ReplicaConfig, memory_footprint, step_time


@dataclass(frozen=True)
class TokenGap:
    """The time between two tokens of every running answer: one step.

    Attributes:
        token: of the answer, from 1; it comes with the end of the gap.
        start_s: since the prompt came [s]; negative before.
        gap_s: how long it is [s].
        prompt_tokens: of the long prompt in this step, 0 before it comes and once it is done.
    """

    token: int
    start_s: float
    gap_s: float
    prompt_tokens: int

    @property
    def end_s(self) -> float:
        """When the token comes, since the prompt came [s]."""
        return self.start_s + self.gap_s


def chunk_count(prompt_tokens: int, chunk_tokens: int, running: int) -> int:
    """Steps [-] that a prompt takes in chunks: prompt / (chunk budget - running answers), rounded up.

    Every running answer takes one token of the budget of a step (Agrawal et al. 2024, Sarathi-Serve,
    arXiv:2403.02310, sec. 4.2).

    Args:
        prompt_tokens: of the prompt.
        chunk_tokens: most tokens of a step, running answers included.
        running: answers that decode.

    Raises:
        InputError: a chunk has no room beside the answers.

    >>> chunk_count(prompt_tokens=8_000, chunk_tokens=512, running=32)
    17
    """
    return math.ceil(prompt_tokens / _room(chunk_tokens, running))


def longest_prompt_tokens(config: ReplicaConfig, running: int, context_tokens: int) -> int:
    """Longest prompt [tokens] that the model, and the KV cache beside running answers, leave room for; 0: none.

    Args:
        config: the replica.
        running: answers that decode.
        context_tokens: that each of them holds in the KV cache; one more comes with the step.
    """
    room = memory_footprint(config).kv_capacity_tokens - running * (context_tokens + 1)
    return max(0, min(config.longest_tokens - 1, room))


def prompt_gaps(
    config: ReplicaConfig,
    prompt_tokens: int,
    chunk_tokens: int | None,
    running: int,
    context_tokens: int,
    tokens: int,
    arrives: int,
) -> tuple[TokenGap, ...]:
    """Gaps between the tokens of running answers while a prompt is processed beside them, step by step.

    The prompt comes with the end of a step. It joins the next step whole, as in Orca (Yu et al. 2022, OSDI) and vLLM's
    first scheduler, or fills steps up to their chunk budget, as in Sarathi-Serve (Agrawal et al. 2024,
    arXiv:2403.02310, sec. 4). From the step after its last piece it decodes with the others. Nobody else comes.

    Args:
        config: the replica.
        prompt_tokens: of the prompt.
        chunk_tokens: most tokens of a step, running answers included; None: the prompt is taken whole.
        running: answers that decode.
        context_tokens: that each of them attends to before its first token here.
        tokens: of each answer to play.
        arrives: token whose step is the first with the prompt in it, from 1.

    Returns:
        One gap for each token [s].

    Raises:
        InputError: a chunk has no room beside the answers, or the prompt would come after the last token.
    """
    if not 1 <= arrives < tokens:
        raise InputError("arrives", arrives, f"must be from 1 to {tokens - 1}", "let the prompt come earlier")
    room = prompt_tokens if chunk_tokens is None else _room(chunk_tokens, running)
    steps: list[tuple[float, int]] = []
    done = 0
    for token in range(1, tokens + 1):
        contexts = [context_tokens + token] * running + [prompt_tokens + 1] * (done >= prompt_tokens)
        piece = min(room, prompt_tokens - done) if token >= arrives else 0
        steps.append((step_time(config, contexts, [(piece, done)] if piece else []).total_s, piece))
        done += piece
    start_s = -math.fsum(gap_s for gap_s, _ in steps[: arrives - 1])
    gaps = []
    for token, (gap_s, piece) in enumerate(steps, start=1):
        gaps.append(TokenGap(token, start_s, gap_s, piece))
        start_s += gap_s
    return tuple(gaps)


def _room(chunk_tokens: int, running: int) -> int:
    """Prompt tokens of a step beside the answers. Raises InputError where there are none."""
    if chunk_tokens <= running:
        raise InputError("chunk_tokens", chunk_tokens, f"must be above the {running} running", "give larger chunks")
    return chunk_tokens - running
