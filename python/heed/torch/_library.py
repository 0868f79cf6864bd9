# SPDX-License-Identifier: Apache-2.0
"""The same attention as torch.library operators, for whatever traces calls: torch.compile, torch.func, fake tensors.

Masks cross as text (heed.Mask.parse) or as a boolean tensor in the place of the bias; seeds as a tensor, so that a compiled graph draws anew.
"""

from __future__ import annotations

from typing import Any, Callable, Optional, Sequence

import torch

from heed import _core
from heed.torch import _autograd as direct
from heed.torch._attention import both
from heed.torch._autograd import Settings

Tensor = torch.Tensor


@torch.compiler.disable
def untraced(function: Callable, *arguments: Any, **options: Any) -> Any:
    """A call that no graph can hold: torch.compile breaks its graph here."""
    return function(*arguments, **options)


def _settings(
    bias: Optional[Tensor], slopes: Optional[Tensor], mask: str, align: str, scale: Optional[float], softcap: Optional[float], dropout_p: float,
    seed: Optional[Tensor], layout: str,
) -> tuple[Optional[Tensor], Settings]:  # fmt: skip
    """The bias that adds, and the rest."""
    parsed = _core.Mask.parse(mask) if mask else None
    if bias is not None and bias.dtype == torch.bool:
        parsed, bias = both(parsed, _core.Mask.from_array(bias)), None
    number = 0 if seed is None else int(seed)
    return bias, Settings(parsed, align, scale, softcap, slopes, None, None, dropout_p, number, layout)


@torch.library.custom_op("heed::attention", mutates_args=())
def attention_op(
    q: Tensor, k: Tensor, v: Tensor, bias: Optional[Tensor], sinks: Optional[Tensor], slopes: Optional[Tensor], mask: str, align: str,
    scale: Optional[float], softcap: Optional[float], dropout_p: float, seed: Optional[Tensor], layout: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    added, settings = _settings(bias, slopes, mask, align, scale, softcap, dropout_p, seed, layout)
    lse = direct.empty_lse(q, layout)
    return direct.forward(q, k, v, added, sinks, settings, lse), lse


@attention_op.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, bias: Any, sinks: Any, slopes: Any, mask: str, align: str, scale: Any, softcap: Any, dropout_p: float,
      seed: Any, layout: str) -> tuple[Tensor, Tensor]:  # fmt: skip
    return direct.empty_out(q, v.shape[-1]), direct.empty_lse(q, layout)


@torch.library.custom_op("heed::attention_backward", mutates_args=())
def backward_op(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, bias: Optional[Tensor], sinks: Optional[Tensor],
    slopes: Optional[Tensor], mask: str, align: str, scale: Optional[float], softcap: Optional[float], dropout_p: float, seed: Optional[Tensor],
    layout: str, wants_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    added, settings = _settings(bias, slopes, mask, align, scale, softcap, dropout_p, seed, layout)
    dq, dk, dv, dbias, dsinks = direct.backward(dout, q, k, v, out, lse, added, sinks, wants_bias, settings)
    return dq, dk, dv, q.new_empty(0) if dbias is None else dbias, q.new_empty(0) if dsinks is None else dsinks


@backward_op.register_fake
def _(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, bias: Any, sinks: Any, slopes: Any, mask: str, align: str,
      scale: Any, softcap: Any, dropout_p: float, seed: Any, layout: str, wants_bias: bool) -> tuple:  # fmt: skip
    dbias = torch.empty_like(bias, memory_format=torch.contiguous_format) if wants_bias else q.new_empty(0)
    dsinks = q.new_empty(0) if sinks is None else torch.empty_like(sinks)
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), dbias, dsinks


def _setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
    q, k, v, bias, sinks, slopes, *settings = inputs
    mask, align, scale, softcap, dropout_p, seed, layout = settings
    ctx.save_for_backward(q, k, v, *output, bias, sinks, slopes, seed)
    ctx.settings = mask, align, scale, softcap, dropout_p, layout
    ctx.mark_non_differentiable(output[1])


def _backward(ctx: Any, dout: Tensor, dlse: Any, call: Callable = backward_op) -> tuple:
    q, k, v, out, lse, bias, sinks, slopes, seed = ctx.saved_tensors
    mask, align, scale, softcap, dropout_p, layout = ctx.settings
    wants_bias = bias is not None and ctx.needs_input_grad[3]
    dq, dk, dv, dbias, dsinks = call(
        dout, q, k, v, out, lse, bias, sinks, slopes, mask, align, scale, softcap, dropout_p, seed, layout, wants_bias
    )
    return (dq, dk, dv, dbias if wants_bias else None, None if sinks is None else dsinks, *([None] * 8))


attention_op.register_autograd(_backward, setup_context=_setup_context)


class _TransformedBackward(torch.autograd.Function):
    """backward_op under torch.func's transforms."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*arguments: Any) -> tuple:
        return backward_op(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        pass

    backward = staticmethod(direct.refuse_second)


class Transformed(torch.autograd.Function):
    """attention_op under torch.func's transforms, in which an operator's own autograd takes no part."""

    generate_vmap_rule = True
    setup_context = staticmethod(_setup_context)

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, Tensor]:
        return attention_op(*arguments)

    @staticmethod
    def backward(ctx: Any, dout: Tensor, dlse: Any) -> tuple:
        return _backward(ctx, dout, dlse, _TransformedBackward.apply)


def _is_plain_batch(in_dims: Sequence, args: Sequence) -> bool:
    """Only q, k and v are batched, and nothing tells batch entries apart."""
    return args[3] is None and all(dim is None for dim in in_dims[3:]) and args[10] == 0.0


@torch.library.register_vmap("heed::attention")
def _(info: Any, in_dims: Sequence, *args: Any) -> tuple:
    n = info.batch_size
    if not _is_plain_batch(in_dims, args) or (args[5] is not None and args[5].dim() > 1):
        return direct.one_by_one(attention_op, info, in_dims, args)
    moved = [x.expand(n, *x.shape) if dim is None else x.movedim(dim, 0) for x, dim in zip(args[:3], in_dims)]
    batch = moved[0].shape[1]
    out, lse = attention_op(*(x.reshape(n * batch, *x.shape[2:]) for x in moved), *args[3:])
    return (out.reshape(n, batch, *out.shape[1:]), lse.reshape(n, batch, *lse.shape[1:])), (0, 0)


@torch.library.register_vmap("heed::attention_backward")
def _(info: Any, in_dims: Sequence, *args: Any) -> tuple:
    return direct.one_by_one(backward_op, info, in_dims, args)
