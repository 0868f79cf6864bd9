# SPDX-License-Identifier: Apache-2.0
"""flash_attn_with_kvcache against one sequence after the other in plain float64."""

import pytest

torch = pytest.importorskip("torch")
from flash_reference import close, make, plain, rotated  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

import heed.flash_attn as fa  # noqa: E402

CAPACITY = 24
ANGLES = torch.outer(torch.arange(float(CAPACITY)), torch.tensor([1.0, 0.1, 0.01])).double()
COS, SIN = ANGLES.cos().float(), ANGLES.sin().float()  # 6 of 8 elements rotate


def one_by_one(q, k_cache, v_cache, k, v, filled, rows, pads, rotary, causal=False, window=(-1, -1), softcap=0.0, slopes=None):
    """Appends in place; each sequence's keys cut out of its row, so that positions count from its end. (out, lse)."""
    outs, lses = [], []
    for b, (row, start, pad) in enumerate(zip(rows, filled, pads)):
        query, end = q[b : b + 1], start
        if k is not None:
            new, end = k[b : b + 1], start + k.shape[1]
            if rotary is not None:
                steps = torch.arange(q.shape[1]) if causal or window != (-1, -1) else torch.zeros(q.shape[1], dtype=torch.int64)
                query = rotated(query, COS.double(), SIN.double(), start + steps[None], rotary == "interleaved")
                new = rotated(new, COS.double(), SIN.double(), start + torch.arange(k.shape[1])[None], rotary == "interleaved")
            k_cache[row, start:end], v_cache[row, start:end] = new[0], v[b]
        keys, values = k_cache[row : row + 1, pad:end], v_cache[row : row + 1, pad:end]
        own = slopes if slopes is None or slopes.dim() == 1 else slopes[b]
        if pad == end:
            out, lse = torch.zeros_like(query), torch.full((1, q.shape[2], q.shape[1]), -torch.inf)
        else:
            out, lse = plain(query, keys, values, causal, window, softcap, own)
        outs.append(out)
        lses.append(lse)
    return torch.cat(outs), torch.cat(lses)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_agrees_with_sequences_one_by_one(data):
    batch, new = data.draw(st.integers(1, 3), "batch"), data.draw(st.sampled_from([None, 0, 1, 3]), "new")
    heads, kv_heads = data.draw(st.sampled_from([(2, 2), (4, 2), (3, 1)]), "heads")
    lq = data.draw(st.integers(1, 5), "Lq")
    filled = data.draw(st.lists(st.integers(0, CAPACITY - max(new or 0, lq)), min_size=batch, max_size=batch), "filled")
    rows = data.draw(st.sampled_from(["none", "permuted"]), "rows")
    rows = list(range(batch)) if rows == "none" else data.draw(st.permutations(range(5)), "order")[:batch]
    pads = [data.draw(st.integers(0, n), "pad") for n in filled] if data.draw(st.booleans(), "padded") else [0] * batch
    rotary = data.draw(st.sampled_from([None, "half", "interleaved"]), "rotary") if new else None
    options = dict(
        causal=data.draw(st.booleans(), "causal"), window=data.draw(st.sampled_from([(-1, -1), (3, -1), (-1, 2), (4, 1)]), "window"),
        softcap=data.draw(st.sampled_from([0.0, 3.0]), "softcap"),
    )  # fmt: skip
    slopes = data.draw(st.sampled_from([None, (heads,), (batch, heads)]), "slopes")
    slopes = None if slopes is None else make(*slopes, seed=8).abs().float()
    q = make(batch, lq, heads, 8)
    k_cache, v_cache = make(5, CAPACITY, kv_heads, 8, seed=1), make(5, CAPACITY, kv_heads, 8, seed=2)
    k, v = (None, None) if new is None else (make(batch, new, kv_heads, 8, seed=3), make(batch, new, kv_heads, 8, seed=4))
    want_k, want_v = k_cache.clone(), v_cache.clone()
    want, want_lse = one_by_one(q, want_k, want_v, k, v, filled, rows, pads, rotary, slopes=slopes, **options)
    got, lse = fa.flash_attn_with_kvcache(
        q, k_cache, v_cache, k, v, *((COS, SIN) if rotary else (None, None)), cache_seqlens=torch.tensor(filled, dtype=torch.int32),
        cache_batch_idx=None if rows == list(range(batch)) else torch.tensor(rows, dtype=torch.int32),
        cache_leftpad=torch.tensor(pads, dtype=torch.int32) if any(pads) else None, causal=options["causal"], window_size=options["window"],
        softcap=options["softcap"], rotary_interleaved=rotary == "interleaved", alibi_slopes=slopes, return_softmax_lse=True,
    )  # fmt: skip
    close(k_cache, want_k, 1e-6 if rotary else 0.0)
    assert torch.equal(v_cache, want_v)
    close(got, want, 1e-6 if rotary else 1e-10)
    close(lse, want_lse, 1e-5 if rotary else 1e-10)


def test_an_int_for_all_and_the_whole_cache():
    q, k_cache, v_cache = make(2, 3, 4, 8), make(3, 9, 2, 8, seed=1), make(3, 9, 2, 8, seed=2)
    close(fa.flash_attn_with_kvcache(q, k_cache, v_cache, causal=True), plain(q, k_cache[:2], v_cache[:2], True)[0])
    close(fa.flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=5), plain(q, k_cache[:2, :5], v_cache[:2, :5])[0])


def test_slack_is_never_read():
    q, k_cache, v_cache = make(2, 1, 4, 8, dtype=torch.float32), *(torch.full((4, 40, 2, 8), torch.nan) for _ in range(2))
    k, v = make(2, 3, 2, 8, seed=1, dtype=torch.float32), make(2, 3, 2, 8, seed=2, dtype=torch.float32)
    for rows, start in ((None, 0), (torch.tensor([3, 2]), 7)):
        pads = torch.tensor([start, start], dtype=torch.int32)
        out = fa.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=start, cache_batch_idx=rows, cache_leftpad=pads)
        close(out, plain(q, k, v)[0], 1e-5)


def test_a_narrower_cache_rounds_what_it_takes():
    q, k, v = (make(1, 2, 2, 8, seed=i, dtype=torch.float32) for i in range(3))
    k_cache, v_cache = (torch.zeros(1, 6, 2, 8, dtype=torch.bfloat16) for _ in range(2))
    out = fa.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=0, causal=True)
    assert out.dtype == torch.float32 and torch.equal(k_cache[:, :2], k.bfloat16())
    close(out, plain(q, k.bfloat16(), v.bfloat16(), True)[0], 1e-5)


def test_has_no_gradients_and_compiles():
    q = make(1, 1, 2, 8, dtype=torch.float32, grad=True)
    k_cache, v_cache = (torch.zeros(1, 6, 2, 8) for _ in range(2))

    def step(q):
        return fa.flash_attn_with_kvcache(q + 1, k_cache, v_cache, q, q, cache_seqlens=3) * 2

    want = step(q)
    assert not want.requires_grad
    k_cache.zero_()
    torch.testing.assert_close(torch.compile(step, backend="aot_eager")(q), want)
    assert torch.equal(k_cache[:, 3], q[:, 0])


@pytest.mark.parametrize(
    "change, error, text",
    [
        (dict(cache_seqlens=7), ValueError, "cache_seqlens.*do not fit"),
        (dict(cache_seqlens=-1), ValueError, "cache_seqlens"),
        (dict(cache_seqlens=torch.tensor([1, 2])), ValueError, "cache_seqlens.*shape"),
        (dict(cache_seqlens=torch.tensor([1.0])), TypeError, "cache_seqlens"),
        (dict(cache_seqlens=None), ValueError, "cache_seqlens"),
        (dict(cache_batch_idx=torch.tensor([2])), ValueError, "cache_batch_idx"),
        (dict(cache_leftpad=torch.tensor([-1])), ValueError, "cache_leftpad"),
        (dict(block_table=torch.zeros(1, 1)), TypeError, "block_table"),
        (dict(k=None), ValueError, "k: "),
        (dict(v=None), ValueError, "v: "),
        (dict(k=torch.ones(1, 2, 1, 8)), ValueError, "k: "),
        (dict(v=torch.ones(1, 1, 2, 8)), ValueError, "v: "),
        (dict(q=torch.ones(1, 2, 2, 6)), ValueError, "k_cache"),
        (dict(q=torch.ones(1, 2, 3, 8)), ValueError, "k_cache"),
        (dict(q=torch.ones(3, 2, 2, 8), k=torch.ones(3, 2, 2, 8), v=torch.ones(3, 2, 2, 8)), ValueError, "k_cache.*each of 3"),
        (dict(v_cache=torch.ones(2, 7, 2, 8)), ValueError, "v_cache"),
        (dict(alibi_slopes=torch.ones(3)), ValueError, "alibi_slopes"),
        (dict(rotary_cos=COS), ValueError, "rotary_sin"),
        (dict(rotary_cos=COS[:3], rotary_sin=SIN[:3]), ValueError, "rotary_cos.*4 positions"),
        (dict(rotary_cos=COS[:4], rotary_sin=SIN[:4], q=torch.ones(1, 3, 2, 8), causal=True), ValueError, "rotary_cos.*5 positions"),
        (dict(rotary_cos=COS, rotary_sin=SIN, k=None, v=None), ValueError, "rotary_cos"),
        (dict(softmax_scale="1"), TypeError, "softmax_scale"),
    ],
)
def test_errors_name_the_argument_and_write_nothing(change, error, text):
    x, caches = torch.ones(1, 2, 2, 8), torch.zeros(2, 2, 8, 2, 8)
    arguments = dict(q=x, k_cache=caches[0], v_cache=caches[1], k=x, v=x, cache_seqlens=2)
    with pytest.raises(error, match=text):
        fa.flash_attn_with_kvcache(**{**arguments, **change})
    assert not caches.any()


def paged(cache, page, table):
    """Rows of `cache` [B, capacity, H, D] as pages [P, page, H, D], poisoned where no row lies."""
    pages = torch.full((int(table.max()) + 2, page, *cache.shape[2:]), torch.nan)
    for b in range(cache.shape[0]):
        for n in range(table.shape[1]):
            pages[table[b, n]] = cache[b, n * page : (n + 1) * page]
    return pages


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_pages_are_the_rows_that_they_spell(data):
    batch, new = data.draw(st.integers(1, 3), "batch"), data.draw(st.sampled_from([None, 0, 1, 3]), "new")
    page = data.draw(st.sampled_from([1, 4, 12]), "page")
    lq = data.draw(st.integers(1, 5), "Lq")
    filled = data.draw(st.lists(st.integers(0, CAPACITY - max(new or 0, lq)), min_size=batch, max_size=batch), "filled")
    rotary = data.draw(st.booleans(), "rotary") if new else False
    options = dict(causal=data.draw(st.booleans(), "causal"), window_size=data.draw(st.sampled_from([(-1, -1), (4, 1)]), "window"))
    order = data.draw(st.permutations(range(batch * CAPACITY // page)), "order")
    table = torch.tensor(order, dtype=torch.int32).reshape(batch, -1)
    q, lengths = make(batch, lq, 4, 8).float(), torch.tensor(filled, dtype=torch.int32)
    rows = [make(batch, CAPACITY, 2, 8, seed=seed).float() for seed in (1, 2)]
    pages = [paged(x, page, table) for x in rows]
    k, v = (None, None) if new is None else [make(batch, new, 2, 8, seed=seed).float() for seed in (3, 4)]
    tables = dict(rotary_cos=COS, rotary_sin=SIN) if rotary else {}

    def run(caches, **more):
        return fa.flash_attn_with_kvcache(q, *caches, k, v, cache_seqlens=lengths, return_softmax_lse=True, **options, **tables, **more)

    expected, got = run(rows), run(pages, block_table=table)
    assert torch.equal(got[0], expected[0]) and torch.equal(got[1], expected[1])
    for cache, row in zip(pages, rows):
        for b, length in enumerate(filled):
            end = length + (new or 0)
            spelt = torch.cat([cache[p] for p in table[b]])
            assert torch.equal(spelt[:end], row[b, :end])


def test_pages_may_be_shared_but_not_written_twice():
    cache = [make(5, 4, 2, 8, seed=seed).float() for seed in (1, 2)]
    q, k, v = (make(2, 1, 2, 8, seed=seed).float() for seed in (0, 3, 4))
    shared = torch.tensor([[0, 1], [0, 2]], dtype=torch.int32)
    fa.flash_attn_with_kvcache(q, *cache, k, v, cache_seqlens=torch.tensor([5, 4], dtype=torch.int32), block_table=shared)
    assert torch.equal(cache[0][1, 1], k[0, 0]) and torch.equal(cache[0][2, 0], k[1, 0])
    before = cache[0].clone()
    with pytest.raises(ValueError, match="block_table: two new tokens would be written to one place"):
        fa.flash_attn_with_kvcache(q, *cache, k, v, cache_seqlens=torch.tensor([2, 2], dtype=torch.int32), block_table=shared)
    with pytest.raises(ValueError, match=r"block_table: expected pages in \[0, 5\), got 6"):
        fa.flash_attn_with_kvcache(q, *cache, k, v, cache_seqlens=5, block_table=shared + 6)
    with pytest.raises(ValueError, match="cache_seqlens: .* do not fit into a cache of 8"):
        fa.flash_attn_with_kvcache(q, *cache, k, v, cache_seqlens=8, block_table=shared)
    with pytest.raises(ValueError, match="cache_batch_idx: expected None together with block_table"):
        fa.flash_attn_with_kvcache(q, *cache, k, v, cache_seqlens=5, cache_batch_idx=torch.tensor([0, 1]), block_table=shared)
    with pytest.raises(ValueError, match=r"block_table: expected \[2, pages\], got \[1, 2\]"):
        fa.flash_attn_with_kvcache(q, *cache, k, v, cache_seqlens=5, block_table=shared[:1])
    with pytest.raises(ValueError, match="cache_seqlens: expected the tokens of each sequence"):
        fa.flash_attn_with_kvcache(q, *cache, block_table=shared)
    assert torch.equal(cache[0], before)
