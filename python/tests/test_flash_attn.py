# SPDX-License-Identifier: Apache-2.0
"""heed.flash_attn against a plain float64 implementation of flash-attention's documented semantics."""

import pytest

torch = pytest.importorskip("torch")
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

import heed.flash_attn as fa  # noqa: E402
from heed.flash_attn import bert_padding  # noqa: E402
from heed.flash_attn.layers.rotary import apply_rotary_emb  # noqa: E402
from flash_reference import close, make, plain, rotated  # noqa: E402


CALLS = st.tuples(
    st.integers(1, 3), st.sampled_from([(1, 1), (4, 2), (6, 1), (3, 3)]), st.integers(1, 40), st.integers(1, 40), st.booleans(),
    st.sampled_from([(-1, -1), (5, -1), (-1, 3), (4, 2), (0, 0)]), st.sampled_from([0.0, 2.5]), st.sampled_from([None, 1, 2]),
    st.integers(0, 999),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(CALLS, st.sampled_from([torch.float64, torch.float32, torch.bfloat16]))
def test_forward(call, dtype):
    batch, (heads, kv_heads), lq, lk, causal, window, softcap, slope_axes, seed = call
    q, k, v = make(batch, lq, heads, 16, seed=seed, dtype=dtype), make(batch, lk, kv_heads, 16, seed=seed + 1, dtype=dtype), make(
        batch, lk, kv_heads, 8, seed=seed + 2, dtype=dtype)  # fmt: skip
    slopes = None if slope_axes is None else make(*(batch, heads)[2 - slope_axes :], seed=seed + 3).abs().float()
    out, lse, _ = fa.flash_attn_func(
        q, k, v, causal=causal, window_size=window, softcap=softcap, alibi_slopes=slopes, return_attn_probs=True
    )
    want, want_lse = plain(q, k, v, causal, window, softcap, slopes)
    tolerance = {torch.float64: 1e-10, torch.float32: 2e-5, torch.bfloat16: 0.04}[dtype]
    assert out.dtype == dtype
    close(out, want, tolerance)
    close(lse, want_lse, max(tolerance, 1e-10) if dtype == torch.float64 else 1e-4)


@settings(max_examples=25, deadline=None)
@given(CALLS)
def test_gradients(call):
    batch, (heads, kv_heads), lq, lk, causal, window, softcap, _, seed = call
    tensors = [make(batch, n, h, 8, seed=seed + i, grad=True) for i, (n, h) in enumerate(((lq, heads), (lk, kv_heads), (lk, kv_heads)))]
    weight = make(batch, lq, heads, 8, seed=seed + 9)
    got = torch.autograd.grad((fa.flash_attn_func(*tensors, causal=causal, window_size=window, softcap=softcap) * weight).sum(), tensors)
    want = torch.autograd.grad((plain(*tensors, causal, window, softcap)[0] * weight).sum(), tensors)
    for g, w in zip(got, want):
        close(g, torch.nan_to_num(w), 1e-9)


def test_packed_forms_and_their_gradients():
    qkv = make(2, 9, 3, 4, 8, grad=True)
    out = fa.flash_attn_qkvpacked_func(qkv, causal=True)
    close(out, plain(*qkv.unbind(2), causal=True)[0])
    (got,) = torch.autograd.grad(out.square().sum(), qkv)
    (want,) = torch.autograd.grad(plain(*qkv.unbind(2), causal=True)[0].square().sum(), qkv)
    close(got, want)
    close(fa.flash_attn_kvpacked_func(qkv[:, :, 0], qkv[:, :, 1:]), plain(*qkv.unbind(2))[0])
    with pytest.raises(ValueError, match="qkv"):
        fa.flash_attn_qkvpacked_func(qkv[:, :, :2])


def test_packed_sequences():
    lengths_q, lengths_k = [3, 0, 7, 1], [5, 2, 7, 0]
    offsets = [torch.tensor([0, *torch.tensor(n).cumsum(0).tolist()], dtype=torch.int32) for n in (lengths_q, lengths_k)]
    q, k, v = make(11, 4, 8, grad=True), make(14, 2, 8, seed=1, grad=True), make(14, 2, 8, seed=2, grad=True)
    out, lse, _ = fa.flash_attn_varlen_func(q, k, v, *offsets, 7, 7, causal=True, window_size=(4, 0), return_attn_probs=True)
    parts = []
    for s in range(4):
        rows = [slice(int(o[s]), int(o[s + 1])) for o in offsets]
        if lengths_q[s] == 0:
            continue
        want, want_lse = plain(q[None, rows[0]], k[None, rows[1]], v[None, rows[1]], True, (4, 0)) if lengths_k[s] else (
            torch.zeros(1, lengths_q[s], 4, 8, dtype=torch.float64), torch.full((1, 4, lengths_q[s]), -torch.inf))  # fmt: skip
        close(out[rows[0]], want[0])
        close(lse[:, rows[0]], want_lse[0])
        parts.append(want[0])
    got = torch.autograd.grad(out.square().sum(), (q, k, v))
    for g, w in zip(got, torch.autograd.grad(torch.cat(parts).square().sum(), (q, k, v))):
        close(g, w)
    qkv = make(10, 3, 2, 8)
    close(
        fa.flash_attn_varlen_qkvpacked_func(qkv, torch.tensor([0, 10], dtype=torch.int32), 10)[None],
        plain(*(x[None] for x in qkv.unbind(1)))[0],
    )
    with pytest.raises(NotImplementedError, match="block_table"):
        fa.flash_attn_varlen_func(q, k, v, *offsets, 7, 7, block_table=torch.zeros(1, 1))


def rounding_error(tensors, weight, dtype):
    """What a plain causal implementation in `dtype` does: float32 sums, weights, dS and results rounded. (out, dq, dk, dv)."""
    q, k, v = (x.detach().float().transpose(1, 2) for x in tensors)
    group, scale = q.shape[1] // k.shape[1], q.shape[-1] ** -0.5
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    hidden = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(k.shape[2] - q.shape[2] + 1)
    p = (q @ k.transpose(2, 3) * scale).masked_fill(hidden, -torch.inf).softmax(-1)
    dout, rounded = weight.float().transpose(1, 2), p.to(dtype).float()
    out = (rounded @ v).to(dtype).float()
    ds = (p * (dout @ v.transpose(2, 3) - (dout * out).sum(-1, keepdim=True))).to(dtype).float()
    shared = lambda x: x.unflatten(1, (-1, group)).sum(2)  # noqa: E731
    results = out, scale * ds @ k, shared(scale * ds.transpose(2, 3) @ q), shared(rounded.transpose(2, 3) @ dout)
    return [x.transpose(1, 2).to(dtype) for x in results]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("lq, lk", [(70, 70), (40, 113)])
def test_16_bit_types_round_no_more_than_plain_ones(dtype, lq, lk):
    shapes = (2, lq, 6, 32), (2, lk, 2, 32), (2, lk, 2, 32)
    tensors = [make(*shape, seed=i, dtype=dtype, grad=True) for i, shape in enumerate(shapes)]
    weight = make(2, lq, 6, 32, seed=9, dtype=dtype)
    out = fa.flash_attn_func(*tensors, causal=True)
    got = out, *torch.autograd.grad(out, tensors, weight)
    exact = [x.detach().double().requires_grad_() for x in tensors]
    want = plain(*exact, causal=True)[0]
    wanted = want, *torch.autograd.grad(want, exact, weight.double())
    for g, w, p, factor in zip(got, wanted, rounding_error(tensors, weight, dtype), (2, 3, 3, 3)):
        assert g.dtype == dtype
        assert (g.double() - w).abs().max() <= factor * (p.double() - w).abs().max()


def test_packed_gradients_land_in_the_packed_tensor():
    q, kv = make(11, 4, 8, grad=True), make(14, 2, 2, 8, seed=1, grad=True)
    offsets = torch.tensor([0, 4, 11], dtype=torch.int32), torch.tensor([0, 9, 14], dtype=torch.int32)
    slopes = torch.tensor([[0.5, 0.25, 1.0, 0.0], [0.0, 2.0, 0.125, 0.5]])
    out = fa.flash_attn_varlen_kvpacked_func(q, kv, *offsets, 7, 9, window_size=(3, 2), softcap=4.0, alibi_slopes=slopes)
    parts = []
    for s in range(2):
        rows = [slice(int(o[s]), int(o[s + 1])) for o in offsets]
        parts.append(plain(q[None, rows[0]], *kv[None, rows[1]].unbind(2), window=(3, 2), softcap=4.0, slopes=slopes[s])[0][0])
    close(out, torch.cat(parts))
    weight = make(11, 4, 8, seed=5)
    for g, w in zip(torch.autograd.grad(out, (q, kv), weight), torch.autograd.grad(torch.cat(parts), (q, kv), weight)):
        close(g, w)


def test_rows_of_no_sequence_give_zero():
    q = make(9, 2, 8, grad=True)
    offsets = torch.tensor([2, 5], dtype=torch.int32)
    out, lse, probabilities = fa.flash_attn_varlen_func(q, q, q, offsets, offsets, 3, 3, return_attn_probs=True)
    assert probabilities is None and not out[:2].any() and not out[5:].any() and (lse[:, 5:] == -torch.inf).all()
    close(out[2:5], plain(q[None, 2:5], q[None, 2:5], q[None, 2:5])[0][0])
    (gradient,) = torch.autograd.grad(out.sum(), q)
    assert not gradient[:2].any() and not gradient[5:].any() and gradient[2:5].any()


def test_dropout_gradients_use_the_same_draw():
    q, k = make(1, 12, 2, 8), make(1, 12, 2, 8, seed=1)
    v = make(1, 12, 2, 8, seed=2, grad=True)

    def call():
        torch.manual_seed(5)
        return fa.flash_attn_func(q, k, v, 0.4, causal=True)

    weight = make(1, 12, 2, 8, seed=3)
    (gradient,) = torch.autograd.grad(call(), v, weight)
    close((gradient * v).sum(), (call() * weight).sum())  # out is linear in v: <dv, v> = <dout, out>


def test_a_row_without_keys_has_no_gradient_and_minus_infinity():
    tensors = [make(1, n, 2, 8, seed=i, grad=True) for i, n in enumerate((5, 2, 2))]
    out, lse, _ = fa.flash_attn_func(*tensors, causal=True, return_attn_probs=True)
    assert not out[:, :3].any() and (lse[..., :3] == -torch.inf).all() and lse[..., 3:].isfinite().all()
    assert not torch.autograd.grad(out.sum(), tensors[0])[0][:, :3].any()


def test_compiles():
    q, k, v = (make(2, 5, 2, 8, seed=i, dtype=torch.float32, grad=True) for i in range(3))
    offsets = torch.tensor([0, 2, 5], dtype=torch.int32)
    for window in ((-1, -1), (2, -1), (-1, 1)):

        def dense(q, k, v):
            return fa.flash_attn_func(q, k, v, window_size=window, softcap=3.0) * 2

        compiled = torch.compile(dense, backend="aot_eager", fullgraph=True)
        got, want = compiled(q, k, v), dense(q, k, v)
        torch.testing.assert_close(got, want)
        for g, w in zip(torch.autograd.grad(got.sum(), (q, k, v)), torch.autograd.grad(want.sum(), (q, k, v))):
            torch.testing.assert_close(g, w)

    def packed(q):
        return fa.flash_attn_varlen_func(q, q, q, offsets, offsets, 3, 3, causal=True) * 2

    got, want = torch.compile(packed, backend="aot_eager")(q[0]), packed(q[0])
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(torch.autograd.grad(got.sum(), q)[0], torch.autograd.grad(want.sum(), q)[0])


@pytest.mark.parametrize(
    "change, error, text",
    [
        (dict(window_size=(-2, 0)), ValueError, "window_size"),
        (dict(window_size=3), TypeError, "window_size"),
        (dict(dropout_p=1.0), ValueError, "dropout_p"),
        (dict(softmax_scale="1"), TypeError, "softmax_scale"),
        (dict(alibi_slopes=torch.ones(3)), ValueError, "alibi_slopes"),
        (dict(q=torch.ones(5, 2, 8)), ValueError, "q: "),
        (dict(k=[1.0]), TypeError, "k: "),
        (dict(k=torch.ones(1, 5, 3, 8), v=torch.ones(1, 5, 3, 8)), ValueError, "k: .*heads"),
        (dict(v=torch.ones(1, 4, 2, 8)), ValueError, "v: "),
    ],
)
def test_errors_name_the_argument(change, error, text):
    x = torch.ones(1, 5, 2, 8)
    with pytest.raises(error, match=text):
        fa.flash_attn_func(**{**dict(q=x, k=x, v=x), **change})


@pytest.mark.parametrize(
    "change, error, text",
    [
        (dict(cu_seqlens_q=[0, 5]), TypeError, "cu_seqlens_q"),
        (dict(cu_seqlens_k=torch.tensor([0.0, 5.0])), TypeError, "cu_seqlens_k"),
        (dict(cu_seqlens_q=torch.tensor([0, 6])), ValueError, "cu_seqlens_q.*from 0 to 5"),
        (dict(cu_seqlens_k=torch.tensor([0, 4, 2])), ValueError, "cu_seqlens_k.*never fall"),
        (dict(cu_seqlens_k=torch.tensor([0, 4, 5])), ValueError, "cu_seqlens_k.*as many"),
        (dict(block_table=torch.zeros(1, 1)), NotImplementedError, "block_table"),
        (dict(q=torch.ones(1, 5, 2, 8)), ValueError, "q: "),
    ],
)
def test_errors_of_packed_sequences_name_the_argument(change, error, text):
    x, offsets = torch.ones(5, 2, 8), torch.tensor([0, 5], dtype=torch.int32)
    arguments = dict(q=x, k=x, v=x, cu_seqlens_q=offsets, cu_seqlens_k=offsets, max_seqlen_q=5, max_seqlen_k=5)
    with pytest.raises(error, match=text):
        fa.flash_attn_varlen_func(**{**arguments, **change})


def test_dropout_is_seeded_by_torch():
    q, k, v = make(1, 50, 2, 8), make(1, 50, 2, 8, seed=1), make(1, 50, 2, 8, seed=2)
    torch.manual_seed(3)
    first = fa.flash_attn_func(q, k, v, 0.2)
    assert not torch.equal(first, fa.flash_attn_func(q, k, v, 0.2))
    torch.manual_seed(3)
    assert torch.equal(first, fa.flash_attn_func(q, k, v, 0.2))


def test_padding_round_trip_and_its_gradient():
    x, mask = make(3, 5, 2, grad=True), torch.tensor([[1, 1, 0, 0, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]])
    packed, indices, offsets, longest, used = bert_padding.unpad_input(x, mask)
    assert offsets.tolist() == [0, 2, 2, 7] and offsets.dtype == torch.int32 and longest == 5 and used.tolist() == [2, 0, 5]
    back = bert_padding.pad_input(packed, indices, 3, 5)
    assert torch.equal(back, x * mask[..., None])
    (gradient,) = torch.autograd.grad((back * 3).sum(), x)
    assert torch.equal(gradient, 3 * mask[..., None].expand_as(x).double())
    lengths = torch.tensor([[2, 1, 0, 0, 0], [3, 0, 0, 0, 0], [5, 0, 0, 0, 0]])
    packed, _, offsets, longest = bert_padding.unpad_input_for_concatenated_sequences(x, lengths)
    assert offsets.tolist() == [0, 2, 3, 6, 11] and longest == 5 and packed.shape == (11, 2)


@pytest.mark.parametrize("interleaved", [True, False])
def test_rotary_layer(interleaved):
    angles = torch.outer(torch.arange(12.0), torch.tensor([1.0, 0.1, 0.01])).double()
    x, tables = make(2, 5, 3, 8, grad=True), (angles.cos().float(), angles.sin().float())
    offsets = torch.tensor([0, 6])
    got = apply_rotary_emb(x, *tables, interleaved=interleaved, seqlen_offsets=offsets)
    want = rotated(x, *(t.double() for t in tables), offsets[:, None] + torch.arange(5), interleaved)
    close(got, want, 1e-6)
    close(*(torch.autograd.grad(y.square().sum(), x)[0] for y in (got, want)), 1e-5)
    packed, lengths = make(7, 3, 8), torch.tensor([0, 3, 7], dtype=torch.int32)
    got = apply_rotary_emb(packed, *tables, interleaved=interleaved, cu_seqlens=lengths, max_seqlen=4)
    close(got, rotated(packed[None], *(t.double() for t in tables), torch.tensor([[0, 1, 2, 0, 1, 2, 3]]), interleaved)[0], 1e-6)
    y = make(1, 4, 2, 8)
    want = rotated(y, *(t.double() for t in tables), torch.arange(4)[None], interleaved)
    assert apply_rotary_emb(y, *tables, interleaved=interleaved, inplace=True) is not None
    close(y, want, 1e-6)
