# SPDX-License-Identifier: Apache-2.0
"""torch.jit.trace records torch's operators, and of a direct call only the memory that the result is written to: never that in silence."""

import pytest

torch = pytest.importorskip("torch")

import heed  # noqa: E402
import heed.torch  # noqa: E402
from heed import flash_attn  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")


def inputs(seed, shape=(2, 4, 6, 8)):
    return tuple(torch.randn((3, *shape), generator=torch.Generator().manual_seed(seed)))


def causal_truth(q, k, v):
    scores = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).masked_fill(~torch.ones(q.shape[-2], k.shape[-2]).tril().bool(), -torch.inf)
    return scores.softmax(-1) @ v


RECORDED = {
    "scaled_dot_product_attention": lambda q, k, v: heed.torch.scaled_dot_product_attention(q, k, v, is_causal=True),
    "three axes": lambda q, k, v: heed.torch.scaled_dot_product_attention(q[0], k[0], v[0], is_causal=True)[None].expand(2, -1, -1, -1),
    "a mask": lambda q, k, v: heed.torch.scaled_dot_product_attention(q, k, v, torch.ones(6, 6, dtype=torch.bool).tril()),
    "attention": lambda q, k, v: heed.torch.attention(q, k, v, mask="causal", layout="BHLD"),
    "flash_attn_func": lambda q, k, v: flash_attn.flash_attn_func(*(x.transpose(1, 2) for x in (q, k, v)), causal=True).transpose(1, 2),
}


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("name", list(RECORDED))
def test_a_trace_computes_with_what_it_is_given(name, gradients):
    first, later = inputs(0), inputs(1)
    trace = torch.jit.trace(RECORDED[name], tuple(x.requires_grad_(gradients) for x in first), check_trace=False)
    want = causal_truth(*later)
    if name == "three axes":
        want = want[:1].expand(2, -1, -1, -1)
    assert torch.allclose(trace(*later), want, atol=1e-5)


def test_the_patched_function_is_recorded_too():
    first, later = inputs(0), inputs(1)
    with heed.torch.patched():
        trace = torch.jit.trace(lambda *x: torch.nn.functional.scaled_dot_product_attention(*x, is_causal=True), first, check_trace=False)
    assert torch.allclose(trace(*later), causal_truth(*later), atol=1e-5)


OFFSETS = torch.tensor([0, 6], dtype=torch.int32)
REFUSED = {
    "arrays": lambda q, k, v: heed.attention(q, k, v),
    "varlen": lambda q, k, v: heed.torch.attention_varlen(q[0], k[0], v[0], OFFSETS, OFFSETS),
    "kvcache": lambda q, k, v: flash_attn.flash_attn_with_kvcache(q, k, v),
    "query_offset": lambda q, k, v: heed.torch.attention(q, k, v, mask="causal", query_offset=2),
    "a mask with arrays": lambda q, k, v: heed.torch.attention(q, k, v, mask=heed.Mask.documents(torch.tensor([0, 0, 0, 1, 1, 1]))),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_cannot_be_recorded_is_an_error(name):
    q, k, v = (x.transpose(1, 2).contiguous() for x in inputs(0))
    REFUSED[name](q, k, v)
    with pytest.raises((RuntimeError, TypeError), match="trac"):
        torch.jit.trace(REFUSED[name], (q, k, v), check_trace=False)
