# SPDX-License-Identifier: Apache-2.0
"""Where torch's own function is lenient, lazy or transformed: heed.torch.scaled_dot_product_attention follows, or refuses in words."""

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.nn.attention.bias import causal_lower_right, causal_upper_left  # noqa: E402

import heed.torch  # noqa: E402
from torch_bounds import terms, within  # noqa: E402

sdpa = heed.torch.scaled_dot_product_attention
their_sdpa = torch.nn.functional.scaled_dot_product_attention


def make(*shape, dtype=torch.float32, seed=0, grad=False):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype).requires_grad_(grad)


def exact(q, k, v, mask=None, **options):
    with sdpa_kernel(SDPBackend.MATH):
        return their_sdpa(q.double(), k.double(), v.double(), mask if mask is None or mask.dtype == torch.bool else mask.double(), **options)


def close(got, want):
    assert got.shape == want.shape
    assert (got.double() - want.double()).abs().max() <= 1e-5 * want.abs().max()


@pytest.mark.parametrize(
    "q, k, v, gqa",
    [
        ((2, 4, 5, 8), (4, 7, 8), (4, 7, 8), False),  # fewer axes
        ((4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 3), False),
        ((5, 8), (7, 8), (2, 4, 7, 8), False),
        ((2, 1, 5, 8), (2, 4, 7, 8), (2, 4, 7, 8), False),  # one head, or one batch entry, for all
        ((2, 4, 5, 8), (2, 1, 7, 8), (2, 4, 7, 8), False),
        ((1, 4, 5, 8), (2, 4, 7, 8), (2, 1, 7, 8), False),
        ((2, 4, 5, 8), (2, 2, 7, 8), (2, 4, 7, 8), True),  # groups of different sizes
        ((2, 4, 5, 8), (2, 2, 7, 8), (2, 1, 7, 8), True),
        ((6, 5, 8), (3, 7, 8), (3, 7, 8), True),
        ((2, 3, 6, 5, 8), (2, 1, 3, 7, 8), (1, 3, 3, 7, 8), True),
    ],
)
def test_operands_broadcast_as_torchs_do(q, k, v, gqa):
    tensors = [make(*shape, seed=s, grad=True) for s, shape in enumerate((q, k, v))]
    want = exact(*tensors, enable_gqa=gqa)
    got = sdpa(*tensors, enable_gqa=gqa)
    close(got, want)
    weight = make(*want.shape, seed=4)
    for g, w in zip(torch.autograd.grad((got * weight).sum(), tensors), torch.autograd.grad((want * weight).sum(), tensors)):
        close(g, w)


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 3), st.sampled_from([(1, 1), (4, 4), (4, 2), (6, 1)]), st.integers(1, 50), st.integers(1, 60), st.integers(1, 33),
    st.integers(1, 33), st.sampled_from(["none", "causal", "bool", "float", "lower_right"]), st.integers(0, 2**20), st.booleans(), st.data(),
)  # fmt: skip
def test_gradients_agree_with_torch_over_shapes(batch, heads, lq, lk, dim, value_dim, kind, seed, transposed, data):
    def tensor(h, length, d, s):
        x = make(batch, length, h, d, seed=s).transpose(1, 2) if transposed else make(batch, h, length, d, seed=s)
        return x.requires_grad_()

    tensors = [tensor(heads[0], lq, dim, seed), tensor(heads[1], lk, dim, seed + 1), tensor(heads[1], lk, value_dim, seed + 2)]
    shape = [data.draw(st.sampled_from((1, n))) for n in (batch, heads[0], lq, lk)][data.draw(st.integers(0, 2)) :]
    options, mask, their_mask = {"enable_gqa": True}, None, None
    if kind == "causal":
        options["is_causal"] = True
    elif kind == "bool":
        mask = their_mask = make(*shape, seed=seed + 3) > -0.5
    elif kind == "float":
        mask = their_mask = make(*shape, seed=seed + 3, grad=True)
        tensors.append(mask)
    elif kind == "lower_right":
        mask, their_mask = causal_lower_right(lq, lk), torch.ones(lq, lk, dtype=torch.bool).tril(lk - lq)
    weight = make(batch, heads[0], lq, value_dim, seed=seed + 4)
    got = torch.autograd.grad((sdpa(*tensors[:3], mask, **options) * weight).sum(), tensors)
    want = torch.autograd.grad((exact(*tensors[:3], their_mask, **options) * weight).sum(), tensors)
    added = torch.zeros(lq, lk).double()
    if kind == "causal":
        their_mask = torch.ones(lq, lk, dtype=torch.bool).tril()
    if their_mask is not None:
        added = their_mask.detach().double() if kind == "float" else torch.where(their_mask, 0.0, -torch.inf).double()
    q, k, v = (x.detach() for x in tensors[:3])
    scores = q.double() @ k.double().repeat_interleave(heads[0] // heads[1], 1).transpose(-1, -2) * dim**-0.5 + added
    sizes, ds, _ = terms(torch.nan_to_num(scores.softmax(-1)), q, k, v, weight, dim**-0.5)
    for g, w, size in zip(got, want, [*sizes, ds.sum_to_size(shape).max() if kind == "float" else None]):
        assert within(g, w, size)


def test_signs_that_torch_has_put_off_count():
    lazy = torch.complex(torch.zeros(1, 2, 6, 8), make(1, 2, 6, 8)).conj().imag
    assert lazy.is_neg()  # else this shows nothing
    k, v = make(1, 2, 6, 8, seed=1), make(1, 2, 6, 8, seed=2)
    close(sdpa(lazy, k, v), exact(lazy.resolve_neg(), k, v))
    close(sdpa(k, lazy, lazy), exact(k, lazy.resolve_neg(), lazy.resolve_neg()))
    close(sdpa(k, v, v, lazy[..., :6]), exact(k, v, v, lazy.resolve_neg()[..., :6]))
    tensors = [make(1, 2, 6, 8, seed=s, grad=True) for s in range(3)]
    want = torch.autograd.grad(exact(*tensors), tensors, lazy.resolve_neg().double())
    for g, w in zip(torch.autograd.grad(sdpa(*tensors), tensors, lazy), want):
        close(g, w)
    slopes = torch.complex(torch.zeros(2), torch.ones(2)).conj().imag
    call = heed.torch.attention
    assert torch.equal(call(k, v, v, layout="BHLD", alibi_slopes=slopes), call(k, v, v, layout="BHLD", alibi_slopes=-torch.ones(2)))


@pytest.mark.parametrize("shape", [(5, 6), (4, 7), (3, 5, 7), (3, 1, 5, 7), (7,), (1, 1, 2, 5, 7)])
@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_masks_of_a_wrong_shape_are_refused(shape, dtype):
    q, k, v = make(2, 2, 5, 8), make(2, 2, 7, 8), make(2, 2, 7, 8)
    with pytest.raises(ValueError, match="attn_mask"):
        sdpa(q, k, v, torch.ones(shape, dtype=dtype))
    with pytest.raises(ValueError, match="bias"):
        heed.torch.attention(q, k, v, bias=torch.ones(shape if len(shape) > 1 else (6,), dtype=dtype), layout="BHLD")


def test_tensors_on_other_devices_are_refused():
    q, k, v = make(2, 2, 5, 8), make(2, 2, 7, 8), make(2, 2, 7, 8)
    with pytest.raises(TypeError, match="attn_mask.*device"):
        sdpa(q, k, v, torch.zeros(5, 7, device="meta"))
    with pytest.raises(TypeError, match="sink_logits.*device"):
        heed.torch.attention(q, k, v, sink_logits=torch.zeros(2, device="meta"), layout="BHLD")
    with pytest.raises(TypeError, match="query.*strided"):
        sdpa(q.to_sparse(), k, v)


@pytest.mark.parametrize("change, text", [((5, 4), "key"), ((6, 8), "value")])
def test_sizes_that_do_not_fit_are_named(change, text):
    with pytest.raises(ValueError, match=text):
        sdpa(make(1, 2, 5, 8), make(1, 2, *change), make(1, 2, 7, 8))


def test_autocast_joins_types_as_torch_does():
    q, k, v = make(1, 2, 5, 8), make(1, 2, 5, 8, dtype=torch.float16, seed=1), make(1, 2, 5, 8, dtype=torch.bfloat16, seed=2)
    mask = make(5, 5, dtype=torch.float16, seed=3)
    with torch.autocast("cpu", torch.bfloat16):
        for arguments in ((q, k, v), (q, k, v, mask), (k, k, k), (q.double(), k.double(), v.double()), (q, q, q, mask.float())):
            got, theirs = sdpa(*arguments), their_sdpa(*arguments)
            assert got.dtype == theirs.dtype
            assert (got.double() - theirs.double()).abs().max() <= 2**-7 * theirs.abs().max()  # two roundings to bfloat16


def test_dropout_of_everything():
    q, k, v = (make(1, 2, 5, 8, seed=s, grad=True) for s in range(3))
    out = sdpa(q, k, v, dropout_p=1.0)
    assert (out == 0).all() and all((g == 0).all() for g in torch.autograd.grad(out.sum(), (q, k, v)))


def test_forward_mode_is_refused_not_dropped():
    q, k, v = (make(1, 2, 5, 8, seed=s) for s in range(3))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(q, torch.ones_like(q))
        for call in (lambda: sdpa(dual, k, v), lambda: sdpa(k, v, dual), lambda: heed.torch.attention(dual, k, v)):
            with pytest.raises(NotImplementedError, match="forward-mode"):
                call()
        close(sdpa(q, k, v), exact(q, k, v))  # without a tangent nothing is lost
    with pytest.raises(NotImplementedError):
        torch.func.jvp(lambda x: sdpa(x, k, v), (q,), (q,))


def test_vmap_over_output_gradients():
    q, k, v = (make(1, 2, 5, 8, seed=s, grad=True) for s in range(3))
    mask, directions = make(2, 5, 5, seed=4, grad=True), make(3, 1, 2, 5, 8, seed=5)
    for tensors in ((q, k, v), (q, k, v, mask)):
        out, want = sdpa(*tensors), exact(*tensors)
        got = torch.func.vmap(lambda d: torch.autograd.grad(out, tensors, d, retain_graph=True))(directions)
        for index, direction in enumerate(directions):
            for g, w in zip(got, torch.autograd.grad(want, tensors, direction.double(), retain_graph=True)):
                close(g[index], w)
        with pytest.raises(RuntimeError, match="is_grads_batched"):
            torch.autograd.grad(out, tensors, directions, is_grads_batched=True)
    jacobian = torch.func.jacrev(lambda x: sdpa(x, k, v))(q)
    close(jacobian, torch.func.jacrev(lambda x: exact(x, k, v))(q))


def test_subclasses_and_parameters():
    class Own(torch.Tensor):
        pass

    q, k, v = (make(1, 2, 5, 8, seed=s) for s in range(3))
    got = sdpa(q.as_subclass(Own), k, v)
    assert type(got) is Own
    close(got.as_subclass(torch.Tensor), exact(q, k, v))
    parameter = torch.nn.Parameter(q)
    sdpa(parameter, k, v).sum().backward()
    assert parameter.grad is not None


def test_causal_objects_are_not_read_and_not_joined():
    q, k, v = make(1, 2, 6, 8), make(1, 2, 3, 8, seed=1), make(1, 2, 3, 8, seed=2)
    got = sdpa(q, k, v, causal_lower_right(6, 3))
    assert (got[:, :, :3] == 0).all()  # rows above the first key
    close(got[:, :, 3:], exact(q[:, :, 3:], k, v, is_causal=True))
    with pytest.raises(ValueError, match="attn_mask"):
        sdpa(q, k, v, causal_upper_left(6, 3), is_causal=True)


def test_in_place_changes_before_backward_are_noticed():
    q, k, v = (make(1, 2, 5, 8, seed=s, grad=True) for s in range(3))
    product = q * 1
    out = sdpa(product, k, v)
    product.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_inference_mode_and_checkpoints():
    q, k, v = (make(1, 2, 5, 8, seed=s, grad=True) for s in range(3))
    with torch.inference_mode():
        got = sdpa(q, k, v)
        assert got.is_inference()
    close(got, exact(q, k, v).detach())
    from torch.utils.checkpoint import checkpoint

    gradients = []
    for call in (lambda: checkpoint(lambda *t: sdpa(*t, dropout_p=0.3), q, k, v, use_reentrant=False), lambda: sdpa(q, k, v, dropout_p=0.3)):
        torch.manual_seed(3)
        gradients.append(torch.autograd.grad(call().square().sum(), (q, k, v)))
    assert all(torch.equal(a, b) for a, b in zip(*gradients))


def test_eager_calls_stay_away_from_torch_library():
    code = """
import sys, torch, heed.torch
q = torch.randn(1, 2, 4, 8, requires_grad=True)
for options in ({}, {"is_causal": True}, {"attn_mask": torch.zeros(4, 4)}, {"attn_mask": torch.ones(4, 4) > 0}, {"dropout_p": 0.5}):
    heed.torch.scaled_dot_product_attention(q, q, q, **options).sum().backward()
heed.torch.attention(q, q, q, mask="causal", layout="BHLD").sum().backward()
assert "heed.torch._library" not in sys.modules
torch.func.vmap(heed.torch.scaled_dot_product_attention)(q[None], q[None], q[None])
assert "heed.torch._library" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.parametrize("in_dims", [(0, 0, 0), (1, 1, 1), (0, None, 1)])
@pytest.mark.parametrize("kind", ["none", "causal", "bool", "float", "gqa"])
def test_vmap_gives_what_torchs_own_gives(in_dims, kind):
    q, k, v = (make(3, 3, 4, 5, 8, seed=s) if dim is not None else make(3, 4, 5, 8, seed=s) for s, dim in enumerate(in_dims))
    options, extra = {}, ()
    if kind == "causal":
        options["is_causal"] = True
    elif kind == "gqa":
        k, v, options["enable_gqa"] = k[..., :2, :, :], v[..., :2, :, :], True
    elif kind in ("bool", "float"):
        mask = make(3, 4, 5, 5, seed=4)
        extra = (mask > -1 if kind == "bool" else mask,)

    def mapped(function, *tensors):
        dims = (*in_dims, *((0,) * len(extra)))
        return torch.func.vmap(lambda *t: function(*t, **options), in_dims=dims)(*tensors, *extra)

    close(mapped(sdpa, q, k, v), mapped(exact, q, k, v))
    ours, theirs = (torch.func.grad(lambda *t: mapped(f, *t).square().sum(), argnums=(0, 1, 2))(q, k, v) for f in (sdpa, exact))
    for g, w in zip(ours, theirs):
        close(g, w)


def test_vmap_draws_dropout_as_asked():
    q = make(1, 2, 30, 8).expand(3, 1, 2, 30, 8)
    call = torch.func.vmap(lambda x: sdpa(x, x, x, dropout_p=0.5), randomness="different")
    different = call(q)
    assert not torch.equal(different[0], different[1])
    same = torch.func.vmap(lambda x: sdpa(x, x, x, dropout_p=0.5), randomness="same")(q)
    assert torch.equal(same[0], same[1])
    with pytest.raises(RuntimeError, match="randomness"):
        torch.func.vmap(lambda x: sdpa(x, x, x, dropout_p=0.5))(q)


@pytest.mark.parametrize("in_dims", [(0, 0, 0), (1, 2, 4), (1, None, 1)])
def test_vmap_of_attention_over_any_axis(in_dims):
    q, k, v = (make(2, 4, 5, 8, seed=s) for s in range(3))
    q, k, v = (x if d is None else torch.stack([x, x.flip(0), x * 0.5], d) for x, d in zip((q, k, v), in_dims))

    def ours(*t):
        return heed.torch.attention(*t, mask="causal", layout="BHLD")

    got = torch.func.vmap(ours, in_dims=in_dims)(q, k, v)
    close(got, torch.func.vmap(lambda *t: exact(*t, is_causal=True), in_dims=in_dims)(q, k, v))
