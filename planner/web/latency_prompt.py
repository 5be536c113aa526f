"""Of the tab *Latency*: what a long prompt does to the answers that run, whole and in chunks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import streamlit as st

from planner.charts import Row, latency_distributions
from planner.core import counted, significant
from planner.engine import ReplicaConfig
from planner.fleet import PlannedDeployment
from planner.serving import Pool, longest_prompt_tokens
from planner.web import components, results

CHUNKS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384)
FIRST_CHUNK = 512
"""Chunk budget shown first where the pool has none of its own, as in Sarathi-Serve (arXiv:2403.02310, sec. 5)."""
PROMPT_STEP = 500
"""Tokens between two lengths of the long prompt."""
HEIGHT_PX = 400
"""Of the chart, with its title and axes."""


@st.fragment
def show(planned: PlannedDeployment, key: tuple[object, ...]) -> None:
    """What a long prompt does to the answers that run, whole and in chunks.

    Args:
        planned: the deployment it is about.
        key: tells it from every other.
    """
    st.subheader("What if a long prompt arrives?")
    pool, load = planned.judged.pools[-1], planned.predicted.pools[-1]
    if planned.judged.is_disaggregated:
        st.markdown(
            components.plain(
                f"Here prompts run on a pool of their own, so that the answers on {pool.config.label} never wait for "
                "one. Below: what would happen if its replicas processed prompts too."
            )
        )
    running = max(1, round(load.mean_running)) if math.isfinite(load.mean_running) else 1
    context = max(1, round(planned.workload.lengths.mean_decode_context))
    longest = longest_prompt_tokens(pool.config, running, context) // PROMPT_STEP * PROMPT_STEP
    chunks = chunk_choices(pool.config, running)
    if longest < 2 * PROMPT_STEP or not chunks:
        st.info("The KV cache beside the running answers has no room for a long prompt.")
        return
    prompt, chunk = _prompt_and_chunk(planned, pool, longest, chunks)
    rows = results.kept(
        ("latency prompt", *key, prompt, chunk, running),
        lambda _: latency_distributions.long_prompt_rows(pool.config, prompt, chunk, running, context),
        "Playing the steps",
    )
    outcomes = latency_distributions.long_prompt_outcomes(rows)
    st.markdown(components.plain(in_words(outcomes, prompt, running)))
    subject = f"{prompt:,} tokens join {counted(running, 'running answer')} on one replica of {pool.config.label}"
    picture = latency_distributions.long_prompt_chart(rows, planned.slo, subject)
    components.chart(picture.properties(height=HEIGHT_PX), rows, "Gaps when a long prompt arrives", "latency-prompt")
    said = (
        f"Running answers: the predicted mean of a replica at the planned rate, with a mean context of {context:,} "
        "tokens. Nobody else arrives meanwhile."
    )
    if pool.config.speculation is not None:
        said += " With speculation a step makes several tokens: gaps are those between steps."
    if not pool.config.schedule.mixed_steps:
        said += " The engine runs prompts in steps of their own; shown is what steps with both would do."
    st.caption(said)


def chunk_choices(config: ReplicaConfig, running: int) -> list[int]:
    """Token budgets of a step with room for a chunk beside the running answers; the replica's own among them."""
    return sorted(size for size in {*CHUNKS, config.max_batched_tokens} if size >= 2 * running)


def _prompt_and_chunk(planned: PlannedDeployment, pool: Pool, longest: int, chunks: Sequence[int]) -> tuple[int, int]:
    """The two sliders. They start at the longest prompt of the traffic and at the pool's own chunk budget, if any."""
    usual = max(planned.workload.lengths.input_tokens) // PROMPT_STEP * PROMPT_STEP
    own = 0 if planned.judged.is_disaggregated else pool.config.max_batched_tokens
    first = own if own in chunks else next((size for size in chunks if size >= FIRST_CHUNK), chunks[0])
    prompt_key, chunk_key = f"latency-prompt-{longest}", f"latency-chunk-{own}-{len(chunks)}"
    st.session_state.setdefault(prompt_key, min(max(usual, 4 * PROMPT_STEP), longest))
    st.session_state.setdefault(chunk_key, first)
    left, right = st.columns(2)
    with left:
        prompt: int = st.slider(
            "Prompt (tokens)",
            PROMPT_STEP,
            longest,
            step=PROMPT_STEP,
            key=prompt_key,
            format="localized",
            help="Length of the prompt that arrives. It ends where the KV cache or the model's context does.",
        )
    with right:
        chunk: int = st.select_slider(
            "Chunk budget (tokens per step)",
            list(chunks),
            key=chunk_key,
            format_func=lambda size: f"{size:,}" + (" (planned)" if size == own else ""),
            help="Most tokens of a step, running answers included (vLLM: max_num_batched_tokens).",
        )
    return prompt, chunk


def in_words(outcomes: Sequence[Row], prompt_tokens: int, running: int) -> str:
    """What the long prompt costs both ways, in a sentence."""
    whole, chunked = outcomes
    return (
        f"Taken whole, {prompt_tokens:,} tokens stop {counted(running, 'running answer')} once, for "
        f"{_ms(whole['longest_gap_ms'])}. In chunks they stretch {counted(chunked['stretched'], 'gap')} to at most "
        f"{_ms(chunked['longest_gap_ms'])}; the prompt's own first token then comes after "
        f"{_ms(chunked['prompt_ttft_ms'])} in place of {_ms(whole['prompt_ttft_ms'])}."
    )


def _ms(milliseconds: float) -> str:
    return f"{significant(milliseconds)} ms" if milliseconds < 10_000.0 else f"{significant(milliseconds / 1e3)} s"
