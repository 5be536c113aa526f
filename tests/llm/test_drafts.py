"""Drafts: sizes by hand, tables against the totals published beside them, refusals."""

from __future__ import annotations

import csv
import itertools
import re

import numpy as np
import pytest

from planner.core import InputError, UnknownNameError, UnsupportedFeatureError, preset
from planner.llm import (
    DraftMethod,
    draft_of,
    draft_parameters,
    load_draft,
    load_llm,
    measured_acceptance,
    wide_weights,
)
from planner.llm.drafts import acceptance_spread, list_acceptance_datasets, own_module
from planner.llm.sizes import mtp_parameters

EAGLE3 = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 1,
    "vocab_size": 128256,
    "draft_vocab_size": 32000,
}
"""https://huggingface.co/FasterDFlash/Hanrui/blob/main/progress/github/SpecForge/configs/llama3-8B-eagle3.json"""


def rows(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader(preset(name).read_text(encoding="utf-8").splitlines()))


class TestHeads:
    def test_an_eagle3_head_has_the_matrices_of_the_paper(self) -> None:
        h, kv, mlp, words = 4096, 1024, 14336, 32000
        by_hand = 3 * h * h + 2 * h * (h + 2 * kv) + h * h + 3 * h * mlp + words * h + 4 * h
        head = load_draft("yuhuili/EAGLE3-LLaMA3.1-Instruct-8B")
        assert draft_parameters(head) == by_hand == draft_parameters(load_draft(EAGLE3))
        assert wide_weights(head) == h * (h + 2 * kv)

    def test_the_form_of_vllms_speculators_is_the_same_head(self) -> None:
        layer = {name: value for name, value in EAGLE3.items() if name not in ("architectures", "draft_vocab_size")}
        given = {"draft_vocab_size": 32000, "target_hidden_size": None, "transformer_layer_config": layer}
        assert draft_parameters(load_draft(given)) == draft_parameters(load_draft(EAGLE3))

    def test_a_narrower_head_has_embeddings_of_its_own(self) -> None:
        narrow = load_draft({**EAGLE3, "target_hidden_size": 8192})
        more = draft_parameters(narrow) - draft_parameters(load_draft(EAGLE3))
        assert more == 3 * 4096 * 4096 + 128256 * 4096

    def test_every_head_of_the_table_is_one_of_a_known_width(self) -> None:
        for row in rows("draft_heads.csv"):
            assert re.match(r"https://", row["source"])
            for id in row["llms"].split("|"):
                assert load_llm(id).hidden_size == int(row["target_hidden_size"])
                assert draft_of(load_llm(id), DraftMethod(row["method"]))[0] == row["draft"]

    @pytest.mark.parametrize("model", ["deepseek-v3", "glm-4.5-air", "qwen3.5-27b", "mimo-v2-flash"])
    def test_own_modules_have_the_parameters_counted_for_them(self, model: str) -> None:
        own = own_module(load_llm(model))
        assert own is not None and draft_parameters(own) == mtp_parameters(load_llm(model))

    def test_what_is_not_known_or_not_modelled_is_refused(self) -> None:
        with pytest.raises(InputError, match="no eagle3 head of phi-4 is known"):
            draft_of(load_llm("phi-4"), DraftMethod.EAGLE3)
        with pytest.raises(InputError, match="has no multi-token-prediction layer"):
            draft_of(load_llm("phi-4"), DraftMethod.MTP)
        with pytest.raises(InputError, match=r"speculation\.draft"):
            draft_of(load_llm("phi-4"), DraftMethod.DRAFT_MODEL)
        with pytest.raises(UnknownNameError, match=r"speculation\.draft"):
            load_draft("/etc/passwd")
        with pytest.raises(UnsupportedFeatureError, match="several layers"):
            load_draft({**EAGLE3, "num_hidden_layers": 2})


class TestAcceptance:
    def test_positions_add_up_to_the_published_tokens_per_step(self) -> None:
        """What a row calls its mean is one more than its positions together: they are cumulated, not conditional."""
        checked = 0
        for row in rows("draft_acceptance.csv"):
            positions = [float(row[f"p{i}"]) for i in range(1, 8) if row[f"p{i}"]]
            assert positions == sorted(positions, reverse=True) and row["source"]
            if positions and row["tokens_per_step"]:
                assert 1.0 + sum(positions) == pytest.approx(float(row["tokens_per_step"]), rel=0.011)
                checked += 1
        assert checked > 30

    def test_model_and_dataset_choose_the_measurement(self) -> None:
        llama = load_llm("llama-3.1-8b")
        found = measured_acceptance(llama, DraftMethod.EAGLE3, 3, "MT-Bench")
        assert (found.by_position, found.draft) == (
            (0.7296, 0.5208, 0.3545),
            "RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3",
        )
        assert "not measured" not in found.note and "not on" not in found.note

    def test_a_mean_alone_is_met_whatever_falls(self) -> None:
        found = measured_acceptance(load_llm("llama-3.3-70b-instruct"), DraftMethod.EAGLE3, 7, "gsm8k")
        assert 1.0 + sum(found.by_position) == pytest.approx(3.29)

    def test_fewer_guesses_take_the_first_positions(self) -> None:
        one, five = (measured_acceptance(load_llm("qwen3-8b"), DraftMethod.EAGLE3, k, "mt-bench") for k in (1, 5))
        assert one.by_position == five.by_position[:1] == (0.6541,)
        assert "after the first 3" in five.note

    @pytest.mark.parametrize(("model", "dataset"), [("deepseek-v3.2", "gsm8k"), ("deepseek-v4-flash", "random")])
    def test_of_an_own_module_a_second_guess_is_right_less_often_than_the_first(self, model: str, dataset: str) -> None:
        """Measured position by position (ROCm/ATOM pull 1216, vllm pull 41044), so what goes on beyond falls too."""
        found = measured_acceptance(load_llm(model), DraftMethod.MTP, 5, dataset).by_position
        chances = [after / before for before, after in itertools.pairwise((1.0, *found))]
        assert all(after < before for before, after in itertools.pairwise(chances))

    def test_random_tokens_are_those_of_the_family_before_text_of_the_model(self) -> None:
        r1 = load_llm("deepseek-r1")
        random, text = (measured_acceptance(r1, DraftMethod.MTP, 2, dataset) for dataset in ("random", None))
        assert 1.0 + sum(random.by_position) == pytest.approx(np.mean([2.1501, 2.112, 2.1436]), rel=0.002)
        assert "deepseek-r1 was not measured" in random.note and "not measured" not in text.note
        assert random.spread > text.spread > 0.0

    def test_the_spread_of_repeats_is_that_of_the_runs_counted(self) -> None:
        """Runs of gpt-oss-120b and DeepSeek-V4 that differ in their number of users only: within groups, by hand."""
        kinds: dict[tuple[str, ...], list[float]] = {}
        for row in rows("draft_acceptance.csv"):
            positions = sum(float(row[f"p{i}"]) for i in range(1, 8) if row[f"p{i}"])
            kind = tuple(row[name] for name in ("method", "llms", "draft", "dataset", "draft_tokens"))
            kinds.setdefault(kind, []).append(np.log(float(row["tokens_per_step"] or 1.0 + positions)))
        squares = sum(np.var(values) * len(values) for values in kinds.values())
        free = sum(len(values) - 1 for values in kinds.values())
        assert acceptance_spread(same_dataset=True, same_model=True) == pytest.approx(np.sqrt(squares / free))

    def test_unknown_data_and_methods_without_measurements_are_refused(self) -> None:
        with pytest.raises(InputError, match="mt-bench") as refused:
            measured_acceptance(load_llm("qwen3-8b"), DraftMethod.EAGLE3, 3, "my-logs")
        assert "speculation.dataset" in str(refused.value)
        with pytest.raises(InputError, match="give acceptance"):
            measured_acceptance(load_llm("qwen3-8b"), DraftMethod.DRAFT_MODEL, 3)
        assert set(list_acceptance_datasets()) >= {"mt-bench", "gsm8k", "humaneval"}
