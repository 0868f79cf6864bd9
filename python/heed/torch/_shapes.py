# SPDX-License-Identifier: Apache-2.0
"""What torch lets scaled_dot_product_attention take, as heed's four axes: checks, and broadcasting without copies where strides allow."""

from __future__ import annotations

import math
from typing import Any, Optional

import torch

from heed.torch._attention import check_tensor

Tensor = torch.Tensor

FLOATING = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16", torch.float64: "float64"}
LARGEST_HEAD_DIM = 1024


def check_operands(query: Tensor, key: Tensor, value: Tensor) -> None:
    for x, name in ((query, "query"), (key, "key"), (value, "value")):
        check_tensor(x, name)
        if x.dim() < 2:
            raise ValueError(f"{name}: expected at least 2 axes [..., L, E], got shape {tuple(x.shape)}")
        if x.dtype not in FLOATING:
            raise TypeError(f"{name}: expected a floating dtype, got {x.dtype}")
        if x.dtype != query.dtype:
            raise TypeError(f"{name}: expected query's dtype {query.dtype}, got {x.dtype}")
        if x.device != query.device:
            raise TypeError(f"{name}: expected query's device {query.device}, got {x.device}")
        if not 0 < x.shape[-1] <= LARGEST_HEAD_DIM:
            raise ValueError(f"{name}: expected a last axis from 1 to {LARGEST_HEAD_DIM}, got shape {tuple(x.shape)}")
        if x.dim() > 2 and x.shape[-3] == 0:
            raise ValueError(f"{name}: expected at least one head, got shape {tuple(x.shape)}")
    if key.shape[-1] != query.shape[-1]:
        raise ValueError(f"key: expected query's last axis {query.shape[-1]}, got shape {tuple(key.shape)}")
    if value.shape[-2] != key.shape[-2]:
        raise ValueError(f"value: expected key's length {key.shape[-2]}, got shape {tuple(value.shape)}")


def check_mask(mask: Any, query: Tensor, key: Tensor, rank: int) -> None:
    """Type, device and the last two axes; the others are checked where they are broadcast."""
    check_tensor(mask, "attn_mask")
    if mask.dtype not in (torch.bool, torch.float32, query.dtype):
        raise TypeError(f"attn_mask: expected bool, float32 or query's dtype {query.dtype}, got {mask.dtype}")
    if mask.device != query.device:
        raise TypeError(f"attn_mask: expected query's device {query.device}, got {mask.device}")
    if not 2 <= mask.dim() <= rank:
        raise ValueError(f"attn_mask: expected 2 to {rank} axes, got shape {tuple(mask.shape)}")
    rows, keys = query.shape[-2], key.shape[-2]
    if (mask.shape[-2] != 1 and mask.shape[-2] != rows) or (mask.shape[-1] != 1 and mask.shape[-1] != keys):
        raise ValueError(f"attn_mask: expected a shape that broadcasts to [..., {rows}, {keys}], got {tuple(mask.shape)}")


def _broadcast(x: Tensor, axes: tuple, name: str) -> Tensor:
    """[..., L, E] with the axes before those two as `axes`."""
    try:
        return x.expand(*axes, *x.shape[-2:])
    except RuntimeError:
        raise ValueError(f"{name}: expected a shape that broadcasts to {[*axes, *x.shape[-2:]]}, got {tuple(x.shape)}") from None


def _joint_heads(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> int:
    """Query heads of the result."""
    heads = query.shape[-3]
    for x, name in ((key, "key"), (value, "value")):
        own = x.shape[-3]
        if enable_gqa and heads % own != 0:
            raise ValueError(f"{name}: expected a number of heads that divides query's {query.shape[-3]}, got {own}")
        if not enable_gqa and own != heads and own != 1 and heads != 1:
            raise ValueError(f"{name}: expected {heads} heads as query has, got {own} (enable_gqa=True lets query heads share them)")
        heads = max(heads, own)
    return heads


def _shared_heads(key: Tensor, value: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """With the same number of heads, which is what groups of query heads share: key and value may come with different ones."""
    if key.shape[-3] == value.shape[-3]:
        return key, value

    def repeated(x: Tensor) -> Tensor:
        own = x.shape[-3]
        return x.expand(*x.shape[:-3], heads, *x.shape[-2:]) if own == 1 else x.repeat_interleave(heads // own, -3)

    return repeated(key), repeated(value)


def _flat(x: Tensor, batch: tuple, name: str) -> Tensor:
    """[..., H, L, E] as [B, H, L, E], leading axes broadcast to `batch`."""
    x = _broadcast(x, (*batch, x.shape[-3]), name)
    return x if len(batch) == 1 else x.reshape(math.prod(batch), *x.shape[-3:])


def _flat_mask(mask: Tensor, batch: tuple, heads: int) -> Tensor:
    """At most four axes, for right-aligned broadcast to [B, H, L, S]; no copy unless it differs along several batch axes."""
    _broadcast(mask, (*batch, heads), "attn_mask")
    if mask.dim() <= 3 or len(batch) == 1:
        return mask
    if math.prod(mask.shape[:-3]) == 1:
        return mask.reshape(mask.shape[-3:])
    return mask.expand(*batch, *mask.shape[-3:]).reshape(math.prod(batch), *mask.shape[-3:])


def as_four_axes(query: Tensor, key: Tensor, value: Tensor, mask: Optional[Tensor], enable_gqa: bool) -> tuple:
    """(q, k, v, mask, shape of the result): [B, H, L, E] each, the mask broadcast to [B, H, L, S]."""
    rank = max(query.dim(), key.dim(), value.dim())
    if mask is not None:
        check_mask(mask, query, key, rank)
    q, k, v = (x if x.dim() >= 4 else x[(None,) * (4 - x.dim())] for x in (query, key, value))
    heads = _joint_heads(q, k, v, enable_gqa)
    if q.shape[-3] != heads:
        q = q.expand(*q.shape[:-3], heads, *q.shape[-2:])
    k, v = _shared_heads(k, v, heads)
    try:
        batch = tuple(torch.broadcast_shapes(q.shape[:-3], k.shape[:-3], v.shape[:-3]))
    except RuntimeError:
        raise ValueError(f"key, value: expected batch axes that broadcast with query's {tuple(query.shape)}, got {tuple(key.shape)} and {tuple(value.shape)}") from None  # fmt: skip
    flat = None if mask is None else _flat_mask(mask, batch, heads)
    lead = (*batch, heads)[max(0, 4 - rank) :]
    shape = (*lead, q.shape[-2], v.shape[-1])
    return _flat(q, batch, "query"), _flat(k, batch, "key"), _flat(v, batch, "value"), flat, shape
