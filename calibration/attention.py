"""Attention over caches, as calls that first write the new keys and values: PyTorch's kernels, or FlashInfer's.

A cache of 8 bits is read as it lies by FlashInfer's kernels only; where they are missing such a case is refused. What
PyTorch computes without a fused kernel (scores written out) is refused on a GPU too: no engine would run it.

FlashInfer's calls are as in flashinfer-python 0.6.3 (`flashinfer.prefill`, `flashinfer.decode`, `flashinfer.mla`).
"""

from __future__ import annotations

from typing import Any

from calibration.bench import Tensor, Workbench
from calibration.measure import Call
from calibration.operators import LATENT_KEY, LATENT_RANK, LATENT_ROPE

PAGE_TOKENS = 16
"""Tokens per page of a paged KV cache, the default of common engines."""
LATENT_PAGE_TOKENS = 64
"""Tokens per page of a latent cache that the kernels of Blackwell take."""
LATENT_SCALE = LATENT_KEY**-0.5
"""Of scores: that of the keys before absorption (DeepSeek-AI 2024, arXiv:2405.04434, sec. 2.1.3)."""
NO_FP8_KERNEL = (
    "no installed kernel reads an 8-bit cache as it lies: PyTorch's attention does not, FlashInfer is missing"
)


def prefill_call(bench: Workbench, q: Tensor, new_kv: Tensor, cache: Tensor) -> Call:
    """Causal attention of new tokens over a cache; the call answers (batch, new, heads, dim) or the same flattened.

    Args:
        bench: where to run.
        q: queries, shape (batch, new, heads, dim).
        new_kv: their keys and values, shape (2, batch, new, kv_heads, dim).
        cache: shape (2, batch, past + new, kv_heads, dim), of 16 or 8 bits.

    Raises:
        RuntimeError: nothing installed reads a cache of 8 bits.
    """
    new, total = q.shape[1], cache.shape[2]
    flashinfer = bench.attention_library == "flashinfer"
    if cache.dtype != bench.dtype:
        attend = _paged_prefill(bench, q, cache)
    elif flashinfer:
        keys, values = (tensor.flatten(0, 1) for tensor in cache)
        attend = _ragged_prefill(bench, q, keys, values)
    else:
        attend = _plain_prefill(bench, q, cache[0], cache[1])

    def call() -> Tensor:
        cache[:, :, total - new :].copy_(new_kv)
        return attend()

    return call


def latent_prefill_call(bench: Workbench, q: Tensor, keys: Tensor, values: Tensor) -> Call:
    """Causal latent attention with keys and values expanded per head; answers (batch, new, heads, values) or flattened.

    Args:
        bench: where to run.
        q: queries, shape (batch, new, heads, keys).
        keys: shape (batch, past + new, heads, keys).
        values: shape (batch, past + new, heads, values).
    """
    if bench.attention_library == "flashinfer":
        return _ragged_prefill(bench, q, keys.flatten(0, 1), values.flatten(0, 1))
    return _plain_prefill(bench, q, keys, values)


def sdpa_kernel(bench: Workbench, q: Tensor, keys: Tensor, values: Tensor, causal: bool = False) -> str:
    """Which of PyTorch's kernels runs for (batch, heads, tokens, dim): ``flash``, ``efficient``, ``cudnn`` ...

    Raises:
        RuntimeError: only the one that writes all scores to memory, on a GPU.
    """
    from torch.nn.attention import SDPBackend

    grouped = q.shape[1] != keys.shape[1]
    chosen = bench.torch._fused_sdp_choice(q, keys, values, None, 0.0, causal, scale=None, enable_gqa=grouped)
    name: str = {member.value: member.name for member in SDPBackend.__members__.values()}[int(chosen)]
    if name == "MATH" and bench.cuda:
        sizes = f"keys of {keys.shape[-1]} and values of {values.shape[-1]}"
        raise RuntimeError(f"scaled_dot_product_attention has no fused kernel here for {sizes}")
    return name.removesuffix("_ATTENTION").lower()


def _plain_prefill(bench: Workbench, q: Tensor, keys: Tensor, values: Tensor) -> Call:
    from torch.nn.attention.bias import causal_lower_right

    query, keys, values = (tensor.transpose(1, 2) for tensor in (q, keys, values))
    attend = bench.torch.nn.functional.scaled_dot_product_attention
    grouped, new, total = query.shape[1] != keys.shape[1], query.shape[2], keys.shape[2]
    if new == total:
        return lambda: attend(query, keys, values, is_causal=True, enable_gqa=grouped).transpose(1, 2)
    mask = causal_lower_right(new, total)
    return lambda: attend(query, keys, values, attn_mask=mask, enable_gqa=grouped).transpose(1, 2)


def _ragged_prefill(bench: Workbench, q: Tensor, keys: Tensor, values: Tensor) -> Call:
    """FlashInfer over keys and values of all sequences in a row, shape (batch * total, heads, dim)."""
    import flashinfer  # type: ignore[import-not-found, unused-ignore]  # noqa: PLC0415 (optional)

    batch, new, heads, dim = q.shape
    total, kv_heads = keys.shape[0] // batch, keys.shape[1]
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(bench.workspace, "NHD")
    ends = bench.torch.arange(batch + 1, dtype=bench.torch.int32, device=bench.device)
    sizes = (heads, kv_heads, dim, values.shape[-1])
    wrapper.plan(ends * new, ends * total, *sizes, causal=True, q_data_type=bench.dtype, kv_data_type=bench.dtype)
    return lambda: wrapper.run(q.reshape(batch * new, heads, dim), keys, values)


def _paged_prefill(bench: Workbench, q: Tensor, cache: Tensor) -> Call:
    batch, new, heads, dim = q.shape
    pages = _Pages(bench, cache, PAGE_TOKENS, new)
    wrapper = pages.flashinfer.BatchPrefillWithPagedKVCacheWrapper(bench.workspace, "NHD")
    own = bench.torch.arange(batch + 1, dtype=bench.torch.int32, device=bench.device) * new
    formats = {"q_data_type": bench.dtype, "kv_data_type": cache.dtype}
    sizes = (heads, cache.shape[3], dim, PAGE_TOKENS)
    wrapper.plan(own, pages.starts, pages.order, pages.last, *sizes, causal=True, **formats)
    return lambda: wrapper.run(q.reshape(batch * new, heads, dim), pages.of(cache))


def decode_call(bench: Workbench, q: Tensor, new_kv: Tensor, cache: Tensor) -> Call:
    """One new token per sequence over its cache; the call's answer flattens to (batch, heads * dim).

    Args:
        bench: where to run.
        q: queries, shape (batch, heads, dim).
        new_kv: their keys and values, shape (2, batch, 1, kv_heads, dim).
        cache: shape (2, batch, context, kv_heads, dim), of 16 or 8 bits.

    Raises:
        RuntimeError: nothing installed reads a cache of 8 bits.
    """
    paged = bench.attention_library == "flashinfer" and cache.shape[2] % PAGE_TOKENS == 0
    run = (_paged_decode if paged or cache.dtype != bench.dtype else _plain_decode)(bench, q, cache)
    last = cache[:, :, -1:]

    def call() -> Tensor:
        last.copy_(new_kv)
        return run()

    return call


def _plain_decode(bench: Workbench, q: Tensor, cache: Tensor) -> Call:
    query, keys, values = q.unsqueeze(2), cache[0].transpose(1, 2), cache[1].transpose(1, 2)
    attend = bench.torch.nn.functional.scaled_dot_product_attention
    grouped = query.shape[1] != keys.shape[1]
    return lambda: attend(query, keys, values, enable_gqa=grouped)


def _paged_decode(bench: Workbench, q: Tensor, cache: Tensor) -> Call:
    pages = _Pages(bench, cache, PAGE_TOKENS)
    wrapper = pages.flashinfer.BatchDecodeWithPagedKVCacheWrapper(bench.workspace, "NHD", use_tensor_cores=True)
    formats = {"q_data_type": bench.dtype, "kv_data_type": cache.dtype}
    sizes = (q.shape[1], cache.shape[3], cache.shape[4], PAGE_TOKENS)
    wrapper.plan(pages.starts, pages.order, pages.last, *sizes, **formats)
    return lambda: wrapper.run(q.contiguous(), pages.of(cache))


def latent_decode_call(bench: Workbench, q: Tensor, new_row: Tensor, cache: Tensor) -> Call:
    """Absorbed latent decode: all heads read one row a cached token; the answer flattens to (batch, heads * rank).

    PyTorch runs it as one head whose queries are the heads: a decode needs no mask between them.

    Args:
        bench: where to run.
        q: queries in the latent space, then their part with the position, shape (batch, heads, rank + rope).
        new_row: of the new tokens, shape (batch, 1, rank + rope).
        cache: shape (batch, context, rank + rope), of 16 or 8 bits; queries have the format of the cache.

    Raises:
        RuntimeError: nothing installed reads a cache of 8 bits, or reads a latent one in a fused kernel.
    """
    flashinfer = bench.attention_library == "flashinfer" and cache.shape[1] % PAGE_TOKENS == 0
    if cache.dtype != bench.dtype:
        run = _latent_fp8_decode(bench, q, cache)
    else:
        run = (_latent_paged_decode if flashinfer else _latent_plain_decode)(bench, q, cache)
    last = cache[:, -1:]

    def call() -> Tensor:
        last.copy_(new_row)
        return run()

    return call


def _latent_plain_decode(bench: Workbench, q: Tensor, cache: Tensor) -> Call:
    query, keys = q.unsqueeze(1), cache.unsqueeze(1)
    values = keys[..., : int(LATENT_RANK)]
    sdpa_kernel(bench, query, keys, values)
    attend = bench.torch.nn.functional.scaled_dot_product_attention
    return lambda: attend(query, keys, values, scale=LATENT_SCALE)


def _latent_paged_decode(bench: Workbench, q: Tensor, cache: Tensor) -> Call:
    pages, rank = _Pages(bench, cache[None], PAGE_TOKENS), int(LATENT_RANK)
    wrapper = pages.flashinfer.mla.BatchMLAPagedAttentionWrapper(bench.workspace)
    own = bench.torch.arange(cache.shape[0] + 1, dtype=bench.torch.int32, device=bench.device)
    lengths = bench.torch.full_like(pages.last, cache.shape[1])
    sizes = (q.shape[1], rank, int(LATENT_ROPE), PAGE_TOKENS)
    formats = (bench.dtype, cache.dtype)
    wrapper.plan(own, pages.starts, pages.order, lengths, *sizes, False, LATENT_SCALE, *formats)
    (rows,) = pages.of(cache[None])
    return lambda: wrapper.run(q[..., :rank], q[..., rank:], rows[..., :rank], rows[..., rank:])


def _latent_fp8_decode(bench: Workbench, q: Tensor, cache: Tensor) -> Call:
    """TensorRT-LLM's kernel of Blackwell, as FlashInfer offers it; on other GPUs it says that it is none."""
    pages = _Pages(bench, cache[None], LATENT_PAGE_TOKENS)
    batch, context = cache.shape[:2]
    decode = pages.flashinfer.mla.trtllm_batch_decode_with_kv_cache_mla
    lengths = bench.torch.full_like(pages.last, context)
    nope, rank, rope = int(LATENT_KEY - LATENT_ROPE), int(LATENT_RANK), int(LATENT_ROPE)
    (rows,) = pages.of(cache[None])
    tables, query = pages.order.view(batch, -1), q.unsqueeze(1)
    sizes = (nope, rank, rope, tables, lengths, context)
    return lambda: decode(query, rows, bench.zeroed, *sizes, bmm1_scale=LATENT_SCALE, bmm2_scale=1.0)


class _Pages:
    """A cache of (parts, batch, tokens, ...) cut into pages; those before the `new` tokens are shuffled.

    Raises:
        RuntimeError: FlashInfer, whose kernels read pages, is missing, or pages do not divide a sequence.
    """

    def __init__(self, bench: Workbench, cache: Tensor, page: int, new: int = 1) -> None:
        if bench.attention_library != "flashinfer":
            raise RuntimeError(NO_FP8_KERNEL)
        import flashinfer  # type: ignore[import-not-found, unused-ignore]  # noqa: PLC0415 (optional)

        batch, tokens = cache.shape[1:3]
        if tokens % page:
            raise RuntimeError(f"pages of {page} tokens do not divide {tokens}")
        torch, each = bench.torch, tokens // page
        self.flashinfer: Any = flashinfer
        self.page = page
        self.starts = torch.arange(batch + 1, dtype=torch.int32, device=bench.device) * each
        before = (tokens - new) // page
        order = torch.arange(each, device=bench.device).repeat(batch, 1)
        order[:, :before] = torch.rand(batch, before, device=bench.device).argsort(dim=1)
        self.order = (order + self.starts[:-1, None]).flatten().to(torch.int32)
        self.last = torch.full((batch,), page, dtype=torch.int32, device=bench.device)

    def of(self, cache: Tensor) -> tuple[Tensor, ...]:
        """The pages of each part, shape (pages, tokens, ...)."""
        return tuple(part.view(-1, self.page, *part.shape[2:]) for part in cache)
