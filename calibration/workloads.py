"""The kernels themselves: a case becomes calls on random data, as PyTorch and what is installed beside it run them.

Every call of a case works on a copy of the data of its own (weights, cached keys and values), of which there are enough
to exceed the L2 cache several times; activations are shared, as the layer before has just written them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from calibration.attention import (
    PAGE_TOKENS,
    decode_call,
    latent_decode_call,
    latent_prefill_call,
    prefill_call,
    sdpa_kernel,
)
from calibration.bench import BLOCK, Tensor, Workbench, fp8_of, nvfp4_product, quantise
from calibration.cases import HALF_BYTES, PASSES, ROW_VALUES
from calibration.measure import Call
from calibration.operators import KV_BYTES, LATENT_KEY, LATENT_RANK, LATENT_ROPE, LATENT_VALUE
from calibration.possible import VARIANTS
from calibration.records import KernelCase
from planner.core import InputError
from planner.roofline import WEIGHT_FORMATS

ROTARY_DIM = 128
"""Channels of a rotated head, as most models in use have."""


@dataclass(frozen=True)
class Work:
    """Calls to be timed in turn, the kernel's name, and the bytes of all copies together."""

    calls: Sequence[Call]
    kernel: str
    rotated_bytes: float


def build(case: KernelCase, bench: Workbench) -> Work:
    """The calls of a case.

    Raises:
        InputError: an operator this module does not know. One of `UNAVAILABLE`: the kernel does not exist here.
    """
    makers = {
        "gemm": _gemm,
        "context_attention": _prefill,
        "generation_attention": _decode,
        "context_mla": _latent_prefill,
        "generation_mla": _latent_decode,
        "moe": _experts,
        "elementwise": _elementwise,
        "copy": _copy,
        "launch": _launch,
        "host_device": _transfer,
    }
    if case.operator not in makers:
        raise InputError("operator", case.operator, f"is none of {', '.join(makers)}", "correct the case")
    return makers[case.operator](case, bench)


def _gemm(case: KernelCase, bench: Workbench) -> Work:
    m, n, k = (case.number(name) for name in ("m", "n", "k"))
    dtype = str(case.fields["dtype"])
    x = bench.normal(m, k)
    bytes_each = n * k * WEIGHT_FORMATS[VARIANTS[dtype]].weight_bytes
    makers = {"fp8": _fp8_product, "fp8_block": _fp8_block_product, "sq": _int8_product, "nvfp4": nvfp4_product}
    make = makers.get(dtype, _half_product)
    weights = [bench.normal(n, k, scale=k**-0.5) for _ in range(bench.copies(bytes_each))]
    products = [make(bench, x, weight) for weight in weights]
    kernels = {"fp8": "torch_scaled_mm", "fp8_block": "torch_scaled_mm_block", "sq": "torch_int_mm"}
    kernel = (kernels | {"nvfp4": "torch_scaled_mm_nvfp4"}).get(dtype, "torch_linear")
    if dtype.startswith("fp8") or dtype == "nvfp4":
        kernel += "+compiled_quantise" if bench.fusing else "+eager_quantise"
    return Work(products, kernel, bytes_each * len(products))


def _half_product(bench: Workbench, x: Tensor, weight: Tensor) -> Call:
    linear = bench.torch.nn.functional.linear
    return lambda: linear(x, weight)


def _fp8_product(bench: Workbench, x: Tensor, weight: Tensor) -> Call:
    stored, scale = quantise(weight)
    product, fused, dtype = bench.torch._scaled_mm, bench.quantise, bench.dtype

    def call() -> Tensor:
        values, own = fused(x)
        return product(values, stored.t(), scale_a=own, scale_b=scale.t(), out_dtype=dtype, use_fast_accum=True)

    return call


def _fp8_block_product(bench: Workbench, x: Tensor, weight: Tensor) -> Call:
    n, k = weight.shape
    torch = bench.torch
    if n % BLOCK or k % BLOCK:
        raise RuntimeError(f"blocks of {BLOCK} do not divide a weight of {n} x {k}")
    blocks = weight.view(n // BLOCK, BLOCK, k // BLOCK, BLOCK)
    largest = blocks.abs().amax(dim=(1, 3)).float()
    fp8, most = fp8_of(torch)
    stored = (blocks * (most / largest)[:, None, :, None]).to(fp8).view(n, k)
    scale = (largest / most).t()
    product, fused, dtype = torch._scaled_mm, bench.quantise, bench.dtype

    def call() -> Tensor:
        values, own = fused(x.view(-1, BLOCK))
        by_column = own.view(len(x), -1).t().contiguous().t()
        return product(values.view(x.shape), stored.t(), scale_a=by_column, scale_b=scale, out_dtype=dtype)

    return call


def _int8_product(bench: Workbench, x: Tensor, weight: Tensor) -> Call:
    torch = bench.torch
    values = [(tensor * (127.0 / tensor.abs().max())).round().to(torch.int8) for tensor in (x, weight)]
    product = torch._int_mm
    return lambda: product(values[0], values[1].t())


def _heads(case: KernelCase) -> tuple[int, int, int]:
    return case.number("num_heads"), case.number("num_kv_heads"), case.number("head_dim")


def _stored(case: KernelCase, bench: Workbench) -> tuple[Callable[..., Tensor], float, str]:
    """Random values in the format of a case's cache, bytes of each, and what the kernel's name says of it."""
    if case.fields["kv_dtype"] != "fp8":
        return bench.normal, float(HALF_BYTES), ""
    fp8 = fp8_of(bench.torch)[0]
    return lambda *shape: bench.normal(*shape).to(fp8), KV_BYTES["fp8"], "_fp8_cache"


def _attention_name(bench: Workbench, q: Tensor, kv: Sequence[Tensor], causal: bool, paged: bool = True) -> str:
    """The library, and of PyTorch's kernels which; queries, keys and values of shape (batch, tokens, heads, dim)."""
    if bench.attention_library == "flashinfer" and paged:
        return "flashinfer"
    query, keys, values = (tensor.transpose(1, 2) for tensor in (q, *kv))
    return f"sdpa_{sdpa_kernel(bench, query, keys, values, causal)}"


def _prefill(case: KernelCase, bench: Workbench) -> Work:
    heads, kv_heads, dim = _heads(case)
    batch, new, past = (case.number(name) for name in ("batch", "seq_len", "prefix_len"))
    stored, width, suffix = _stored(case, bench)
    bytes_each = 2.0 * width * batch * (past + new) * kv_heads * dim
    q, fresh = bench.normal(batch, new, heads, dim), bench.normal(2, batch, new, kv_heads, dim)
    caches = [stored(2, batch, past + new, kv_heads, dim) for _ in range(bench.copies(bytes_each))]
    calls = [prefill_call(bench, q, fresh, cache) for cache in caches]
    library = "flashinfer" if suffix else _attention_name(bench, q, caches[0], past == 0)
    return Work(calls, f"{library}_prefill{suffix}", bytes_each * len(caches))


def _decode(case: KernelCase, bench: Workbench) -> Work:
    heads, kv_heads, dim = _heads(case)
    batch, context = case.number("batch"), case.number("prefix_len") + 1
    stored, width, suffix = _stored(case, bench)
    bytes_each = 2.0 * width * batch * context * kv_heads * dim
    q, fresh = bench.normal(batch, heads, dim), bench.normal(2, batch, 1, kv_heads, dim)
    caches = [stored(2, batch, context, kv_heads, dim) for _ in range(bench.copies(bytes_each))]
    calls = [decode_call(bench, q, fresh, cache) for cache in caches]
    paged = context % PAGE_TOKENS == 0
    library = "flashinfer" if suffix else _attention_name(bench, q.unsqueeze(1), caches[0], False, paged)
    return Work(calls, f"{library}_decode{suffix}", bytes_each * len(caches))


def _latent_prefill(case: KernelCase, bench: Workbench) -> Work:
    """Keys and values are activations, expanded from the latent rows just before; copies make them come from memory."""
    heads, batch, new = (case.number(name) for name in ("num_heads", "batch", "seq_len"))
    total, key, value = case.number("prefix_len") + new, int(LATENT_KEY), int(LATENT_VALUE)
    bytes_each = float(HALF_BYTES) * batch * total * heads * (key + value)
    q = bench.normal(batch, new, heads, key)
    expanded = [
        (bench.normal(batch, total, heads, key), bench.normal(batch, total, heads, value))
        for _ in range(bench.copies(bytes_each))
    ]
    library = _attention_name(bench, q, expanded[0], new == total)
    calls = [latent_prefill_call(bench, q, keys, values) for keys, values in expanded]
    return Work(calls, f"{library}_latent_prefill", bytes_each * len(calls))


def _latent_decode(case: KernelCase, bench: Workbench) -> Work:
    heads, batch, row = case.number("num_heads"), case.number("batch"), int(LATENT_RANK + LATENT_ROPE)
    context = case.number("prefix_len") + 1
    stored, width, suffix = _stored(case, bench)
    bytes_each = width * batch * context * row
    q, fresh = stored(batch, heads, row), bench.normal(batch, 1, row)
    caches = [stored(batch, context, row) for _ in range(bench.copies(bytes_each))]
    calls = [latent_decode_call(bench, q, fresh, cache) for cache in caches]
    if suffix:
        kernel = f"flashinfer_trtllm_mla_decode{suffix}"
    else:
        rows = caches[0].unsqueeze(2)
        paged = context % PAGE_TOKENS == 0
        library = _attention_name(bench, q.unsqueeze(1), (rows, rows[..., : int(LATENT_RANK)]), False, paged)
        kernel = f"{library}_latent_decode"
    return Work(calls, kernel, bytes_each * len(caches))


@dataclass(frozen=True)
class ExpertSizes:
    """Routed experts of one layer on one GPU. `width` is that of an expert on this GPU."""

    experts: int
    visits: int
    hidden: int
    width: int
    gated: bool


def expert_weights(bench: Workbench, sizes: ExpertSizes) -> tuple[Tensor, Tensor]:
    """Up (and gate) and down projections, stored (experts, outputs, inputs)."""
    up = sizes.width * (2 if sizes.gated else 1)
    first = bench.normal(sizes.experts, up, sizes.hidden, scale=sizes.hidden**-0.5)
    return first, bench.normal(sizes.experts, sizes.hidden, sizes.width, scale=sizes.width**-0.5)


def balanced_logits(bench: Workbench, tokens: int, experts: int, visits: int) -> Tensor:
    """Router logits whose largest `visits` are those of the balanced routing of the tables, shape (tokens, experts).

    Token t takes experts t + i stride, stride = ceil(experts / visits); fewer tokens than that are spread over it.
    """
    torch = bench.torch
    stride = -(-experts // visits)
    first = torch.arange(tokens, device=bench.device)
    if tokens < stride:
        first = first * stride // tokens
    chosen = (first[:, None] + stride * torch.arange(visits, device=bench.device)) % experts
    logits = bench.normal(tokens, experts)
    return logits.scatter_(1, chosen, 10.0 + bench.normal(tokens, visits))


def experts_call(
    bench: Workbench, x: Tensor, logits: Tensor, sizes: ExpertSizes, weights: tuple[Tensor, Tensor]
) -> Call:
    """Top-k, permutation, two grouped products, activation, un-permutation; x: (tokens, hidden)."""
    torch = bench.torch
    up, down = (weight.transpose(1, 2) for weight in weights)
    numbers = torch.arange(sizes.experts, device=bench.device)
    visits = torch.arange(len(x) * sizes.visits, device=bench.device)
    activate = bench.gated if sizes.gated else torch.nn.functional.silu
    grouped = torch._grouped_mm if bench.grouped_products else _expert_loop(bench, logits, sizes)

    def call() -> Tensor:
        shares, chosen = torch.topk(logits.float().softmax(-1), sizes.visits, dim=-1)
        visited, order = torch.sort(chosen.flatten())
        ends = torch.searchsorted(visited, numbers, right=True).to(torch.int32)
        outputs = grouped(activate(grouped(x[order // sizes.visits], up, offs=ends)), down, offs=ends)
        return bench.combined(outputs, torch.empty_like(order).scatter_(0, order, visits), shares)

    return call


def _expert_loop(bench: Workbench, logits: Tensor, sizes: ExpertSizes) -> Callable[..., Tensor]:
    """Grouped products as one product per expert in use; the routing is known beforehand, so no call waits for it."""
    chosen = bench.torch.topk(logits.float(), sizes.visits, dim=-1)[1].flatten()
    counts = bench.torch.bincount(chosen, minlength=sizes.experts).tolist()

    def grouped(rows: Tensor, matrices: Tensor, offs: Tensor) -> Tensor:
        by_expert = zip(rows.split(counts), matrices, strict=True)
        return bench.torch.cat([own_rows @ matrix for own_rows, matrix in by_expert if len(own_rows)])

    return grouped


def _experts(case: KernelCase, bench: Workbench) -> Work:
    tokens = case.number("num_tokens")
    sizes = ExpertSizes(
        experts=case.number("num_experts"),
        visits=case.number("topk"),
        hidden=case.number("hidden"),
        width=case.number("inter") // case.number("tp"),
        gated=bool(case.number("gated")),
    )
    bytes_each = 2.0 * sizes.experts * sizes.hidden * sizes.width * (3 if sizes.gated else 2)
    x = bench.normal(tokens, sizes.hidden)
    logits = balanced_logits(bench, tokens, sizes.experts, sizes.visits)
    copies = [expert_weights(bench, sizes) for _ in range(bench.copies(bytes_each))]
    calls = [experts_call(bench, x, logits, sizes, weights) for weights in copies]
    kernel = "torch_grouped_mm" if bench.grouped_products else "torch_expert_loop"
    return Work(calls, kernel, bytes_each * len(copies))


def _elementwise(case: KernelCase, bench: Workbench) -> Work:
    """`bytes` is the traffic: norm reads and writes, activation reads two halves and writes one, addition likewise."""
    op = str(case.fields["op"])
    if op == "rope":
        return _rotation(case, bench)
    width, passes = ROW_VALUES, PASSES[op]
    rows = case.number("bytes") // (HALF_BYTES * width * passes)
    bytes_each = float(case.number("bytes"))
    count = bench.copies(bytes_each)
    inputs = [bench.normal(rows, width * (passes - 1)) for _ in range(count)]
    if op == "rms_norm":
        scale = bench.normal(width)
        norm = bench.rms_norm
        calls: list[Call] = [partial(norm, x, scale) for x in inputs]
    elif op == "silu_mul":
        gated = bench.gated
        calls = [partial(gated, x) for x in inputs]
    else:
        calls = [partial(bench.torch.add, x[:, :width].contiguous(), x[:, width:].contiguous()) for x in inputs]
    return Work(calls, f"torch_{op}", bytes_each * count)


def _rotation(case: KernelCase, bench: Workbench) -> Work:
    """Queries and keys turned by their positions, as one pass; 1/64 more is read, cosines and sines of the positions.

    Raises:
        RuntimeError: nothing fuses it on this GPU; PyTorch alone would move the data several times.
    """
    if bench.cuda and not bench.fusing:
        raise RuntimeError("the rotary embedding takes a compiler that fuses it (Triton is missing or fails)")
    rows = case.number("bytes") // (HALF_BYTES * ROW_VALUES * PASSES["rope"])
    bytes_each = float(case.number("bytes"))
    angles = bench.normal(rows, 1, ROTARY_DIM // 2).float()
    turn = (angles.cos().to(bench.dtype), angles.sin().to(bench.dtype))
    inputs = [bench.normal(rows, ROW_VALUES // ROTARY_DIM, ROTARY_DIM) for _ in range(bench.copies(bytes_each))]
    calls: list[Call] = [partial(bench.rotated, x, *turn) for x in inputs]
    return Work(calls, f"torch_rope{'+compiled' if bench.fusing else ''}", bytes_each * len(inputs))


def _copy(case: KernelCase, bench: Workbench) -> Work:
    """`bytes` is the traffic: half of it read, half written."""
    size = max(1, case.number("bytes") // 2)
    count = bench.copies(2.0 * size)
    sources = [bench.normal(max(1, size // 2)) for _ in range(count)]
    targets = [bench.torch.empty_like(source) for source in sources]
    calls = [partial(target.copy_, source) for source, target in zip(sources, targets, strict=True)]
    return Work(calls, "torch_copy", 2.0 * size * count)


def _launch(case: KernelCase, bench: Workbench) -> Work:
    """The smallest kernel there is: its time is launch, not work."""
    counter = bench.torch.zeros(1, device=bench.device)
    return Work([lambda: counter.add_(1.0)], f"torch_add_{case.fields['mode']}", 4.0)


def _transfer(case: KernelCase, bench: Workbench) -> Work:
    torch, direction = bench.torch, case.fields["direction"]
    size, pinned = case.number("bytes"), bool(case.number("pinned"))
    there = torch.empty(size, dtype=torch.uint8, device=bench.device)
    if direction == "peer":
        other = torch.empty(size, dtype=torch.uint8, device="cuda:1")
        return Work([lambda: other.copy_(there, non_blocking=True)], "torch_copy_peer", 2.0 * size)
    host = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
    source, target = (host, there) if direction == "to_device" else (there, host)
    return Work([lambda: target.copy_(source, non_blocking=pinned)], "torch_copy", 2.0 * size)
