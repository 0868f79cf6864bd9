# SPDX-License-Identifier: Apache-2.0
"""heed in the place of torch.nn.functional.scaled_dot_product_attention, for a while."""

from __future__ import annotations

import contextlib
import functools
import threading
from typing import Any, Callable, Iterator, Optional

import torch
from torch.autograd import forward_ad
from torch.nn.attention.bias import CausalBias

from heed.torch._sdpa import _at_once, _with_care
from heed.torch._shapes import FLOATING, LARGEST_HEAD_DIM

Tensor = torch.Tensor

_lock = threading.Lock()
_uses = 0  # patched() blocks that are open, in all threads
_is_active = False  # _uses > 0, for compilers to watch: it changes less often
_original: Optional[Callable] = None
_ours: Optional[Callable] = None


def _is_dense(x: Any) -> bool:
    return isinstance(x, Tensor) and x.device.type == "cpu" and x.layout == torch.strided and not x.is_nested


def _can_take(query: Any, key: Any, value: Any, attn_mask: Any, dropout_p: float, is_causal: bool) -> bool:
    """Whether heed does this; torch's own function does the rest, and raises its own errors."""
    for x in (query, key, value):
        if not _is_dense(x) or x.dtype not in FLOATING or x.dim() < 2:
            return False
        if not 0 < x.shape[-1] <= LARGEST_HEAD_DIM or (x.dim() > 2 and x.shape[-3] == 0):
            return False
    is_one_dtype = key.dtype == query.dtype and value.dtype == query.dtype
    if not (is_one_dtype or torch.is_autocast_enabled("cpu")) or not 0.0 <= dropout_p <= 1.0:
        return False
    if not torch.compiler.is_compiling() and forward_ad._current_level >= 0:
        return False
    if attn_mask is None or isinstance(attn_mask, CausalBias):
        return attn_mask is None or not is_causal
    return not is_causal and _is_dense(attn_mask) and attn_mask.dtype in (torch.bool, torch.float32, query.dtype)


def _replacement(original: Callable) -> Callable:
    @functools.wraps(original)
    def scaled_dot_product_attention(query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
                                     *, scale: Optional[float] = None, enable_gqa: bool = False) -> Tensor:  # fmt: skip
        if _is_active:  # not where somebody kept the function for later
            out = None if dropout_p != 0.0 else _at_once(query, key, value, attn_mask, is_causal, scale, enable_gqa)
            if out is not None:
                return out
            if _can_take(query, key, value, attn_mask, dropout_p, is_causal):
                return _with_care(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        return original(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)

    return scaled_dot_product_attention


def _enter() -> None:
    global _uses, _is_active, _original, _ours
    with _lock:
        if _uses == 0:
            _original = torch.nn.functional.scaled_dot_product_attention
            _ours = _replacement(_original)
            torch.nn.functional.scaled_dot_product_attention = _ours
        _uses += 1
        _is_active = True


def _leave() -> None:
    global _uses, _is_active, _original, _ours
    with _lock:
        _uses -= 1
        if _uses > 0:
            return
        _is_active = False
        if torch.nn.functional.scaled_dot_product_attention is _ours:  # else it belongs to somebody who came later
            torch.nn.functional.scaled_dot_product_attention = _original
        _original = _ours = None


@contextlib.contextmanager
def patched() -> Iterator[None]:
    """While it is active, torch.nn.functional.scaled_dot_product_attention is heed's; also a decorator.

    What heed does not do (other devices, nested and sparse tensors, forward-mode derivatives, heads wider than 1024) goes to torch's own.
    The change is seen by all threads, lasts until the last of nested or overlapping blocks ends, and reaches code that looks the function
    up in torch.nn.functional, not what imported the function itself before. torch's encoder layers in eval mode without gradients take
    torch's fast path, which calls no such function: torch.backends.mha.set_fastpath_enabled(False) brings them here.

    >>> import torch, heed.torch
    >>> layer = torch.nn.MultiheadAttention(16, 4, batch_first=True)
    >>> x = torch.randn(1, 6, 16)
    >>> with heed.torch.patched():
    ...     layer(x, x, x, need_weights=False)[0].shape
    torch.Size([1, 6, 16])
    """
    _enter()
    try:
        yield
    finally:
        _leave()
