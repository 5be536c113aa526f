"""Formats as they are chosen: what a visitor set stays, what came with a checkpoint goes with it."""

from __future__ import annotations

from typing import Any

from planner.web.inputs import AS_PUBLISHED, with_checkpoint

OWN_FP8 = {"weights": "fp8", "activations": "fp8", "kv_cache": "fp8"}
OWN_16_BITS = {"weights": "fp8_block", "activations": "fp8", "kv_cache": "bf16"}
CHOICES: dict[str, dict[str, Any] | None] = {AS_PUBLISHED: None, "one": OWN_FP8, "other": OWN_16_BITS}


def test_the_cache_of_a_checkpoint_goes_with_it_and_comes_back_with_it() -> None:
    there = with_checkpoint(OWN_FP8, "one", "other", CHOICES)
    assert there == OWN_16_BITS
    assert with_checkpoint(there, "other", "one", CHOICES) == OWN_FP8


def test_a_cache_that_was_set_stays_whatever_checkpoint_is_taken() -> None:
    """FP8 keys and values beside a checkpoint that keeps 16 bits: another checkpoint does not undo that."""
    set_apart = {**OWN_16_BITS, "kv_cache": "fp8"}
    assert with_checkpoint(set_apart, "other", "one", CHOICES) == OWN_FP8
    assert with_checkpoint({**OWN_FP8, "kv_cache": "bf16"}, "one", "other", CHOICES) == OWN_16_BITS
    third = {**CHOICES, "third": {**OWN_16_BITS, "weights": "int8"}}
    kept = with_checkpoint(set_apart, "other", "third", third)
    assert kept is not None and kept["kv_cache"] == "fp8"


def test_as_published_has_no_formats_of_its_own() -> None:
    assert with_checkpoint(OWN_FP8, "one", AS_PUBLISHED, CHOICES) is None
    assert with_checkpoint(None, AS_PUBLISHED, "other", CHOICES) == OWN_16_BITS
