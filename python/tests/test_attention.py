# SPDX-License-Identifier: Apache-2.0
"""heed's core functions against NumPy in float64."""

import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st

import heed

HEADS = st.sampled_from([(1, 1), (4, 2), (6, 1), (3, 3), (8, 2)])


def make(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def close(got, want, dtype=np.float32, factor=1.0):
    tolerance = {"float64": 1e-12, "float32": 4e-6, "float16": 2e-3, "bfloat16": 2e-2}[np.dtype(dtype).name] * factor
    largest = np.max(np.abs(want), initial=0.0, where=np.isfinite(want))
    np.testing.assert_allclose(np.asarray(got, np.float64), want, atol=tolerance * max(1.0, largest), rtol=0)


@settings(max_examples=80, deadline=None)
@given(
    st.integers(1, 3), HEADS, st.integers(1, 70), st.integers(1, 90), st.integers(1, 70), st.integers(1, 40), st.booleans(), st.booleans(),
    st.sampled_from([np.float32, np.float16, np.float64]), st.integers(0, 999),
    st.sets(st.sampled_from(["scale", "softcap", "bias", "alibi_slopes", "sink_logits", "kv_lengths", "query_offset"])),
)  # fmt: skip
def test_forward_with_every_option(batch, heads, lq, lk, dim, value_dim, is_causal, heads_first, dtype, seed, chosen):
    rng = np.random.default_rng(seed)
    q, k, v = make(batch, lq, heads[0], dim, dtype=dtype, seed=seed), make(batch, lk, heads[1], dim, dtype=dtype, seed=seed + 1), make(
        batch, lk, heads[1], value_dim, dtype=dtype, seed=seed + 2)  # fmt: skip
    values = dict(
        scale=0.3, softcap=4.0, bias=rng.standard_normal((heads[0], 1, lk)).astype(np.float32),
        alibi_slopes=rng.random(heads[0]).astype(np.float64 if dtype == np.float64 else np.float32),
        sink_logits=rng.standard_normal(heads[0]).astype(np.float64 if dtype == np.float64 else np.float32),
        kv_lengths=rng.integers(0, lk + 1, batch), query_offset=rng.integers(-3, lk, batch),
    )  # fmt: skip
    if dtype == np.float64:
        values["bias"] = values["bias"].astype(np.float64)
    options = {name: values[name] for name in chosen}
    lengths = options.get("kv_lengths", np.full(batch, lk))
    offset = options.get("query_offset", lengths - lq)
    visible = None
    if is_causal:
        visible = np.stack([reference.causal(lq, lk, o) for o in np.broadcast_to(offset, batch)])[:, None]
    names = dict(alibi_slopes="slopes", sink_logits="sinks", kv_lengths="lengths", query_offset="offset")
    want, want_lse = reference.attention(q, k, v, visible, **{names.get(n, n): x for n, x in options.items()})
    mask = heed.Mask.causal() if is_causal else None
    if heads_first:
        arrays = [np.ascontiguousarray(x.transpose(0, 2, 1, 3)) for x in (q, k, v)]
        out, lse = heed.attention(*arrays, mask=mask, layout="BHLD", return_lse=True, **options)
        out = out.transpose(0, 2, 1, 3)
    else:
        out, lse = heed.attention(q, k, v, mask=mask, return_lse=True, **options)
    assert out.dtype == dtype and lse.dtype == (np.float64 if dtype == np.float64 else np.float32)
    close(out, want, dtype)
    close(lse, want_lse, np.float64 if dtype == np.float64 else np.float32, 4)


@pytest.mark.parametrize("option", ["none", "bias", "sink_logits", "softcap"])
def test_gradients_against_differences(option):
    q, k, v = make(1, 5, 4, 6, dtype=np.float64), make(1, 7, 2, 6, dtype=np.float64, seed=1), make(1, 7, 2, 3, dtype=np.float64, seed=2)
    options = {"bias": dict(bias=make(4, 5, 7, dtype=np.float64, seed=3)), "sink_logits": dict(sink_logits=make(4, dtype=np.float64, seed=4)),
               "softcap": dict(softcap=2.0)}.get(option, {})  # fmt: skip
    weight, mask = make(1, 5, 4, 3, dtype=np.float64, seed=5), heed.Mask.causal() & heed.Mask.sliding_window(4)
    visible = mask.evaluate(5, 7)
    out, lse = heed.attention(q, k, v, mask=mask, return_lse=True, **options)
    grads = heed.attention_backward(weight, q, k, v, out, lse, mask=mask, **options)
    names = dict(sink_logits="sinks")

    def loss(**changed):
        arrays = {**dict(q=q, k=k, v=v), **options, **changed}
        rest = {names.get(n, n): x for n, x in arrays.items() if n not in "qkv"}
        return (reference.attention(arrays["q"], arrays["k"], arrays["v"], visible, **rest)[0] * weight).sum()

    inputs = dict(q=(q, grads.dq), k=(k, grads.dk), v=(v, grads.dv))
    if option in ("bias", "sink_logits"):
        inputs[option] = (options[option], grads.dbias if option == "bias" else grads.dsink_logits)
    else:
        assert grads.dbias is None and grads.dsink_logits is None
    for name, (array, gradient) in inputs.items():
        for flat in range(0, array.size, max(1, array.size // 12)):
            step = np.zeros(array.size)
            step[flat] = 1e-6
            moved = [loss(**{name: array + sign * step.reshape(array.shape)}) for sign in (1, -1)]
            assert abs((moved[0] - moved[1]) / 2e-6 - gradient.reshape(-1)[flat]) < 1e-7, name


def test_packed_sequences_equal_separate_ones():
    q, k, v = make(11, 4, 8), make(14, 2, 8, seed=1), make(14, 2, 8, seed=2)
    q_offsets, k_offsets = [0, 3, 3, 11], np.array([0, 5, 7, 14], np.int32)
    out, lse = heed.attention_varlen(q, k, v, q_offsets, k_offsets, mask=heed.Mask.causal(), return_lse=True)
    weight = make(11, 4, 8, seed=3)
    grads = heed.attention_varlen_backward(weight, q, k, v, out, lse, q_offsets, k_offsets, mask=heed.Mask.causal())
    for s in range(3):
        rows, keys = slice(q_offsets[s], q_offsets[s + 1]), slice(k_offsets[s], k_offsets[s + 1])
        part = q[None, rows], k[None, keys], v[None, keys]
        want, want_lse = heed.attention(*part, mask=heed.Mask.causal(), return_lse=True)
        assert np.array_equal(out[rows], want[0]) and np.array_equal(lse[:, rows], want_lse[0])
        close(want, reference.attention(*part, reference.causal(rows.stop - rows.start, keys.stop - keys.start))[0])
        alone = heed.attention_backward(weight[None, rows], *part, want, want_lse, mask=heed.Mask.causal())
        assert np.array_equal(grads.dq[rows], alone.dq[0]) and np.array_equal(grads.dk[keys], alone.dk[0])


def test_merged_states_are_attention_over_all_keys():
    q, k, v = make(2, 5, 4, 8), make(2, 30, 2, 8, seed=1), make(2, 30, 2, 8, seed=2)
    parts = [heed.attention(q, k[:, s], v[:, s], return_lse=True) for s in (slice(0, 9), slice(9, 10), slice(10, 30))]
    out, lse = heed.merge_states(parts)
    want, want_lse = reference.attention(q, k, v)
    close(out, want)
    close(lse, want_lse)
    with pytest.raises(ValueError, match="states"):
        heed.merge_states([])


def test_dropout_bits_depend_on_the_seed_only():
    q, k, v = make(1, 40, 2, 8), make(1, 40, 2, 8, seed=1), np.ones((1, 40, 2, 8), np.float32)
    outs = [heed.attention(q, k, v, dropout_p=0.5, seed=s) for s in (1, 1, 2)]
    assert np.array_equal(outs[0], outs[1]) and not np.array_equal(outs[0], outs[2])
    assert abs(outs[0].mean() - 1.0) < 0.1


def test_rows_without_keys_are_zero():
    q, k, v = make(2, 3, 2, 8), make(2, 4, 2, 8, seed=1), make(2, 4, 2, 8, seed=2)
    out, lse = heed.attention(q, k, v, kv_lengths=[0, 4], return_lse=True)
    assert (out[0] == 0).all() and np.isneginf(lse[0]).all() and np.isfinite(lse[1]).all()
    assert heed.attention(q, k[:, :0], v[:, :0]).shape == (2, 3, 2, 8)


@pytest.mark.parametrize("kind", [None, "linear", "ntk", "yarn", "llama3"])
@pytest.mark.parametrize("interleaved", [True, False])
def test_rope(kind, interleaved):
    scaling = {"linear": heed.RopeLinear(4.0), "ntk": heed.RopeNtk(4.0), "yarn": heed.RopeYarn(4.0, 64), "llama3": heed.RopeLlama3()}.get(kind)
    cos, sin = heed.rope_table(heed.RopeConfig(8, base=100.0, scaling=scaling), 32)
    base = 100.0 * 4.0 ** (8 / 6) if kind == "ntk" else 100.0
    if kind in (None, "linear", "ntk"):
        angles = np.outer(np.arange(32), base ** (-np.arange(4) / 4)) / (4.0 if kind == "linear" else 1.0)
        np.testing.assert_allclose(cos, np.cos(angles), atol=1e-6)
        np.testing.assert_allclose(sin, np.sin(angles), atol=1e-6)
    x, positions = make(2, 5, 3, 10), np.array([3, 0, 31, 7, 8])
    c, s = cos[positions][:, None].astype(np.float64), sin[positions][:, None].astype(np.float64)
    a, b = (x[..., 0:8:2], x[..., 1:8:2]) if interleaved else (x[..., :4], x[..., 4:8])
    want = np.array(x, np.float64)
    want[..., slice(0, 8, 2) if interleaved else slice(0, 4)] = a * c - b * s
    want[..., slice(1, 8, 2) if interleaved else slice(4, 8)] = a * s + b * c
    close(heed.apply_rope(x, cos, sin, positions, interleaved=interleaved), want)
    close(heed.apply_rope(x.transpose(0, 2, 1, 3), cos, sin, positions, interleaved=interleaved, layout="BHLD").transpose(0, 2, 1, 3), want)
    with pytest.raises(ValueError, match="position"):
        heed.apply_rope(x, cos, sin, positions + 1)


def test_cache_life_cycle():
    cache = heed.KvCache(layers=2, batch=2, kv_heads=2, head_dim=8, capacity=10)
    k, v = make(2, 10, 2, 8), make(2, 10, 2, 8, seed=1)
    for step in (slice(0, 6), slice(6, 7)):
        for layer in range(2):
            cache.append(layer, k[:, step] + layer, v[:, step])
        cache.commit(step.stop - step.start)
    assert cache.length == 7 and "length 7" in repr(cache) and cache.bytes_per_token == 2 * 2 * 2 * 8 * 4
    q, view = make(2, 2, 4, 8, seed=2), cache.layer(1)
    assert view.shape == (2, 7, 2, 8) and view.dtype == "float32"
    want = heed.attention(q, k[:, :7] + 1, v[:, :7], mask=heed.Mask.causal())
    assert np.array_equal(heed.attention(q, view, mask=heed.Mask.causal()), want)
    with pytest.raises(ValueError, match="10"):
        cache.append(0, k[:, :4], v[:, :4])
    with pytest.raises(ValueError, match="layer"):
        cache.commit(1)
    cache.truncate(3)
    assert cache.length == 3 and np.array_equal(cache.layer(0).keys_as_float32(), k[:, :3])
    del view, cache
    with pytest.raises(TypeError, match="v:"):
        heed.attention(q, heed.KvCache(kv_heads=2, head_dim=8, capacity=4, batch=2).layer(0), v)
