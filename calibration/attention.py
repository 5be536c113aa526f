"""Attention over caches, as calls that first write the new keys and values: PyTorch's kernels, or FlashInfer's."""

from __future__ import annotations

from calibration.bench import Tensor, Workbench
from calibration.measure import Call

PAGE_TOKENS = 16
"""Tokens per page of a paged KV cache, the default of common engines."""


def prefill_call(bench: Workbench, q: Tensor, new_kv: Tensor, cache: Tensor) -> Call:
    """Causal attention of new tokens over a cache; the call answers (batch, new, heads, dim) or the same flattened.

    Args:
        bench: where to run.
        q: queries, shape (batch, new, heads, dim).
        new_kv: their keys and values, shape (2, batch, new, kv_heads, dim).
        cache: shape (2, batch, past + new, kv_heads, dim).
    """
    new, total = q.shape[1], cache.shape[2]
    ready = _ragged_prefill if bench.attention_library == "flashinfer" else _plain_prefill
    attend = ready(bench, q, cache)

    def call() -> Tensor:
        cache[:, :, total - new :].copy_(new_kv)
        return attend()

    return call


def _plain_prefill(bench: Workbench, q: Tensor, cache: Tensor) -> Call:
    from torch.nn.attention.bias import causal_lower_right  # noqa: PLC0415 (torch is optional)

    query, keys, values = (tensor.transpose(1, 2) for tensor in (q, cache[0], cache[1]))
    attend = bench.torch.nn.functional.scaled_dot_product_attention
    grouped, new, total = query.shape[1] != keys.shape[1], query.shape[2], keys.shape[2]
    if new == total:
        return lambda: attend(query, keys, values, is_causal=True, enable_gqa=grouped).transpose(1, 2)
    mask = causal_lower_right(new, total)
    return lambda: attend(query, keys, values, attn_mask=mask, enable_gqa=grouped).transpose(1, 2)


def _ragged_prefill(bench: Workbench, q: Tensor, cache: Tensor) -> Call:
    import flashinfer  # type: ignore[import-not-found, unused-ignore]  # noqa: PLC0415 (optional)

    batch, new, heads, dim = q.shape
    total, kv_heads = cache.shape[2:4]
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(bench.workspace, "NHD")
    ends = bench.torch.arange(batch + 1, dtype=bench.torch.int32, device=bench.device)
    formats = {"q_data_type": bench.dtype, "kv_data_type": bench.dtype}
    wrapper.plan(ends * new, ends * total, heads, kv_heads, dim, causal=True, **formats)
    keys, values = (tensor.reshape(batch * total, kv_heads, dim) for tensor in (cache[0], cache[1]))
    return lambda: wrapper.run(q.reshape(batch * new, heads, dim), keys, values)


def decode_call(bench: Workbench, q: Tensor, new_kv: Tensor, cache: Tensor) -> Call:
    """One new token per sequence over its cache; the call's answer flattens to (batch, heads * dim).

    Args:
        bench: where to run.
        q: queries, shape (batch, heads, dim).
        new_kv: their keys and values, shape (2, batch, 1, kv_heads, dim).
        cache: shape (2, batch, context, kv_heads, dim).
    """
    paged = bench.attention_library == "flashinfer" and cache.shape[2] % PAGE_TOKENS == 0
    run = (_paged_decode if paged else _plain_decode)(bench, q, cache)
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
    """FlashInfer over the cache cut into pages, which it walks in shuffled order."""
    import flashinfer  # type: ignore[import-not-found, unused-ignore]  # noqa: PLC0415 (optional)

    torch = bench.torch
    _, batch, context, kv_heads, dim = cache.shape
    pages = context // PAGE_TOKENS
    keys, values = (tensor.view(batch * pages, PAGE_TOKENS, kv_heads, dim) for tensor in (cache[0], cache[1]))
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(bench.workspace, "NHD", use_tensor_cores=True)
    starts = torch.arange(batch + 1, dtype=torch.int32, device=bench.device) * pages
    order = torch.randperm(batch * pages, device=bench.device).to(torch.int32)
    full = torch.full((batch,), PAGE_TOKENS, dtype=torch.int32, device=bench.device)
    formats = {"q_data_type": bench.dtype, "kv_data_type": bench.dtype}
    wrapper.plan(starts, order, full, q.shape[1], kv_heads, dim, PAGE_TOKENS, **formats)
    return lambda: wrapper.run(q.contiguous(), (keys, values))
