# SPDX-License-Identifier: Apache-2.0
"""torch.nn.functional.scaled_dot_product_attention, by heed."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Iterator, Optional

import torch
from torch.nn.attention.bias import CausalBias, CausalVariant

from heed import _core
from heed.torch import _autograd as direct
from heed.torch._attention import check_tensor, dispatch, is_direct, seed_of, traced
from heed.torch._autograd import Settings

Tensor = torch.Tensor

_CAUSAL = _core.Mask.causal()
_FLOATING = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def _is_usual(query: Any, key: Any, value: Any, enable_gqa: bool) -> bool:
    """What _check_call would find nothing wrong with, and needs no reshaping: most calls, told in 1 us."""
    try:
        dtype, shape, heads = query.dtype, query.shape, key.shape[1]
        return (
            len(shape) == 4 and len(key.shape) == 4 and len(value.shape) == 4 and key.shape[0] == shape[0] and value.shape[:2] == key.shape[:2]
            and (heads == shape[1] or (enable_gqa and heads > 0 and shape[1] % heads == 0))
            and dtype in _FLOATING and key.dtype is dtype and value.dtype is dtype
            and query.is_cpu and key.is_cpu and value.is_cpu and query.layout is torch.strided
        )  # fmt: skip
    except (AttributeError, IndexError):
        return False


def _check_call(query: Tensor, key: Tensor, value: Tensor) -> None:
    for x, name in ((query, "query"), (key, "key"), (value, "value")):
        check_tensor(x, name)
        if x.dim() < 2:
            raise ValueError(f"{name}: expected at least 2 axes [..., L, E], got shape {tuple(x.shape)}")
        if x.dtype not in _FLOATING:
            raise TypeError(f"{name}: expected a floating dtype, got {x.dtype}")
        if x.dtype != query.dtype:
            raise TypeError(f"{name}: expected query's dtype {query.dtype}, got {x.dtype}")
        if x.device != query.device:
            raise TypeError(f"{name}: expected query's device {query.device}, got {x.device}")
        if x.dim() != query.dim():
            raise ValueError(f"{name}: expected as many axes as query has ({query.dim()}), got shape {tuple(x.shape)}")


def _share_heads(query: Tensor, x: Tensor, name: str, enable_gqa: bool) -> Tensor:
    """Heads of key or value as torch reads them: equal, one for all, or with enable_gqa a divisor."""
    heads, wanted = x.shape[-3], query.shape[-3]
    if heads == wanted or heads == 1:
        return x
    if not enable_gqa:
        raise ValueError(f"{name}: expected {wanted} heads as query has, got {heads} (enable_gqa=True lets query heads share them)")
    if heads == 0 or wanted % heads != 0:
        raise ValueError(f"{name}: expected a number of heads that divides query's {wanted}, got {heads}")
    return x


def _same_heads(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """key and value may have different numbers of heads, one of them 1."""
    if key.shape[-3] == value.shape[-3]:
        return key, value
    heads = max(key.shape[-3], value.shape[-3])
    expand = [x.expand(*x.shape[:-3], heads, *x.shape[-2:]) if x.shape[-3] == 1 else x for x in (key, value)]
    if expand[0].shape[-3] != expand[1].shape[-3]:
        raise ValueError(f"value: expected {key.shape[-3]} heads as key has, got {value.shape[-3]}")
    return expand[0], expand[1]


def _flat_batch(x: Tensor, batch: tuple) -> Tensor:
    """[..., H, L, E] with leading axes broadcast to `batch`, as [B, H, L, E]; without a copy where the strides allow."""
    return x.expand(*batch, *x.shape[-3:]).reshape(-1, *x.shape[-3:]) if x.shape[:-3] != batch or len(batch) != 1 else x


def _flat_mask(mask: Tensor, batch: tuple) -> Tensor:
    if mask.dim() <= 3 or len(batch) == 1:
        return mask
    return mask.expand(*batch, *mask.shape[-3:]).reshape(-1, *mask.shape[-3:])


def _as_four_axes(query: Tensor, key: Tensor, value: Tensor, attn_mask: Optional[Tensor], enable_gqa: bool) -> tuple:
    """All of them with axes [B, H, L, E]; the mask right-aligned broadcast to [B, H, L, S]."""
    if query.dim() <= 3:
        lead = (None,) * (4 - query.dim())
        query, key, value = query[lead], key[lead], value[lead]
    key, value = (_share_heads(query, x, name, enable_gqa) for x, name in ((key, "key"), (value, "value")))
    key, value = _same_heads(key, value)
    try:
        batch = tuple(torch.broadcast_shapes(query.shape[:-3], key.shape[:-3], value.shape[:-3]))
        mask = None if attn_mask is None else _flat_mask(attn_mask, batch)
    except RuntimeError as error:
        raise ValueError(f"query, key, value, attn_mask: their batch axes do not fit: {error}") from None
    return tuple(_flat_batch(x, batch) for x in (query, key, value)) + (mask,)


def _check_mask(mask: Tensor, query: Tensor) -> None:
    check_tensor(mask, "attn_mask")
    if mask.dtype != torch.bool and mask.dtype != query.dtype and mask.dtype != torch.float32:
        raise TypeError(f"attn_mask: expected bool, float32 or query's dtype {query.dtype}, got {mask.dtype}")


def _autocast(query: Tensor, key: Tensor, value: Tensor, mask: Any) -> tuple:
    """Under torch.autocast the operands meet in its type, as torch's own function has it."""
    dtype = torch.get_autocast_dtype("cpu")
    cast = [x.to(dtype) if isinstance(x, Tensor) and x.dtype == torch.float32 else x for x in (query, key, value)]
    return (*cast, mask)


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
    Works in torch.compile (as one operator), torch.func.vmap, autograd; second derivatives are an error.
    Raises ValueError or TypeError naming the argument.

    >>> import torch, heed.torch
    >>> q, k, v = (torch.randn(2, 8, 5, 64) for _ in range(3))
    >>> ours = heed.torch.scaled_dot_product_attention(q, k, v, is_causal=True)
    >>> bool(torch.allclose(ours, torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True), atol=1e-5))
    True
    """
    if torch.is_autocast_enabled("cpu"):
        query, key, value, attn_mask = _autocast(query, key, value, attn_mask)
    is_usual = _is_usual(query, key, value, enable_gqa)
    if not is_usual:
        _check_call(query, key, value)
    if is_causal and attn_mask is not None:
        raise ValueError("attn_mask: expected None, because is_causal is set")
    if not 0.0 <= dropout_p < 1.0:
        raise ValueError(f"dropout_p: expected a number in [0, 1), got {dropout_p}")
    align, mask = "top_left", _CAUSAL if is_causal else None
    if isinstance(attn_mask, CausalBias):  # before anybody reads the memory that it does not have
        align = "bottom_right" if attn_mask.variant == CausalVariant.LOWER_RIGHT else "top_left"
        attn_mask, mask = None, _CAUSAL
    if attn_mask is not None:
        _check_mask(attn_mask, query)
    q, k, v, bias = query, key, value, attn_mask
    if not is_usual:
        q, k, v, bias = _as_four_axes(query, key, value, attn_mask, enable_gqa)
    if is_direct(query, key, value, attn_mask):
        if bias is not None and bias.dtype == torch.bool:
            # As bits of a Mask: one pass over the tensor, then whole tiles are skipped. As a bias it would be read once per head.
            mask, bias = _core.Mask.from_array(direct.raw(bias)), None
        settings = Settings(mask, align, scale, None, None, None, None, dropout_p, seed_of(dropout_p, None), "BHLD")
        out = dispatch(q, k, v, bias, None, settings, False)[0]
    else:
        out = traced(q, k, v, bias, None, None, "" if mask is None else "causal", align, scale, None, dropout_p, None, "BHLD")[0]
    if is_usual:
        return out
    if query.dim() <= 3:
        return out.reshape(out.shape[4 - query.dim() :])
    batch = torch.broadcast_shapes(query.shape[:-3], key.shape[:-3], value.shape[:-3])
    return out.reshape(*batch, *out.shape[1:])


def _can_take(query: Any, key: Any, value: Any, attn_mask: Any) -> bool:
    tensors = [x for x in (query, key, value) if isinstance(x, Tensor)]
    if len(tensors) != 3 or any(x.device.type != "cpu" or x.dtype not in _FLOATING or x.is_nested for x in tensors):
        return False
    return attn_mask is None or isinstance(attn_mask, CausalBias) or attn_mask.dtype in (torch.bool, torch.float32, query.dtype)


@contextlib.contextmanager
def patched() -> Iterator[None]:
    """While it is active, torch.nn.functional.scaled_dot_product_attention is heed's; also a decorator.

    What heed does not do (other devices, nested tensors) goes to torch's own. The change is seen by all threads, and by code that
    looks the function up in torch.nn.functional (not by what imported the function itself before).

    >>> import torch, heed.torch
    >>> layer = torch.nn.MultiheadAttention(16, 4, batch_first=True)
    >>> x = torch.randn(1, 6, 16)
    >>> with heed.torch.patched():
    ...     layer(x, x, x, need_weights=False)[0].shape
    torch.Size([1, 6, 16])
    """
    functional = torch.nn.functional
    original = functional.scaled_dot_product_attention

    @functools.wraps(original)
    def ours(query: Any, key: Any, value: Any, attn_mask: Any = None, *args: Any, **options: Any) -> Tensor:
        if _can_take(query, key, value, attn_mask):
            return scaled_dot_product_attention(query, key, value, attn_mask, *args, **options)
        return original(query, key, value, attn_mask, *args, **options)

    functional.scaled_dot_product_attention = ours
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = original
