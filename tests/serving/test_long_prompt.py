"""A long prompt beside running answers, step by step, against the step times of the engine."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from planner.core import InputError
from planner.engine import memory_footprint, step_time
from planner.serving import chunk_count, longest_prompt_tokens, prompt_gaps
from planner.serving.long_prompt import TokenGap
from tests.builders import replica

CONFIG = replica()
RUNNING, CONTEXT, PROMPT, TOKENS, ARRIVES = 16, 1000, 4000, 40, 11


def gaps(chunk_tokens: int | None, **changes: int) -> tuple[TokenGap, ...]:
    asked = {"running": RUNNING, "context_tokens": CONTEXT, "tokens": TOKENS, "arrives": ARRIVES} | changes
    return prompt_gaps(CONFIG, PROMPT, chunk_tokens, **asked)


def test_a_whole_prompt_stalls_answers_for_exactly_the_step_it_joins() -> None:
    played = gaps(None)
    (joined,) = [gap for gap in played if gap.prompt_tokens]
    assert joined.token == ARRIVES and joined.prompt_tokens == PROMPT
    assert joined.start_s == pytest.approx(0.0, abs=1e-12)
    alone_s = step_time(CONFIG, [CONTEXT + ARRIVES] * RUNNING, [(PROMPT, 0)]).total_s
    assert joined.gap_s == pytest.approx(alone_s)
    assert joined.gap_s == max(gap.gap_s for gap in played)


@pytest.mark.parametrize("chunk_tokens", [128, 2048])
def test_chunks_fill_their_budget_and_hold_the_whole_prompt(chunk_tokens: int) -> None:
    """Each step has room for the budget less a token for every answer; together they are the prompt."""
    played = gaps(chunk_tokens, tokens=80)
    pieces = [gap.prompt_tokens for gap in played if gap.prompt_tokens]
    assert sum(pieces) == PROMPT and set(pieces[:-1]) <= {chunk_tokens - RUNNING}
    assert len(pieces) == chunk_count(PROMPT, chunk_tokens, RUNNING) == math.ceil(PROMPT / (chunk_tokens - RUNNING))


def test_smaller_chunks_stall_less_but_the_prompt_takes_longer() -> None:
    """Sarathi-Serve (arXiv:2403.02310, sec. 4): the trade that the chunk budget makes."""
    played = [[gap for gap in gaps(size, tokens=80) if gap.prompt_tokens] for size in (128, 512, 2048, None)]
    longest = [max(gap.gap_s for gap in each) for each in played]
    first_token_s = [each[-1].end_s for each in played]
    assert longest == sorted(longest)
    assert first_token_s == sorted(first_token_s, reverse=True)


def test_steps_follow_one_another_and_the_prompt_comes_at_zero() -> None:
    played = gaps(512)
    assert all(one.end_s == pytest.approx(after.start_s, abs=1e-12) for one, after in pairwise(played))
    assert next(gap for gap in played if gap.prompt_tokens).start_s == pytest.approx(0.0, abs=1e-12)


def test_once_done_the_prompt_decodes_with_the_others() -> None:
    played = gaps(None)
    after = played[ARRIVES]
    contexts = [CONTEXT + after.token] * RUNNING + [PROMPT + 1]
    assert after.gap_s == pytest.approx(step_time(CONFIG, contexts).total_s)


def test_a_prompt_may_be_as_long_as_the_model_or_the_cache_allows() -> None:
    room = memory_footprint(CONFIG).kv_capacity_tokens
    assert longest_prompt_tokens(CONFIG, 1, 10) == min(CONFIG.llm.max_context_tokens - 1, room - 11)
    assert longest_prompt_tokens(CONFIG, 100, room // 100 - 51) == room - 100 * (room // 100 - 50)
    assert longest_prompt_tokens(CONFIG, 100, room) == 0


def test_a_chunk_without_room_beside_the_answers_is_refused() -> None:
    with pytest.raises(InputError, match=r"chunk_tokens = 16: must be above the 16 running. Fix: give larger chunks"):
        gaps(RUNNING)


@pytest.mark.parametrize("arrives", [TOKENS])
def test_a_prompt_that_never_comes_is_refused(arrives: int) -> None:
    with pytest.raises(InputError, match=rf"arrives = {arrives}: must be from 1 to 39"):
        gaps(512, arrives=arrives)
