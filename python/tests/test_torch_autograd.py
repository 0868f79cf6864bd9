# SPDX-License-Identifier: Apache-2.0
"""Gradients, tracing and patching of heed.torch."""

import contextlib
import threading

import pytest

torch = pytest.importorskip("torch")
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402

import heed  # noqa: E402
import heed.torch  # noqa: E402

sdpa = heed.torch.scaled_dot_product_attention
their_sdpa = torch.nn.functional.scaled_dot_product_attention


def make(*shape, dtype=torch.float32, seed=0, grad=True):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype).requires_grad_(grad)


def grads_of(function, tensors, weight, **options):
    out = function(*tensors, **options)
    return torch.autograd.grad((out.double() * weight).sum(), [x for x in tensors if x is not None and x.requires_grad])


def exact_sdpa(*tensors, **options):
    with sdpa_kernel(SDPBackend.MATH):
        return their_sdpa(*tensors, **options)


def plain_grads(tensors, weight, dtype, **options):
    """By hand in the dtype at hand: weights and dS rounded to it, float32 sums."""
    q, k, v, mask = (*tensors, None)[:4]
    q, k, v = (x.detach().float() for x in (q, k, v))
    scale = q.shape[-1] ** -0.5
    scores = q @ k.transpose(-1, -2) * scale
    if options.get("is_causal"):
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -torch.inf)
    if mask is not None:
        scores = scores + mask.detach().float()
    p = scores.softmax(-1)
    dout = weight.to(dtype).float()
    out = (p.to(dtype).float() @ v).to(dtype).float()
    ds = p * (dout @ v.transpose(-1, -2) - (dout * out).sum(-1, keepdim=True))
    rounded = ds.to(dtype).float()
    grads = [scale * rounded @ k, scale * rounded.transpose(-1, -2) @ q, p.to(dtype).float().transpose(-1, -2) @ dout]
    return grads if mask is None else [*grads, ds.sum_to_size(mask.shape)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["none", "causal", "float"])
def test_gradients_agree_with_torch(dtype, kind):
    q, k, v = (make(2, 3, n, 24, dtype=dtype, seed=s) for s, n in enumerate((37, 53, 53)))
    mask = make(3, 37, 53, dtype=dtype, seed=3) if kind == "float" else None
    weight = make(2, 3, 37, 24, dtype=dtype, seed=4, grad=False).double()
    tensors = [q, k, v] if mask is None else [q, k, v, mask]
    options = {"is_causal": True} if kind == "causal" else {}
    got = grads_of(sdpa, tensors, weight, **options)
    want = grads_of(exact_sdpa, [x.detach().double().requires_grad_() for x in tensors], weight, **options)
    for g, w, p in zip(got, want, plain_grads(tensors, weight, dtype, **options)):
        assert g.dtype == dtype
        assert (g.double() - w).abs().max() <= 3 * (p.to(dtype).double() - w).abs().max() + 1e-6 * w.abs().max()


def test_gradcheck_in_float64():
    q, k, v = make(1, 2, 5, 4, dtype=torch.float64), make(1, 1, 6, 4, dtype=torch.float64, seed=1), make(1, 1, 6, 3, dtype=torch.float64, seed=2)
    mask = make(2, 5, 6, dtype=torch.float64, seed=3)
    assert torch.autograd.gradcheck(lambda *t: sdpa(*t, enable_gqa=True), (q, k, v, mask))
    sinks = make(2, dtype=torch.float64, seed=4)
    window = heed.Mask.causal() & heed.Mask.sliding_window(3)

    def call(q, k, v, sinks):
        return heed.torch.attention(q, k, v, mask=window, softcap=3.0, sink_logits=sinks, layout="BHLD")

    assert torch.autograd.gradcheck(call, (q, k, v, sinks))
    offsets = torch.tensor([0, 2, 5])
    packed = [x[0].transpose(0, 1).detach().requires_grad_() for x in (q, k[:, :, :5], v[:, :, :5])]
    assert torch.autograd.gradcheck(lambda *t: heed.torch.attention_varlen(*t[:3], offsets, offsets, mask="causal", sink_logits=t[3]), (*packed, sinks))


def test_second_derivatives_are_an_error():
    q, k, v = (make(1, 1, 4, 4, seed=s) for s in range(3))
    (dq,) = torch.autograd.grad(sdpa(q, k, v).sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivatives"):
        dq.sum().backward()


def test_gradients_under_dropout_use_the_same_bits():
    q, k, v = (make(1, 2, 40, 16, seed=s) for s in range(3))
    torch.manual_seed(1)
    out = sdpa(q, k, v, dropout_p=0.3)
    (dv,) = torch.autograd.grad(out.sum(), v, retain_graph=True)
    # out is linear in v: the gradient's product with v is the output's sum.
    torch.testing.assert_close((dv * v).sum(), out.sum(), rtol=1e-4, atol=1e-3)


def test_only_what_requires_a_gradient_gets_one():
    q, k, v = make(1, 2, 4, 8), make(1, 2, 6, 8, seed=1, grad=False), make(1, 2, 6, 8, seed=2)
    sdpa(q, k, v).sum().backward()
    assert q.grad is not None and k.grad is None and v.grad is not None
    with torch.no_grad():
        assert not sdpa(q, k, v).requires_grad
    with pytest.raises(TypeError, match="heed.torch"):
        heed.attention(q, k, v)


@pytest.mark.parametrize("kind", ["none", "causal", "bool", "float", "dropout"])
def test_compiles_as_one_graph(kind):
    q, k, v = (make(1, 2, 5, 8, seed=s) for s in range(3))
    mask = {"bool": torch.ones(5, 5).tril().bool(), "float": make(5, 5, seed=4)}.get(kind)

    def function(q, k, v, mask):
        return sdpa(q * 2, k, v, mask, is_causal=kind == "causal", dropout_p=0.5 if kind == "dropout" else 0.0) + 1

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    got = compiled(q, k, v, mask)
    if kind == "dropout":
        assert got.shape == q.shape and not torch.equal(got, compiled(q, k, v, mask))
        return
    torch.testing.assert_close(got, function(q, k, v, mask))
    for g, w in zip(torch.autograd.grad(got.sum(), (q, k, v)), torch.autograd.grad(function(q, k, v, mask).sum(), (q, k, v))):
        torch.testing.assert_close(g, w)


def test_compiles_attention_with_a_mask_as_text():
    q, k, v = (make(1, 5, 2, 8, seed=s) for s in range(3))
    function = torch.compile(lambda q, k, v: heed.torch.attention(q, k, v, mask="causal & window 2 0"), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(function(q, k, v), heed.torch.attention(q, k, v, mask=heed.Mask.causal() & heed.Mask.window(2, 0)))


def test_operators_obey_torchs_rules():
    from heed.torch._library import attention_op

    q, k, v = (make(1, 2, 5, 8, seed=s) for s in range(3))
    arguments = (q, k, v, make(5, 5, seed=3), make(2, seed=4), None, "", "bottom_right", None, None, 0.0, None, "BHLD")
    torch.library.opcheck(attention_op, arguments)


def test_vmap_over_the_batch():
    q, k, v = (make(3, 2, 2, 5, 8, seed=s, grad=False) for s in range(3))
    want = torch.stack([sdpa(*x) for x in zip(q, k, v)])
    torch.testing.assert_close(torch.func.vmap(sdpa)(q, k, v), want)
    torch.testing.assert_close(torch.func.vmap(sdpa, in_dims=(0, None, None))(q, k[0], v[0])[1], sdpa(q[1], k[0], v[0]))
    mask = make(3, 5, 5, seed=4, grad=False)
    want = torch.stack([sdpa(*x) for x in zip(q, k, v, mask)])
    torch.testing.assert_close(torch.func.vmap(sdpa)(q, k, v, mask), want)
    per_sample = torch.func.vmap(torch.func.grad(lambda q, k, v: sdpa(q, k, v).square().sum()))(q, k, v)
    leaf = q.clone().requires_grad_()
    sum(sdpa(*x).square().sum() for x in zip(leaf, k, v)).backward()
    torch.testing.assert_close(per_sample, leaf.grad)


def test_patched_restores_even_after_errors():
    functional = torch.nn.functional
    original = functional.scaled_dot_product_attention
    with heed.torch.patched():
        ours = functional.scaled_dot_product_attention
        assert ours is not original
        with heed.torch.patched():
            pass
        assert functional.scaled_dot_product_attention is ours
    with pytest.raises(KeyError), heed.torch.patched():
        raise KeyError
    assert functional.scaled_dot_product_attention is original

    @heed.torch.patched()
    def inside():
        return functional.scaled_dot_product_attention

    assert inside() is not original and functional.scaled_dot_product_attention is original


def test_patched_encoder_layer_trains_the_same():
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True).train()
    x, padding = make(2, 7, 32), torch.zeros(2, 7, dtype=torch.bool)
    padding[1, 5:] = True
    results = []
    for context in (heed.torch.patched(), contextlib.nullcontext()):
        with context:
            layer.zero_grad()
            out = layer(x, src_key_padding_mask=padding)
            out[~padding].square().sum().backward()
            results.append([out[~padding].detach()] + [p.grad.clone() for p in layer.parameters()])
    for ours, theirs in zip(*results):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=2e-5)


def test_threads_give_the_same_bits():
    q, k, v = (make(1, 4, 100, 32, seed=s, grad=False) for s in range(3))
    want, got = sdpa(q, k, v, is_causal=True), [None] * 4

    def work(index):
        for _ in range(20):
            got[index] = sdpa(q, k, v, is_causal=True)
            torch.mm(q[0, 0], k[0, 0].T)  # torch's own threads beside ours

    workers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert all(torch.equal(want, x) for x in got)


class _Items(torch.utils.data.Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        x = torch.full((1, 1, 64, 16), float(index))
        return sdpa(x, x, x)


def test_forked_data_loader_workers():
    big = make(1, 8, 256, 64, grad=False)
    sdpa(big, big, big)  # the parent's pools exist
    loader = torch.utils.data.DataLoader(_Items(), num_workers=2, timeout=60, multiprocessing_context="fork")
    assert torch.cat(list(loader)).flatten(1).mean(1).tolist() == pytest.approx(list(range(6)))
