# SPDX-License-Identifier: Apache-2.0
"""heed.torch.attention, with a heed.Mask and every other option, against the formula in float64 and torch's own derivatives of it."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

import heed  # noqa: E402
import heed.torch  # noqa: E402
from torch_bounds import terms, within  # noqa: E402

attention = heed.torch.attention


def make(*shape, dtype=torch.float32, seed=0, grad=True):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype).requires_grad_(grad)


DOCUMENTS = np.repeat(np.arange(40), 7)
# name -> (the mask, the same said about positions p [Lq, 1] and keys j [1, Lk])
MASKS = {
    "none": (None, lambda p, j: (p + j) * 0 == 0),
    "causal": (heed.Mask.causal(), lambda p, j: j <= p),
    "text": ("causal & window 5 0", lambda p, j: (j <= p) & (j >= p - 5)),
    "sliding": (heed.Mask.sliding_window(4), lambda p, j: (j <= p) & (j > p - 4)),
    "both sides": (heed.Mask.window(3, 2), lambda p, j: (j <= p + 2) & (j >= p - 3)),
    "sinks": (heed.Mask.causal() & (heed.Mask.window(6, 0) | heed.Mask.sink_tokens(2)), lambda p, j: (j <= p) & ((j >= p - 6) | (j < 2))),
    "prefix": (heed.Mask.prefix_lm(5), lambda p, j: (j <= p) | (j < 5)),
    "documents": (heed.Mask.causal() & heed.Mask.documents(DOCUMENTS), lambda p, j: (j <= p) & (j // 7 == p // 7)),
    "not": (~heed.Mask.causal(), lambda p, j: j > p),
}


def weights_of(q, k, name="none", align="bottom_right", softcap=None, bias=None, slopes=None, sinks=None, scale=None):
    """[B, Hq, Lq, Lk]"""
    rows, keys, groups = q.shape[2], k.shape[2], q.shape[1] // k.shape[1]
    k = k.repeat_interleave(groups, 1)
    j = torch.arange(keys)[None]
    p = torch.arange(rows)[:, None] + (keys - rows if align == "bottom_right" else 0)
    scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    if slopes is not None:
        scores = scores - slopes[..., None, None] * (p - j).abs()
    seen = MASKS[name][1](p, j)
    scores = scores.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks[None, :, None, None].expand(*scores.shape[:3], 1)], -1)
    else:
        scores = torch.where(seen.any(-1, keepdim=True), scores, 0.0)  # softmax of nothing is NaN, its derivative too
    return scores.softmax(-1)[..., :keys] * seen


def truth(q, k, v, name="none", rounded=None, **options):
    """[B, H, L, D]; `rounded` makes it the plain implementation of that dtype: float32 sums, weights rounded."""
    weights = weights_of(q, k, name, **options)
    v = v.repeat_interleave(q.shape[1] // v.shape[1], 1)
    return (weights if rounded is None else weights.to(rounded).to(v.dtype)) @ v


def tokens_first(x):
    return x.transpose(1, 2)


@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 2), st.sampled_from([(1, 1), (4, 4), (4, 2), (6, 1)]), st.integers(1, 60), st.integers(1, 60), st.integers(1, 24),
    st.sampled_from(sorted(MASKS)), st.sampled_from(["bottom_right", "top_left"]), st.sampled_from([None, 2.0]), st.booleans(),
    st.booleans(), st.sampled_from(["no", "heads", "batch"]), st.sampled_from(["BLHD", "BHLD"]), st.integers(0, 2**20), st.data(),
)  # fmt: skip
def test_values_and_gradients(batch, heads, lq, lk, dim, name, align, softcap, has_bias, has_sinks, alibi, layout, seed, data):
    tensors = [make(batch, h, n, dim, seed=seed + i) for i, (h, n) in enumerate(((heads[0], lq), (heads[1], lk), (heads[1], lk)))]
    options = {"align": align, "softcap": softcap}
    slopes = {"no": None, "heads": torch.rand(heads[0]), "batch": torch.rand(batch, heads[0])}[alibi]
    bias = make(*(data.draw(st.sampled_from((1, n))) for n in (batch, heads[0], lq, lk)), seed=seed + 3) if has_bias else None
    sinks = make(heads[0], seed=seed + 4) if has_sinks else None
    inputs = [x for x in (*tensors, bias, sinks) if x is not None]
    order = tokens_first if layout == "BLHD" else lambda x: x
    mask = MASKS[name][0]
    got = order(attention(*map(order, tensors), mask=mask, bias=bias, alibi_slopes=slopes, sink_logits=sinks, layout=layout, **options))
    wide = [None if x is None else x.double() for x in (*tensors, bias, slopes, sinks)]
    want = truth(*wide[:3], name, bias=wide[3], slopes=wide[4], sinks=wide[5], **options)
    assert got.shape == want.shape and (got - want).abs().max() <= 1e-5 * max(1.0, want.abs().max())
    weight = make(*want.shape, seed=seed + 5, grad=False)
    ours, exact = (torch.autograd.grad((x * weight).sum(), inputs) for x in (got, want))
    weights = weights_of(*wide[:2], name, bias=wide[3], slopes=wide[4], sinks=wide[5], **options)
    sizes, ds, delta = terms(weights, *tensors, weight, dim**-0.5)
    if has_bias:
        sizes.append(ds.sum_to_size(bias.shape).max())
    if has_sinks:
        sizes.append(((1 - weights.sum(-1, keepdim=True)) * delta).sum((0, 2, 3)).max())
    for g, w, size in zip(ours, exact, sizes):
        assert g.dtype == torch.float32 and within(g, w, size)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["sliding", "sinks", "documents"])
def test_16_bits_in_training(dtype, name):
    tensors = [make(2, h, 70, 32, dtype=dtype, seed=s) for s, h in enumerate((4, 2, 2))]
    sinks, weight = make(4, seed=4), make(2, 4, 70, 32, dtype=dtype, seed=5, grad=False)
    inputs = [*tensors, sinks]
    got = attention(*tensors, mask=MASKS[name][0], sink_logits=sinks, layout="BHLD")
    want = truth(*(x.double() for x in tensors), name, sinks=sinks.double())
    plain = truth(*(x.float() for x in tensors), name, sinks=sinks, rounded=dtype).to(dtype)
    assert got.dtype == dtype and (got - want).abs().max() <= 2 * (plain - want).abs().max()
    results = [torch.autograd.grad((x.double() * weight).sum(), inputs) for x in (got, want, plain)]
    for g, w, p in zip(*results):
        assert g.dtype == p.dtype and (g.double() - w.double()).abs().max() <= 3 * (p.double() - w.double()).abs().max()


def test_boolean_bias_joins_the_mask():
    q, k, v = (make(2, 3, 9, 8, seed=s) for s in range(3))
    seen = torch.rand(2, 1, 9, 9, generator=torch.Generator().manual_seed(5)) < 0.6
    seen[..., 0] = True
    got = attention(q, k, v, mask=heed.Mask.causal(), bias=seen, layout="BHLD")
    want = truth(q.double(), k.double(), v.double(), "causal", bias=torch.where(seen, 0.0, -torch.inf))
    torch.testing.assert_close(got.double(), want, atol=1e-5, rtol=0)
    for g, w in zip(*(torch.autograd.grad(x.square().sum(), (q, k, v)) for x in (got, want))):
        torch.testing.assert_close(g, w, atol=2e-5, rtol=0)


def test_rows_without_keys_are_zero_and_get_no_gradient():
    q, k, v = make(1, 2, 6, 8), make(1, 2, 3, 8, seed=1), make(1, 2, 3, 8, seed=2)
    out, lse = attention(q, k, v, mask=heed.Mask.causal(), layout="BHLD", return_lse=True)  # query i sits at i - 3
    assert (out[:, :, :3] == 0).all() and (lse[:, :, :3] == -torch.inf).all() and not lse.requires_grad
    (dq,) = torch.autograd.grad(out.sum(), q)
    assert (dq[:, :, :3] == 0).all() and dq.isfinite().all() and (dq[:, :, 4:] != 0).any()


def test_lengths_and_offsets():
    q, k, v = (make(2, 2, 6, 8, seed=s) for s in range(3))
    lengths = torch.tensor([4, 6])
    got = attention(q, k, v, kv_lengths=lengths, layout="BHLD")
    for b, n in enumerate(lengths):
        want = truth(q[b : b + 1].double(), k[b : b + 1, :, :n].double(), v[b : b + 1, :, :n].double())
        torch.testing.assert_close(got[b : b + 1].double(), want, atol=1e-5, rtol=0)
    (dk,) = torch.autograd.grad(got.sum(), k)
    assert (dk[0, :, 4:] == 0).all() and (dk[0, :, :4] != 0).any()
    one = attention(q[:, :, 3:4], k, v, mask=heed.Mask.causal(), query_offset=3, layout="BHLD")
    torch.testing.assert_close(one, attention(q, k, v, mask=heed.Mask.causal(), layout="BHLD")[:, :, 3:4])


@pytest.mark.parametrize(
    "change, error, text",
    [
        (dict(q=torch.ones(5, 2, 8)), ValueError, "q"),
        (dict(k=np.ones((1, 7, 2, 8), np.float32)), TypeError, "k"),
        (dict(alibi_slopes=torch.ones(2, requires_grad=True)), TypeError, "alibi_slopes"),
        (dict(sink_logits=torch.ones(3)), ValueError, "sink_logits"),
        (dict(mask="causall"), ValueError, "causall"),
        (dict(mask=3), TypeError, "mask"),
        (dict(align="left"), ValueError, "align"),
        (dict(softcap=0.0), ValueError, "softcap"),
        (dict(layout="LBHD"), ValueError, "layout"),
        (dict(dropout_p=1.5), ValueError, "dropout"),
        (dict(bias=torch.ones(5, 7).int()), (TypeError, ValueError), "bias"),
    ],
)
def test_errors_name_the_argument(change, error, text):
    arguments = dict(q=torch.ones(1, 5, 2, 8), k=torch.ones(1, 7, 2, 8), v=torch.ones(1, 7, 2, 8))
    with pytest.raises(error, match=text):
        attention(**{**arguments, **change})
