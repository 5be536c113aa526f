"""Whole steps of Llama-shaped models with random weights, timed and held against the composed prediction.

The models are real in what takes time: norms, projections, attention over real caches, SwiGLU, residuals, LM head and
the choice of the next token, all recorded in a CUDA graph. They have few layers (so that they fit and start quickly)
and a plain copy in place of the rotary embedding, which moves the same bytes. The prediction is for the same few
layers, with engine costs of zero; nothing of what is measured here is used for a fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from calibration.attention import decode_call, prefill_call
from calibration.bench import UNAVAILABLE, Tensor, Workbench
from calibration.measure import Call, Effort, Stopwatch, time_calls
from calibration.workloads import ExpertSizes, expert_weights, experts_call
from hardware_db import Calibration, EngineCosts, GpuSku, load_hardware
from planner.core import InputError, PlannerError
from planner.llm import GroupedQueryAttention, LlmSpec, MoeFeedForward, load_llm

LAYERS = 4
"""Layers of the measured models: enough that weights exceed any cache and that start and end matter little."""


@dataclass(frozen=True)
class Step:
    """Content of a step: `decodes` sequences over `context` tokens each, and chunks of (new, past) tokens."""

    decodes: int = 0
    context: int = 0
    chunks: tuple[tuple[int, int], ...] = ()

    @property
    def label(self) -> str:
        """In words."""
        items = [f"{self.decodes} decodes x {self.context}"] if self.decodes else []
        return ", ".join(items + [f"chunk {new} after {past}" for new, past in self.chunks])


@dataclass(frozen=True)
class StepCheck:
    """One step measured and predicted [s]."""

    llm: str
    step: Step
    measured_s: float
    predicted_s: float

    @property
    def error(self) -> float:
        """Predicted time over measured time, less 1."""
        return self.predicted_s / self.measured_s - 1.0


STEPS = (
    Step(1, 1024),
    Step(8, 2048),
    Step(32, 1024),
    Step(64, 4096),
    Step(256, 1024),
    Step(chunks=((512, 0),)),
    Step(chunks=((2048, 0),)),
    Step(chunks=((8192, 0),)),
    Step(chunks=((2048, 14336),)),
    Step(64, 2048, ((448, 1024),)),
    Step(128, 1024, ((2048, 0),)),
)
TINY_STEPS = (Step(2, 64), Step(chunks=((16, 16),)), Step(2, 64, ((16, 0),)))


def _shape(
    name: str,
    hidden: int,
    heads: tuple[int, int, int],
    width: int,
    vocabulary: int,
    layers: int = LAYERS,
    experts: int = 0,
) -> dict[str, object]:
    """A `config.json`; `heads` are query heads, KV heads and head dimension. Two of the experts are chosen, if any."""
    config: dict[str, object] = {
        "model_type": "mixtral" if experts else "llama",
        "_name": name,
        "num_hidden_layers": layers,
        "max_position_embeddings": 131072,
        "hidden_size": hidden,
        "intermediate_size": width,
        "vocab_size": vocabulary,
    }
    config |= dict(zip(("num_attention_heads", "num_key_value_heads", "head_dim"), heads, strict=True))
    return config | ({"num_local_experts": experts, "num_experts_per_tok": 2} if experts else {})


SHAPES = (
    _shape("Llama-3.1-8B, 4 layers", 4096, (32, 8, 128), 14336, 128256),
    _shape("one of 8 shards of Llama-3.1-70B, 4 layers, no collectives", 8192, (8, 1, 128), 3584, 16032),
    _shape("Mixtral-shaped, 16 experts of which 2, 4 layers", 4096, (32, 8, 128), 3584, 32000, experts=16),
)
"""huggingface.co/meta-llama/Llama-3.1-8B and -70B, config.json; the 70B divided by 8; a small mixture of experts."""
TINY_SHAPES = (
    _shape("tiny dense", 64, (4, 2, 16), 96, 128, layers=2),
    _shape("tiny experts", 64, (4, 2, 16), 96, 128, layers=2, experts=4),
)


def step_checks(
    bench: Workbench,
    stopwatch: Stopwatch,
    effort: Effort,
    calibration: Calibration,
    sku: GpuSku,
    shapes: Sequence[dict[str, object]] = SHAPES,
    steps: Sequence[Step] = STEPS,
) -> tuple[list[StepCheck], list[str]]:
    """Every step of every shape, and what could not be run."""
    checks, notes = [], []
    for shape in shapes:
        llm = load_llm(shape)
        model = Model(bench, llm)
        for step in steps:
            try:
                with bench.torch.inference_mode():
                    measured = time_calls([model.step(step)], stopwatch, effort).latency_s
            except PlannerError:
                raise
            except UNAVAILABLE as error:
                notes.append(f"{llm.name}, {step.label}: {' '.join(str(error).split())[:200]}")
                continue
            checks.append(StepCheck(llm.name, step, measured, predicted_s(llm, step, calibration, sku)))
    return checks, notes


def predicted_s(llm: LlmSpec, step: Step, calibration: Calibration, sku: GpuSku) -> float:
    """The planner's time of this step [s] on one GPU, engine costs at zero."""
    from planner.engine import ReplicaConfig, step_time  # noqa: PLC0415 (only whole steps need the whole planner)

    engine = load_hardware().engines["vllm"].model_copy(update={"costs": EngineCosts()})
    replica = ReplicaConfig(llm=llm, sku=sku, engine=engine, calibration=calibration)
    return step_time(replica, [step.context] * step.decodes, list(step.chunks)).total_s


def uncalibrated_operators(calibration: Calibration, experts: bool) -> list[str]:
    """Keys of a step's operators that the calibration lacks, so that they are predicted at their roofline."""
    needed = ["gemm/bf16", "attention_prefill/bf16", "attention_decode/bf16", "elementwise/bf16"]
    return [key for key in needed + ["experts/bf16"] * experts if key not in calibration.kernels]


@dataclass
class Model:
    """A decoder of one kind of layer with random weights; grouped-query attention, dense or expert feed-forward."""

    bench: Workbench
    llm: LlmSpec

    def __post_init__(self) -> None:
        if not isinstance(self.attention, GroupedQueryAttention):
            raise InputError(
                "attention", type(self.attention).__name__, "is not built here", "use a Llama-shaped model"
            )

    @property
    def attention(self) -> Any:  # noqa: ANN401
        """The one kind of attention."""
        return self.llm.layers[0].attention

    @cached_property
    def layers(self) -> list[dict[str, Any]]:
        """Weights of every layer."""
        return [self._layer() for _ in range(self.llm.num_layers)]

    @cached_property
    def ends(self) -> tuple[Tensor, Tensor]:
        """Embedding and LM head."""
        table = (self.llm.vocab_size, self.llm.hidden_size)
        return self.bench.normal(*table), self.bench.normal(*table, scale=self.llm.hidden_size**-0.5)

    def _layer(self) -> dict[str, Any]:
        hidden, kind = self.llm.hidden_size, self.attention
        rows = (kind.heads + 2 * kind.kv_heads) * kind.head_dim
        out = kind.heads * kind.head_dim
        weights: dict[str, Any] = {
            "norms": self.bench.normal(2, hidden),
            "qkv": self.bench.normal(rows, hidden, scale=hidden**-0.5),
            "out": self.bench.normal(hidden, out, scale=out**-0.5),
        }
        block, experts = self.llm.layers[0].feed_forward, self.llm.layers[0].experts
        if experts is not None:
            weights["router"] = self.bench.normal(experts.experts, hidden, scale=hidden**-0.5)
            weights["experts"] = expert_weights(self.bench, self._expert_sizes(experts))
        elif block is not None:
            width = block.intermediate
            weights["up"] = self.bench.normal(2 * width, hidden, scale=hidden**-0.5)
            weights["down"] = self.bench.normal(hidden, width, scale=width**-0.5)
        return weights

    def _expert_sizes(self, block: MoeFeedForward) -> ExpertSizes:
        width = block.width(self.llm.hidden_size)
        return ExpertSizes(block.experts, block.experts_per_token, width, block.intermediate, block.gated)

    def step(self, step: Step) -> Call:
        """A call that runs the step on caches of its own."""
        tokens = step.decodes + sum(new for new, _ in step.chunks)
        chosen = self.bench.torch.randint(self.llm.vocab_size, (tokens,), device=self.bench.device)
        runs = [self._layer_call(weights, step, tokens) for weights in self.layers]
        last = self._last_rows(step)
        embedding, head = self.ends
        linear, added_norm = self.bench.torch.nn.functional.linear, self.bench.added_norm
        norm, zeros = self.bench.normal(self.llm.hidden_size), self.bench.normal(tokens, self.llm.hidden_size).zero_()

        def call() -> Tensor:
            x, residual = embedding[chosen], zeros
            for run in runs:
                x, residual = run(x, residual)
            return linear(added_norm(x, residual, norm)[0][last], head).argmax(-1)

        return call

    def _last_rows(self, step: Step) -> Tensor:
        rows, end = list(range(step.decodes)), step.decodes
        for new, _ in step.chunks:
            end += new
            rows.append(end - 1)
        return self.bench.torch.tensor(rows, device=self.bench.device)

    def _layer_call(self, weights: dict[str, Any], step: Step, tokens: int) -> Any:  # noqa: ANN401
        added_norm, norms = self.bench.added_norm, weights["norms"]
        attend, feed = self._attend(weights, step, tokens), self._feed(weights, tokens)

        def run(x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
            x, residual = added_norm(x, residual, norms[0])
            x, residual = added_norm(attend(x), residual, norms[1])
            return feed(x), residual

        return run

    def _attend(self, weights: dict[str, Any], step: Step, tokens: int) -> Any:  # noqa: ANN401
        """Projections around attention. The copy into a fixed buffer stands for the rotary embedding's pass."""
        bench, kind, functional = self.bench, self.attention, self.bench.torch.nn.functional
        width = kind.heads * kind.head_dim
        projected = bench.normal(tokens, width + 2 * kind.kv_heads * kind.head_dim)
        q = projected[:, :width].view(tokens, kind.heads, kind.head_dim)
        kv = projected[:, width:].view(tokens, 2, kind.kv_heads, kind.head_dim).transpose(0, 1)
        calls = self._attention_calls(q, kv, step)

        def run(x: Tensor) -> Tensor:
            projected.copy_(functional.linear(x, weights["qkv"]))
            outputs: list[Any] = [call() for call in calls]
            rows = [output.reshape(-1, width) for output in outputs]
            return functional.linear(rows[0] if len(rows) == 1 else bench.torch.cat(rows), weights["out"])

        return run

    def _attention_calls(self, q: Tensor, kv: Tensor, step: Step) -> list[Any]:
        bench, kind = self.bench, self.attention
        calls: list[Any] = []
        if step.decodes:
            cache = bench.normal(2, step.decodes, step.context, kind.kv_heads, kind.head_dim)
            calls.append(decode_call(bench, q[: step.decodes], kv[:, : step.decodes].unsqueeze(2), cache))
        start = step.decodes
        for new, past in step.chunks:
            cache = bench.normal(2, 1, past + new, kind.kv_heads, kind.head_dim)
            tokens = slice(start, start + new)
            calls.append(prefill_call(bench, q[tokens].unsqueeze(0), kv[:, tokens].unsqueeze(1), cache))
            start += new
        return calls

    def _feed(self, weights: dict[str, Any], tokens: int) -> Any:  # noqa: ANN401
        functional, gated = self.bench.torch.nn.functional, self.bench.gated
        block = self.llm.layers[0].experts
        if block is not None:
            sizes = self._expert_sizes(block)
            x = self.bench.normal(tokens, self.llm.hidden_size)
            logits = self.bench.normal(tokens, block.experts)
            routed = experts_call(self.bench, x, logits, sizes, weights["experts"])

            def run(values: Tensor) -> Tensor:
                routing = functional.linear(values, weights["router"])
                if self.bench.grouped_products:  # otherwise each product's rows must be known beforehand
                    logits.copy_(routing)
                x.copy_(values)
                return routed()

            return run
        return lambda values: functional.linear(gated(functional.linear(values, weights["up"])), weights["down"])
