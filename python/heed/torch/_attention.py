# SPDX-License-Identifier: Apache-2.0
"""heed.torch.attention: everything that heed.attention has, with gradients."""

from __future__ import annotations

from typing import Any, Optional, Sequence, Union

import torch
from torch.autograd import forward_ad

from heed import _core
from heed.torch import _autograd as direct
from heed.torch._autograd import Settings

Tensor = torch.Tensor
Parameter = torch.nn.Parameter
_is_compiling = torch.compiler.is_compiling
_dispatch_modes = torch._C._len_torch_dispatch_stack
_functorch_level = torch._C._functorch.peek_interpreter_stack
_is_recording = torch._C._is_tracing
MaskLike = Union[_core.Mask, str, None]


def is_direct(*tensors: Optional[Tensor]) -> bool:
    """Whether nobody watches this call: no compiler, no functorch transform, no dispatch mode, no torch.jit.trace, no tensor subclass."""
    if _is_compiling() or _dispatch_modes() > 0 or _functorch_level() is not None or _is_recording():
        return False
    for x in tensors:
        if x is not None and ((type(x) is not Tensor and type(x) is not Parameter) or not x.is_cpu):
            return False
    return True


def check_tensor(x: Any, name: str, rank: Optional[int] = None) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name}: expected a torch.Tensor, got {type(x).__name__}")
    if x.device.type not in ("cpu", "meta"):
        raise TypeError(f"{name}: expected a tensor on the CPU, got one on {x.device}")
    if x.dtype not in direct.DTYPE_NAMES:
        raise TypeError(f"{name}: dtype {x.dtype} is not supported")
    if x.layout != torch.strided:
        raise TypeError(f"{name}: expected a strided tensor, got {x.layout}")
    if rank is not None and x.dim() != rank:
        raise ValueError(f"{name}: expected {rank} axes, got shape {tuple(x.shape)}")


def wants_gradients(*tensors: Optional[Tensor]) -> bool:
    if torch.is_grad_enabled():
        for x in tensors:
            if x is not None and x.requires_grad:
                return True
    return False


def refuse_tangents(*tensors: Optional[Tensor]) -> None:
    """Forward-mode derivatives would be lost without a word."""
    if _is_compiling() or forward_ad._current_level < 0 or _functorch_level() is not None:  # torch.func.jvp is refused by torch itself
        return
    if any(x is not None and forward_ad.unpack_dual(x).tangent is not None for x in tensors):
        raise NotImplementedError("heed has no forward-mode derivatives: a tensor with a tangent was given")


def _without_gradient(x: Optional[Tensor], name: str) -> None:
    if x is not None and x.requires_grad and torch.is_grad_enabled():
        raise TypeError(f"{name}: has no gradient; pass {name}.detach()")


def _numbers(x: Any, name: str) -> Optional[Tensor]:
    """int64 of a number or a list."""
    if x is None or isinstance(x, Tensor):
        return x
    try:
        return torch.as_tensor(x, dtype=torch.int64).reshape(-1)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{name}: expected integers, got {type(x).__name__}") from error


def _parse_mask(mask: MaskLike) -> Optional[_core.Mask]:
    return _core.Mask.parse(mask) if isinstance(mask, str) else mask


def broadcasts(shape: Sequence[int], full: Sequence[int]) -> bool:
    """Whether an array of `shape` can stand for one of `full`; torch.broadcast_shapes would let it be larger."""
    return all(own == 1 or own == other for own, other in zip(reversed(shape), reversed(full)))


def _check_hiding(bias: Tensor, q: Tensor, k: Tensor, layout: str) -> None:
    """A boolean bias becomes a Mask, to which slots past its end are hidden slots, not an error."""
    tokens, heads = (2, 1) if layout == "BHLD" else (1, 2)
    slots = (q.shape[0], q.shape[heads], q.shape[tokens], k.shape[tokens])
    if not (2 <= bias.dim() <= 4 and broadcasts(bias.shape, slots)):
        raise ValueError(f"bias: expected a shape that broadcasts to [B, Hq, Lq, Lk] = {[*slots]}, got {tuple(bias.shape)}")


def both(a: Optional[_core.Mask], b: Optional[_core.Mask]) -> Optional[_core.Mask]:
    """What both let through."""
    return b if a is None else a if b is None else a & b


def _text_of(mask: MaskLike) -> str:
    if mask is None or isinstance(mask, str):
        return mask or ""
    text = str(mask)
    if "<" in text:
        raise TypeError("mask: a mask that holds arrays cannot be traced; pass attn_mask to heed.torch.scaled_dot_product_attention instead")
    return text


def seed_of(dropout_p: float, seed: Optional[int]) -> int:
    if dropout_p == 0.0:
        return 0
    return direct.draw_seed() if seed is None else seed


def dispatch(q: Tensor, k: Tensor, v: Tensor, bias: Optional[Tensor], sinks: Optional[Tensor], settings: Settings, wants_lse: bool) -> tuple:
    """(out, lse or None) of an eager call."""
    if wants_gradients(q, k, v, bias, sinks):
        return direct.Attention.apply(q, k, v, bias, sinks, settings)
    lse = direct.empty_lse(q, settings.layout) if wants_lse else None
    return direct.forward(q, k, v, bias, sinks, settings, lse), lse


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: MaskLike = None,
    align: str = "bottom_right",
    scale: Optional[float] = None,
    softcap: Optional[float] = None,
    bias: Optional[Tensor] = None,
    alibi_slopes: Optional[Tensor] = None,
    sink_logits: Optional[Tensor] = None,
    query_offset: Union[int, Tensor, None] = None,
    kv_lengths: Optional[Tensor] = None,
    dropout_p: float = 0.0,
    seed: Optional[int] = None,
    layout: str = "BLHD",
    return_lse: bool = False,
) -> Any:
    """`heed.attention` with gradients for q, k, v, bias and sink_logits, in training what FlexAttention refuses on CPUs.

    Arguments are those of `heed.attention`. `mask` may be a `heed.Mask` or its text. torch.compile takes text as part of one graph and
    breaks the graph at a `heed.Mask`, `query_offset` or `kv_lengths`; torch.func takes masks with a text form, and neither of the others.
    A boolean `bias` hides the slots where it is False. `seed` None draws one from torch's generator, so that torch.manual_seed repeats
    the dropout. lse has no gradient; neither have gradients (no second derivatives, no forward mode). Raises ValueError or TypeError
    naming the argument.

    >>> import torch, heed, heed.torch
    >>> q = torch.randn(1, 12, 4, 16, requires_grad=True)                          # [B, L, H, D]
    >>> k, v = (torch.randn(1, 12, 2, 16) for _ in range(2))
    >>> window = heed.Mask.causal() & heed.Mask.sliding_window(4)
    >>> heed.torch.attention(q, k, v, mask=window).square().sum().backward()
    >>> q.grad.shape
    torch.Size([1, 12, 4, 16])
    """
    if _is_compiling() and (isinstance(mask, _core.Mask) or query_offset is not None or kv_lengths is not None):
        from heed.torch._library import untraced

        return untraced(
            attention, q, k, v, mask=mask, align=align, scale=scale, softcap=softcap, bias=bias, alibi_slopes=alibi_slopes, sink_logits=sink_logits,
            query_offset=query_offset, kv_lengths=kv_lengths, dropout_p=dropout_p, seed=seed, layout=layout, return_lse=return_lse,
        )  # fmt: skip
    for x, name in ((q, "q"), (k, "k"), (v, "v")):
        check_tensor(x, name, 4)
    for x, name in ((bias, "bias"), (alibi_slopes, "alibi_slopes"), (sink_logits, "sink_logits")):
        if x is not None:
            check_tensor(x, name)
            if x.device != q.device:
                raise TypeError(f"{name}: expected q's device {q.device}, got {x.device}")
    _without_gradient(alibi_slopes, "alibi_slopes")
    refuse_tangents(q, k, v, bias, sink_logits)
    if bias is not None and bias.dtype == torch.bool:
        _check_hiding(bias, q, k, layout)
    if is_direct(q, k, v, bias, alibi_slopes, sink_logits):
        offsets, lengths = _numbers(query_offset, "query_offset"), _numbers(kv_lengths, "kv_lengths")
        number = seed_of(dropout_p, seed)
        parsed = _parse_mask(mask)
        if bias is not None and bias.dtype == torch.bool:
            parsed, bias = both(parsed, _core.Mask.from_array(bias)), None
        settings = Settings(parsed, align, scale, softcap, direct.settled(alibi_slopes), offsets, lengths, dropout_p, number, layout)
        out, lse = dispatch(q, k, v, bias, sink_logits, settings, return_lse)
    else:
        if query_offset is not None or kv_lengths is not None:
            raise TypeError("query_offset, kv_lengths: not supported inside torch.func and torch.jit.trace")
        out, lse = traced(q, k, v, bias, sink_logits, alibi_slopes, _text_of(mask), align, scale, softcap, dropout_p, seed, layout)
    return (out, lse) if return_lse else out


def traced(q: Tensor, k: Tensor, v: Tensor, bias: Optional[Tensor], sinks: Optional[Tensor], slopes: Optional[Tensor], mask: str, align: str,
           scale: Optional[float], softcap: Optional[float], dropout_p: float, seed: Optional[int], layout: str) -> tuple:  # fmt: skip
    from heed.torch._library import Transformed, attention_op

    number = None
    if dropout_p > 0.0:
        number = torch.randint(0, 2**63 - 1, (), dtype=torch.int64) if seed is None else torch.tensor(seed, dtype=torch.int64)
    call = Transformed.apply if not _is_compiling() and _functorch_level() is not None else attention_op
    return call(q, k, v, bias, sinks, slopes, mask, align, scale, softcap, dropout_p, number, layout)


def attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_offsets: Tensor,
    k_offsets: Tensor,
    *,
    mask: MaskLike = None,
    align: str = "bottom_right",
    scale: Optional[float] = None,
    softcap: Optional[float] = None,
    alibi_slopes: Optional[Tensor] = None,
    sink_logits: Optional[Tensor] = None,
    kv_lengths: Optional[Tensor] = None,
    dropout_p: float = 0.0,
    seed: Optional[int] = None,
    return_lse: bool = False,
) -> Any:
    """`heed.attention_varlen` with gradients for q, k, v and sink_logits: q [Tq, Hq, D], k [Tk, Hkv, D], v [Tk, Hkv, Dv], offsets [S + 1].

    >>> import torch, heed.torch
    >>> q = torch.randn(10, 4, 16, requires_grad=True)
    >>> offsets = torch.tensor([0, 3, 10])
    >>> out = heed.torch.attention_varlen(q, q.detach(), q.detach(), offsets, offsets, mask="causal")
    >>> out.sum().backward()
    >>> q.grad.shape
    torch.Size([10, 4, 16])
    """
    if _is_compiling():
        from heed.torch._library import untraced

        return untraced(
            attention_varlen, q, k, v, q_offsets, k_offsets, mask=mask, align=align, scale=scale, softcap=softcap, alibi_slopes=alibi_slopes,
            sink_logits=sink_logits, kv_lengths=kv_lengths, dropout_p=dropout_p, seed=seed, return_lse=return_lse,
        )  # fmt: skip
    for x, name in ((q, "q"), (k, "k"), (v, "v")):
        check_tensor(x, name, 3)
    for x, name in ((q_offsets, "q_offsets"), (k_offsets, "k_offsets")):
        check_tensor(x, name, 1)
    refuse_tangents(q, k, v, sink_logits)
    _without_gradient(alibi_slopes, "alibi_slopes")
    lengths, number = _numbers(kv_lengths, "kv_lengths"), seed_of(dropout_p, seed)
    settings = Settings(_parse_mask(mask), align, scale, softcap, direct.settled(alibi_slopes), None, lengths, dropout_p, number)
    out, lse = direct.VarlenAttention.apply(q, k, v, sink_logits, q_offsets, k_offsets, settings)
    return (out, lse) if return_lse else out
