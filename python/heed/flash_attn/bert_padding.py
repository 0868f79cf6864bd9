# SPDX-License-Identifier: Apache-2.0
"""Between padded batches [B, L, ...] and packed tokens [T, ...]: the functions of flash_attn.bert_padding, differentiable."""

from __future__ import annotations

from typing import Optional

import torch

Tensor = torch.Tensor


def index_first_axis(input: Tensor, indices: Tensor) -> Tensor:
    """input[indices] along the first axis."""
    return input.index_select(0, indices)


def index_first_axis_residual(input: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """(input[indices], input)."""
    return input.index_select(0, indices), input


def index_put_first_axis(values: Tensor, indices: Tensor, first_axis_dim: int) -> Tensor:
    """Zeros [first_axis_dim, ...] with `values` at `indices` of the first axis."""
    return values.new_zeros((first_axis_dim, *values.shape[1:])).index_copy(0, indices, values)


def _offsets(lengths: Tensor) -> Tensor:
    """[0, lengths[0], lengths[0] + lengths[1], ...], int32."""
    return torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))


def unpad_input(
    hidden_states: Tensor, attention_mask: Tensor, unused_mask: Optional[Tensor] = None
) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """The tokens whose mask is set, behind each other.

    hidden_states [B, L, ...]; attention_mask [B, L], nonzero: a token; unused_mask [B, L], nonzero: has room but is not used.
    Returns (hidden_states [T, ...], their indices in [B * L], cu_seqlens int32 [B + 1], the longest length, used lengths int32 [B]);
    T counts the tokens of both masks.

    >>> x, mask = torch.randn(2, 3, 4), torch.tensor([[1, 1, 0], [1, 1, 1]])
    >>> packed, indices, cu_seqlens, longest, used = unpad_input(x, mask)
    >>> packed.shape, cu_seqlens.tolist(), longest
    (torch.Size([5, 4]), [0, 2, 5], 3)
    >>> bool((pad_input(packed, indices, 2, 3)[0, :2] == x[0, :2]).all())
    True
    """
    present = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = present.sum(-1, dtype=torch.int32)
    used = attention_mask.sum(-1, dtype=torch.int32)
    indices = present.flatten().nonzero().flatten()
    longest = int(lengths.max()) if lengths.numel() > 0 else 0
    packed = index_first_axis(hidden_states.reshape(-1, *hidden_states.shape[2:]), indices)
    return packed, indices, _offsets(lengths), longest, used


def unpad_input_for_concatenated_sequences(hidden_states: Tensor, attention_mask_in_length: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
    """Rows that hold several sequences: attention_mask_in_length [B, L] lists their lengths, then zeros.

    Returns (hidden_states [T, ...], indices, cu_seqlens over all sequences, the longest length).
    """
    tokens = attention_mask_in_length.sum(-1, keepdim=True)
    present = torch.arange(hidden_states.shape[1]) < tokens
    lengths = attention_mask_in_length.flatten()[attention_mask_in_length.flatten() > 0]
    indices = present.flatten().nonzero().flatten()
    packed = index_first_axis(hidden_states.reshape(-1, *hidden_states.shape[2:]), indices)
    return packed, indices, _offsets(lengths), int(lengths.max()) if lengths.numel() > 0 else 0


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """The packed tokens [T, ...] back at their places in [batch, seqlen, ...]; zeros elsewhere."""
    return index_put_first_axis(hidden_states, indices, batch * seqlen).reshape(batch, seqlen, *hidden_states.shape[1:])
