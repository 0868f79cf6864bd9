# SPDX-License-Identifier: Apache-2.0
"""heed.torch as one operator of graphs: torch.compile, torch.export, torch.library's own checks."""

import pytest

torch = pytest.importorskip("torch")
import heed  # noqa: E402
import heed.torch  # noqa: E402

sdpa = heed.torch.scaled_dot_product_attention
their_sdpa = torch.nn.functional.scaled_dot_product_attention


def make(*shape, dtype=torch.float32, seed=0, grad=False):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype).requires_grad_(grad)


def test_compiles_for_any_length():
    compiled = torch.compile(lambda *t: sdpa(*t, is_causal=True), fullgraph=True, dynamic=True, backend="aot_eager")
    for length in (6, 3, 5):
        tensors = [make(2, 4, length, 8, seed=s, grad=True) for s in range(3)]
        got, want = compiled(*tensors), their_sdpa(*tensors, is_causal=True)
        torch.testing.assert_close(got, want)
        for g, w in zip(torch.autograd.grad(got.square().sum(), tensors), torch.autograd.grad(want.square().sum(), tensors)):
            torch.testing.assert_close(g, w, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("lead", [(3,), (2, 2, 3)])
def test_compiles_any_number_of_axes(lead):
    q, k, v, mask = (make(*lead, 5, 5, seed=s) for s in range(4))
    for given in (mask, mask > 0):
        got = torch.compile(sdpa, fullgraph=True, backend="aot_eager")(q, k, v, given)
        torch.testing.assert_close(got, torch.nan_to_num(their_sdpa(q, k, v, given)))


def test_masks_with_arrays_break_the_graph_and_work():
    mask = heed.Mask.causal() & heed.Mask.documents(torch.tensor([0, 0, 0, 1, 1, 1]))
    seen = mask.evaluate(6, 6)
    q, k, v = (make(1, 2, 6, 8, seed=s, grad=True) for s in range(3))
    compiled = torch.compile(lambda *t: heed.torch.attention(*t, mask=mask, layout="BHLD") + 1, backend="aot_eager")
    got, want = compiled(q, k, v), their_sdpa(q, k, v, torch.from_numpy(seen)) + 1
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(torch.autograd.grad(got.square().sum(), q), torch.autograd.grad(want.square().sum(), q), atol=1e-5, rtol=1e-5)
    offsets = torch.tensor([0, 2, 6])
    packed = torch.compile(lambda *t: heed.torch.attention_varlen(*t, offsets, offsets), backend="aot_eager")
    rows = [x[0].transpose(0, 1).contiguous() for x in (q, k, v)]
    want = torch.cat([their_sdpa(*(x[:, :, a:b] for x in (q, k, v)))[0].transpose(0, 1) for a, b in ((0, 2), (2, 6))])
    torch.testing.assert_close(packed(*rows), want)


def test_inductor():
    q, k, v = (make(1, 2, 5, 8, seed=s, grad=True) for s in range(3))
    compiled = torch.compile(lambda *t: sdpa(t[0] * 2, *t[1:], is_causal=True) + 1, fullgraph=True)
    try:
        got = compiled(q, k, v)
    except Exception as error:
        if "heed" in str(error) or not isinstance(error, (torch._dynamo.exc.BackendCompilerFailed, torch._inductor.exc.InductorError)):
            raise
        pytest.skip(f"inductor does not work here: {str(error).splitlines()[0]}")
    want = their_sdpa(q * 2, k, v, is_causal=True) + 1
    torch.testing.assert_close(got, want)
    for g, w in zip(*(torch.autograd.grad(x.square().sum(), (q, k, v)) for x in (got, want))):
        torch.testing.assert_close(g, w, atol=1e-5, rtol=1e-5)


def test_exports():
    class Module(torch.nn.Module):
        def forward(self, q, k, v):
            return sdpa(q, k, v, is_causal=True)

    q, k, v = (make(1, 2, 5, 8, seed=s) for s in range(3))
    exported = torch.export.export(Module(), (q, k, v))
    torch.testing.assert_close(exported.module()(q, k, v), their_sdpa(q, k, v, is_causal=True))


@pytest.mark.parametrize("layout", ["BHLD", "BLHD"])
@pytest.mark.parametrize("bias", [None, "bool", "float"])
def test_operators_obey_torchs_rules(layout, bias):
    from heed.torch._library import attention_op, backward_op

    shape = (2, 4, 6, 8) if layout == "BHLD" else (2, 6, 4, 8)
    tensors = [make(*shape, seed=s, grad=True) for s in range(3)]
    given = {None: None, "bool": make(6, 6) > -1, "float": make(4, 1, 6, grad=True)}[bias]
    rest = (make(4, seed=5, grad=True), torch.rand(4), "causal", "top_left", 0.3, 2.0, 0.25, torch.tensor(5), layout)
    torch.library.opcheck(attention_op, (*tensors, given, *rest))
    arguments = [x.detach() if isinstance(x, torch.Tensor) else x for x in (*tensors, given, *rest)]
    out, lse = attention_op(*arguments)
    torch.library.opcheck(backward_op, (make(*shape, seed=6), *arguments[:3], out, lse, *arguments[3:], bias == "float"))


def test_text_and_boolean_bias_join_in_a_graph():
    q, k, v = (make(1, 2, 6, 8, seed=s, grad=True) for s in range(3))
    hidden = make(2, 6, 6, seed=3) < 0.3
    hidden[..., 0] = False
    seen = ~hidden & torch.ones(6, 6, dtype=torch.bool).tril()
    compiled = torch.compile(
        lambda *t: heed.torch.attention(*t[:3], mask="causal", bias=t[3], layout="BHLD"), fullgraph=True, backend="aot_eager"
    )
    got, want = compiled(q, k, v, ~hidden), their_sdpa(q.double(), k.double(), v.double(), seen)
    torch.testing.assert_close(got.double(), want, atol=1e-5, rtol=0)
    for g, w in zip(*(torch.autograd.grad(x.square().sum(), (q, k, v)) for x in (got, want))):
        torch.testing.assert_close(g, w, atol=2e-5, rtol=0)


def test_options_in_a_graph():
    q, k, v = (make(2, 6, h, 8, seed=s, grad=True) for s, h in enumerate((4, 2, 2)))
    sinks, slopes = make(4, seed=4, grad=True), torch.rand(4)

    def call(q, k, v, sinks, slopes):
        return heed.torch.attention(q, k, v, mask="causal & window 2 0", scale=0.4, softcap=2.0, sink_logits=sinks, alibi_slopes=slopes)

    def formula(q, k, v, sinks, slopes):
        q, k, v = q.transpose(1, 2), k.transpose(1, 2).repeat_interleave(2, 1), v.transpose(1, 2).repeat_interleave(2, 1)
        distance = torch.arange(6)[:, None] - torch.arange(6)
        scores = 2.0 * torch.tanh(0.4 * (q @ k.transpose(-1, -2)) / 2.0) - slopes[:, None, None] * distance.abs()
        scores = scores.masked_fill((distance < 0) | (distance >= 3), -torch.inf)
        joined = torch.cat([scores, sinks[None, :, None, None].expand(2, 4, 6, 1)], -1)
        return (joined.softmax(-1)[..., :6] @ v).transpose(1, 2)

    got = torch.compile(call, fullgraph=True, backend="aot_eager")(q, k, v, sinks, slopes)
    want = formula(*(x.double() for x in (q, k, v, sinks, slopes)))
    torch.testing.assert_close(got.double(), want, atol=1e-5, rtol=0)
    for g, w in zip(*(torch.autograd.grad(x.square().sum(), (q, k, v, sinks)) for x in (got, want))):
        torch.testing.assert_close(g, w, atol=2e-5, rtol=0)
