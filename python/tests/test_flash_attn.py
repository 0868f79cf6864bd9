# SPDX-License-Identifier: Apache-2.0
"""heed.flash_attn against a plain float64 implementation of flash-attention's documented semantics."""

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

import heed.flash_attn as fa  # noqa: E402
from heed.flash_attn import bert_padding  # noqa: E402
from heed.flash_attn.layers.rotary import apply_rotary_emb  # noqa: E402


def make(*shape, seed=0, dtype=torch.float64, grad=False):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype).requires_grad_(grad)


def plain(q, k, v, causal=False, window=(-1, -1), softcap=0.0, slopes=None, scale=None, lengths=None, leftpad=None):
    """[B, L, H, D] in float64, one slot of the L x L matrix after the other's rule."""
    q, k, v = (x.double() for x in (q, k, v))
    group = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
    lq, lk = q.shape[1], k.shape[1]
    lengths = torch.full((q.shape[0],), lk) if lengths is None else lengths
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    distance = torch.arange(lk) - (torch.arange(lq)[:, None] + (lengths - lq)[:, None, None])  # [B, Lq, Lk]
    if slopes is not None:
        slopes = slopes.double() if slopes.dim() == 2 else slopes.double().expand(q.shape[0], -1)
        scores = scores - slopes[:, :, None, None] * distance[:, None].abs()
    left, right = window[0], 0 if causal else window[1]
    visible = torch.arange(lk) < lengths[:, None, None]
    if leftpad is not None:
        visible = visible & (torch.arange(lk) >= leftpad[:, None, None])
    visible = visible & (distance >= -left if left >= 0 else True) & (distance <= right if right >= 0 else True)
    scores = scores.masked_fill(~visible[:, None], -torch.inf)
    weights = torch.where(visible.any(-1)[:, None, :, None], scores, 0.0).softmax(-1) * visible[:, None]
    return torch.einsum("bhij,bjhd->bihd", weights, v), scores.logsumexp(-1)


def close(got, want, atol=1e-10):
    torch.testing.assert_close(got.double(), want.double(), atol=atol, rtol=0)


CALLS = st.tuples(
    st.integers(1, 3), st.sampled_from([(1, 1), (4, 2), (6, 1), (3, 3)]), st.integers(1, 40), st.integers(1, 40), st.booleans(),
    st.sampled_from([(-1, -1), (5, -1), (-1, 3), (4, 2), (0, 0)]), st.sampled_from([0.0, 2.5]), st.sampled_from([None, 1, 2]), st.integers(0, 999),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(CALLS, st.sampled_from([torch.float64, torch.float32, torch.bfloat16]))
def test_forward(call, dtype):
    batch, (heads, kv_heads), lq, lk, causal, window, softcap, slope_axes, seed = call
    q, k, v = make(batch, lq, heads, 16, seed=seed, dtype=dtype), make(batch, lk, kv_heads, 16, seed=seed + 1, dtype=dtype), make(
        batch, lk, kv_heads, 8, seed=seed + 2, dtype=dtype)  # fmt: skip
    slopes = None if slope_axes is None else make(*(batch, heads)[2 - slope_axes :], seed=seed + 3).abs().float()
    if dtype == torch.float64 and slopes is not None:
        slopes = slopes.double().float()
    out, lse, _ = fa.flash_attn_func(
        q, k, v, causal=causal, window_size=window, softcap=softcap, alibi_slopes=slopes, return_attn_probs=True
    )
    want, want_lse = plain(q, k, v, causal, window, softcap, slopes)
    tolerance = {torch.float64: 1e-6 if slopes is not None else 1e-10, torch.float32: 2e-5, torch.bfloat16: 0.04}[dtype]
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


def test_dropout_is_seeded_by_torch():
    q, k, v = make(1, 50, 2, 8), make(1, 50, 2, 8, seed=1), make(1, 50, 2, 8, seed=2)
    torch.manual_seed(3)
    first = fa.flash_attn_func(q, k, v, 0.2)
    assert not torch.equal(first, fa.flash_attn_func(q, k, v, 0.2))
    torch.manual_seed(3)
    assert torch.equal(first, fa.flash_attn_func(q, k, v, 0.2))


@pytest.mark.parametrize("seqlens", [3, torch.tensor([0, 5, 9])])
@pytest.mark.parametrize("indices", [None, torch.tensor([4, 0, 2])])
@pytest.mark.parametrize("new", [0, 1, 4])
@pytest.mark.parametrize("leftpad", [None, torch.tensor([0, 2, 1])])
def test_kvcache(seqlens, indices, new, leftpad):
    if new == 0 and isinstance(seqlens, torch.Tensor):
        seqlens = seqlens + 1
    q, cache_k, cache_v = make(3, max(new, 1), 4, 8), make(5, 20, 2, 8, seed=1), make(5, 20, 2, 8, seed=2)
    k, v = (make(3, new, 2, 8, seed=3), make(3, new, 2, 8, seed=4)) if new else (None, None)
    rows = torch.arange(3) if indices is None else indices
    lengths = torch.as_tensor(seqlens).expand(3)
    if leftpad is not None:
        leftpad = torch.minimum(leftpad, lengths)
    want_k, want_v = cache_k.clone(), cache_v.clone()
    for b in range(3):
        if new:
            want_k[rows[b], lengths[b] : lengths[b] + new], want_v[rows[b], lengths[b] : lengths[b] + new] = k[b], v[b]
    out, lse = fa.flash_attn_with_kvcache(
        q, cache_k, cache_v, k, v, cache_seqlens=seqlens, cache_batch_idx=indices, cache_leftpad=leftpad, causal=True, return_softmax_lse=True
    )
    assert torch.equal(cache_k, want_k) and torch.equal(cache_v, want_v)
    want, want_lse = plain(q, want_k[rows], want_v[rows], causal=True, lengths=lengths + new, leftpad=leftpad)
    close(out, torch.nan_to_num(want))
    close(lse, want_lse)


def rotated(x, cos, sin, positions, interleaved):
    """x [B, L, H, D]; positions [B, L]."""
    half = cos.shape[1]
    c, s = cos[positions][:, :, None], sin[positions][:, :, None]
    rotary, rest = x[..., : 2 * half], x[..., 2 * half :]
    a, b = (rotary[..., ::2], rotary[..., 1::2]) if interleaved else (rotary[..., :half], rotary[..., half:])
    parts = a * c - b * s, a * s + b * c
    return torch.cat([torch.stack(parts, -1).flatten(-2) if interleaved else torch.cat(parts, -1), rest], -1)


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_kvcache_rotates_queries_and_new_keys(interleaved, causal):
    angles = torch.outer(torch.arange(32.0), torch.tensor([1.0, 0.1, 0.01])).double()
    cos, sin = angles.cos().float(), angles.sin().float()
    q, cache_k, cache_v = make(2, 3, 4, 8), make(2, 16, 4, 8, seed=1), make(2, 16, 4, 8, seed=2)
    k, v, lengths = make(2, 3, 4, 8, seed=3), make(2, 3, 4, 8, seed=4), torch.tensor([2, 7])
    want_k, want_v = cache_k.clone(), cache_v.clone()
    steps = torch.arange(3)
    k_turned = rotated(k, cos.double(), sin.double(), lengths[:, None] + steps, interleaved)
    q_turned = rotated(q, cos.double(), sin.double(), lengths[:, None] + (steps if causal else 0 * steps), interleaved)
    for b in range(2):
        want_k[b, lengths[b] : lengths[b] + 3], want_v[b, lengths[b] : lengths[b] + 3] = k_turned[b], v[b]
    out = fa.flash_attn_with_kvcache(
        q, cache_k, cache_v, k, v, cos, sin, cache_seqlens=lengths, causal=causal, rotary_interleaved=interleaved
    )
    close(cache_k, want_k, 1e-6)
    close(out, plain(q_turned, want_k, want_v, causal=causal, lengths=lengths + 3)[0], 1e-6)


def test_kvcache_errors():
    q, cache = make(1, 1, 2, 8), make(1, 4, 2, 8)
    with pytest.raises(ValueError, match="cache_seqlens.*do not fit"):
        fa.flash_attn_with_kvcache(q, cache, cache.clone(), q, q, cache_seqlens=4)
    with pytest.raises(ValueError, match="cache_batch_idx"):
        fa.flash_attn_with_kvcache(q, cache, cache.clone(), cache_seqlens=4, cache_batch_idx=torch.tensor([1]))
    with pytest.raises(NotImplementedError, match="block_table"):
        fa.flash_attn_with_kvcache(q, cache, cache.clone(), block_table=torch.zeros(1, 1))
    with pytest.raises(ValueError, match="window_size"):
        fa.flash_attn_func(q, q, q, window_size=(-2, 0))


def test_padding_round_trip_and_its_gradient():
    x, mask = make(3, 5, 2, grad=True), torch.tensor([[1, 1, 0, 0, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]])
    packed, indices, offsets, longest, used = bert_padding.unpad_input(x, mask)
    assert offsets.tolist() == [0, 2, 2, 7] and offsets.dtype == torch.int32 and longest == 5 and used.tolist() == [2, 0, 5]
    back = bert_padding.pad_input(packed, indices, 3, 5)
    assert torch.equal(back, x * mask[..., None])
    (gradient,) = torch.autograd.grad((back * 3).sum(), x)
    assert torch.equal(gradient, 3 * mask[..., None].expand_as(x).double())
    packed, _, offsets, longest = bert_padding.unpad_input_for_concatenated_sequences(x, torch.tensor([[2, 1, 0, 0, 0], [3, 0, 0, 0, 0], [5, 0, 0, 0, 0]]))
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


def test_install_answers_imports_and_metadata():
    program = """
import importlib.metadata, importlib.util
import heed.flash_attn
heed.flash_attn.install(); heed.flash_attn.install()
assert importlib.util.find_spec("flash_attn") is not None
import flash_attn, flash_attn.flash_attn_interface
from flash_attn import flash_attn_func, flash_attn_varlen_func
from flash_attn.bert_padding import pad_input, unpad_input, index_first_axis
from flash_attn.layers.rotary import apply_rotary_emb
assert flash_attn_func is heed.flash_attn.flash_attn_func
for name in ("flash_attn", "flash-attn"):
    assert importlib.metadata.version(name) == flash_attn.__version__ == "2.8.3"
assert "flash_attn" in importlib.metadata.packages_distributions()
heed.flash_attn.uninstall()
try:
    import flash_attn.bert_padding
    raise SystemExit("still there")
except ModuleNotFoundError:
    pass
try:
    importlib.metadata.version("flash_attn")
    raise SystemExit("metadata still there")
except importlib.metadata.PackageNotFoundError:
    pass
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_install_refuses_to_hide_a_real_one(tmp_path):
    (tmp_path / "flash_attn").mkdir()
    (tmp_path / "flash_attn" / "__init__.py").write_text("")
    program = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
import heed.flash_attn
try:
    heed.flash_attn.install()
    raise SystemExit("hidden")
except RuntimeError as error:
    assert "replace=True" in str(error)
heed.flash_attn.install(replace=True)
import flash_attn
assert flash_attn is heed.flash_attn
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
