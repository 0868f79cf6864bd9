# SPDX-License-Identifier: Apache-2.0
"""The functions of flash_attn.flash_attn_interface."""

from __future__ import annotations

from typing import Any, Optional

import torch

from heed.flash_attn._common import Window, check_offsets, mask_of, no_pages, options_of, unpack
from heed.flash_attn._kvcache import flash_attn_with_kvcache
from heed.torch import attention, attention_varlen
from heed.torch._attention import check_tensor

__all__ = [
    "flash_attn_func", "flash_attn_kvpacked_func", "flash_attn_qkvpacked_func", "flash_attn_varlen_func", "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func", "flash_attn_with_kvcache",
]  # fmt: skip

Tensor = torch.Tensor


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Optional[Tensor] = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """q [B, Lq, Hq, D], k [B, Lk, Hkv, D], v [B, Lk, Hkv, Dv]; Hkv divides Hq. Returns out [B, Lq, Hq, Dv].

    `causal` is aligned to the bottom right: query i sees keys up to i + Lk - Lq. `window_size` (left, right): keys from
    i + Lk - Lq - left to i + Lk - Lq + right; -1 opens a side. `softcap` 0 is off. `alibi_slopes` float32 [Hq] or [B, Hq]:
    -slope * |i + Lk - Lq - j| is added. With `return_attn_probs` (out, lse [B, Hq, Lq], None). `deterministic` changes nothing:
    gradients always are. Raises ValueError or TypeError naming the argument.

    >>> q, k, v = (torch.randn(1, 6, 4, 8, requires_grad=True) for _ in range(3))
    >>> flash_attn_func(q, k, v, causal=True).sum().backward()
    """
    mask, options = mask_of(causal, window_size), options_of(dropout_p, softmax_scale, softcap, alibi_slopes)
    result = attention(q, k, v, mask=mask, return_lse=return_attn_probs, **options)
    return (*result, None) if return_attn_probs else result


def flash_attn_qkvpacked_func(
    qkv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Optional[Tensor] = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """`flash_attn_func` of qkv [B, L, 3, H, D], read in place."""
    q, k, v = unpack(qkv, "qkv", "B, L, 3, H, D", 3)
    return flash_attn_func(q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)


def flash_attn_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Optional[Tensor] = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """`flash_attn_func` of kv [B, Lk, 2, Hkv, D], read in place."""
    k, v = unpack(kv, "kv", "B, Lk, 2, Hkv, D", 2)
    return flash_attn_func(q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)


@torch.compiler.disable
def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Optional[Tensor] = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Optional[Tensor] = None,
) -> Any:
    """q [Tq, Hq, D], k [Tk, Hkv, D], v [Tk, Hkv, Dv]: sequence s owns rows cu_seqlens[s] to cu_seqlens[s + 1] (int32, [S + 1]).

    Rows that no sequence owns give 0. The longest lengths are not needed. Not a part of a compiled graph: torch.compile breaks it here.
    With `return_attn_probs` (out, lse [Hq, Tq], None). `alibi_slopes` [Hq] or [S, Hq].

    >>> q, k, v = (torch.randn(9, 4, 8) for _ in range(3))
    >>> lengths = torch.tensor([0, 4, 9], dtype=torch.int32)
    >>> flash_attn_varlen_func(q, k, v, lengths, lengths, 5, 5, causal=True).shape
    torch.Size([9, 4, 8])
    """
    no_pages(block_table)
    mask, options = mask_of(causal, window_size), options_of(dropout_p, softmax_scale, softcap, alibi_slopes)
    for x, name in ((q, "q"), (k, "k"), (v, "v")):
        check_tensor(x, name, 3)
    check_offsets(cu_seqlens_q, "cu_seqlens_q", q.shape[0])
    check_offsets(cu_seqlens_k, "cu_seqlens_k", k.shape[0])
    if cu_seqlens_k.shape != cu_seqlens_q.shape:
        raise ValueError(f"cu_seqlens_k: expected as many as cu_seqlens_q, {list(cu_seqlens_q.shape)}, got {list(cu_seqlens_k.shape)}")
    result = attention_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, mask=mask, return_lse=return_attn_probs, **options)
    return (*result, None) if return_attn_probs else result


def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    dropout_p: float = 0.0,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Optional[Tensor] = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """`flash_attn_varlen_func` of qkv [T, 3, H, D], read in place."""
    q, k, v = unpack(qkv, "qkv", "T, 3, H, D", 3)
    rest = (dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)
    return flash_attn_varlen_func(q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, *rest)


def flash_attn_varlen_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Optional[Tensor] = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """`flash_attn_varlen_func` of kv [Tk, 2, Hkv, D], read in place."""
    k, v = unpack(kv, "kv", "Tk, 2, Hkv, D", 2)
    rest = (dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs)
    return flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, *rest)
