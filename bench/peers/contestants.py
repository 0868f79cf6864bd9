# SPDX-License-Identifier: Apache-2.0
"""Who computes a case: heed, torch's SDPA, FlexAttention, ONNX Runtime, and the formula written down.

Each gets the same numbers, in memory of its own layout.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from typing import Any, Callable

import numpy as np
import torch
import torch.nn.functional

import heed
import heed.torch
from peers.cases import WINDOW, Case
from peers.gqa_model import gqa_model

PEERS = ("torch", "flex", "onnxruntime", "naive")
_LEAST_CACHES, _MOST_CACHES = 1 << 30, 4 << 30  # bytes of all caches of a decode case
_MOST_SCORES = 1 << 30  # bytes; the naive formula holds about three times as much

Call = Callable[[int], Any]
"""Computes the case on the i-th set of inputs (decode: cache i), and returns [B, H, L, D] or a tuple of such gradients."""

_IN_OTHER_ROW = "it is in the row decode GQA"


class Absent(Exception):
    """Why a peer takes no part in a case."""


@dataclass
class Prepared:
    calls: dict[str, Call]
    absent: dict[str, str]
    sets: int  # of inputs that are walked over in turn
    read: Callable[[int], np.ndarray] | None = None  # decode: the bytes of cache i, for the yardstick
    keep: list = field(default_factory=list)


@dataclass
class Inputs:
    q: torch.Tensor
    k: list[torch.Tensor]
    v: list[torch.Tensor]
    memory: torch.Tensor | None = None  # decode: [caches, 2, B, Hkv, Lk, D]
    dout: torch.Tensor | None = None
    truth: tuple | None = None  # of the first set, float64; the checked rows of it
    rows: torch.Tensor | None = None  # which queries are checked


def last_level_cache() -> int:
    """Bytes; 64 MB where the system does not say."""
    size = max((os.sysconf(name) for name in ("SC_LEVEL3_CACHE_SIZE", "SC_LEVEL2_CACHE_SIZE") if name in os.sysconf_names), default=0)
    return size if size > 0 else 64 << 20


def number_of_caches(case: Case) -> int:
    """More than the last level of cache can hold: at least four times that, as far as 4 GB and half of the free memory allow."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    size = min(max(4 * last_level_cache(), _LEAST_CACHES), _MOST_CACHES, free // 2)
    return max(1, math.ceil(size / case.cache_bytes))


def make_inputs(case: Case, seed: int = 0) -> Inputs:
    generator = torch.Generator().manual_seed(seed)
    dtype = getattr(torch, case.dtype)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    q_shape = (case.batch, case.q_heads, case.q_length, case.head_dim)
    k_shape = (case.batch, case.kv_heads, case.k_length, case.head_dim)
    q = normal(*q_shape)
    if case.kind != "decode":
        dout = normal(*q_shape) if case.kind == "backward" else None
        return Inputs(q, [normal(*k_shape)], [normal(*k_shape)], dout=dout)
    memory = torch.empty((number_of_caches(case), 2, *k_shape), dtype=dtype)
    memory[0] = normal(2, *k_shape)
    for index in range(1, len(memory)):
        memory[index] = memory[0]
    return Inputs(q, [pair[0] for pair in memory], [pair[1] for pair in memory], memory)


def visible(case: Case, queries: torch.Tensor) -> torch.Tensor | None:
    """What the queries may look at, [queries, Lk]; None is everything."""
    if case.mask == "none":
        return None
    i, j = queries[:, None], torch.arange(case.k_length)[None, :]
    return (j <= i) & (i - j < WINDOW) if case.mask == "window" else j <= i


def _differentiate(forward: Callable[..., torch.Tensor], inputs: Inputs) -> Call:
    """The backward alone: one forward's graph is kept, and differentiated in every call."""
    arguments = [x.detach().clone().requires_grad_() for x in (inputs.q, inputs.k[0], inputs.v[0])]
    out = forward(*arguments)
    return lambda _: torch.autograd.grad(out, arguments, inputs.dout, retain_graph=True)


def heed_call(case: Case, inputs: Inputs) -> Call:
    """The drop-in of the same signature; `heed.torch.attention` for the window, which that signature cannot say."""
    sdpa, is_causal = heed.torch.scaled_dot_product_attention, case.mask == "causal"
    if case.mask == "window":
        window = heed.Mask.sliding_window(WINDOW)
        return lambda i: heed.torch.attention(inputs.q, inputs.k[i], inputs.v[i], mask=window, layout="BHLD")
    if case.kind == "backward":
        return _differentiate(lambda q, k, v: sdpa(q, k, v, is_causal=is_causal), inputs)
    enable_gqa = case.q_heads != case.kv_heads
    return lambda i: sdpa(inputs.q, inputs.k[i], inputs.v[i], is_causal=is_causal, enable_gqa=enable_gqa)


def torch_call(case: Case, inputs: Inputs, threads: int) -> Call:
    sdpa, is_causal = torch.nn.functional.scaled_dot_product_attention, case.mask == "causal"
    if case.kind == "backward":
        return _differentiate(lambda q, k, v: sdpa(q, k, v, is_causal=is_causal), inputs)
    if case.mask == "window":
        mask = visible(case, torch.arange(case.q_length))
        return lambda i: sdpa(inputs.q, inputs.k[i], inputs.v[i], attn_mask=mask)
    groups = case.q_heads // case.kv_heads
    if case.torch_groups == "folded":  # one query: its heads of a group see the same keys, so they may be that many rows of one head
        rows = inputs.q.view(case.batch, case.kv_heads, groups, case.head_dim)
        return lambda i: sdpa(rows, inputs.k[i], inputs.v[i]).view_as(inputs.q)
    if case.torch_groups == "repeated":  # what models do that bring a mask (transformers' repeat_kv)
        return lambda i: sdpa(inputs.q, *(x[i].repeat_interleave(groups, dim=1) for x in (inputs.k, inputs.v)))
    enable_gqa = case.q_heads != case.kv_heads
    return lambda i: sdpa(inputs.q, inputs.k[i], inputs.v[i], is_causal=is_causal, enable_gqa=enable_gqa)


def flex_call(case: Case, inputs: Inputs, threads: int) -> Call:
    """FlexAttention under torch.compile; the number of threads is compiled in, so each gets its own compilation."""
    if case.kind == "backward":
        raise Absent("FlexAttention has no backward on CPUs")
    if case.torch_groups != "enable_gqa" or case.is_short or case.k_length < 128:
        raise Absent("not compiled for this case, to save minutes")
    import torch._inductor.config
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch._dynamo.reset()
    torch._inductor.config.cpp.threads = threads
    rules = {"causal": lambda b, h, i, j: i >= j, "window": lambda b, h, i, j: (i >= j) & (i - j < WINDOW)}
    block_mask = None
    if case.mask in rules:
        block_mask = create_block_mask(rules[case.mask], None, None, case.q_length, case.k_length, device="cpu")
    compiled = torch.compile(flex_attention, dynamic=False)
    enable_gqa = case.q_heads != case.kv_heads

    def call(i: int) -> torch.Tensor:
        return compiled(inputs.q, inputs.k[i], inputs.v[i], block_mask=block_mask, enable_gqa=enable_gqa)

    call(0)
    return call


def onnxruntime_call(case: Case, inputs: Inputs, threads: int) -> Call:
    """GroupQueryAttention with one buffer for past and present keys, read and written in place."""
    if case.dtype != "float32":
        raise Absent("its GroupQueryAttention has no bfloat16 on CPUs")
    if case.kind == "backward":
        raise Absent("it has no backward")
    if case.mask == "none" and case.kind != "decode":
        raise Absent("its GroupQueryAttention is always causal")
    if case.torch_groups != "enable_gqa":
        raise Absent(_IN_OTHER_ROW)
    try:
        import onnxruntime
    except ImportError as error:
        raise Absent(f"onnxruntime is not installed: {error}") from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.force_spinning_stop", "1")  # its own threads let go of the cores when a run ends
    model = gqa_model(case.q_heads, case.kv_heads, case.head_dim, WINDOW if case.mask == "window" else None)
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    out = torch.empty((case.batch, case.q_length, case.q_heads * case.head_dim))
    keep = [_bind(session, case, inputs, i, out) for i in range(len(inputs.k))]

    def call(i: int) -> torch.Tensor:
        session.run_with_iobinding(keep[i][0])
        return out.view(case.batch, case.q_length, case.q_heads, case.head_dim).transpose(1, 2)

    return call


def _bind(session: Any, case: Case, inputs: Inputs, i: int, out: torch.Tensor) -> tuple:
    """A decode step brings the last token's key and value and finds the others in cache i; a prefill brings all."""

    def tokens(x: torch.Tensor, heads: int) -> torch.Tensor:  # [B, H, L, D] -> the last q_length ones, [B, L, H * D]
        return x[:, :, -case.q_length :].transpose(1, 2).reshape(case.batch, case.q_length, heads * case.head_dim).contiguous()

    k_cache, v_cache = (x[i] if case.kind == "decode" else torch.empty_like(x[i]) for x in (inputs.k, inputs.v))
    feeds = {
        "q": tokens(inputs.q, case.q_heads),
        "k": tokens(inputs.k[i], case.kv_heads),
        "v": tokens(inputs.v[i], case.kv_heads),
        "past_key": k_cache,
        "past_value": v_cache,
        "seqlens_k": torch.full((case.batch,), case.k_length - 1, dtype=torch.int32),
        "total": torch.full((1,), case.k_length, dtype=torch.int32),
    }
    binding = session.io_binding()
    for name, x in feeds.items():
        binding.bind_input(name, "cpu", 0, np.int32 if x.dtype == torch.int32 else np.float32, list(x.shape), x.data_ptr())
    for name, x in (("out", out), ("present_key", k_cache), ("present_value", v_cache)):
        binding.bind_output(name, "cpu", 0, np.float32, list(x.shape), x.data_ptr())
    return binding, feeds


def naive_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, softmax: torch.dtype) -> torch.Tensor:
    """The formula, as models wrote it before there were kernels: groups expanded, every score in memory, softmax in a type of its own."""
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = (x.repeat_interleave(groups, dim=1) for x in (k, v))
    scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(q.shape[3])
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return torch.matmul(torch.softmax(scores, dim=-1, dtype=softmax).to(q.dtype), v)


def naive_call(case: Case, inputs: Inputs, threads: int) -> Call:
    if case.score_bytes > _MOST_SCORES:
        raise Absent(f"its scores alone would take {case.score_bytes / 1e9:.1f} GB")
    if case.torch_groups != "enable_gqa":
        raise Absent(_IN_OTHER_ROW)
    mask = visible(case, torch.arange(case.q_length))
    if case.kind == "backward":
        return _differentiate(lambda q, k, v: naive_attention(q, k, v, mask, torch.float32), inputs)
    return lambda i: naive_attention(inputs.q, inputs.k[i], inputs.v[i], mask, torch.float32)


MAKERS: dict[str, Callable[[Case, Inputs, int], Call]] = {
    "torch": torch_call,
    "flex": flex_call,
    "onnxruntime": onnxruntime_call,
    "naive": naive_call,
}


def prepare(case: Case, inputs: Inputs, threads: int, peers: tuple[str, ...]) -> Prepared:
    """heed first, then the peers that can take part; `absent` says why the others cannot."""
    prepared = Prepared({"heed": heed_call(case, inputs)}, {}, len(inputs.k))
    for peer in peers:
        try:
            prepared.calls[peer] = MAKERS[peer](case, inputs, threads)
        except Absent as reason:
            prepared.absent[peer] = str(reason)
        except Exception as error:  # a compiler that is missing, an operator that is: the others can still be compared
            if peer == "torch":
                raise
            prepared.absent[peer] = f"{type(error).__name__}: {str(error).splitlines()[0][:160]}" if str(error) else type(error).__name__
    if inputs.memory is not None:
        prepared.read = lambda i: inputs.memory[i].view(torch.float32).flatten().numpy()
    return prepared
