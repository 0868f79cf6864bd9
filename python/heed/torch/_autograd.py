# SPDX-License-Identifier: Apache-2.0
"""Attention with gradients: the direct path of eager calls. Everything that heed.torch offers ends here or in _library.py."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Optional, Sequence

import torch

from heed import _core
from heed._arrays import TorchArrays

Tensor = torch.Tensor
_functorch_level = torch._C._functorch.peek_interpreter_stack

DTYPE_NAMES = {
    torch.float32: "float32",
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
    torch.float64: "float64",
    torch.bool: "bool",
    torch.int32: "int32",
    torch.int64: "int64",
}


class Settings(NamedTuple):
    """What a call needs beside the tensors that have gradients."""

    mask: Optional[_core.Mask] = None
    align: str = "bottom_right"
    scale: Optional[float] = None
    softcap: Optional[float] = None
    alibi_slopes: Optional[Tensor] = None
    query_offset: Optional[Tensor] = None
    kv_lengths: Optional[Tensor] = None
    dropout_p: float = 0.0
    seed: int = 0
    layout: str = "BHLD"


def raw(x: Optional[Tensor]) -> Optional[tuple]:
    """What heed._core reads; the tensor must outlive the call. KeyError for a type that heed does not have."""
    return x if x is None else (x.data_ptr(), DTYPE_NAMES[x.dtype], x.shape, x.stride())


def refuse_legacy_vmap(dout: Tensor) -> None:
    """torch.autograd.grad(is_grads_batched=True) runs a vmap of its own, older than torch.func's, whose tensors have no memory to read."""
    if torch._C._functorch.is_legacy_batchedtensor(dout):
        raise RuntimeError("heed has no gradients under is_grads_batched=True (jacobian(vectorize=True)); torch.func.vmap and jacrev have them")


def refuse_recording() -> None:
    """torch.jit.trace records what torch's own operators do: of a direct call the empty memory that the result is written to, and no more."""
    if torch._C._is_tracing():
        raise RuntimeError("heed: torch.jit.trace cannot record this call; it can record heed.torch.attention and scaled_dot_product_attention")


def settled(x: Optional[Tensor]) -> Optional[Tensor]:
    """With memory that holds the values: torch puts a sign off (the imaginary part of a conjugate), and only its own operators know."""
    return x.resolve_neg() if x is not None and x.is_neg() else x


def pack(s: Settings, bias: Optional[Tensor], sinks: Optional[Tensor]) -> tuple:
    mask, align, scale, softcap, slopes, offset, lengths, dropout_p, seed, _ = s
    return (
        mask, align, scale, softcap, bias if bias is None else raw(bias), slopes if slopes is None else raw(slopes),
        sinks if sinks is None else raw(sinks), offset if offset is None else raw(offset), lengths if lengths is None else raw(lengths),
        dropout_p, seed,
    )  # fmt: skip


def empty_out(q: Tensor, value_dim: int) -> Tensor:
    """Axes in memory in the order of q's, so that a transposed view of [B, L, H, D] gives one again."""
    return torch.empty_like(q) if q.shape[-1] == value_dim else TorchArrays.empty(q, (*q.shape[:-1], value_dim))


def empty_lse(q: Tensor, layout: str) -> Tensor:
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    if layout == "varlen":
        return q.new_empty((q.shape[1], q.shape[0]), dtype=dtype)
    tokens, heads = (2, 1) if layout == "BHLD" else (1, 2)
    return q.new_empty((q.shape[0], q.shape[heads], q.shape[tokens]), dtype=dtype)


def forward(q: Tensor, k: Tensor, v: Tensor, bias: Optional[Tensor], sinks: Optional[Tensor], s: Settings, lse: Optional[Tensor]) -> Tensor:
    q, k, v, bias, sinks = settled(q), settled(k), settled(v), settled(bias), settled(sinks)
    out = empty_out(q, v.shape[3])
    _core.attention_into(raw(out), raw(lse), raw(q), raw(k), raw(v), pack(s, bias, sinks), s.layout)
    return out


def backward(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, bias: Optional[Tensor], sinks: Optional[Tensor],
             wants_bias: bool, s: Settings) -> tuple:  # fmt: skip
    dout, q, k, v, bias, sinks = settled(dout), settled(q), settled(k), settled(v), settled(bias), settled(sinks)
    grads = [torch.empty_like(x) for x in (q, k, v)]
    dbias = torch.empty_like(bias, memory_format=torch.contiguous_format) if bias is not None and wants_bias else None
    dsinks = None if sinks is None else torch.empty_like(sinks)
    gradients = (*(raw(g) for g in grads), raw(dbias), raw(dsinks))
    _core.attention_backward_into(gradients, raw(dout), raw(q), raw(k), raw(v), raw(out), raw(lse), pack(s, bias, sinks), s.layout)
    return (*grads, dbias, dsinks)


def refuse_second(ctx: Any, *gradients: Any) -> Any:
    raise RuntimeError("heed has no second derivatives: attention was differentiated twice")


class _First(torch.autograd.Function):
    """A gradient that has none of its own: it hangs on the inputs, so that whoever asks is told."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, *inputs: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    backward = staticmethod(refuse_second)


def _first_only(gradients: tuple, *inputs: Tensor) -> tuple:
    """As they are, unless a graph of the backward pass is made (create_graph=True)."""
    if not torch.is_grad_enabled():
        return gradients
    return tuple(g if g is None else _First.apply(g, *inputs) for g in gradients)


def one_by_one(call: Callable, info: Any, in_dims: Sequence, inputs: Sequence) -> tuple:
    """vmap as a loop over calls: every option may differ from entry to entry."""
    parts = [call(*(x.select(d, i) if isinstance(d, int) else x for x, d in zip(inputs, in_dims))) for i in range(info.batch_size)]
    results = tuple(torch.stack(part) for part in zip(*parts))
    return results, (0,) * len(results)


class _OneByOne(torch.autograd.Function):
    """`backward` under torch.func.vmap, where the graph was made outside of it: many output gradients at once."""

    @staticmethod
    def forward(*inputs: Any) -> tuple:
        return tuple(g for g in backward(*inputs) if g is not None)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: tuple, *inputs: Any) -> tuple:
        return one_by_one(_OneByOne.apply, info, in_dims, inputs)


def _unbatched(inputs: tuple) -> tuple:
    """(dq, dk, dv, dbias, dsinks) under torch.func.vmap; the two that a call does not have are None."""
    found = iter(_OneByOne.apply(*inputs))
    bias, sinks, wants_bias = inputs[6], inputs[7], inputs[8]
    return next(found), next(found), next(found), next(found) if bias is not None and wants_bias else None, None if sinks is None else next(found)


class Attention(torch.autograd.Function):
    """(out, lse) of q, k, v, bias and sink logits; lse has no gradient, and gradients have none."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Optional[Tensor], sinks: Optional[Tensor], s: Settings) -> tuple[Tensor, Tensor]:
        lse = empty_lse(q, s.layout)
        out = forward(q, k, v, bias, sinks, s, lse)
        ctx.save_for_backward(q, k, v, out, lse, bias, sinks)
        ctx.settings = s
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx: Any, dout: Tensor, dlse: Any) -> tuple:
        refuse_legacy_vmap(dout)
        inputs = (dout, *ctx.saved_tensors, ctx.needs_input_grad[3], ctx.settings)
        gradients = backward(*inputs) if _functorch_level() is None else _unbatched(inputs)
        return (*_first_only(gradients, *inputs[:4]), None)


class VarlenAttention(torch.autograd.Function):
    """The same for packed sequences: q [Tq, Hq, D], offsets [S + 1]."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, sinks: Optional[Tensor], q_offsets: Tensor, k_offsets: Tensor,
                s: Settings) -> tuple[Tensor, Tensor]:  # fmt: skip
        refuse_recording()
        q, k, v, sinks = settled(q), settled(k), settled(v), settled(sinks)
        out, lse = empty_out(q, v.shape[2]), empty_lse(q, "varlen")
        _core.attention_varlen_into(raw(out), raw(lse), raw(q), raw(k), raw(v), raw(q_offsets), raw(k_offsets), pack(s, None, sinks))
        ctx.save_for_backward(q, k, v, out, lse, sinks, q_offsets, k_offsets)
        ctx.settings = s
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx: Any, dout: Tensor, dlse: Any) -> tuple:
        q, k, v, out, lse, sinks, q_offsets, k_offsets = ctx.saved_tensors
        refuse_legacy_vmap(dout)
        dout = settled(dout)
        grads = [torch.empty_like(x) for x in (q, k, v)]
        dsinks = None if sinks is None else torch.empty_like(sinks)
        gradients = (*(raw(g) for g in grads), None, raw(dsinks))
        inputs = (raw(x) for x in (dout, q, k, v, out, lse, q_offsets, k_offsets))
        _core.attention_varlen_backward_into(gradients, *inputs, pack(ctx.settings, None, sinks))
        return (*_first_only((*grads, dsinks), dout, q, k, v), None, None, None)


def draw_seed() -> int:
    """From torch's default generator, so that torch.manual_seed repeats the dropout."""
    return int(torch.empty((), dtype=torch.int64).random_())
