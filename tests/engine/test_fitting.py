"""A model on every GPU: what each server's memory says, side by side."""

from __future__ import annotations

import pytest

from planner.core import InputError, UnknownNameError
from planner.engine import fit_gpus, fit_headline, fit_record, fit_table, memory
from planner.llm import load_llm

GPUS = ("h100-sxm", "l4")


def test_every_server_is_the_one_that_memory_starts() -> None:
    for one in fit_gpus("qwen3-32b", 16_000, GPUS):
        alone = memory("qwen3-32b", one.sku, tp=one.tp, precision=one.format, max_request_tokens=16_000)
        if one.format == "bf16":  # the others are of checkpoints with formats of their own
            assert (one.requests, one.reason) == (int(alone.concurrency) if alone.starts else 0, alone.reason)


def test_more_gpus_hold_more_and_what_does_not_start_says_why() -> None:
    fits = fit_gpus("llama-3.3-70b-instruct", gpus=GPUS)
    for sku in GPUS:
        for name in {one.format for one in fits}:
            held = [one.requests for one in fits if (one.sku, one.format) == (sku, name)]
            assert held == sorted(held)
    assert any(one.reason for one in fits) and all(bool(one.reason) is not bool(one.requests) for one in fits)
    servers = fit_record(load_llm("llama-3.3-70b-instruct"), fits)["servers"]
    assert all((row["kv_tokens"] == 0) is bool(row["reason"]) for row in servers)


def test_kv_bytes_per_token_are_those_of_the_published_configuration() -> None:
    """2 x 80 layers x 8 KV heads x 128 x 2 bytes of config.json."""
    llm = load_llm("llama-3.3-70b-instruct")
    fits = fit_gpus(llm, gpus=["h100-sxm"])
    assert fit_record(llm, fits)["kv_bytes_per_token"] == 2 * 80 * 8 * 128 * 2
    assert "327,680 bytes" in fit_headline(llm, fits)
    some = next(one for one in fits if one.requests)
    assert f"fits on {some.tp} × H100 SXM." in fit_headline(llm, [some])


def test_tables_show_the_smallest_degree_of_many_gpus_and_every_degree_of_one() -> None:
    many, one = (fit_table(fit_gpus("llama-3.1-8b", gpus=gpus)) for gpus in (GPUS, GPUS[:1]))
    assert [row[0] for row in many.rows] == ["H100 SXM", "L4"] and many.columns[0] == "GPU"
    assert one.columns[2:6] == ("TP1", "TP2", "TP4", "TP8")
    alone = fit_gpus("llama-3.1-8b", gpus=GPUS[1:])
    first = next(fit for fit in alone if fit.format == "bf16" and fit.requests)
    assert many.rows[1][1] == f"TP{first.tp}: {first.requests:,}"


def test_what_cannot_be_asked_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="context_tokens"):
        fit_gpus("llama-3.1-8b", 10**7)
    with pytest.raises(UnknownNameError, match="h1000"):
        fit_gpus("llama-3.1-8b", gpus=["h1000"])
    with pytest.raises(UnknownNameError, match="engine"):
        fit_gpus("llama-3.1-8b", engine="vlllm")
