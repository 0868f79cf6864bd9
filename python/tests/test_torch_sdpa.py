# SPDX-License-Identifier: Apache-2.0
"""heed.torch.scaled_dot_product_attention against torch's own, in float64."""

import pytest

torch = pytest.importorskip("torch")
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.nn.attention.bias import causal_lower_right, causal_upper_left  # noqa: E402

import heed.torch  # noqa: E402

sdpa = heed.torch.scaled_dot_product_attention
their_sdpa = torch.nn.functional.scaled_dot_product_attention
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def exact(q, k, v, mask=None, **options):
    """torch's plain implementation in float64; rows without keys are 0."""
    q, k, v = (x.detach().double() for x in (q, k, v))
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.detach().double()
    with sdpa_kernel(SDPBackend.MATH):
        out = their_sdpa(q, k, v, mask, **options)
    return torch.nan_to_num(out, nan=0.0)


def plain(q, k, v, mask=None, **options):
    """The same in the dtype at hand: float32 scores, weights rounded to the type."""
    scores = q.float() @ k.float().transpose(-1, -2) * options.get("scale", q.shape[-1] ** -0.5)
    if options.get("is_causal"):
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask.float()
    weights = torch.nan_to_num(scores.softmax(-1), nan=0.0)
    return (weights.to(q.dtype).float() @ v.float()).to(q.dtype)


def check(q, k, v, mask=None, **options):
    got, want = sdpa(q, k, v, mask, **options), exact(q, k, v, mask, **options)
    assert got.dtype == q.dtype and got.shape == want.shape
    wide = [x.repeat_interleave(q.shape[-3] // x.shape[-3], -3) if x.dim() > 2 else x for x in (k, v)]
    options.pop("enable_gqa", None)
    error = (plain(q, *wide, mask, **options).double() - want).abs().max() if want.numel() else 0.0
    bound = 2 * error + 1e-6 * want.abs().max() if want.numel() else 0.0
    if want.numel():
        assert (got.double() - want).abs().max() <= bound


def make(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 3), st.sampled_from([(1, 1), (4, 4), (4, 2), (6, 1), (9, 3)]), st.integers(1, 70), st.integers(1, 90), st.integers(1, 40),
    st.integers(1, 40), st.sampled_from(["none", "causal", "bool", "float"]), st.sampled_from(DTYPES), st.integers(0, 2**20), st.booleans(),
)  # fmt: skip
def test_agrees_with_torch(batch, heads, lq, lk, dim, value_dim, kind, dtype, seed, transposed):
    def tensor(h, length, d, s):
        return make(batch, length, h, d, dtype=dtype, seed=s).transpose(1, 2) if transposed else make(batch, h, length, d, dtype=dtype, seed=s)

    q, k, v = tensor(heads[0], lq, dim, seed), tensor(heads[1], lk, dim, seed + 1), tensor(heads[1], lk, value_dim, seed + 2)
    generator = torch.Generator().manual_seed(seed)
    mask = {
        "bool": lambda: torch.rand(batch, 1, lq, lk, generator=generator) < 0.7,
        "float": lambda: torch.randn(heads[0], lq, lk, generator=generator).to(dtype),
    }.get(kind, lambda: None)()
    check(q, k, v, mask, is_causal=kind == "causal", enable_gqa=heads[0] != heads[1])


@pytest.mark.parametrize("shape", [(5, 7), (1, 7), (5, 1), (3, 5, 7), (1, 1, 7), (2, 1, 1, 7), (2, 3, 5, 7), (1, 3, 1, 1), (1, 1)])
@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_masks_of_every_broadcast_shape(shape, dtype):
    q, k, v = make(2, 3, 5, 16), make(2, 3, 7, 16, seed=1), make(2, 3, 7, 16, seed=2)
    mask = make(*shape, seed=3) > -0.5 if dtype == torch.bool else make(*shape, seed=3)
    check(q, k, v, mask)


@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (2, 1, 3), (2, 2, 2, 3)])
def test_any_number_of_batch_axes(lead):
    q, k, v = make(*lead, 5, 8), make(*lead, 7, 8, seed=1), make(*lead, 7, 4, seed=2)
    check(q, k, v)
    check(q, k, v, is_causal=True)
    check(q, k, v, make(5, 7, seed=3))
    if len(lead) > 2:
        check(q, k, v, make(*lead, 5, 7, seed=3) > 0)


def test_batch_axes_broadcast():
    q, k, v = make(3, 4, 5, 8), make(1, 4, 7, 8, seed=1), make(1, 1, 7, 8, seed=2)
    torch.testing.assert_close(sdpa(q, k, v).double(), exact(q, k.expand(3, 4, 7, 8), v.expand(3, 4, 7, 8)), atol=1e-5, rtol=0)


def test_causal_bias_objects():
    q, k, v = make(1, 2, 4, 8), make(1, 2, 9, 8, seed=1), make(1, 2, 9, 8, seed=2)
    lower = torch.ones(4, 9, dtype=torch.bool).tril(5)
    torch.testing.assert_close(sdpa(q, k, v, causal_lower_right(4, 9)).double(), exact(q, k, v, lower), atol=1e-5, rtol=0)
    torch.testing.assert_close(sdpa(q, k, v, causal_upper_left(4, 9)).double(), exact(q, k, v, is_causal=True), atol=1e-5, rtol=0)


def test_rows_without_keys_and_empty_sizes():
    q, k, v = make(1, 2, 4, 8), make(1, 2, 9, 8, seed=1), make(1, 2, 9, 8, seed=2)
    mask = torch.ones(4, 9, dtype=torch.bool)
    mask[2] = False
    assert (sdpa(q, k, v, mask)[:, :, 2] == 0).all()
    assert (sdpa(q, k, v, torch.where(mask, 0.0, -torch.inf))[:, :, 2] == 0).all()
    assert (sdpa(q, k[:, :, :0], v[:, :, :0]) == 0).all()
    assert sdpa(q[:, :, :0], k, v).shape == (1, 2, 0, 8) and sdpa(q[:0], k[:0], v[:0]).shape == (0, 2, 4, 8)


def test_scale_float64_and_autocast():
    q, k, v = (make(1, 2, 6, 8, seed=s).double() for s in range(3))
    torch.testing.assert_close(sdpa(q, k, v, scale=0.5), exact(q, k, v, scale=0.5), atol=1e-12, rtol=0)
    assert sdpa(q.float(), k.float(), v.float(), scale=0.0).double().sub(v.mean(2, keepdim=True)).abs().max() < 1e-6
    with torch.autocast("cpu", torch.bfloat16):
        assert sdpa(q.float(), k.float(), v.float()).dtype == torch.bfloat16


def test_keeps_the_order_of_axes():
    q, k, v = (make(2, 5, 3, 8, seed=s).transpose(1, 2) for s in range(3))
    assert sdpa(q, k, v).transpose(1, 2).is_contiguous()
    assert sdpa(q, k, v[..., :4]).transpose(1, 2).is_contiguous()


def test_dropout_follows_torchs_generator():
    q, k, v = make(1, 2, 64, 16), make(1, 2, 64, 16, seed=1), torch.ones(1, 2, 64, 16)
    torch.manual_seed(7)
    first, second = sdpa(q, k, v, dropout_p=0.5), sdpa(q, k, v, dropout_p=0.5)
    torch.manual_seed(7)
    assert torch.equal(first, sdpa(q, k, v, dropout_p=0.5)) and not torch.equal(first, second)
    assert abs(first.mean() - 1.0) < 0.05  # E[weights / (1 - p)] adds up to 1
    assert torch.equal(sdpa(q, k, v), sdpa(q, k, v, dropout_p=0.0))


@pytest.mark.parametrize(
    "change, error, text",
    [
        (dict(is_causal=True, attn_mask=torch.ones(5, 7)), ValueError, "attn_mask"),
        (dict(attn_mask=torch.ones(5, 7).double()), TypeError, "attn_mask"),
        (dict(attn_mask=torch.ones(5, 6)), ValueError, "bias|attn_mask"),
        (dict(key=torch.ones(1, 2, 7, 8).half()), TypeError, "key"),
        (dict(value=torch.ones(1, 2, 7)), ValueError, "value"),
        (dict(key=torch.ones(1, 4, 7, 8), value=torch.ones(1, 4, 7, 8)), ValueError, "key.*enable_gqa"),
        (dict(query=torch.ones(1, 2, 5, 8).int(), key=torch.ones(1, 2, 7, 8).int(), value=torch.ones(1, 2, 7, 8).int()), TypeError, "query"),
        (dict(query=[1.0]), TypeError, "query"),
        (dict(dropout_p=1.5), ValueError, "dropout_p"),
        (dict(key=torch.ones(1, 2, 7, 8, device="meta")), TypeError, "key.*device"),
    ],
)
def test_errors_name_the_argument(change, error, text):
    arguments = dict(query=make(1, 2, 5, 8), key=make(1, 2, 7, 8), value=make(1, 2, 7, 8))
    with pytest.raises(error, match=text):
        sdpa(**{**arguments, **change})


def test_meta_tensors_have_a_shape_only():
    q, k, v = (torch.empty(1, 2, n, 8, device="meta") for n in (5, 7, 7))
    assert sdpa(q, k, v).shape == (1, 2, 5, 8) and sdpa(q, k, v).device.type == "meta"
