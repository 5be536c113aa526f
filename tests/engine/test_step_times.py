"""Step times: tables against the operators they hold, sums against totals, peaks as a gate."""

from __future__ import annotations

import math
import pickle
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from hardware_db import Calibration, Correction, Dtype, EngineCosts
from planner.core import FloatArray, rebuilt
from planner.engine import CONTEXTS, Schedule, Speculation, StepTimer, drafting_of, step_time
from planner.engine.lookup import DECODES, TOKENS
from planner.engine.replica import step_shape
from planner.engine.step_times import _slower_of, build_timer
from planner.llm import Precision, load_llm, pipeline_stages
from planner.llm.drafts import own_module
from planner.roofline import (
    CalibratedGpu,
    Driver,
    Load,
    Operator,
    OperatorFamily,
    Parallelism,
    StepShape,
    attention_s,
    draft_operators,
    operator_seconds,
    prompt_attention,
    step_operators,
)
from tests.builders import FP8, H100, HARDWARE, calibrated, replica

MODELS: dict[str, Parallelism] = {
    "llama-3.1-70b": Parallelism(tp=4),
    "mixtral-8x7b-v0.1": Parallelism(tp=2),
    "deepseek-v3": Parallelism(tp=8, ep=8),
    "deepseek-v3.2": Parallelism(dp=8, ep=8),
    "qwen3-next-80b-a3b-thinking": Parallelism(tp=2),
    "gpt-oss-120b": Parallelism(),
    "gemma-3-27b-it": Parallelism(),
    "gemma-4-26b-a4b": Parallelism(tp=2),
    "mimo-v2-flash": Parallelism(tp=4),
    "qwen3-235b-a22b": Parallelism(tp=2, pcp=4, ep=8),
}
"""One model of each kind of attention and feed-forward, and a usual split of it."""
MORE_KERNELS: dict[str, Parallelism] = {
    "minimax-m3": Parallelism(tp=8),
    "deepseek-v4-flash": Parallelism(tp=4, ep=4),
    "kimi-k3": Parallelism(tp=8),
    "glm-5.2": Parallelism(tp=8),
}
"""Models that run kernels which none of those above does."""
FITS = {f"{one.sku} {one.engine}": one for one in HARDWARE.calibrations}
FREE = EngineCosts()
DRAFTS = Speculation(draft_tokens=2, acceptance=0.7)


def steps(count: int, seed: int = 7) -> StepShape:
    """Random steps: a third decodes only, the rest with one or two prompt chunks; decodes up to 2000."""
    random = np.random.default_rng(seed)

    def spread(highest: float) -> FloatArray:
        return np.asarray(np.round(np.exp(random.uniform(0.0, math.log(highest), count))), dtype=np.float64)

    n, context, new = spread(2000), spread(100_000), spread(8000)
    past = np.round(random.uniform(0, 10_000, count))
    chunks = random.integers(0, 3, count).astype(np.float64)
    pairs = new * past + new * (new + 1) / 2
    return StepShape(n, n * context, chunks * new, chunks * pairs, chunks * (new + past), chunks)


def one_of(shape: StepShape, index: int) -> tuple[float, ...]:
    return tuple(float(getattr(shape, field.name)[index]) for field in fields(shape))


def timer(
    model: str, precision: Precision = FP8, fits: Calibration | None = None, sku: str | None = None, **changes: Any
) -> StepTimer:
    chosen = HARDWARE.skus[fits.sku if fits else sku or "h100-sxm"]
    return build_timer(load_llm(model), chosen, precision, MODELS[model], fits, FREE, **changes)


def operators_s(found: tuple[Operator, ...], shape: StepShape, split: Parallelism, gpu: CalibratedGpu) -> FloatArray:
    """The operators evaluated one by one for every step, decodes and prompts in kernels of their own."""
    load = Load.of(shape, split)
    decodes = Load.of(StepShape(shape.decodes, shape.decode_context), split)
    prompts = Load(**{**vars(load), "decodes": load.decodes * 0.0})
    seconds = np.zeros(np.shape(shape.decodes))
    for one in found:
        link = getattr(one, "link_bytes_per_s", math.inf)
        if one.driver.value == "shape":
            seconds = seconds + operator_seconds(one, decodes, gpu, link)
            seconds = seconds + operator_seconds(one, prompts, gpu, link) * (np.asarray(load.chunks) > 0)
        else:
            seconds = seconds + operator_seconds(one, load, gpu, link)
    return np.asarray(seconds)


class TestTables:
    """Tables stand for the operators they were made of."""

    @pytest.mark.parametrize("model", MODELS)
    @pytest.mark.parametrize("precision", [Precision(), FP8], ids=["bf16", "fp8"])
    def test_uncalibrated_steps_are_their_operators(self, model: str, precision: Precision) -> None:
        shape = steps(200)
        found = step_operators(load_llm(model), H100, precision, MODELS[model])
        exact = operators_s(found, shape, MODELS[model], CalibratedGpu(H100))
        off = np.abs(timer(model, precision).times_s(shape) / exact - 1.0)[shape.decodes >= MODELS[model].dp]
        assert np.quantile(off, 0.95) < 0.005
        assert off.max() < 0.01  # where a roofline bends, or experts fill up, inside a cell

    @pytest.mark.parametrize("model", MODELS)
    def test_on_the_grid_calibrated_steps_are_their_operators(self, model: str) -> None:
        fits, split = FITS["h200-sxm vllm"], MODELS[model]
        n = np.array([1.0, 2.0, 4.0, 8.0, 64.0]) * split.dp
        context = CONTEXTS[[0, 10, 20, 30, 40]]
        shape = StepShape(n, n * context)
        sku = HARDWARE.skus["h200-sxm"]
        found = step_operators(load_llm(model), sku, FP8, split)
        exact = operators_s(found, shape, split, CalibratedGpu(sku, fits))
        on_grid = np.isin(n / split.dp, DECODES) & np.isin(n / split.dp, TOKENS) & np.isin(n, TOKENS)
        assert timer(model, FP8, fits).times_s(shape)[on_grid] == pytest.approx(exact[on_grid], rel=1e-9)

    @pytest.mark.parametrize("model", MODELS)
    def test_calibrated_steps_are_close_to_their_operators(self, model: str) -> None:
        fits, split = FITS["h200-sxm vllm"], MODELS[model]
        shape, sku = steps(200), HARDWARE.skus["h200-sxm"]
        exact = operators_s(step_operators(load_llm(model), sku, FP8, split), shape, split, CalibratedGpu(sku, fits))
        assert np.median(np.abs(timer(model, FP8, fits).times_s(shape) / exact - 1.0)) < 0.005

    def test_beyond_the_tables_time_grows_in_proportion(self) -> None:
        long = [timer("llama-3.1-70b").decode_s(1, context) for context in (2**20, 2**21, 2**22)]
        assert long[2] - long[1] == pytest.approx(2 * (long[1] - long[0]), rel=1e-6)
        huge = [timer("llama-3.1-70b").step_s(0, 0, n, n, n, n) for n in (2**20, 2**21, 2**22)]
        assert huge[2] / huge[1] == pytest.approx(2.0, rel=0.01)


class TestSums:
    """One answer whichever way it is asked for."""

    @pytest.mark.parametrize("fits", [None, "h200-sxm vllm"])
    @pytest.mark.parametrize("model", MODELS)
    def test_families_and_bounds_add_up_to_the_total(self, model: str, fits: str | None) -> None:
        shape, clock = steps(30), timer(model, FP8, FITS[fits] if fits else None)
        assert clock.bounds_s(shape).sum(axis=0) == pytest.approx(clock.times_s(shape), rel=1e-12)
        for index in range(5):
            step = clock.step_time(StepShape(*one_of(shape, index)))
            assert sum(step.family_s.values()) == pytest.approx(step.total_s, rel=1e-12)
            assert sum(step.bound_s.values()) == pytest.approx(step.total_s, rel=1e-12)

    def test_a_mixed_step_shares_the_weights(self) -> None:
        clock = timer("llama-3.1-70b")
        decode, prompt = clock.step_s(64, 64_000), clock.step_s(0, 0, 512, 512 * 513 / 2, 512, 1)
        mixed = clock.step_s(64, 64_000, 512, 512 * 513 / 2, 512, 1)
        assert max(decode, prompt) < mixed < decode + prompt


OVERLAPPED = EngineCosts(gap_s=-2e-6, step_s=1e-3)
HOSTED = EngineCosts(sequence_s=1e-5, gap_s=1e-6, launch_s=1e-5, stretch=1.5, prompt_stretch=1.2)
SPLITS = {
    "llama-3.1-8b": [Parallelism(), Parallelism(tp=2), Parallelism(pp=2), Parallelism(tp=2, dp=2)],
    "mixtral-8x7b-v0.1": [Parallelism(tp=2, ep=2), Parallelism(dp=2, ep=2, pp=2)],
    "gemma-3-27b-it": [Parallelism(dp=2, pp=2)],
    "deepseek-v3.2": [Parallelism(tp=4, dp=2, ep=8), Parallelism(tp=2, dp=2, pp=2)],
    "qwen3-next-80b-a3b-thinking": [Parallelism(tp=2, dp=2, ep=4)],
    "qwen3-30b-a3b": [Parallelism(pcp=2, ep=2), Parallelism(tp=2, dp=2, pcp=2, pp=2)],
}


def edges() -> StepShape:
    """Nothing but a token; fewer sequences than ranks; half a chunk; beyond every table; prompts far above a window."""
    rows = (
        (1.0, 1.0, 0.0, 0.0, 0.0, 0.0),
        (0.0, 0.0, 1.0, 1.0, 1.0, 1.0),
        (0.5, 400.0, 10.0, 2000.0, 300.0, 0.5),
        (40_000.0, 40_000.0 * 3e6, 0.0, 0.0, 0.0, 0.0),
        (3.0, 3000.0, 3e6, 3e6 * 1.5e6, 3e6, 2.0),
        (16.0, 16_000.0, 300.0, 100 * 1e5 * 3, 3e5 + 300.0, 3.0),
        (300.0, 3e5, 8192.0, 16 * (512 * 513 / 2), 8192.0, 16.0),
    )
    return StepShape(*np.array(rows).T)


class TestSingleSteps:
    """A step asked for alone takes as long as among others."""

    def same(self, clock: StepTimer) -> None:
        for shape in (steps(20), edges()):
            many = clock.times_s(shape)
            assert [clock.step_s(*one_of(shape, index)) for index in range(many.size)] == pytest.approx(many, rel=1e-12)
            alone = clock.times_s(StepShape(shape.decodes, shape.decode_context))
            one = [clock.decode_s(*one_of(shape, index)[:2]) for index in range(many.size)]
            assert one == pytest.approx(alone, rel=1e-12)

    @pytest.mark.parametrize("costs", [FREE, HOSTED, OVERLAPPED], ids=["free", "hosted", "overlapped"])
    @pytest.mark.parametrize("model", SPLITS)
    def test_under_every_split_and_cost(self, model: str, costs: EngineCosts) -> None:
        # Without a calibration kernels are at their rooflines, which overlapping ones cannot beat.
        for split in SPLITS[model]:
            for fits in (FITS["h200-sxm sglang"], None):
                self.same(build_timer(load_llm(model), HARDWARE.skus["h200-sxm"], FP8, split, fits, costs))

    @pytest.mark.parametrize("costs", [HOSTED, OVERLAPPED], ids=["hosted", "overlapped"])
    @pytest.mark.parametrize("split", [Parallelism(tp=8, ep=8), Parallelism(dp=4, tp=2, ep=8, pp=2)], ids=str)
    def test_speculating(self, split: Parallelism, costs: EngineCosts) -> None:
        fits = FITS["h200-sxm vllm"]
        self.same(build_timer(load_llm("deepseek-v3"), HARDWARE.skus["h200-sxm"], FP8, split, fits, costs, DRAFTS))

    @pytest.mark.parametrize("peak", [1.0, 0.001], ids=["", "starved"])
    @pytest.mark.parametrize("model", MODELS)
    def test_prompts_at_every_bound(self, model: str, peak: float) -> None:
        # Corrections far below 1 bring forward the bounds that fits never reach, and low peaks those of FLOPs.
        fitted = FITS["h200-sxm vllm"]
        flat = Correction(first_log2=(0.0,), second_log2=(0.0, 8.0), log_factor=((-9.0, -3.0),))
        kernels = {name: fit.model_copy(update={"correction": flat}) for name, fit in fitted.kernels.items()}
        sku = HARDWARE.skus["h200-sxm"]
        peaks = {
            dtype: one.model_copy(update={"value": one.value * peak * (0.3 if dtype is Dtype.BF16 else 1.0)})
            for dtype, one in sku.peak_flops_per_s.items()
        }
        sku = sku.model_copy(update={"peak_flops_per_s": peaks})
        found = [one for one in step_operators(load_llm(model), sku, FP8, MODELS[model]) if one.driver is Driver.SHAPE]
        load = Load.of(steps(60), Parallelism())
        load = Load(**{**vars(load), "decodes": load.decodes * 0.0})
        some = np.flatnonzero(load.chunks)
        for calibration in (fitted.model_copy(update={"kernels": kernels}), fitted, None):
            gpu = CalibratedGpu(sku, calibration)
            many = sum(np.asarray(operator_seconds(one, load, gpu, math.inf)) for one in found)
            rows = prompt_attention(found, gpu)
            numbers = [(load.chunks[i], load.new[i], load.past[i], load.cached[i]) for i in some]
            assert [attention_s(*rows, *map(float, each)) for each in numbers] == pytest.approx(many[some], rel=1e-12)


class TestPhysics:
    """Gates and monotonicity over every fit that ships."""

    @pytest.mark.parametrize("fits", FITS)
    def test_no_kernel_is_faster_than_a_peak(self, fits: str) -> None:
        """Of every kind of operator, before its roofline bounds it; every fit meets a model at one of three formats."""
        fitted = FITS[fits]
        sku, first, shape = HARDWARE.skus[fitted.sku], list(FITS).index(fits), steps(60, 3)
        peaks, gpu = sku.peak_flops_per_s, CalibratedGpu(sku, fitted)
        for place, (model, split) in enumerate({**MODELS, **MORE_KERNELS}.items()):
            precision = (Precision(), FP8, Precision(weights=Dtype.INT4))[(first + place) % 3]
            load = Load.of(shape, split)
            for one in step_operators(load_llm(model), sku, precision, split, 0.8 * (place % 2)):
                seconds = one.kernel_s(load, gpu)
                if seconds is not None:
                    work, formats = one.work(load), (one.dtype, getattr(one, "kv_cache", one.dtype))
                    peak = max(peaks[kind].value for kind in formats if kind in peaks)
                    least = np.maximum(work.flops / peak, work.hbm_bytes / sku.hbm_bandwidth_bytes_per_s.value)
                    assert np.isfinite(seconds).all(), (model, one)
                    assert np.all(seconds >= least * (1 - 1e-9)), (model, one)

    @pytest.mark.parametrize("fits", FITS)
    def test_no_collective_sends_faster_than_its_link(self, fits: str) -> None:
        """Each GPU sends an all-reduce's buffer at least once (in-switch reduction), (n - 1) / n of the others'."""
        fitted = FITS[fits]
        sku = HARDWARE.skus[fitted.sku]
        loads = Load.of(StepShape(np.geomspace(1.0, 8192.0, 14), np.geomspace(1e3, 8192e3, 14)), Parallelism())
        for model, split in (("llama-3.1-70b", Parallelism(tp=4)), ("deepseek-v3", Parallelism(dp=8, ep=8))):
            for one in step_operators(load_llm(model), sku, FP8, split):
                link = getattr(one, "link_bytes_per_s", None)
                if link is not None and getattr(one, "operation", "") != "all_reduce":
                    sent = np.asarray(one.work(loads).link_bytes)
                    seconds = operator_seconds(one, loads, CalibratedGpu(sku, fitted), link)
                    assert np.all(seconds >= one.count * sent / link * (1 - 1e-9)), one

    @pytest.mark.parametrize("model", MODELS)
    def test_more_bandwidth_never_slows(self, model: str) -> None:
        fact, shape = H100.hbm_bandwidth_bytes_per_s, steps(100)
        wide = fact.model_copy(update={"value": 2.0 * fact.value})
        faster = H100.model_copy(update={"hbm_bandwidth_bytes_per_s": wide})
        for fits in (None, FITS["h100-sxm vllm"]):
            both = [build_timer(load_llm(model), sku, FP8, MODELS[model], fits, FREE) for sku in (H100, faster)]
            before, after = (clock.times_s(shape) for clock in both)
            assert np.all(after <= before * (1 + 1e-9))

    @pytest.mark.parametrize("model", MODELS)
    def test_uncalibrated_steps_grow_with_what_is_in_them(self, model: str) -> None:
        clock, n = timer(model), np.arange(1.0, 600.0)
        for shape in (StepShape(n, n * 1000), StepShape(n * 0 + 64, 64 * 50 * n)):
            assert np.all(np.diff(clock.times_s(shape)) >= -1e-12)

    @pytest.mark.parametrize("sku", sorted(HARDWARE.skus))
    def test_every_sku_has_a_step_time(self, sku: str) -> None:
        half = Dtype.BF16 if Dtype.BF16 in HARDWARE.skus[sku].peak_flops_per_s else Dtype.FP16
        config = replica(sku=HARDWARE.skus[sku], precision=Precision(weights=half, activations=half, kv_cache=half))
        work = 2 * 2 * 6.98e9 * 512 / max(one.value for one in config.sku.peak_flops_per_s.values())
        assert config.timer.step_s(0, 0, 1024, 1024 * 1025 / 2, 1024, 1) >= 0.5 * work


class TestParallelism:
    """What the ways of splitting do to a step."""

    @pytest.mark.parametrize("pp", [2, 4])
    def test_a_decode_step_takes_every_micro_batch_through_the_last_stage(self, pp: int) -> None:
        # Each of pp stages holds 1/pp of the layers and runs pp micro-batches of 1/pp of the sequences, one after the
        # other: all layers once with a micro-batch in them, and pp times the head, which the last stage has.
        config, whole = (replica("llama-3.1-70b", precision=FP8, parallelism=Parallelism(pp=n)).timer for n in (pp, 1))
        head_s = whole.step_time(StepShape(64 / pp, 64_000 / pp)).family_s[OperatorFamily.LM_HEAD]
        expected = whole.decode_s(64 / pp, 64_000 / pp) + (pp - 1) * head_s
        assert config.decode_s(64, 64_000) == pytest.approx(expected, rel=1e-3)

    def test_attention_ranks_shorten_latent_decodes(self) -> None:
        # The latent row is not split over tp, so 8 ranks read an eighth of the rows that 8 shards read each.
        def attention_s(split: Parallelism) -> float:
            clock = build_timer(load_llm("deepseek-v3"), HARDWARE.skus["h200-sxm"], FP8, split, None, FREE)
            return clock.step_time(step_shape([100_000] * 64, [])).family_s[OperatorFamily.ATTENTION_DECODE]

        shards, ranks = attention_s(Parallelism(tp=8, ep=8)), attention_s(Parallelism(dp=8, ep=8))
        row_s = 61 * 64 * 100_000 * 576 / HARDWARE.skus["h200-sxm"].hbm_bandwidth_bytes_per_s.value
        assert shards == pytest.approx(row_s, rel=0.01)
        assert ranks < shards

    def test_skew_only_makes_experts_slower(self) -> None:
        shape = step_shape([1000] * 512, [])
        even, skewed = (
            build_timer(load_llm("deepseek-v3"), H100, FP8, Parallelism(tp=8, ep=8), None, FREE, skew=skew)
            for skew in (0.0, 1.2)
        )
        some, more = even.step_time(shape).family_s, skewed.step_time(shape).family_s
        assert {one: more[one] for one in more if one is not OperatorFamily.EXPERTS} == pytest.approx(
            {one: some[one] for one in some if one is not OperatorFamily.EXPERTS}
        )
        # The busiest GPU has more pairs, but a token no longer touches every expert.
        assert skewed.step_s(0, 0, 8192, 8192 * 8193 / 2, 8192, 1) > even.step_s(0, 0, 8192, 8192 * 8193 / 2, 8192, 1)


class TestSpeculation:
    """Draft and verify: k draft steps and one step of k + 1 tokens per sequence."""

    def test_a_step_is_its_drafts_and_the_verification(self) -> None:
        llm, split, shape = load_llm("deepseek-v3"), Parallelism(tp=8, ep=8), step_shape([2000] * 16, [])
        speculating = build_timer(llm, H100, FP8, split, None, FREE, DRAFTS)
        gpu, found = CalibratedGpu(H100), 0.0
        draft = own_module(llm)
        assert draft is not None
        drafting = draft_operators(draft, H100, FP8, split)
        verified = (*step_operators(llm, H100, FP8, split), *drafting.first)
        # Both pass over all tokens of the step; the second guess takes one more pass, and each guess the head.
        for many, queries, chosen in ((1, 3.0, verified), (1, 1.0, drafting.layers), (2, 1.0, drafting.head)):
            load = Load.of(shape, split, queries)
            found += many * sum(
                float(operator_seconds(one, load, gpu, getattr(one, "link_bytes_per_s", math.inf))) for one in chosen
            )
        assert float(speculating.times_s(shape)) == pytest.approx(found, rel=0.005)
        assert speculating.decode_s(16, 32_000) == pytest.approx(float(speculating.times_s(shape)), rel=1e-9)
        step = speculating.step_time(shape)
        assert sum(step.family_s.values()) == pytest.approx(step.total_s, rel=1e-12)

    def test_prompts_pass_through_the_drafting_layer_once(self) -> None:
        # One layer more of 61, and the matrix that joins hidden states and embeddings: its cache holds prompts, too.
        plain, drafting = (timer("deepseek-v3", speculation=drafts) for drafts in (None, DRAFTS))
        step = (0, 0, 8192, 8192 * 8193 / 2, 8192, 1)
        assert 1 / 61 < drafting.step_s(*step) / plain.step_s(*step) - 1.0 < 2 / 61

    def test_expected_tokens_per_step_are_those_of_the_paper(self) -> None:
        # Leviathan et al. 2023, eq. 1; all rejected: the model's own; all accepted: one more than drafted.
        def gain(drafts: int, acceptance: float) -> float:
            return drafting_of(
                Speculation(draft_tokens=drafts, acceptance=acceptance), load_llm("deepseek-v3")
            ).tokens_per_step

        assert [gain(3, a) for a in (0.0, 1.0)] == [1.0, 4.0]
        assert gain(4, 0.5) == (1 - 0.5**5) / (1 - 0.5)


COSTS = EngineCosts(step_s=1e-3, sequence_s=1e-5, gap_s=1e-6, launch_s=1e-4, stretch=1.5, prompt_stretch=1.2)


class TestEngineCosts:
    """What an engine adds, as the equations of `EngineCosts` say."""

    def timers(self, costs: EngineCosts) -> tuple[StepTimer, StepTimer]:
        config = calibrated()
        made = [
            build_timer(config.llm, config.sku, config.precision, config.parallelism, config.calibration, one)
            for one in (FREE, costs)
        ]
        return made[0], made[1]

    def test_a_step_of_decodes_is_replayed(self) -> None:
        free, dear = self.timers(COSTS)
        kernels = free.decode_s(10, 10_000)
        assert dear.decode_s(10, 10_000) == pytest.approx(1.5 * kernels + 1e-6 * free.launches + 1e-3 + 10 * 1e-5)

    def test_a_step_with_prompts_waits_for_the_host_or_the_kernels(self) -> None:
        free, dear = self.timers(COSTS)
        for tokens in (16, 8192):
            step = (0.0, 0.0, tokens, tokens * (tokens + 1) / 2, tokens, 1.0)
            gpu_s = 1.2 * free.step_s(*step) + 1e-6 * free.launches
            assert dear.step_s(*step) == pytest.approx(max(gpu_s, 1e-4 * free.launches) + 1e-3)
        assert 1e-4 * free.launches > 1.3 * free.step_s(0, 0, 16, 136, 16, 1)

    @pytest.mark.parametrize(("sku", "parted"), [("h200-sxm", 0), ("rtx-pro-6000-blackwell-server", 61)])
    def test_chosen_keys_wait_for_small_kernels_unless_measured_as_a_module(self, sku: str, parted: int) -> None:
        """DeepSeek-V3.2 has 61 layers; modules of chosen keys were measured on H200, kernels only on RTX PRO 6000."""
        config = calibrated("deepseek-v3.2", sku, parallelism=Parallelism(dp=8, ep=8))
        timer = config.timer
        slower = timer.with_costs(config.costs.model_copy(update={"latent_s": config.costs.latent_s + 1e-4}))
        assert slower.decode_s(8, 8000) - timer.decode_s(8, 8000) == pytest.approx(parted * 1e-4, abs=1e-9)

    def test_overlapping_kernels_never_beat_their_rooflines(self) -> None:
        # At long contexts little but one kernel runs, so that an overlap of 2 us per launch has nothing to save.
        free, overlapped = self.timers(EngineCosts(gap_s=-2e-6))
        config = calibrated()
        found = step_operators(config.llm, config.sku, config.precision, config.parallelism)
        for n, context in ((1, 10), (16, 4000), (64, 30_000)):
            load = Load.of(step_shape([context] * n, []), config.parallelism)
            works = [(one, one.work(load)) for one in found]
            bandwidth = config.sku.hbm_bandwidth_bytes_per_s.value
            roof = sum(one.count * float(work.hbm_bytes) / bandwidth for one, work in works)
            assert overlapped.decode_s(n, n * context) >= 0.995 * roof
            assert overlapped.decode_s(n, n * context) < free.decode_s(n, n * context)


def test_a_timer_that_was_used_can_be_kept() -> None:
    """The web app keeps plans as bytes, and a plan holds the timers of its replicas."""
    timer = replica().timer
    before_s = timer.step_s(8.0, 8000.0, 512.0, 131_328.0, 512.0, 1.0)
    assert pickle.loads(pickle.dumps(timer)).step_s(8.0, 8000.0, 512.0, 131_328.0, 512.0, 1.0) == before_s


class TestCapturedGraphs:
    """Steps beyond what an engine has captured are launched kernel by kernel, captured ones with prompts in pieces."""

    DEAR = EngineCosts(launch_s=1e-3, prompt_stretch=1.5)
    """A host so slow that it decides any launched step: 1 ms a kernel."""

    def timers(self, captured: float) -> tuple[StepTimer, StepTimer]:
        config = calibrated()
        same = (config.llm, config.sku, config.precision, config.parallelism, config.calibration, self.DEAR)
        return build_timer(*same), build_timer(*same, captured=captured)

    def test_only_larger_steps_wait_for_the_host(self) -> None:
        unlimited, limited = self.timers(64.0)
        for n in (1, 63, 64):
            assert limited.decode_s(n, 1000 * n) == unlimited.decode_s(n, 1000 * n)
        for n in (65, 300):
            assert limited.decode_s(n, 1000 * n) == pytest.approx(1e-3 * limited.launches)
            assert limited.decode_s(n, 1000 * n) > unlimited.decode_s(n, 1000 * n)

    def test_a_step_with_prompts_is_looked_up_by_its_tokens(self) -> None:
        """By hand: of the 32 layers of Llama-3.1-8B each launches its attention and the graph up to the next one's."""
        config = calibrated()
        same = (config.llm, config.sku, config.precision, config.parallelism, config.calibration, self.DEAR)
        timer = build_timer(*same, captured=64.0, captured_tokens=512.0)
        for decodes, tokens, launched in (
            (0, 512, 64),
            (0, 513, timer.launches),
            (12, 500, 64),
            (13, 500, timer.launches),
        ):
            step = (decodes, 100.0 * decodes, tokens, tokens * (tokens + 1) / 2, tokens, 1.0)
            assert timer.step_s(*step) == pytest.approx(1e-3 * launched)

    @pytest.mark.parametrize(
        ("engine", "model", "sku", "tokens"),
        [
            ("vllm", "llama-3.1-8b", "h100-sxm", 512),  # one list of sizes for all steps
            ("sglang", "llama-3.1-8b", "b200-sxm", 16_384),
            ("sglang", "deepseek-v3", "b200-sxm", 2048),  # latent attention
            ("sglang", "llama-3.1-8b", "mi300x", 0),  # CUDA only
            ("tensorrt-llm", "llama-3.1-8b", "h100-sxm", 0),  # torch_compile_config is not set by default
        ],
    )
    def test_prompts_are_captured_as_the_engines_do(self, engine: str, model: str, sku: str, tokens: int) -> None:
        changes = {"engine": HARDWARE.engines[engine], "sku": HARDWARE.skus[sku]}
        found = rebuilt(replica(model, parallelism=MODELS.get(model, Parallelism())), **changes)
        assert found.captured_prompt_tokens == tokens
        eager = found.schedule.model_copy(update={"captured_decodes": 0})
        assert rebuilt(found, own_schedule=eager).captured_prompt_tokens == 0

    def test_a_launched_step_is_never_faster_than_a_replayed_one(self) -> None:
        config = calibrated()
        dear = EngineCosts(gap_s=1e-4, launch_s=1e-9)  # gaps of a replay that outweigh launching
        same = (config.llm, config.sku, config.precision, config.parallelism, config.calibration, dear)
        unlimited, limited = build_timer(*same), build_timer(*same, captured=64.0)
        assert all(limited.decode_s(n, 1000 * n) >= unlimited.decode_s(n, 1000 * n) for n in range(1, 200))

    @pytest.mark.parametrize(
        ("engine", "sku", "tp", "captured"),
        [
            ("vllm", "h100-sxm", 1, 512),  # tokens
            ("sglang", "h100-sxm", 1, 256),
            ("sglang", "h200-sxm", 4, 512),
            ("sglang", "b200-sxm", 1, 512),
            ("sglang", "l40s", 1, 32),
            ("tensorrt-llm", "h100-sxm", 1, math.inf),  # plans set cuda_graph_config
        ],
    )
    def test_defaults_are_those_of_the_engines(self, engine: str, sku: str, tp: int, captured: float) -> None:
        changes = {"engine": HARDWARE.engines[engine], "sku": HARDWARE.skus[sku], "parallelism": Parallelism(tp=tp)}
        found = rebuilt(replica("llama-3.1-8b"), **changes)
        assert found.captured_decodes == captured

    @pytest.mark.parametrize(
        ("engine", "version", "model", "sku", "tp", "mib"),
        [
            ("vllm", None, "llama-3.1-70b", "b200-sxm", 4, 32.0),
            ("vllm", "0.16.0", "llama-3.1-70b", "b200-sxm", 4, 0.0),  # not yet by default
            ("vllm", None, "llama-3.1-70b", "h200-sxm", 4, 0.0),  # as fast apart
            ("vllm", None, "llama-3.1-70b", "b200-sxm", 1, 0.0),
            ("tensorrt-llm", None, "deepseek-v3", "h200-sxm", 8, 8e6 / 2**20),
            ("tensorrt-llm", None, "qwen3-32b", "h100-sxm", 4, 0.0),
            ("tensorrt-llm", None, "llama-3.1-8b", "h100-sxm", 2, 0.0),  # 4,096 channels
            ("sglang", None, "llama-3.1-70b", "b200-sxm", 4, 0.0),
        ],
    )
    def test_norms_are_fused_as_the_engines_do(
        self, engine: str, version: str | None, model: str, sku: str, tp: int, mib: float
    ) -> None:
        changes = {"engine": HARDWARE.engines[engine], "sku": HARDWARE.skus[sku], "engine_version": version}
        found = rebuilt(replica(model, parallelism=Parallelism(tp=tp)), **changes)
        assert found.fusion.norm_bytes == mib * 2**20
        never = rebuilt(found, own_schedule=found.schedule.model_copy(update={"fused_norms": False}))
        assert never.fusion.norm_bytes == 0.0

    @pytest.mark.parametrize(
        ("engine", "version", "sku", "own_kernels", "quantises"),
        [
            ("vllm", None, "h200-sxm", None, True),
            ("vllm", "0.9.2", "h200-sxm", None, False),
            ("vllm", None, "b200-sxm", True, False),
            ("vllm", None, "mi300x", None, False),
            ("sglang", None, "h200-sxm", None, False),
        ],
    )
    def test_norms_and_gates_quantise_where_a_compiler_joins_them(
        self, engine: str, version: str | None, sku: str, own_kernels: bool | None, quantises: bool
    ) -> None:
        """Products of 8 bits lose the pass before them, but for the one behind attention; those of blocks do not."""
        found = calibrated("llama-3.1-70b", sku, engine, engine_version=version, precision=FP8)
        found = rebuilt(found, own_schedule=found.schedule.model_copy(update={"fused_norms": own_kernels}))
        assert found.fusion.quantises is quantises
        if quantises:
            apart = rebuilt(found, own_schedule=found.schedule.model_copy(update={"fused_norms": True}))
            times = [step_time(one, [], [(4096, 0)]).family_s for one in (found, apart)]
            less = {family for family in times[0] if times[0][family] < 0.999 * times[1][family]}
            assert less == {OperatorFamily.QKV, OperatorFamily.FEED_FORWARD}
            formats = Precision(weights=Dtype.FP8_BLOCK, activations=Dtype.FP8)
            blocks = [rebuilt(one, precision=formats) for one in (found, apart)]
            assert len({step_time(one, [], [(4096, 0)]).total_s for one in blocks}) == 1

    def test_drafts_count_where_tokens_are_counted_and_a_schedule_goes_first(self) -> None:
        assert replica("deepseek-v3", parallelism=Parallelism(tp=8), speculation=DRAFTS).captured_decodes == 512 // 3
        asked = Schedule(captured_decodes=40)
        assert replica(own_schedule=asked).captured_decodes == 40.0


class TestStages:
    """A pipeline is as fast as its slowest stage."""

    @pytest.mark.parametrize("model", ["llama-3.1-8b", "deepseek-v3", "gpt-oss-120b", "qwen3-next-80b-a3b-thinking"])
    @pytest.mark.parametrize("pp", [2, 3, 8])
    def test_a_step_takes_the_slowest_stage_for_every_micro_batch(self, model: str, pp: int) -> None:
        llm, split, gpu = load_llm(model), Parallelism(pp=pp), CalibratedGpu(H100)
        timer, drawn = build_timer(llm, H100, FP8, split, None, FREE), steps(200)
        full = np.asarray(drawn.decodes) >= pp  # tables begin at one token of a micro-batch
        shape = StepShape(*(np.asarray(getattr(drawn, field.name))[full] for field in fields(drawn)))
        stages = pipeline_stages(llm, pp)
        each_s = [operators_s(step_operators(llm, H100, FP8, split, 0.0, stage), shape, split, gpu) for stage in stages]
        slowest_s = pp * np.max(each_s, axis=0)
        assert timer.times_s(shape) == pytest.approx(slowest_s, rel=0.02)
        assert np.median(timer.times_s(shape) / slowest_s) == pytest.approx(1.0, rel=2e-3)
        whole_s = operators_s(step_operators(llm, H100, FP8, split), shape, split, gpu)
        assert np.all(slowest_s >= whole_s * (1.0 - 1e-9))


def test_of_two_stages_each_step_takes_the_slower_with_all_its_families() -> None:
    """By their sums over bounds, step by step; of equal ones either."""
    rng = np.random.default_rng(3)
    first, second = OperatorFamily.QKV, OperatorFamily.EMBEDDING
    one, other = (
        ({first: rng.random(9)}, rng.random((4, 9))),
        ({first: rng.random(9), second: rng.random(9)}, rng.random((4, 9))),
    )
    families, bounds = _slower_of(one, other)
    for step in range(9):
        slow, families_of = max((each[1][:, step].sum(), place) for place, each in enumerate((one, other)))
        assert bounds[:, step].sum() == slow
        for family in (first, second):
            assert families[family][step] == np.broadcast_to((one, other)[families_of][0].get(family, 0.0), 9)[step]
