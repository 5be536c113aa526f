"""The quick calculators: what they print and write, and how to go on."""

from __future__ import annotations

from pathlib import Path

import pytest

import planner
from hardware_db import sku_words
from planner.core import json_text
from planner.engine import fit_record
from planner.llm import load_llm
from planner.serving import box_record
from tests.cli.shell import assert_refused, data, flat, run

BOX = ("box", "llama-3.1-8b", "--gpus", "2", "--users", "48", "--lengths", "1000/200")


def test_fit_writes_what_the_python_function_says() -> None:
    found = data("fit", "llama-3.1-8b", "--gpu", "h100", "--context", "4k")
    llm = load_llm("llama-3.1-8b")
    assert json_text(found) == json_text(fit_record(llm, planner.fit_gpus(llm, 4000, ["h100-sxm"])))
    assert "planner plan --llm llama-3.1-8b" in flat("fit", "llama-3.1-8b", "--gpu", "l4")


def test_what_fits_nowhere_is_exit_code_3() -> None:
    assert run("fit", "deepseek-v3", "--gpu", "t4").exit_code == 3


def test_box_writes_its_curve_its_picture_and_how_to_go_on(tmp_path: Path) -> None:
    said = flat(*BOX, "--tpot", "20ms", "--plot", tmp_path / "box.html")
    assert "<html" in (tmp_path / "box.html").read_text(encoding="utf-8").lower()
    found = data(*BOX, "--tpot", "20")
    curve = [1, 2, 4, 8, 16, 32, 48, 64, 128, 256]
    again = planner.box_curve("llama-3.1-8b", "h100-sxm", gpus=2, lengths=(1000, 200), users=curve, at=48)
    assert json_text(found) == json_text({**box_record(again), "users_within": again.users_within(0.02)})
    rate = again.at(48).requests_per_s
    assert f"planner plan --llm llama-3.1-8b --rate {rate:.3g} --lengths 1000/200" in said
    assert f"{again.users_within(0.02):,} users within" in said and f"{again.at(48).output_tokens_per_s:,.0f}" in said


def test_gpus_and_rates_are_read_as_people_type_them() -> None:
    """The same server and the same limit in two spellings are one answer."""
    typed = ("box", "llama-3.1-8b", "--gpu", "2 x H100", *BOX[4:], "--tpot", "50 tokens/s")
    assert json_text(data(*typed)) == json_text(data(*BOX, "--tpot", "20"))
    assert {row["tp"] for row in data("fit", "llama-3.1-8b", "--gpu", "2xMI300")["servers"]} == {1, 2}
    by_tp = data("memory", "llama-3.1-8b", "--gpu", "h100", "--tp", "2")
    assert json_text(data("memory", "llama-3.1-8b", "--gpu", "2xh100")) == json_text(by_tp)


def test_price_names_the_cheapest_gpu_first_beside_apis() -> None:
    found = data("price", "llama-3.1-8b")
    least = [min(one["usd_per_million_output_tokens"]) for one in found["servers"]]
    assert len(least) > 5 and least == sorted(least)
    assert found["apis"] and all(api["llm"] == "llama-3.1-8b" for api in found["apis"])
    assert f"on {sku_words(found['servers'][0]['sku'])}" in flat("price", "llama-3.1-8b")


@pytest.mark.parametrize(
    ("words", "field", "said"),
    [
        (("box", "llama-3.1-8b", "--lengths", "1000"), "--lengths", "two numbers"),
        (("box", "llama-3.1-8b", "--tpot", "soon"), "--tpot", "50ms"),
        (("fit", "llama-3.1-8b", "--context", "long"), "--context", "32k"),
        (("box", "llama-3.1-8b", "--gpu", "h1000"), "--gpu", "h100-sxm"),
        (("price", "llama-3.1-8b", "--lengths", "0/5"), "--lengths", "1500/400"),
        (("fit", "llama-3.1-8b", "--gpu", "h1000"), "--gpu", "h100-sxm"),
        (("box", "llama-3.1-8b", "--gpu", "8xh100", "--gpus", "4"), "--gpu", "one number"),
        (("fit", "llama-3.1-8b", "--gpu", "MI3"), "--gpu", "mi300x, mi308x, mi325x, mi350x, mi355x"),
        (("fit", "llama-3.1-8b", "--gpu", "L40"), "--gpu", "l40s"),  # another chip, not a beginning of its name
        (("box", "llama-3.1-8b", "--plot", "box.png"), "--plot", ".html"),
    ],
)
def test_bad_input_is_one_line(words: tuple[str, ...], field: str, said: str) -> None:
    assert_refused(words, field, said)


def test_a_plan_needs_no_file() -> None:
    few = ("--gpus", "h100", "--set", "search.tp=[2]", "--set", "workload.drift=none", "-q")
    said = flat("plan", "--llm", "qwen3-32b", "--rate", "3", "--lengths", "1500/400", *few)
    assert "qwen3-32b at 3 requests/s" in said and "H100 SXM" in said


@pytest.mark.parametrize(
    ("words", "field", "said"),
    [
        (("plan",), "SCENARIO", "--llm qwen3-32b --rate 20"),
        (("plan", "chat-llama-70b", "--rate", "3"), "--rate", "--set"),
        (("plan", "--llm", "qwen3-32b", "--rate", "many"), "traffic", "write e.g."),
    ],
)
def test_a_plan_without_a_file_says_what_it_needs(words: tuple[str, ...], field: str, said: str) -> None:
    assert_refused(words, field, said)
