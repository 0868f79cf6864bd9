# SPDX-License-Identifier: Apache-2.0
"""Arguments of clumsy and hostile callers: an error that names the argument or the right numbers, never other memory or other numbers."""

import copy
import threading

import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st

import heed


def make(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


Q, K, V = make(1, 5, 4, 8), make(1, 7, 2, 8, seed=1), make(1, 7, 2, 8, seed=2)


def scattered(rng, x):
    """x's values in memory of any axis order, with gaps, NaNs in the gaps, and axes that run backwards."""
    order = rng.permutation(x.ndim)
    steps = [int(rng.integers(1, 3)) * (-1) ** int(rng.integers(2)) for _ in order]
    memory = np.full([abs(step) * x.shape[axis] + 1 for step, axis in zip(steps, order)], np.nan, x.dtype)
    axes = (slice(None, -1, step) if step > 0 else slice(-2, None, step) for step in steps)
    view = memory[tuple(axes)].transpose(np.argsort(order))
    view[...] = x
    return view


def gradients(dout, q, k, v, bias, visible):
    """dq, dk, dv, dbias in float64; bias [Hq, 1, Lk]."""
    dout, q, k, v = (np.asarray(x, np.float64).transpose(0, 2, 1, 3) for x in (dout, q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v, scale = np.repeat(k, group, 1), np.repeat(v, group, 1), q.shape[3] ** -0.5
    scores = np.where(visible, q @ k.swapaxes(2, 3) * scale + bias, -np.inf)
    top = scores.max(-1, keepdims=True, initial=-1e30)
    weights = np.exp(scores - top)
    weights /= np.maximum(weights.sum(-1, keepdims=True), 1e-300)
    d_weights = dout @ v.swapaxes(2, 3)
    ds = weights * (d_weights - (weights * d_weights).sum(-1, keepdims=True))
    back = lambda x: x.reshape(x.shape[0], 2, group, *x.shape[2:]).sum(2).transpose(0, 2, 1, 3)  # noqa: E731
    dk, dv = back(ds.swapaxes(2, 3) @ q * scale), back(weights.swapaxes(2, 3) @ dout)
    return (ds @ k * scale).transpose(0, 2, 1, 3), dk, dv, ds.sum((0, 2))[:, None]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2), st.sampled_from([1, 2, 5]), st.integers(0, 40), st.integers(0, 150), st.integers(1, 40), st.integers(0, 9999),
    st.booleans(),
)  # fmt: skip
def test_any_memory(batch, group, lq, lk, dim, seed, backward):
    rng = np.random.default_rng(seed)
    q, k, v = make(batch, lq, 2 * group, dim, seed=seed), make(batch, lk, 2, dim, seed=seed + 1), make(batch, lk, 2, dim + 1, seed=seed + 2)
    bias, visible = make(2 * group, 1, lk, seed=seed + 3), rng.random((batch, 1, lq, lk)) < 0.6
    arrays = [scattered(rng, x) for x in (q, k, v)]
    out = scattered(rng, np.zeros((batch, lq, 2 * group, dim + 1), np.float32))
    options = dict(mask=heed.Mask.from_array(visible) if batch else None, bias=scattered(rng, bias))
    want, want_lse = reference.attention(q, k, v, visible, bias=bias)
    assert heed.attention(*arrays, out=out, **options) is out
    np.testing.assert_allclose(out, want, atol=3e-6)
    np.testing.assert_allclose(heed.attention(*arrays, return_lse=True, **options)[1], want_lse, atol=1e-5)
    if not backward:
        return
    dout = make(*out.shape, seed=seed + 4)
    grads = heed.attention_backward(scattered(rng, dout), *arrays, out, want_lse.astype(np.float32), **options)
    for got, exact in zip(grads[:4], gradients(dout, q, k, v, bias, visible)):
        np.testing.assert_allclose(got, exact, atol=2e-5 * max(1.0, np.abs(exact).max(initial=0)))


def test_read_only_bfloat16_is_not_written():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    q, k, v = (x.astype(ml_dtypes.bfloat16) for x in (Q, K, V))
    out = np.zeros_like(q)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="out:.*writable"):
        heed.attention(q, k, v, out=out)
    with pytest.raises(ValueError, match="out:.*writable"):
        heed.apply_rope(q, *heed.rope_table(heed.RopeConfig(8), 5), out=out)
    assert not out.any()


def test_a_subclass_that_lies_about_its_address():
    ml_dtypes = pytest.importorskip("ml_dtypes")

    class Liar(np.ndarray):
        @property
        def __array_interface__(self):
            return {"data": (1, False), "shape": (1,), "strides": None, "typestr": "<f4", "version": 3}

    q, k, v = (x.astype(ml_dtypes.bfloat16) for x in (Q, K, V))
    assert np.array_equal(heed.attention(q.view(Liar), k, v), heed.attention(q, k, v))


def test_tensors_whose_memory_holds_other_numbers():
    torch = pytest.importorskip("torch")
    q, k, v = (torch.from_numpy(x) for x in (Q, K, V))
    lazily_negated = torch.complex(torch.zeros_like(q), q).conj().imag
    assert lazily_negated.is_neg()
    for change in ({"q": lazily_negated}, {"out": lazily_negated}, {"bias": lazily_negated[0, :, :, :7]}):
        with pytest.raises(TypeError, match=f"^{next(iter(change))}: .*resolve_neg"):
            heed.attention(**{"q": q, "k": k, "v": v, **change})
    cache = heed.KvCache(kv_heads=4, head_dim=8, capacity=9)
    with pytest.raises(TypeError, match="^k: .*resolve_neg"):
        cache.append(0, lazily_negated, q)
    got = heed.attention(lazily_negated.resolve_neg(), k, v)
    np.testing.assert_allclose(got, reference.attention(-Q, K, V)[0], atol=1e-6)


def test_tensors_without_plain_memory():
    torch = pytest.importorskip("torch")
    q, k, v = (torch.from_numpy(x) for x in (Q, K, V))
    jagged = torch.nested.nested_tensor([q[0], q[0]], layout=torch.jagged)
    for bad in (q.to_sparse(), jagged):
        with pytest.raises(TypeError, match="expected"):
            heed.attention(bad, k, v)
        with pytest.raises(TypeError, match="^bias: expected"):
            heed.attention(q, k, v, bias=bad)
    with pytest.raises(TypeError, match="expected a dense tensor"):
        torch.func.vmap(lambda x: heed.attention(x, k, v))(q[None])


def test_a_tuple_is_never_an_address():
    assert np.array_equal(heed.Mask.documents((0, 0, 1, 1)).evaluate(4, 4), np.kron(np.eye(2), np.ones((2, 2))).astype(bool))
    for make_mask in (heed.Mask.documents, heed.Mask.from_array, lambda x: heed.Mask.block_sparse(x, 1)):
        with pytest.raises((TypeError, ValueError), match="ids|mask|layout"):
            make_mask((64, "int32", (3,), (1,)))
    with pytest.raises((TypeError, ValueError), match="k:"):
        heed.KvCache(kv_heads=2, head_dim=8, capacity=9).append(0, (64, "float32", (1, 3, 2, 8), (1, 1, 1, 1)), K)


def test_masks_of_lists_and_memoryviews():
    rows = [[True, False], [True, True]]
    assert heed.Mask.from_array(rows).evaluate(2, 2).tolist() == rows
    assert heed.Mask.from_array(memoryview(np.array(rows))).evaluate(2, 2).tolist() == rows
    assert heed.Mask.block_sparse(rows, 1).evaluate(2, 2).tolist() == rows
    with pytest.raises(TypeError, match="^mask: expected booleans"):
        heed.Mask.from_array([[1, 0]])
    with pytest.raises(TypeError, match="^ids: expected integers"):
        heed.Mask.documents([0.5, 1.5])


def test_the_cache_takes_what_attention_takes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    k = K.astype(ml_dtypes.bfloat16)
    cache = heed.KvCache(kv_heads=2, head_dim=8, capacity=9)
    cache.append(0, k, k)
    assert np.array_equal(cache.layer(0).keys_as_float32(), k.astype(np.float32))
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match="v: a tensor that requires grad"):
        cache.append(0, torch.from_numpy(K), torch.from_numpy(K.copy()).requires_grad_())


def test_threads_that_append_at_once():
    tokens, room = 512, 5
    cache = heed.KvCache(kv_heads=2, head_dim=64, capacity=room * tokens)
    part, stored, refused = np.ones((1, tokens, 2, 64), np.float32), [], []
    gate = threading.Barrier(8)

    def append():
        gate.wait()
        for _ in range(20):
            try:
                cache.append(0, part, part)
                stored.append(1)
            except ValueError:
                refused.append(1)

    workers = [threading.Thread(target=append) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(stored) == room and len(refused) == 155
    assert cache.layer(0).shape[1] == room * tokens and (cache.layer(0).keys_as_float32() == 1).all()


@pytest.mark.parametrize(
    "options, error, text",
    [
        (dict(query_offset=1.7), TypeError, "^query_offset: expected integers"),
        (dict(query_offset=True), TypeError, "^query_offset: expected integers"),
        (dict(query_offset=float("nan")), TypeError, "^query_offset: expected integers"),
        (dict(query_offset=2**70), TypeError, "^query_offset: expected integers"),
        (dict(query_offset=[2**63]), ValueError, "^query_offset: expected integers below"),
        (dict(query_offset=[[1], [1, 2]]), ValueError, "^query_offset: expected integers, nested evenly"),
        (dict(kv_lengths=[2.5]), TypeError, "^kv_lengths: expected integers"),
        (dict(kv_lengths=["2"]), TypeError, "^kv_lengths: expected integers"),
        (dict(bias=["x"]), TypeError, "^bias: expected numbers"),
        (dict(sink_logits=[1j] * 4), TypeError, "^sink_logits: expected numbers"),
        (dict(dropout_p=1.5), ValueError, "dropout_p: expected 0 <= p < 1"),
    ],
)
def test_numbers_are_not_cut_off(options, error, text):
    with pytest.raises(error, match=text):
        heed.attention(Q, K, V, **options)


def test_numpy_scalars_are_numbers():
    causal = heed.Mask.causal()
    want = heed.attention(Q, K, V, mask=causal, query_offset=1)
    assert np.array_equal(heed.attention(Q, K, V, mask=causal, query_offset=np.int64(1)), want)
    assert np.array_equal(heed.attention(Q, K, V, mask="causal", query_offset=np.array([1], np.int32)), want)
    assert np.array_equal(heed.attention(Q, K, V, bias=np.float32(0.5)), heed.attention(Q, K, V, bias=0.5))
    assert np.array_equal(heed.attention(Q, K, V, kv_lengths=np.int32(3)), heed.attention(Q, K[:, :3], V[:, :3]))


def test_other_functions_name_the_argument():
    out, lse = heed.attention(Q, K, V, return_lse=True)
    calls = [
        (lambda: heed.attention_backward(out, Q, K, V, out, lse, layout=None), "^layout"),
        (lambda: heed.attention_varlen(Q[0], K[0], V[0], None, [0, 7]), "^q_offsets"),
        (lambda: heed.attention_varlen(Q[0], K[0], V[0], [0, 5], [0.0, 7.5]), "^k_offsets"),
        (lambda: heed.merge_states(5), "^states"),
        (lambda: heed.merge_states([None]), "^states"),
        (lambda: heed.explain((1, 2.5, 1, 1), (1, 1, 1, 1)), "^q_shape"),
        (lambda: heed.explain((1, 2, 1, 1), 5), "^k_shape"),
        (lambda: heed.explain((1, 2, 1, 1), (1, 2**70, 1, 1)), "^k_shape"),
        (lambda: heed.explain((1, 2, 1, 1), (1, 1, 1, 1), np.int32), "^dtype"),
        (lambda: heed.apply_rope(Q, *heed.rope_table(heed.RopeConfig(8), 5), out=[1]), "^out"),
        (lambda: heed.apply_rope(Q, *heed.rope_table(heed.RopeConfig(8), 5), [0.5] * 5), "^positions"),
        (lambda: heed.KvCache(kv_heads=1, head_dim=8, capacity=-1), "capacity:"),
    ]
    for call, text in calls:
        with pytest.raises((TypeError, ValueError), match=text):
            call()


def test_rope_never_reads_what_it_has_written():
    cos, sin = heed.rope_table(heed.RopeConfig(8), 5)
    want = heed.apply_rope(Q, cos, sin)
    memory = np.zeros(200, np.float32)
    x = memory[:160].reshape(Q.shape)
    for out in (memory[4:164].reshape(Q.shape), x[:, :, ::-1], x[:, ::-1], np.broadcast_to(memory[160:168], Q.shape)):
        x[:] = Q
        with pytest.raises(ValueError, match="out:"):
            heed.apply_rope(x, cos, sin, out=out)
        assert np.array_equal(x, Q)
    assert heed.apply_rope(x, cos, sin, out=x) is x and np.array_equal(x, want)
    interleaved = np.zeros((2, *Q.shape), np.float32).transpose(1, 2, 3, 0, 4)  # x and out take turns in memory
    interleaved[..., 0, :] = Q
    assert np.array_equal(heed.apply_rope(interleaved[..., 0, :], cos, sin, out=interleaved[..., 1, :]), want)
    full = np.zeros((5, 8), np.float32)  # a full-width table that is the result's memory as well
    with pytest.raises(ValueError, match="out:.*cos"):
        heed.apply_rope(Q[:, :, :1], full, np.zeros_like(full), out=full[None, :, None])


def test_masks_are_copied_as_values():
    mask = heed.Mask.documents(np.array([0, 0, 1])) & heed.Mask.causal()
    assert copy.copy(mask) == mask and copy.deepcopy({"mask": mask})["mask"] == mask


def test_no_work_for_no_slots():
    assert heed.Mask.causal().evaluate(2**62, 0).shape == (2**62, 0)


def test_what_dlpack_raises_is_told():
    class Broken:
        shape, ndim, dtype = Q.shape, 4, Q.dtype

        def __init__(self, give):
            self.give = give

        def __dlpack__(self):
            return self.give()

        def __array_namespace__(self):
            return np

    def interrupt():
        raise KeyboardInterrupt

    def fail():
        raise BufferError("on strike")

    with pytest.raises(KeyboardInterrupt):
        heed.attention(*[Broken(interrupt)] * 3)
    with pytest.raises(TypeError, match="q: expected an array.*on strike"):
        heed.attention(*[Broken(fail)] * 3)
    capsule = Q.__dlpack__()
    with pytest.raises(TypeError, match="k: expected an array"):
        heed.attention(Broken(lambda: capsule), Broken(lambda: capsule), Broken(V.__dlpack__))
    works = [Broken(x.__dlpack__) for x in (Q, Q, Q)]
    assert np.array_equal(heed.attention(*works), heed.attention(Q, Q, Q))
