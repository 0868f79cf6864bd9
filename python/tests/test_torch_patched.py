# SPDX-License-Identifier: Apache-2.0
"""heed.torch.patched: heed where torch calls its own function, and torch's own wherever heed cannot."""

import contextlib
import threading

import pytest

torch = pytest.importorskip("torch")
import heed.torch  # noqa: E402

functional = torch.nn.functional
their_sdpa = functional.scaled_dot_product_attention


def make(*shape, dtype=torch.float32, seed=0, grad=False):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype).requires_grad_(grad)



def test_it_is_heed_that_runs():
    q, k, v = (make(1, 2, 5, 8, seed=s, grad=True) for s in range(3))
    theirs = functional.scaled_dot_product_attention(q, k, v).grad_fn.name()
    with heed.torch.patched():
        assert functional.scaled_dot_product_attention(q, k, v).grad_fn.name() == "AttentionBackward" != theirs
    assert functional.scaled_dot_product_attention is their_sdpa


@pytest.mark.parametrize(
    "make_arguments, options",
    [
        (lambda: (make(1, 1, 3, 1200),) * 3, {}),
        (lambda: (make(1, 2, 3, 0), make(1, 2, 3, 0), make(1, 2, 3, 8)), {}),
        (lambda: (make(2, 0, 3, 8),) * 3, {}),
        (lambda: (torch.empty(1, 2, 3, 8, device="meta"),) * 3, {}),
    ],
)
def test_what_heed_cannot_do_is_torchs(make_arguments, options):
    arguments = make_arguments()
    want = their_sdpa(*arguments, **options)
    with heed.torch.patched():
        got = functional.scaled_dot_product_attention(*arguments, **options)
    assert got.shape == want.shape and got.device == want.device
    assert got.device.type == "meta" or torch.equal(got, want)


def test_a_mask_beside_is_causal_is_torchs():
    """torch 2.6 and 2.13 compute it, 2.15 raises."""

    def outcome():
        try:
            return functional.scaled_dot_product_attention(*(make(1, 2, 5, 8),) * 3, attn_mask=torch.zeros(5, 5), is_causal=True).tolist()
        except RuntimeError as error:
            return str(error)

    want = outcome()
    with heed.torch.patched():
        assert outcome() == want


def test_torchs_errors_stay_torchs():
    q, k, v = (make(1, 2, 5, 8, seed=s) for s in range(3))
    for arguments in ((q, k.double(), v), (q, k, v, torch.zeros(5, 5).int()), (q.to_sparse(), k, v), (q.int(), k.int(), v.int())):
        with pytest.raises((RuntimeError, NotImplementedError)) as theirs:
            their_sdpa(*arguments)
        with heed.torch.patched(), pytest.raises(type(theirs.value)) as ours:
            functional.scaled_dot_product_attention(*arguments)
        assert str(ours.value) == str(theirs.value)


def test_nested_tensors_are_torchs():
    parts = [make(n, 2, 8, seed=n) for n in (3, 5)]
    nested = torch.nested.nested_tensor(parts, layout=torch.jagged).transpose(1, 2)
    with heed.torch.patched():
        got = functional.scaled_dot_product_attention(nested, nested, nested)
    for x, out in zip(parts, got.transpose(1, 2).unbind()):
        x = x.transpose(0, 1)[None]
        torch.testing.assert_close(out.transpose(0, 1)[None], their_sdpa(x, x, x))


def test_overlapping_blocks():
    first, second = heed.torch.patched(), heed.torch.patched()
    first.__enter__()
    kept = functional.scaled_dot_product_attention
    second.__enter__()
    first.__exit__(None, None, None)  # as when two threads hold it
    assert functional.scaled_dot_product_attention is kept
    second.__exit__(None, None, None)
    assert functional.scaled_dot_product_attention is their_sdpa
    q, k, v = (make(1, 2, 5, 8, seed=s, grad=True) for s in range(3))
    assert "AttentionBackward" != kept(q, k, v).grad_fn.name()  # a kept function is torch's again


def test_others_who_replace_it_keep_their_place():
    def other(*arguments, **options):
        return their_sdpa(*arguments, **options)

    try:
        functional.scaled_dot_product_attention = other
        with heed.torch.patched():
            assert functional.scaled_dot_product_attention is not other
        assert functional.scaled_dot_product_attention is other
        with heed.torch.patched():
            functional.scaled_dot_product_attention = their_sdpa
        assert functional.scaled_dot_product_attention is their_sdpa
    finally:
        functional.scaled_dot_product_attention = their_sdpa


def test_threads_share_the_change():
    q, barrier, seen = make(1, 2, 5, 8, grad=True), threading.Barrier(4), []

    def work():
        for _ in range(50):
            with heed.torch.patched():
                seen.append(functional.scaled_dot_product_attention(q, q, q).grad_fn.name())
        barrier.wait()

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert seen == ["AttentionBackward"] * 200 and functional.scaled_dot_product_attention is their_sdpa


@pytest.mark.parametrize("kind", ["encoder", "causal encoder", "cross"])
@pytest.mark.parametrize("train", [True, False])
def test_torchs_own_layers(kind, train):
    torch.manual_seed(0)
    if kind == "cross":
        module = torch.nn.TransformerDecoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    else:
        module = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True), 2)
    module.train(train)
    x, memory = make(2, 7, 32, seed=1), make(2, 9, 32, seed=2)
    causal = torch.nn.Transformer.generate_square_subsequent_mask(7)
    call = {
        "encoder": lambda: module(x),
        "causal encoder": lambda: module(x, mask=causal, is_causal=True),
        "cross": lambda: module(x, memory, tgt_mask=causal, tgt_is_causal=True),
    }[kind]
    results = []
    for context in (heed.torch.patched(), contextlib.nullcontext()):
        with context:
            module.zero_grad()
            out = call()
            out.square().sum().backward()
            with torch.no_grad():
                results.append([out.detach(), call()] + [p.grad.clone() for p in module.parameters()])
    for ours, theirs in zip(*results):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=2e-5)


def test_compiles_inside_patched():
    targets = []

    def backend(graph, example):
        targets.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    q, k, v = (make(1, 2, 5, 8, seed=s) for s in range(3))
    with heed.torch.patched():
        compiled = torch.compile(lambda *t: functional.scaled_dot_product_attention(*t, is_causal=True), fullgraph=True, backend=backend)
        torch.testing.assert_close(compiled(q, k, v), their_sdpa(q, k, v, is_causal=True))
    assert any("heed.attention" in target for target in targets)
    targets.clear()
    torch.testing.assert_close(compiled(q, k, v), their_sdpa(q, k, v, is_causal=True))  # traced anew, outside
    assert targets and not any("heed" in target for target in targets)
