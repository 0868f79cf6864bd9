# SPDX-License-Identifier: Apache-2.0
"""The attention function of heed in transformers, and everything that models hand to one."""

from __future__ import annotations

import warnings
from typing import Any, Optional

import torch

import heed
from heed.torch._attention import attention
from heed.transformers._masks import LazyMask

Tensor = torch.Tensor


def _meet(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """In one type under autocast, where norms and rotations leave float32 beside bfloat16; in one batch, where a model learns queries or keys."""
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
        query, key, value = (x if x.dtype == torch.float64 else x.to(dtype) for x in (query, key, value))
    if query.shape[0] == 1 and key.shape[0] > 1:
        query = query.expand(key.shape[0], -1, -1, -1)
    elif key.shape[0] == 1 and query.shape[0] > 1:
        key, value = key.expand(query.shape[0], -1, -1, -1), value.expand(query.shape[0], -1, -1, -1)
    return query, key, value


def _from_tensor(mask: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """A mask that the model made itself: boolean, or added to the scores; cut to the keys there are."""
    if mask.dim() == 2:
        mask = mask[:, None, None].bool()
    mask = mask[..., : key.shape[2]]
    if mask.dtype in (torch.bool, torch.float32, query.dtype):
        return mask
    return mask.to(query.dtype) if mask.is_floating_point() else mask.bool()


def _fits(mask: LazyMask, query: Tensor, key: Tensor) -> bool:
    """A pattern has no end: it would answer for queries and keys that the model never meant, where a tensor is an error."""
    return mask.shape[0] in (1, query.shape[0]) and mask.shape[2] == query.shape[2] and mask.shape[3] == key.shape[2]


def _marks(numbers: Tensor, slots: int) -> Tensor:
    """Boolean [..., slots], true at those of the numbers [..., n] that are not negative."""
    marks = torch.zeros((*numbers.shape[:-1], slots + 1), dtype=torch.bool, device=numbers.device)
    return marks.scatter_(-1, numbers.long().masked_fill(numbers < 0, slots), True)[..., :slots]


def _chosen_keys(
    module: torch.nn.Module, query: Tensor, key: Tensor, indices: Optional[Tensor], block_indices: Optional[Tensor]
) -> Optional[Tensor]:
    """What the indexer of a sparse attention left, boolean [B, 1 or Hq, Lq, Lk]: keys [B, Lq, n], or blocks of keys [B, groups, Lq, n].

    transformers puts these into the mask for `eager` and `sdpa` only.
    """
    keys = key.shape[2]
    if indices is not None:
        return _marks(indices, keys)[:, None]
    if block_indices is None:
        return None
    size = int(module.indexer.block_size)
    chosen = _marks(block_indices, -(-keys // size)).repeat_interleave(size, dim=-1)[..., :keys]
    return chosen.repeat_interleave(query.shape[1] // chosen.shape[1], dim=1)


def _hide_others(bias: Optional[Tensor], chosen: Optional[Tensor]) -> Optional[Tensor]:
    if bias is None or chosen is None:
        return chosen if bias is None else bias
    return bias & chosen if bias.dtype == torch.bool else torch.where(chosen, bias, -torch.inf)


def _add_position_bias(bias: Optional[Tensor], position_bias: Optional[Tensor], query: Tensor) -> Optional[Tensor]:
    if position_bias is None:
        return bias
    if bias is None:
        return position_bias.to(query.dtype)
    if bias.dtype == torch.bool:
        return torch.where(bias, position_bias, -torch.inf).to(query.dtype)
    return (bias + position_bias).to(query.dtype)


def _with_sink_key(key: Tensor, value: Tensor, mask: Optional[heed.Mask], bias: Optional[Tensor], sinks: Tensor) -> tuple:
    """A sink per query [B, Hq, Lq, 1] as one more key of zeros, whose score is the sink alone and whose value is 0."""
    batch, heads, rows, _ = sinks.shape
    keys = key.shape[2]
    if bias is None:
        bias = sinks.new_zeros(())
    elif bias.dtype == torch.bool:
        bias = torch.where(bias, 0.0, -torch.inf)
    bias = torch.cat([bias.to(sinks.dtype).expand(batch, heads, rows, keys), sinks], dim=-1)
    if mask is not None:
        mask = mask | heed.Mask.from_array((torch.arange(keys + 1) == keys)[None, None, None])
    return torch.nn.functional.pad(key, (0, 0, 0, 1)), torch.nn.functional.pad(value, (0, 0, 0, 1)), mask, bias


def heed_attention_forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Optional[Tensor],
    dropout: float = 0.0,
    scaling: Optional[float] = None,
    is_causal: Optional[bool] = None,
    softcap: Optional[float] = None,
    s_aux: Optional[Tensor] = None,
    sliding_window: Optional[int] = None,
    position_bias: Optional[Tensor] = None,
    indices: Optional[Tensor] = None,
    block_indices: Optional[Tensor] = None,
    sinks: Optional[Tensor] = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """The attention function of transformers' AttentionInterface: query [B, Hq, Lq, D], key and value [B, Hkv, Lk, D].

    Returns (out [B, Lq, Hq, Dv], None): there are no attention weights to return; ask `eager` for these. `s_aux` [Hq] holds a sink per
    head, `sinks` [B, Hq, Lq, 1] one per query; without an `attention_mask` a module that does not say `is_causal = False` is causal, as with
    `sdpa` (models of transformers always make one); `indices` and `block_indices` are what a sparse attention's indexer chose.
    """
    traced = torch.compiler.is_compiling()
    if traced and isinstance(attention_mask, LazyMask):  # made outside, as where a model's layers are compiled one by one
        return _untraced(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, is_causal=is_causal, softcap=softcap, s_aux=s_aux,
            sliding_window=sliding_window, position_bias=position_bias, indices=indices, block_indices=block_indices, sinks=sinks,
        )  # fmt: skip
    if options.get("output_attentions") and not traced:
        warnings.warn('attn_implementation="heed" has no attention weights to return: use "eager" for output_attentions=True', stacklevel=2)
    query, key, value = _meet(query, key, value)
    mask, offset, align, bias = None, None, "bottom_right", None
    if isinstance(attention_mask, LazyMask) and (torch.jit.is_tracing() or not _fits(attention_mask, query, key)):
        attention_mask = attention_mask.build()
    if isinstance(attention_mask, LazyMask):
        mask, offset = attention_mask.mask, attention_mask.query_offset
    elif attention_mask is not None:
        bias = _from_tensor(attention_mask, query, key)
    elif query.shape[2] > 1 and (getattr(module, "is_causal", True) if is_causal is None else is_causal):
        mask, align = heed.Mask.causal(), "top_left"  # as sdpa has it, for a prompt in an empty cache of more slots
        if sliding_window is not None:
            mask = mask & heed.Mask.sliding_window(sliding_window)
    bias = _hide_others(bias, _chosen_keys(module, query, key, indices, block_indices))
    bias = _add_position_bias(bias, position_bias, query)
    if sinks is not None:
        key, value, mask, bias = _with_sink_key(key, value, mask, bias, sinks.to(query.dtype))
    per_head = None if s_aux is None else s_aux.to(torch.float64 if query.dtype == torch.float64 else torch.float32)
    out = attention(
        query, key, value, mask=str(mask) if traced and mask is not None else mask, align=align, scale=scaling, softcap=softcap,
        bias=bias, sink_logits=per_head, query_offset=offset, dropout_p=dropout if module.training else 0.0, layout="BHLD",
    )  # fmt: skip
    return out.transpose(1, 2).contiguous(), None


_untraced = torch.compiler.disable(heed_attention_forward)
