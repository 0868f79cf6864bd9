# SPDX-License-Identifier: Apache-2.0
"""The mask function that heed registers in transformers: what stays a pattern, and that it means what the function says."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
import pytest  # noqa: E402

torch = pytest.importorskip("torch")
pytest.importorskip("transformers.masking_utils")

import inspect  # noqa: E402

from transformers import masking_utils as m  # noqa: E402

import heed.transformers  # noqa: E402
from heed.transformers import LazyMask, make_mask  # noqa: E402
from transformers_models import close, heed_calls, pair, padding, plain_attention, tokens  # noqa: E402

NEW = "q_length" in inspect.signature(m.sdpa_mask).parameters  # transformers 4 passes the positions themselves
LENGTH = 13
PACKED = torch.tensor([[0] * 4 + [1] * 6 + [2] * 3, [0] * 13])
POSITIONS = torch.stack([torch.cat([torch.arange(n) for n in (4, 6, 3)]), torch.arange(13)])


def arguments(function, rows, keys, first=0, kv_offset=0, **more):
    queries = dict(q_length=rows, q_offset=first) if NEW else dict(cache_position=torch.arange(first, first + rows))
    return dict(batch_size=2, kv_length=keys, kv_offset=kv_offset, mask_function=function, **queries, **more)


def truth(given):
    """By the mask function itself, one slot at a time."""
    function, attention_mask = given["mask_function"], given.get("attention_mask")
    rows = given["q_offset"] + torch.arange(given["q_length"]) if NEW else given["cache_position"]
    keys = given["kv_offset"] + torch.arange(given["kv_length"])
    seen = torch.zeros(2, 1, len(rows), len(keys), dtype=torch.bool)
    for b in range(2):
        for i, row in enumerate(rows):
            for j, key in enumerate(keys):
                padded = attention_mask is not None and (key >= attention_mask.shape[1] or not attention_mask[b, key])
                seen[b, 0, i, j] = bool(function(torch.tensor(b), torch.tensor(0), row, key)) and not padded
    return seen


def chunked(size, left_padding=(0, 0)):
    if len(inspect.signature(m.chunked_causal_mask_function).parameters) == 1:
        return m.chunked_causal_mask_function(size)
    return m.chunked_causal_mask_function(size, torch.tensor(left_padding))


def packed(function):
    if hasattr(m, "remap_positions_for_packed_sequence"):
        function = m.remap_positions_for_packed_sequence(function, POSITIONS)
    return m.and_masks(function, m.packed_sequence_mask_function(PACKED))


WHOLE = [dict(rows=LENGTH, keys=LENGTH), dict(rows=LENGTH, keys=LENGTH, attention_mask=padding(2, LENGTH, (0, 5)).bool())]
LATER = [
    dict(rows=5, keys=LENGTH, first=8), dict(rows=1, keys=LENGTH, first=12), dict(rows=4, keys=20, first=0), dict(rows=1, keys=20, first=6),
    dict(rows=3, keys=9, first=10, kv_offset=4), dict(rows=4, keys=20, first=3, attention_mask=padding(2, 7, (2, 0)).bool()),
]  # fmt: skip
KNOWN = [(m.causal_mask_function, WHOLE + LATER), (m.sliding_window_causal_mask_function(4), WHOLE + LATER), (chunked(4, (0, 5)), WHOLE)]
if hasattr(m, "packed_sequence_mask_function"):
    KNOWN += [(packed(m.causal_mask_function), WHOLE[:1]), (packed(m.sliding_window_causal_mask_function(3)), WHOLE[:1])]
if hasattr(m, "bidirectional_mask_function"):
    KNOWN.append((m.bidirectional_mask_function, WHOLE))
    KNOWN.append((m.sliding_window_bidirectional_mask_function(3), WHOLE))


@pytest.mark.parametrize("function, shape", [(function, shape) for function, shapes in KNOWN for shape in shapes])
def test_known_patterns_stay_patterns_that_mean_the_same(function, shape):
    given = arguments(function, **shape)
    lazy, want = make_mask(**given), truth(given)
    assert isinstance(lazy, LazyMask) and lazy.shape == want.shape and lazy.dtype == torch.bool
    with torch._C.DisableTorchFunctionSubclass():
        assert lazy.untyped_storage().nbytes() == 1  # no L x L tensor
    assert torch.equal(lazy & True, want)
    # And as attention understands it: rows that see nothing are 0.
    rows, keys = want.shape[2:]
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 2, n, 8, dtype=torch.float64, generator=g) for n in (rows, keys, keys))
    got, _ = heed.transformers.heed_attention_forward(torch.nn.Module().eval(), q, k, v, lazy)
    added = torch.zeros(want.shape, dtype=torch.float64).masked_fill(~want, torch.finfo(torch.float64).min)
    expected = plain_attention(None, q, k, v, added)[0] * want.any(-1).transpose(1, 2)[..., None]
    close(got, expected, torch.float64)


def unknown():
    def odd(batch, head, q, kv):
        return (q + kv) % 2 == 0

    yield m.and_masks(m.causal_mask_function, odd), WHOLE + LATER
    yield m.or_masks(m.causal_mask_function, odd), WHOLE + LATER
    yield chunked(4), LATER
    if hasattr(m, "remap_positions_for_packed_sequence"):
        yield packed(chunked(3)), WHOLE[:1]


@pytest.mark.parametrize("function, shape", [(function, shape) for function, shapes in unknown() for shape in shapes])
def test_unknown_patterns_become_tensors(function, shape):
    given = arguments(function, **shape)
    got = make_mask(**given)
    assert type(got) is torch.Tensor and torch.equal(got, truth(given))


def test_whoever_computes_with_a_mask_gets_the_real_one():
    given = arguments(m.causal_mask_function, 5, 9, first=4)
    lazy, want = make_mask(**given), truth(given)
    for view in (lambda x: x[:, :, :, :7], lambda x: x[..., -1:, :], lambda x: x.to(torch.float32), lambda x: ~x, lambda x: x.contiguous(),
                 lambda x: torch.where(x, 0.0, -1.0), lambda x: x.expand(2, 3, 5, 9), lambda x: x.clone(),
                 lambda x: torch.cat([x, x], 1)):  # fmt: skip
        assert type(view(lazy)) is torch.Tensor and torch.equal(view(lazy), view(want))


def test_compiled_code_that_computes_with_a_mask_gets_the_real_one():
    given = arguments(m.causal_mask_function, 5, 9, first=4)
    lazy, want = make_mask(**given), truth(given)
    compiled = torch.compile(lambda x: torch.where(x[..., :7], 0.0, -1.0), backend="eager")
    assert torch.equal(compiled(lazy), torch.where(want[..., :7], 0.0, -1.0))


@pytest.mark.skipif(not NEW, reason="transformers 4 tells positions otherwise")
def test_positions_of_transformers_4_are_understood():
    lazy = make_mask(batch_size=2, cache_position=torch.arange(4, 9), kv_length=9)
    assert lazy.shape == (2, 1, 5, 9) and lazy.query_offset == 4 and lazy.mask == heed.Mask.causal()


def test_a_cut_mask_reaches_attention_as_a_tensor(monkeypatch):
    calls = heed_calls(monkeypatch)
    eager, ours = pair("llama")
    ids = tokens(2, 9)
    mask = make_mask(**arguments(m.causal_mask_function, 9, 14))[:, :, :, :9]
    close(ours(input_ids=ids, attention_mask=mask).logits, eager(input_ids=ids).logits)
    assert len(calls) == 3


@pytest.mark.parametrize("batch, rows, keys", [(2, 5, 12), (2, 7, 9), (3, 5, 9)])
def test_a_mask_of_other_queries_keys_or_batch_is_an_error_as_its_tensor_would_be(batch, rows, keys):
    q, k = torch.randn(batch, 2, rows, 8), torch.randn(batch, 2, keys, 8)
    for options in (dict(), dict(attention_mask=padding(2, 9, (2, 0)).bool())):
        lazy = make_mask(**arguments(m.causal_mask_function, 5, 9, first=4, **options))
        for mask in (lazy, lazy & True):
            with pytest.raises(ValueError):
                heed.transformers.heed_attention_forward(torch.nn.Module().eval(), q, k, k, mask)


def test_models_that_do_not_take_sdpa_are_given_lazy_masks_that_add():
    from transformers import LlamaConfig, XGLMConfig

    given = arguments(m.causal_mask_function, 5, 9, first=4, attention_mask=padding(2, 9, (2, 0)).bool(), dtype=torch.bfloat16)
    lazy, want = make_mask(**given, config=XGLMConfig()), truth(given)
    assert isinstance(lazy, LazyMask) and lazy.dtype == torch.bfloat16 and lazy.mask is not None
    added = torch.zeros(want.shape, dtype=torch.bfloat16).masked_fill(~want, torch.finfo(torch.bfloat16).min)
    assert torch.equal(torch.cat([lazy, lazy], -1), torch.cat([added, added], -1))
    assert make_mask(**given, config=LlamaConfig()).dtype == torch.bool
