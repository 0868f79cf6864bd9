# SPDX-License-Identifier: Apache-2.0
"""Generation: attention over a cache that the call appends to."""

from __future__ import annotations

from typing import Any, Optional, Union

import torch

import heed
from heed.flash_attn._common import Window, mask_of, options_of
from heed.torch import _autograd as direct
from heed.torch._attention import check_tensor

Tensor = torch.Tensor


def _integers(x: Union[int, Tensor], batch: int, name: str) -> list[int]:
    """One for each sequence."""
    if isinstance(x, int):
        return [x] * batch
    if not isinstance(x, Tensor) or x.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"{name}: expected an int or an int32 tensor [B], got {x.dtype if isinstance(x, Tensor) else type(x).__name__}")
    if x.dim() == 0:
        return [int(x)] * batch
    if x.shape != (batch,):
        raise ValueError(f"{name}: expected an integer or shape [{batch}], got {list(x.shape)}")
    return x.tolist()


def _check_shapes(q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Optional[Tensor], v: Optional[Tensor]) -> None:
    for x, name in ((q, "q"), (k_cache, "k_cache"), (v_cache, "v_cache")):
        check_tensor(x, name, 4)
    if v_cache.shape[:3] != k_cache.shape[:3] or v_cache.dtype != k_cache.dtype:
        expected = f"{[*k_cache.shape[:3], 'Dv']} of {k_cache.dtype}, as k_cache"
        raise ValueError(f"v_cache: expected {expected}, got {list(v_cache.shape)} of {v_cache.dtype}")
    heads, dim = k_cache.shape[2:]
    if q.shape[3] != dim or heads == 0 or q.shape[2] % heads != 0:
        raise ValueError(f"k_cache: expected {q.shape[3]} (D of q) and heads that divide the {q.shape[2]} of q, got {list(k_cache.shape)}")
    if (k is None) != (v is None):
        raise ValueError(f"{'k' if k is None else 'v'}: expected k and v, or none of them")
    if k is None or v is None:
        return
    check_tensor(k, "k", 4)
    check_tensor(v, "v", 4)
    for x, name, last in ((k, "k", dim), (v, "v", v_cache.shape[3])):
        if x.shape != (q.shape[0], k.shape[1], heads, last):
            raise ValueError(f"{name}: expected {[q.shape[0], k.shape[1], heads, last]}, got {list(x.shape)}")


def _check_slopes(slopes: Optional[Tensor], batch: int, heads: int) -> None:
    if slopes is not None and tuple(slopes.shape) not in ((heads,), (batch, heads)):
        raise ValueError(f"alibi_slopes: expected [{heads}] or [{batch}, {heads}], got {list(slopes.shape)}")


class _Rows:
    """A row of the cache for each sequence: its keys are tokens `pads[b]` to `lengths[b]` of row `rows[b]`."""

    def __init__(self, batch: int, cache: Tensor, capacity: int, new: Optional[Tensor], seqlens: Any, batch_idx: Any, leftpad: Any) -> None:
        appended = 0 if new is None else new.shape[1]
        if seqlens is None and new is not None:
            raise ValueError("cache_seqlens: expected where k and v go, got None")
        self.filled = _integers(capacity if seqlens is None else seqlens, batch, "cache_seqlens")
        self.lengths = [filled + appended for filled in self.filled]
        if any(filled < 0 or length > capacity for filled, length in zip(self.filled, self.lengths)):
            raise ValueError(f"cache_seqlens: {self.filled} and {appended} new tokens do not fit into a cache of {capacity}")
        if batch_idx is None and batch > cache.shape[0]:
            raise ValueError(f"k_cache: expected a row for each of {batch} sequences, got {list(cache.shape)}")
        self.rows = list(range(batch)) if batch_idx is None else _integers(batch_idx, batch, "cache_batch_idx")
        if any(row < 0 or row >= cache.shape[0] for row in self.rows):
            raise ValueError(f"cache_batch_idx: expected rows of k_cache, 0 to {cache.shape[0] - 1}, got {self.rows}")
        self.pads = [0] * batch if leftpad is None else _integers(leftpad, batch, "cache_leftpad")
        if any(pad < 0 for pad in self.pads):
            raise ValueError(f"cache_leftpad: expected at least 0, got {self.pads}")

    def positions(self, tokens: int, step: int) -> Tensor:
        """Of new tokens, [B, tokens]: behind those that the cache holds, or (step 0) all at the first of these places."""
        return torch.tensor(self.filled)[:, None] + torch.arange(0, tokens) * step

    def append(self, cache: Tensor, new: Tensor) -> None:
        for b, (row, start, end) in enumerate(zip(self.rows, self.filled, self.lengths)):
            cache[row, start:end] = new[b]

    def attend(self, q: Tensor, k_cache: Tensor, v_cache: Tensor, mask: Any, options: dict) -> tuple[Tensor, Tensor]:
        """In one call where the rows follow each other; otherwise one by one, rather than over a copy of the cache."""
        lse = direct.empty_lse(q, "BLHD")
        settings = direct.Settings(mask, layout="BLHD", **options)

        batch, first = q.shape[0], self.rows[0] if self.rows else 0
        if self.rows == list(range(first, first + batch)) and not any(self.pads):
            rows = slice(first, first + batch)
            lengths = torch.tensor(self.lengths, dtype=torch.int64)
            return direct.forward(q, k_cache[rows], v_cache[rows], None, None, settings._replace(kv_lengths=lengths), lse), lse
        slopes, parts = settings.alibi_slopes, []
        for b, (row, pad, length) in enumerate(zip(self.rows, self.pads, self.lengths)):
            own = settings._replace(alibi_slopes=slopes[b : b + 1]) if slopes is not None and slopes.dim() == 2 else settings
            keys = slice(min(pad, length), length)
            cache = k_cache[row : row + 1, keys], v_cache[row : row + 1, keys]
            parts.append(direct.forward(q[b : b + 1], *cache, None, None, own, lse[b : b + 1]))
        return torch.cat(parts), lse


class _Pages(_Rows):
    """Pages of the cache by a table: token t of sequence b is row t % page_size of page table[b, t // page_size]."""

    def __init__(self, batch: int, k_cache: Tensor, v_cache: Tensor, new: Optional[Tensor], seqlens: Any, table: Any) -> None:
        if not isinstance(table, Tensor) or table.dtype not in (torch.int32, torch.int64):
            got = table.dtype if isinstance(table, Tensor) else type(table).__name__
            raise TypeError(f"block_table: expected an int32 tensor [B, pages], got {got}")
        if table.dim() != 2 or table.shape[0] != batch:
            raise ValueError(f"block_table: expected [{batch}, pages], got {list(table.shape)}")
        if k_cache.dtype == torch.float64:
            raise ValueError("k_cache: expected float32, bfloat16 or float16 together with block_table, got float64")
        if seqlens is None:
            raise ValueError("cache_seqlens: expected the tokens of each sequence, because the cache is in pages, got None")
        super().__init__(batch, table, table.shape[1] * k_cache.shape[1], new, seqlens, None, None)
        self.table, self.page_size = table.cpu().long(), k_cache.shape[1]
        lengths = torch.tensor(self.lengths, dtype=torch.int64)
        self.view = heed.KvView.paged(k_pages=k_cache.detach(), v_pages=v_cache.detach(), block_table=self.table, lengths=lengths)
        if new is not None:
            self._find_slots(new.shape[1])

    def _find_slots(self, tokens: int) -> None:
        at = self.positions(tokens, 1)
        self.pages, self.offsets = self.table.gather(1, at // self.page_size), at % self.page_size
        slots = (self.pages * self.page_size + self.offsets).flatten()
        if slots.unique().numel() != slots.numel():
            raise ValueError("block_table: two new tokens would be written to one place; sequences may share full pages only")

    def append(self, cache: Tensor, new: Tensor) -> None:
        cache[self.pages, self.offsets] = new

    def attend(self, q: Tensor, k_cache: Tensor, v_cache: Tensor, mask: Any, options: dict) -> tuple[Tensor, Tensor]:
        chosen = {name: options[name] for name in ("scale", "softcap", "alibi_slopes")}
        return heed.attention(q.detach(), self.view, mask=mask, return_lse=True, **chosen)


def _places(
    batch: int, k_cache: Tensor, v_cache: Tensor, k: Optional[Tensor], seqlens: Any, batch_idx: Any, leftpad: Any, table: Any
) -> _Rows:
    if table is None:
        return _Rows(batch, k_cache, k_cache.shape[1], k, seqlens, batch_idx, leftpad)
    for x, name in ((batch_idx, "cache_batch_idx"), (leftpad, "cache_leftpad")):
        if x is not None:
            raise ValueError(f"{name}: expected None together with block_table, which says where each sequence lies")
    return _Pages(batch, k_cache, v_cache, k, seqlens, table)


@torch.compiler.disable
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
    `cache_seqlens`. `cache_batch_idx` [B] says which row of the cache belongs to which sequence. With `block_table` [B, pages] the caches
    are pages [P, page_size, Hkv, D] of any size: token t of sequence b is row t % page_size of page block_table[b, t // page_size]. Keys before `cache_leftpad` [B] do not
    exist; rotation still counts from the row's start. Without `cache_seqlens` and k the whole cache is attended. `num_splits` is ignored
    (heed splits by itself). No gradients, and not a part of a compiled graph: torch.compile breaks it here. Raises ValueError or TypeError
    naming the argument, before the caches are written.
    Returns out [B, Lq, Hq, D], with `return_softmax_lse` also lse [B, Hq, Lq].

    >>> cache_k, cache_v = torch.zeros(2, 1, 32, 2, 16)
    >>> q, k, v = torch.randn(3, 1, 1, 2, 16)
    >>> flash_attn_with_kvcache(q, cache_k, cache_v, k, v, cache_seqlens=4, causal=True).shape
    torch.Size([1, 1, 2, 16])
    >>> bool((cache_k[:, 4] == k[:, 0]).all())
    True
    """
    direct.refuse_recording()
    _check_shapes(q, k_cache, v_cache, k, v)
    mask, options = mask_of(causal, window_size), options_of(0.0, softmax_scale, softcap, alibi_slopes)
    _check_slopes(alibi_slopes, q.shape[0], q.shape[2])
    at = _places(q.shape[0], k_cache, v_cache, k, cache_seqlens, cache_batch_idx, cache_leftpad, block_table)
    with torch.no_grad():
        if rotary_cos is not None or rotary_sin is not None:
            q, k = _rotate(q, k, rotary_cos, rotary_sin, rotary_interleaved, at, 0 if mask is None else 1)
        if k is not None:
            at.append(k_cache, k)
            at.append(v_cache, v)
        out, lse = at.attend(q, k_cache, v_cache, mask, options)
    return (out, lse) if return_softmax_lse else out


def _rotate(q: Tensor, k: Optional[Tensor], cos: Any, sin: Any, interleaved: bool, at: _Rows, q_step: int) -> tuple[Tensor, Tensor]:
    if cos is None or sin is None:
        raise ValueError(f"{'rotary_cos' if cos is None else 'rotary_sin'}: expected rotary_cos and rotary_sin, or none of them")
    if k is None:
        raise ValueError("rotary_cos: expected None, because there are no new keys k to rotate")
    if cos.dim() != 2 or cos.shape != sin.shape or 2 * cos.shape[1] > q.shape[3]:
        raise ValueError(f"rotary_cos, rotary_sin: expected [positions, rotary_dim / 2], got {list(cos.shape)} and {list(sin.shape)}")
    furthest = max(at.filled, default=0) + max(k.shape[1], (q.shape[1] - 1) * q_step + 1)
    if cos.shape[0] < furthest:
        raise ValueError(f"rotary_cos: expected at least {furthest} positions, got {cos.shape[0]}")
    q_positions, k_positions = at.positions(q.shape[1], q_step), at.positions(k.shape[1], 1)
    tables = cos.detach().float(), sin.detach().float()
    return (
        heed.apply_rope(q.detach(), *tables, q_positions, interleaved=interleaved),
        heed.apply_rope(k.detach(), *tables, k_positions, interleaved=interleaved),
    )
