# SPDX-License-Identifier: Apache-2.0
"""flash_attn.layers.rotary: rotary position embedding, differentiable."""

from __future__ import annotations

from typing import Any, Optional, Union

import torch

import heed
from heed.flash_attn._common import check_offsets
from heed.torch._attention import check_tensor

Tensor = torch.Tensor


def _positions(x: Tensor, seqlen_offsets: Union[int, Tensor], cu_seqlens: Optional[Tensor]) -> Tensor:
    """[L] or [B, L]; for packed tokens [T]."""
    sequences = x.shape[0] if cu_seqlens is None else cu_seqlens.numel() - 1
    offsets = torch.as_tensor(seqlen_offsets, dtype=torch.int64)
    if offsets.dim() > 0 and offsets.shape != (sequences,):
        raise ValueError(f"seqlen_offsets: expected an integer or shape [{sequences}], got {list(offsets.shape)}")
    if cu_seqlens is None:
        steps = torch.arange(x.shape[1])
        return steps + (offsets if offsets.dim() == 0 else offsets[:, None])
    check_offsets(cu_seqlens, "cu_seqlens", x.shape[0])
    starts = cu_seqlens.to(torch.int64)
    if int(starts[0]) != 0 or int(starts[-1]) != x.shape[0]:
        raise ValueError(f"cu_seqlens: expected offsets from 0 to the {x.shape[0]} tokens of x, got {starts.tolist()}")
    lengths = starts[1:] - starts[:-1]
    return torch.arange(x.shape[0]) - (starts[:-1] - offsets).repeat_interleave(lengths)


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, interleaved: bool, inplace: bool) -> Tensor:
        ctx.save_for_backward(cos, sin, positions)
        ctx.interleaved = interleaved
        if inplace:
            ctx.mark_dirty(x)
            heed.apply_rope(x.detach(), cos, sin, positions, interleaved=interleaved, out=x.detach())
            return x
        return heed.apply_rope(x.detach(), cos, sin, positions, interleaved=interleaved)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple:
        cos, sin, positions = ctx.saved_tensors
        turned_back = heed.apply_rope(gradient.detach(), cos, -sin, positions, interleaved=ctx.interleaved)
        return turned_back, None, None, None, None, None


def apply_rotary_emb(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool = False,
    inplace: bool = False,
    seqlen_offsets: Union[int, Tensor] = 0,
    cu_seqlens: Optional[Tensor] = None,
    max_seqlen: Optional[int] = None,
) -> Tensor:
    """Rotates x [B, L, H, D], or packed tokens [T, H, D] with `cu_seqlens` [S + 1]. cos, sin [positions, rotary_dim / 2].

    Pairs are (i, i + d/2), or (2i, 2i + 1) when `interleaved`. Positions start at `seqlen_offsets`, an integer or one per sequence.
    `max_seqlen` is not needed. Differentiable in x, also `inplace`. Raises ValueError, also for a position outside of the table.

    >>> x, angles = torch.randn(1, 5, 2, 8), torch.outer(torch.arange(5.0), torch.tensor([1.0, 0.1, 0.01, 0.001]))
    >>> apply_rotary_emb(x, angles.cos(), angles.sin()).shape
    torch.Size([1, 5, 2, 8])
    """
    check_tensor(x, "x", 4 if cu_seqlens is None else 3)
    positions = _positions(x, seqlen_offsets, cu_seqlens)
    tables = cos.detach().float(), sin.detach().float()
    if cu_seqlens is None:
        return _Rotate.apply(x, *tables, positions, interleaved, inplace)
    return _Rotate.apply(x[None], *tables, positions, interleaved, inplace)[0]


apply_rotary_emb_func = apply_rotary_emb
