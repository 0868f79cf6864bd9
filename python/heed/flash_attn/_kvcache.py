# SPDX-License-Identifier: Apache-2.0
"""Generation: attention over a cache that the call appends to."""

from __future__ import annotations

from typing import Any, Optional, Union

import torch

import heed
from heed.flash_attn._common import Window, mask_of, options_of
from heed.torch._attention import attention, check_tensor

Tensor = torch.Tensor


def _per_batch(x: Union[int, Tensor, None], batch: int, name: str) -> Tensor:
    if x is None:
        return torch.zeros(batch, dtype=torch.int64)
    numbers = torch.as_tensor(x, dtype=torch.int64)
    if numbers.dim() == 0:
        return numbers.expand(batch)
    if numbers.shape != (batch,):
        raise ValueError(f"{name}: expected an integer or shape [{batch}], got {list(numbers.shape)}")
    return numbers


def _cache_rows(cache_batch_idx: Optional[Tensor], batch: int, cache_batch: int) -> Tensor:
    rows = torch.arange(batch) if cache_batch_idx is None else _per_batch(cache_batch_idx, batch, "cache_batch_idx")
    if batch > 0 and (int(rows.min()) < 0 or int(rows.max()) >= cache_batch):
        raise ValueError(f"cache_batch_idx: expected rows of k_cache, 0 to {cache_batch - 1}, got {rows.tolist()}")
    return rows


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, interleaved: bool) -> Tensor:
    return heed.apply_rope(x.detach(), cos.float(), sin.float(), positions.contiguous(), interleaved=interleaved)


def _append(k_cache: Tensor, v_cache: Tensor, rows: Tensor, lengths: Tensor, k: Tensor, v: Tensor) -> None:
    """k and v [B, n, Hkv, D] behind the first `lengths` tokens of their rows."""
    tokens, capacity = k.shape[1], k_cache.shape[1]
    if lengths.numel() > 0 and (int(lengths.max()) + tokens > capacity or int(lengths.min()) < 0):
        raise ValueError(f"cache_seqlens: {lengths.tolist()} and {tokens} new tokens do not fit into a cache of {capacity}")
    places = lengths[:, None] + torch.arange(tokens)
    k_cache[rows[:, None], places] = k.to(k_cache.dtype)
    v_cache[rows[:, None], places] = v.to(v_cache.dtype)


def _left_padding(cache_leftpad: Tensor, capacity: int) -> heed.Mask:
    visible = torch.arange(capacity) >= cache_leftpad[:, None]
    return heed.Mask.from_array(visible[:, None, None])


def _attend(q: Tensor, k_cache: Tensor, v_cache: Tensor, rows: Tensor, lengths: Tensor, leftpad: Optional[Tensor], mask: Any,
            options: dict) -> tuple[Tensor, Tensor]:  # fmt: skip
    batch = q.shape[0]
    if torch.equal(rows, torch.arange(batch)):
        if leftpad is not None:
            padding = _left_padding(leftpad, k_cache.shape[1])
            mask = padding if mask is None else mask & padding
        return attention(q, k_cache[:batch], v_cache[:batch], mask=mask, kv_lengths=lengths, return_lse=True, **options)
    parts = []  # one by one, rather than a copy of the cache
    slopes = options["alibi_slopes"]
    for b, row in enumerate(rows.tolist()):
        own = dict(options, alibi_slopes=slopes[b : b + 1] if slopes is not None and slopes.dim() == 2 else slopes)
        one = slice(b, b + 1)
        pad = None if leftpad is None else leftpad[one]
        cache = k_cache[row : row + 1], v_cache[row : row + 1]
        parts.append(_attend(q[one], *cache, torch.zeros(1, dtype=torch.int64), lengths[one], pad, mask, own))
    return torch.cat([out for out, _ in parts]), torch.cat([lse for _, lse in parts])


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Optional[Tensor] = None,
    v: Optional[Tensor] = None,
    rotary_cos: Optional[Tensor] = None,
    rotary_sin: Optional[Tensor] = None,
    cache_seqlens: Union[int, Tensor, None] = None,
    cache_batch_idx: Optional[Tensor] = None,
    cache_leftpad: Optional[Tensor] = None,
    block_table: Optional[Tensor] = None,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Optional[Tensor] = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Any:
    """Attention of q [B, Lq, Hq, D] over k_cache, v_cache [B', capacity, Hkv, D], of which the first `cache_seqlens` tokens are filled.

    New k, v [B, n, Hkv, D] are written into the caches behind these first, and attended. `rotary_cos`, `rotary_sin` [positions, rotary / 2]
    rotate the new keys at their positions, and the queries at theirs where `causal` or a window is set, else all of them at
    `cache_seqlens`. `cache_batch_idx` [B] says which row of the cache belongs to which sequence; keys before `cache_leftpad` [B] do not
    exist. Without `cache_seqlens` and k the whole cache is attended. `num_splits` is ignored (heed splits by itself). No gradients.
    Returns out [B, Lq, Hq, D], with `return_softmax_lse` also lse [B, Hq, Lq].

    >>> cache_k, cache_v = torch.zeros(2, 1, 32, 2, 16)
    >>> q, k, v = torch.randn(3, 1, 1, 2, 16)
    >>> flash_attn_with_kvcache(q, cache_k, cache_v, k, v, cache_seqlens=4, causal=True).shape
    torch.Size([1, 1, 2, 16])
    >>> bool((cache_k[:, 4] == k[:, 0]).all())
    True
    """
    for x, name in ((q, "q"), (k_cache, "k_cache"), (v_cache, "v_cache")):
        check_tensor(x, name, 4)
    if block_table is not None:
        raise NotImplementedError("block_table: heed has no paged cache yet; pass a contiguous k_cache and v_cache")
    if (k is None) != (v is None):
        raise ValueError("k, v: expected both or none of them")
    if (rotary_cos is None) != (rotary_sin is None):
        raise ValueError("rotary_cos, rotary_sin: expected both or none of them")
    with torch.no_grad():
        return _run(q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, cache_seqlens, cache_batch_idx, cache_leftpad, softmax_scale, causal,
                    window_size, softcap, rotary_interleaved, alibi_slopes, return_softmax_lse)  # fmt: skip


def _run(q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Any, v: Any, cos: Any, sin: Any, cache_seqlens: Any, cache_batch_idx: Any,
         cache_leftpad: Any, softmax_scale: Any, causal: bool, window_size: Window, softcap: float, interleaved: bool, alibi_slopes: Any,
         return_lse: bool) -> Any:  # fmt: skip
    batch, capacity = q.shape[0], k_cache.shape[1]
    mask, options = mask_of(causal, window_size), options_of(0.0, softmax_scale, softcap, alibi_slopes)
    rows = _cache_rows(cache_batch_idx, batch, k_cache.shape[0])
    if cache_seqlens is None and k is None:
        lengths = torch.full((batch,), capacity, dtype=torch.int64)
    else:
        lengths = _per_batch(cache_seqlens, batch, "cache_seqlens")
    leftpad = None if cache_leftpad is None else _per_batch(cache_leftpad, batch, "cache_leftpad")
    first = lengths if leftpad is None else lengths - leftpad  # position of the first new token
    if cos is not None:
        if k is None:
            raise ValueError("rotary_cos: expected None, because there are no new keys k to rotate")
        steps = torch.arange(q.shape[1]) if mask is not None else torch.zeros(q.shape[1], dtype=torch.int64)
        q = _rotate(q, cos, sin, first[:, None] + steps, interleaved)
        k = _rotate(k, cos, sin, first[:, None] + torch.arange(k.shape[1]), interleaved)
    if k is not None:
        check_tensor(k, "k", 4)
        check_tensor(v, "v", 4)
        _append(k_cache, v_cache, rows, lengths, k, v)
        lengths = lengths + k.shape[1]
    out, lse = _attend(q, k_cache, v_cache, rows, lengths.contiguous(), leftpad, mask, options)
    return (out, lse) if return_lse else out
