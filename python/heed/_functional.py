# SPDX-License-Identifier: Apache-2.0
"""heed's functions. They make the result arrays, name the options and document them; heed._core computes."""

from __future__ import annotations

import copyreg
import operator
from typing import Any, Callable, NamedTuple, Sequence

import numpy as np

from heed import _core
from heed._arrays import family_of, option, same_family

Mask = _core.Mask
KvView = _core.KvView


def _mask_of_text(text: str) -> Mask:
    return Mask.parse(text)


def _reduce_mask(mask: Mask) -> tuple:
    text = str(mask)
    if "<" in text:
        raise TypeError("cannot pickle a mask that holds arrays")
    return _mask_of_text, (text,)


copyreg.pickle(Mask, _reduce_mask)


def pack_options(
    mask: Mask | str | None = None,
    align: str = "bottom_right",
    scale: float | None = None,
    softcap: float | None = None,
    bias: Any = None,
    alibi_slopes: Any = None,
    sink_logits: Any = None,
    query_offset: Any = None,
    kv_lengths: Any = None,
    dropout_p: float = 0.0,
    seed: int = 0,
) -> tuple:
    """The options in the order in which heed._core takes them."""
    return (
        Mask.parse(mask) if isinstance(mask, str) else mask,
        align,
        scale,
        softcap,
        option(bias, "bias", np.float32),
        option(alibi_slopes, "alibi_slopes", np.float32),
        option(sink_logits, "sink_logits", np.float32),
        option(query_offset, "query_offset", np.int64),
        option(kv_lengths, "kv_lengths", np.int64),
        dropout_p,
        seed,
    )


def statistics_dtype(dtype: str) -> str:
    return "float64" if dtype == "float64" else "float32"


def check_rank(x: Any, name: str, axes: str) -> None:
    rank = len(axes.split(","))
    if len(x.shape) != rank:
        raise ValueError(f"{name}: expected {rank} axes [{axes}], got shape {tuple(x.shape)}")


def _axes(layout: str) -> tuple[str, int, int]:
    """Names of the axes, and which are tokens and heads."""
    if layout == "BLHD":
        return "B, L, H, D", 1, 2
    if layout == "BHLD":
        return "B, H, L, D", 2, 1
    raise ValueError(f'layout: expected "BLHD" or "BHLD", got {layout!r}')


def _forward(run: Callable, family: Any, q: Any, out: Any, return_lse: bool, shapes: tuple, *arguments: Any) -> Any:
    """Makes the results of `shapes` (out's, lse's), runs `run(out, lse, q, *arguments)` and hands them over in q's kind."""
    out_shape, lse_shape = shapes
    if out is None:
        out = family.empty(q, out_shape)
    else:
        same_family(family, out=out)
    lse = family.empty(q, lse_shape, statistics_dtype(family.dtype_name(q))) if return_lse else None
    run(family.output(out, "out"), None if lse is None else family.argument(lse, "lse"), family.argument(q, "q"), *arguments)
    out = family.finish(out, q)
    return (out, family.finish(lse, q)) if return_lse else out


def attention(
    q: Any,
    k: Any,
    v: Any = None,
    *,
    mask: Mask | str | None = None,
    align: str = "bottom_right",
    scale: float | None = None,
    softcap: float | None = None,
    bias: Any = None,
    alibi_slopes: Any = None,
    sink_logits: Any = None,
    query_offset: Any = None,
    kv_lengths: Any = None,
    dropout_p: float = 0.0,
    seed: int = 0,
    layout: str = "BLHD",
    return_lse: bool = False,
    out: Any = None,
) -> Any:
    """Scaled dot-product attention: softmax(scale * q k^T + bias) v, exactly, without an L x L matrix.

    G = Hq / Hkv query heads share a key/value head: G = 1 is multi-head, Hkv = 1 multi-query attention.

    Parameters
    ----------
    q, k, v : arrays [B, Lq, Hq, D], [B, Lk, Hkv, D], [B, Lk, Hkv, Dv]
        float32, bfloat16, float16 or float64, of NumPy, torch, JAX or another library with `__dlpack__`; any strides, read in place.
        `layout="BHLD"` takes and returns torch's axis order. k may be a `KvCache`'s layer, without v.
    mask : Mask or str, optional
        Which keys a query sees, as a mask or its text ("causal & window 128 0"); None is all of them. A row without a visible key gives 0, never NaN.
    align : "bottom_right" or "top_left"
        Where query i sits among the keys: at i + Lk - Lq (the last query sees every key), or at i (torch's `is_causal`).
    scale : float, optional
        1 / sqrt(D) when None.
    softcap : float > 0, optional
        Scores become c * tanh(s / c) (Gemma 2); None is off.
    bias : array, optional
        Added to the scores: up to 4 axes, right-aligned broadcast over [B, Hq, Lq, Lk] whatever the layout; float32 or q's dtype; -inf masks.
    alibi_slopes : array [Hq] or [B, Hq], optional
        -slope * |p - j| is added.
    sink_logits : array [Hq], optional
        Logits that join the softmax's denominator only (gpt-oss).
    query_offset : int or array int32 or int64 [1] or [B], optional
        Query i sits at query_offset + i; overrides `align`.
    kv_lengths : array int32 or int64 [B], optional
        Keys at and past it do not exist.
    dropout_p, seed : float in [0, 1), int
        Dropout on the softmax weights; the bits depend on `seed` and the place of the weight only.
    return_lse : bool
        Return (out, lse): lse [B, Hq, Lq], float32, is the log of the softmax's denominator.
    out : array, optional
        Where to write the result, of q's dtype and the result's shape; it is returned.

    Returns
    -------
    array of q's kind and dtype, [B, Lq, Hq, Dv] (or [B, Hq, Lq, Dv])

    Raises
    ------
    ValueError, TypeError
        naming the argument, before anything is written.

    Examples
    --------
    >>> import heed, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> q = rng.standard_normal((1, 5, 4, 64), np.float32)
    >>> k, v = rng.standard_normal((2, 1, 7, 2, 64), np.float32)
    >>> out, lse = heed.attention(q, k, v, mask=heed.Mask.causal(), return_lse=True)
    >>> out.shape, lse.shape
    ((1, 5, 4, 64), (1, 4, 5))
    """
    family = family_of(q, "q")
    names, tokens, heads = _axes(layout)
    check_rank(q, "q", names)
    options = pack_options(mask, align, scale, softcap, bias, alibi_slopes, sink_logits, query_offset, kv_lengths, dropout_p, seed)
    if isinstance(k, KvView):
        if v is not None:
            raise TypeError("v: expected None, because k is a cache's layer and brings its values")
        value_dim, k_argument, v_argument = k.value_dim, k, None
    else:
        same_family(family, k=k, v=v)
        check_rank(v, "v", names)
        value_dim, k_argument, v_argument = v.shape[3], family.argument(k, "k"), family.argument(v, "v")
    shapes = (*q.shape[:3], value_dim), (q.shape[0], q.shape[heads], q.shape[tokens])
    return _forward(_core.attention_into, family, q, out, return_lse, shapes, k_argument, v_argument, options, layout)


class AttentionGrads(NamedTuple):
    """Gradients, each with the shape and dtype of its argument; None where the option was not given."""

    dq: Any
    dk: Any
    dv: Any
    dbias: Any = None
    dsink_logits: Any = None


def _backward(run: Callable, likes: AttentionGrads, inputs: dict, *arguments: Any) -> AttentionGrads:
    """Makes a gradient for everything in `likes`, runs `run(gradients, *inputs, *arguments)` and hands them over in the kind of their argument."""
    family = family_of(likes.dq, "q")
    same_family(family, **inputs)
    names = ("q", "k", "v", "bias", "sink_logits")
    families = [None if x is None else family_of(x, name) for name, x in zip(names, likes)]
    grads = [None if f is None else f.empty(x, x.shape) for f, x in zip(families, likes)]
    outputs = tuple(None if f is None else f.argument(g, f"d{name}") for f, g, name in zip(families, grads, names))
    run(outputs, *(family.argument(x, name) for name, x in inputs.items()), *arguments)
    return AttentionGrads(*(None if f is None else f.finish(g, x) for f, g, x in zip(families, grads, likes)))


def attention_backward(
    dout: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    *,
    mask: Mask | str | None = None,
    align: str = "bottom_right",
    scale: float | None = None,
    softcap: float | None = None,
    bias: Any = None,
    alibi_slopes: Any = None,
    sink_logits: Any = None,
    query_offset: Any = None,
    kv_lengths: Any = None,
    dropout_p: float = 0.0,
    seed: int = 0,
    layout: str = "BLHD",
) -> AttentionGrads:
    """Gradients of sum(out * dout) for the arguments and options of one `attention` call.

    `out` and `lse` are what `attention(..., return_lse=True)` returned for the same arguments. dout has out's shape. The gradients have
    the shape, dtype and kind of their arguments; `dbias` and `dsink_logits` are None where the option was not given. Sums are float32,
    each gradient is rounded once; the same bits come out whatever the number of threads. Raises ValueError or TypeError naming the argument.

    >>> import heed, numpy as np
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 1, 8, 2, 16), np.float32)
    >>> out, lse = heed.attention(q, k, v, mask=heed.Mask.causal(), return_lse=True)
    >>> g = heed.attention_backward(np.ones_like(out), q, k, v, out, lse, mask=heed.Mask.causal())
    >>> g.dq.shape, bool(abs(g.dv.sum() - out.size) < 1e-3)
    ((1, 8, 2, 16), True)
    """
    options = pack_options(mask, align, scale, softcap, bias, alibi_slopes, sink_logits, query_offset, kv_lengths, dropout_p, seed)
    _axes(layout)
    inputs = {"dout": dout, "q": q, "k": k, "v": v, "out": out, "lse": lse}
    return _backward(_core.attention_backward_into, AttentionGrads(q, k, v, bias, sink_logits), inputs, options, layout)


def _offsets(q_offsets: Any, k_offsets: Any) -> tuple:
    for name, x in (("q_offsets", q_offsets), ("k_offsets", k_offsets)):
        if x is None:
            raise TypeError(f"{name}: expected integers or an array [S + 1], got None")
    return option(q_offsets, "q_offsets", np.int64), option(k_offsets, "k_offsets", np.int64)


def attention_varlen(
    q: Any,
    k: Any,
    v: Any,
    q_offsets: Any,
    k_offsets: Any,
    *,
    mask: Mask | str | None = None,
    align: str = "bottom_right",
    scale: float | None = None,
    softcap: float | None = None,
    alibi_slopes: Any = None,
    sink_logits: Any = None,
    query_offset: Any = None,
    kv_lengths: Any = None,
    dropout_p: float = 0.0,
    seed: int = 0,
    return_lse: bool = False,
    out: Any = None,
) -> Any:
    """`attention` over sequences of different lengths, packed behind each other without padding.

    q [Tq, Hq, D], k [Tk, Hkv, D], v [Tk, Hkv, Dv]; sequence s owns rows q_offsets[s] to q_offsets[s + 1] of q and the like of k and v
    (offsets int32 or int64, [S + 1]), and means exactly what `attention` over those slices means. Returns out [Tq, Hq, Dv], with
    `return_lse` also lse [Hq, Tq]. Raises ValueError or TypeError naming the argument.

    >>> import heed, numpy as np
    >>> q, k, v = np.ones((3, 10, 2, 16), np.float32)
    >>> heed.attention_varlen(q, k, v, [0, 4, 10], [0, 4, 10], mask=heed.Mask.causal()).shape
    (10, 2, 16)
    """
    family = family_of(q, "q")
    same_family(family, k=k, v=v)
    check_rank(q, "q", "Tq, Hq, D")
    check_rank(v, "v", "Tk, Hkv, Dv")
    options = pack_options(mask, align, scale, softcap, None, alibi_slopes, sink_logits, query_offset, kv_lengths, dropout_p, seed)
    shapes = (q.shape[0], q.shape[1], v.shape[2]), (q.shape[1], q.shape[0])
    keys = family.argument(k, "k"), family.argument(v, "v")
    offsets = _offsets(q_offsets, k_offsets)
    return _forward(_core.attention_varlen_into, family, q, out, return_lse, shapes, *keys, *offsets, options)


def attention_varlen_backward(
    dout: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    q_offsets: Any,
    k_offsets: Any,
    *,
    mask: Mask | str | None = None,
    align: str = "bottom_right",
    scale: float | None = None,
    softcap: float | None = None,
    alibi_slopes: Any = None,
    sink_logits: Any = None,
    query_offset: Any = None,
    kv_lengths: Any = None,
    dropout_p: float = 0.0,
    seed: int = 0,
) -> AttentionGrads:
    """Gradients of one `attention_varlen` call; as `attention_backward`, for packed sequences."""
    options = pack_options(mask, align, scale, softcap, None, alibi_slopes, sink_logits, query_offset, kv_lengths, dropout_p, seed)
    inputs = {"dout": dout, "q": q, "k": k, "v": v, "out": out, "lse": lse}
    offsets = _offsets(q_offsets, k_offsets)
    return _backward(_core.attention_varlen_backward_into, AttentionGrads(q, k, v, None, sink_logits), inputs, *offsets, options)


def merge_states(states: Sequence[tuple[Any, Any]]) -> tuple[Any, Any]:
    """Joins attention over disjoint sets of keys into attention over their union, exactly (arXiv 2501.01005, section 2.2).

    `states` are (out, lse) pairs of one shape and dtype, as `attention(..., return_lse=True)` returns them in the layout "BLHD".

    >>> import heed, numpy as np
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 1, 8, 2, 16), np.float32)
    >>> parts = [heed.attention(q, k[:, s], v[:, s], return_lse=True) for s in (slice(0, 3), slice(3, 8))]
    >>> out, lse = heed.merge_states(parts)
    >>> bool(abs(out - heed.attention(q, k, v)).max() < 1e-6)
    True
    """
    try:
        states = [tuple(state) for state in states]
    except TypeError:
        states = []
    if not states or any(len(state) != 2 for state in states):
        raise ValueError("states: expected a sequence of at least one (out, lse) pair")
    like = states[0][0]
    family = family_of(like, "states[0]")
    pairs = []
    for index, (out, lse) in enumerate(states):
        same_family(family, **{f"states[{index}][0]": out, f"states[{index}][1]": lse})
        pairs.append((family.argument(out, f"states[{index}][0]"), family.argument(lse, f"states[{index}][1]")))
    out, lse = _core.merge_states(pairs)
    dtype = family.dtype_name(like)
    return family.from_numpy(out, dtype, like), family.from_numpy(lse, statistics_dtype(dtype), like)


def rope_table(config: _core.RopeConfig, length: int) -> tuple[np.ndarray, np.ndarray]:
    """(cos, sin), float32 [length, rotary_dim / 2], of positions 0 to length - 1, computed in float64; magnitude included.

    >>> import heed
    >>> cos, sin = heed.rope_table(heed.RopeConfig(64, base=10000.0, scaling=heed.RopeYarn(4.0, 2048)), 8192)
    >>> cos.shape
    (8192, 32)
    """
    return _core.rope_table(config, length)


def apply_rope(x: Any, cos: Any, sin: Any, positions: Any = None, *, interleaved: bool = False, layout: str = "BLHD", out: Any = None) -> Any:
    """Rotates x [B, L, H, D] (or [B, H, L, D]) by its tokens' positions (arXiv 2104.09864).

    cos, sin float32 [table length, rotary_dim / 2] or full width; positions int32 or int64 [L] or [B, L], 0 to L - 1 when None. Pairs are
    (i, i + d/2), or (2i, 2i + 1) when `interleaved`. `out` may be x itself, else shares no memory
    with it. Raises ValueError, also for a position outside of the table.
    """
    family = family_of(x, "x")
    check_rank(x, "x", _axes(layout)[0])
    if out is None:
        result = family.empty(x, x.shape)
    else:
        same_family(family, out=out)
        result = out
    tables = option(cos, "cos", np.float32), option(sin, "sin", np.float32), option(positions, "positions", np.int64)
    _core.apply_rope_into(family.output(result, "out"), family.argument(x, "x"), *tables, interleaved, layout)
    return family.finish(result, x)


def _sizes(shape: Any, name: str) -> list[int]:
    try:
        sizes = [operator.index(size) for size in shape]
    except TypeError as error:
        raise TypeError(f"{name}: expected four integers, such as an array's shape, got {type(shape).__name__}") from error
    if any(abs(size) >= 2**63 for size in sizes):
        raise ValueError(f"{name}: expected sizes below 2**63, got {shape!r:.60}")
    return sizes


def _name_of_dtype(dtype: Any) -> str:
    """Of a name, or a dtype of NumPy, torch or ml_dtypes."""
    name = dtype if isinstance(dtype, str) else getattr(dtype, "__name__", str(dtype)).rpartition(".")[2]
    if name not in ("float32", "bfloat16", "float16", "float64"):
        raise ValueError(f'dtype: expected "float32", "bfloat16", "float16" or "float64", got {dtype!r}')
    return name


def select_blocks(q: Any, k: Any, *, block: int = 64, keep: int = 16, first: int = 1, local: int = 1, layout: str = "BLHD") -> Mask:
    """A causal mask that keeps, for every query head and block of queries, the `keep` key blocks that matter most.

    q [1, Lq, Hq, D] and k [1, Lk, Hkv, D] of one sequence. A key block's score is the product of its mean key with the mean query of the
    block of queries; the `first` blocks and the `local` last ones up to the block's own are always kept (MInference, arXiv 2407.02490).
    exp(lse - lse of the causal call) is the share of each row's attention that the mask keeps. Raises ValueError naming the argument.

    >>> import heed, numpy as np
    >>> q = k = v = np.random.default_rng(0).standard_normal((1, 512, 2, 16)).astype(np.float32)
    >>> mask = heed.select_blocks(q, k, keep=4)
    >>> heed.attention(q, k, v, mask=mask).shape
    (1, 512, 2, 16)
    """
    family = family_of(q, "q")
    same_family(family, k=k)
    names = _axes(layout)[0]
    check_rank(q, "q", names)
    check_rank(k, "k", names)
    return _core.select_blocks(family.argument(q, "q"), family.argument(k, "k"), block, keep, first, local, layout)


def explain(q_shape: Sequence[int], k_shape: Sequence[int], dtype: Any = "float32", *, mask: Mask | None = None, align: str = "bottom_right") -> str:
    """Which kernel a call with q [B, Lq, Hq, D] and k [B, Lk, Hkv, D] runs, and why no faster one does. For people; the wording may change.

    dtype is q's, as a name or as an array's dtype: `print(heed.explain(q.shape, k.shape, q.dtype, mask=mask))`. How many threads a call
    uses is `get_num_threads()`.

    >>> import heed
    >>> "attention." in heed.explain((1, 128, 8, 64), (1, 128, 8, 64)) or "reference" in heed.explain((1, 128, 8, 64), (1, 128, 8, 64))
    True
    """
    like = (0, _name_of_dtype(dtype), (0,), (1,))
    return _core.explain(_sizes(q_shape, "q_shape"), _sizes(k_shape, "k_shape"), like, pack_options(mask, align))
