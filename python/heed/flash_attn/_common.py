# SPDX-License-Identifier: Apache-2.0
"""flash-attention's options as heed's."""

from __future__ import annotations

import functools
from typing import Any, Optional, Union

import torch

from heed import _core

Window = tuple[int, int]
_parse = functools.lru_cache(maxsize=64)(_core.Mask.parse)


def mask_of(causal: bool, window_size: Window) -> Union[_core.Mask, str, None]:
    """(left, right), -1 opens a side; causal closes the right one. While torch.compile traces, the mask as text."""
    try:
        left, right = (int(side) for side in window_size)
    except (TypeError, ValueError) as error:
        raise TypeError(f"window_size: expected (left, right), got {window_size!r}") from error
    if left < -1 or right < -1:
        raise ValueError(f"window_size: expected sides of at least 0, or -1 for no limit, got {tuple(window_size)}")
    if causal:
        right = 0
    if left < 0 and right < 0:
        return None
    text = "causal" if left < 0 and right == 0 else f"window {left if left >= 0 else '*'} {right if right >= 0 else '*'}"
    return text if torch.compiler.is_compiling() else _parse(text)


def options_of(dropout_p: float, softmax_scale: Optional[float], softcap: float, alibi_slopes: Optional[torch.Tensor]) -> dict[str, Any]:
    if not 0.0 <= dropout_p < 1.0:
        raise ValueError(f"dropout_p: expected a number in [0, 1), got {dropout_p}")
    if softmax_scale is not None and not isinstance(softmax_scale, (int, float)):
        raise TypeError(f"softmax_scale: expected a number or None, got {type(softmax_scale).__name__}")
    slopes = None if alibi_slopes is None else alibi_slopes.detach().float()
    return dict(dropout_p=dropout_p, scale=softmax_scale, softcap=softcap if softcap > 0.0 else None, alibi_slopes=slopes)


def no_pages(block_table: Optional[torch.Tensor]) -> None:
    if block_table is not None:
        raise NotImplementedError("block_table: heed has no paged cache here yet; pass k and v, or a contiguous k_cache and v_cache")


def unpack(x: torch.Tensor, name: str, axes: str, parts: int) -> tuple:
    """x, of the axes "B, L, 3, H, D" or the like, as its parts, in place."""
    rank = axes.count(",") + 1
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{name}: expected a torch.Tensor [{axes}], got {type(x).__name__}")
    if x.dim() != rank or x.shape[-3] != parts:
        raise ValueError(f"{name}: expected [{axes}], got {list(x.shape)}")
    return x.unbind(-3)


def check_offsets(x: Any, name: str, tokens: int) -> None:
    """cu_seqlens: [S + 1], from at least 0 to at most `tokens`, never falling."""
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"{name}: expected an int32 torch.Tensor [S + 1], got {type(x).__name__}")
    if x.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"{name}: expected int32 (or int64), got {x.dtype}")
    if x.dim() != 1 or x.shape[0] < 1:
        raise ValueError(f"{name}: expected shape [S + 1], got {list(x.shape)}")
    offsets = x.tolist()
    if offsets[0] < 0 or offsets[-1] > tokens or any(a > b for a, b in zip(offsets, offsets[1:])):
        raise ValueError(f"{name}: expected values from 0 to {tokens} that never fall, got {offsets}")
