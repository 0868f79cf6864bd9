# SPDX-License-Identifier: Apache-2.0
"""flash-attention's options as heed's."""

from __future__ import annotations

from typing import Any, Optional

import torch

from heed import _core

Window = tuple[int, int]


def mask_of(causal: bool, window_size: Window) -> Optional[_core.Mask]:
    """(left, right), -1 opens a side; causal closes the right one."""
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
    if left < 0 and right == 0:
        return _core.Mask.causal()
    return _core.Mask.window(None if left < 0 else left, None if right < 0 else right)


def options_of(dropout_p: float, softmax_scale: Optional[float], softcap: float, alibi_slopes: Optional[torch.Tensor]) -> dict[str, Any]:
    if not 0.0 <= dropout_p < 1.0:
        raise ValueError(f"dropout_p: expected a number in [0, 1), got {dropout_p}")
    if softcap < 0.0:
        raise ValueError(f"softcap: expected at least 0 (off), got {softcap}")
    slopes = None if alibi_slopes is None else alibi_slopes.detach().float()
    return dict(dropout_p=dropout_p, scale=softmax_scale, softcap=softcap if softcap > 0.0 else None, alibi_slopes=slopes)


def unpack(x: torch.Tensor, name: str, parts: int) -> tuple:
    """[..., parts, H, D] as its parts, in place."""
    if not isinstance(x, torch.Tensor) or x.dim() < 3 or x.shape[-3] != parts:
        shape = tuple(x.shape) if isinstance(x, torch.Tensor) else type(x).__name__
        raise ValueError(f"{name}: expected [..., {parts}, H, D], got {shape}")
    return x.unbind(-3)
