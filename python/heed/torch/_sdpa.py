# SPDX-License-Identifier: Apache-2.0
"""torch.nn.functional.scaled_dot_product_attention, by heed."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch.autograd import forward_ad
from torch.nn.attention.bias import CausalBias, CausalVariant

from heed import _core
from heed.torch._attention import broadcasts, dispatch, is_direct, refuse_tangents, seed_of, traced
from heed.torch._autograd import Attention, Settings, empty_out, raw
from heed.torch._shapes import FLOATING, LARGEST_HEAD_DIM, as_four_axes, check_operands

Tensor = torch.Tensor

_CAUSAL = _core.Mask.causal()
_PLAIN = frozenset((Tensor, torch.nn.Parameter))
_STRIDED = torch.strided
_empty_like = torch.empty_like
_is_grad_enabled = torch.is_grad_enabled
_is_autocast = torch.is_autocast_enabled
_is_compiling = torch.compiler.is_compiling
_dispatch_modes = torch._C._len_torch_dispatch_stack
_functorch_level = torch._C._functorch.peek_interpreter_stack
_is_recording = torch._C._is_tracing
_attention_into = _core.attention_into


def _is_plain_mask(mask: Any, shape: tuple, dtype: torch.dtype) -> bool:
    """Whether it is read as it is: bool or floating, broadcast to `shape`."""
    if type(mask) not in _PLAIN or not mask.is_cpu or mask.layout is not _STRIDED or mask.is_neg():
        return False
    if mask.dtype not in (torch.bool, torch.float32, dtype) or not 2 <= mask.dim() <= 4:
        return False
    return broadcasts(mask.shape, shape)


def _at_once(query: Any, key: Any, value: Any, attn_mask: Any, is_causal: bool, scale: Optional[float], enable_gqa: bool) -> Optional[Tensor]:
    """The result of a call that needs no reshaping and that nothing traces: most calls. None where `_with_care` must look.

    Nothing is said twice and no helper is called: three tensors in a loop would cost 1.5 us, of the 5 us that all this takes.
    """
    if _is_compiling() or _dispatch_modes() or _functorch_level() is not None or forward_ad._current_level >= 0 or _is_autocast("cpu"):
        return None
    if _is_recording():
        return None
    if type(query) not in _PLAIN or type(key) not in _PLAIN or type(value) not in _PLAIN:
        return None
    dtype, shape, key_shape, value_shape = query.dtype, query.shape, key.shape, value.shape
    name = FLOATING.get(dtype)
    if name is None or key.dtype is not dtype or value.dtype is not dtype or not (query.is_cpu and key.is_cpu and value.is_cpu):
        return None
    if query.layout is not _STRIDED or key.layout is not _STRIDED or value.layout is not _STRIDED:
        return None
    if len(shape) != 4 or len(key_shape) != 4 or len(value_shape) != 4:
        if len(shape) != 3 or len(key_shape) != 3 or len(value_shape) != 3 or not (attn_mask is None or (type(attn_mask) in _PLAIN and attn_mask.dim() <= 3)):
            return None
        query, key, value = query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0)
        out = _at_once(query, key, value, attn_mask, is_causal, scale, enable_gqa)
        return None if out is None else out.squeeze(0)
    if query.is_neg() or key.is_neg() or value.is_neg():
        return None
    batch, heads, rows, dim = shape
    key_batch, key_heads, keys, key_dim = key_shape
    value_dim = value_shape[3]
    if key_batch != batch or key_dim != dim or value_shape[:3] != key_shape[:3] or not (0 < dim <= LARGEST_HEAD_DIM >= value_dim > 0 < heads):
        return None
    if key_heads != heads and (not enable_gqa or key_heads == 0 or heads % key_heads != 0):
        return None
    mask, bias = (_CAUSAL if is_causal else None), attn_mask
    if bias is not None:
        if is_causal or not _is_plain_mask(bias, (batch, heads, rows, keys), dtype):
            return None
        if bias.dtype is torch.bool:
            # Bits of a Mask, not a float bias: one pass over the tensor (1 ns per slot), then empty tiles are skipped and full ones need no
            # selection. One thread, H 8, D 64, a random mask shared by all heads: 5.3 ms at L 512 and 17.8 ms at L 1024, as a bias 6.9 and
            # 22.2 even where it is made already; at L 1 over 4096 keys packing takes 5 us of 808.
            mask, bias = _core.Mask.from_array(bias), None
    if _is_grad_enabled() and (
        query.requires_grad or key.requires_grad or value.requires_grad or (bias is not None and bias.requires_grad)
    ):  # fmt: skip
        return Attention.apply(query, key, value, bias, None, Settings(mask, "top_left", scale))[0]
    out = _empty_like(query) if dim == value_dim else empty_out(query, value_dim)
    _attention_into(
        (out.data_ptr(), name, out.shape, out.stride()), None, (query.data_ptr(), name, shape, query.stride()),
        (key.data_ptr(), name, key_shape, key.stride()), (value.data_ptr(), name, value_shape, value.stride()),
        (mask, "top_left", scale, None, None if bias is None else raw(bias), None, None, None, None, 0.0, 0), "BHLD",
    )  # fmt: skip
    return out


def _autocast(x: Any, dtype: torch.dtype) -> Any:
    """As torch's own function has it: whatever is floating and not float64 meets in autocast's type."""
    return x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() and x.dtype != torch.float64 else x


def _under_autocast(query: Any, key: Any, value: Any, attn_mask: Any) -> tuple:
    dtype = torch.get_autocast_dtype("cpu")
    is_wide = attn_mask is None or isinstance(attn_mask, CausalBias) or attn_mask.dtype == torch.float32  # float32 is fine with all types
    return _autocast(query, dtype), _autocast(key, dtype), _autocast(value, dtype), attn_mask if is_wide else _autocast(attn_mask, dtype)


def _with_care(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any, dropout_p: float, is_causal: bool, scale: Optional[float],
               enable_gqa: bool) -> Tensor:  # fmt: skip
    """Every call: checked, broadcast, cast, traced."""
    if torch.is_autocast_enabled("cpu"):
        query, key, value, attn_mask = _under_autocast(query, key, value, attn_mask)
    check_operands(query, key, value)
    if is_causal and attn_mask is not None:
        raise ValueError("attn_mask: expected None, because is_causal is set")
    if not 0.0 <= dropout_p <= 1.0:
        raise ValueError(f"dropout_p: expected a number in [0, 1], got {dropout_p}")
    align, mask = "top_left", _CAUSAL if is_causal else None
    if isinstance(attn_mask, CausalBias):  # before anybody reads the memory that it does not have
        align = "bottom_right" if attn_mask.variant == CausalVariant.LOWER_RIGHT else "top_left"
        attn_mask, mask = None, _CAUSAL
    refuse_tangents(query, key, value, attn_mask)
    q, k, v, bias, shape = as_four_axes(query, key, value, attn_mask, enable_gqa)
    kept = 0.0 if dropout_p == 1.0 else dropout_p
    if is_direct(query, key, value, attn_mask):
        if bias is not None and bias.dtype == torch.bool:
            mask, bias = _core.Mask.from_array(bias), None
        settings = Settings(mask, align, scale, None, None, None, None, kept, seed_of(kept, None), "BHLD")
        out = dispatch(q, k, v, bias, None, settings, False)[0]
    else:
        out = traced(q, k, v, bias, None, None, "" if mask is None else "causal", align, scale, None, kept, None, "BHLD")[0]
    if dropout_p == 1.0:  # every weight is dropped
        out = out * 0.0
    return out if out.dim() == len(shape) else out.reshape(shape)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Optional[Tensor] = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: Optional[float] = None,
    enable_gqa: bool = False,
) -> Tensor:
    """torch.nn.functional.scaled_dot_product_attention: the same signature and semantics, gradients included.

    query [..., Hq, L, E], key [..., H, S, E], value [..., H, S, Ev]; returns [..., Hq, L, Ev] of query's dtype (float32, bfloat16, float16,
    float64). `attn_mask` boolean (True: attend) or floating, of any shape that broadcasts to [..., Hq, L, S], or a
    `torch.nn.attention.bias` causal object; floating ones get a gradient when they require it. `is_causal` is torch's: query i sees keys
    up to i. A row whose keys are all masked gives 0. Dropout whenever `dropout_p` > 0, from torch's generator.
    Works in torch.compile (as one operator), torch.func.vmap, autograd; second derivatives and forward mode are an error.
    Raises ValueError or TypeError naming the argument.

    >>> import torch, heed.torch
    >>> q, k, v = (torch.randn(2, 8, 5, 64) for _ in range(3))
    >>> ours = heed.torch.scaled_dot_product_attention(q, k, v, is_causal=True)
    >>> bool(torch.allclose(ours, torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True), atol=1e-5))
    True
    """
    if dropout_p == 0.0:
        out = _at_once(query, key, value, attn_mask, is_causal, scale, enable_gqa)
        if out is not None:
            return out
    return _with_care(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
