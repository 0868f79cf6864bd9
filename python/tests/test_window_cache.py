# SPDX-License-Identifier: Apache-2.0
"""Caches that keep a window, pages of the caller's, and keys and values of 8 bits."""

import gc

import numpy as np
import pytest

import heed


def make(*shape, seed):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def run(cache, steps, window):
    outs = []
    for n, tokens in enumerate(steps):
        q, k, v = make(2, tokens, 4, 16, seed=n), make(2, tokens, 2, 16, seed=100 + n), make(2, tokens, 2, 16, seed=200 + n)
        cache.append(0, k, v)
        outs.append(heed.attention(q, cache.layer(0), mask=heed.Mask.sliding_window(window)))
        cache.commit(tokens)
    return outs


def test_a_window_gives_the_full_caches_bits():
    steps = [300, 1, 1, 400, 1, 1, 200, 1]
    full = heed.KvCache(batch=2, kv_heads=2, head_dim=16, capacity=1000)
    windowed = heed.KvCache(batch=2, kv_heads=2, head_dim=16, capacity=1000, window_tokens=100)
    for a, b in zip(run(full, steps, 100), run(windowed, steps, 100)):
        assert np.array_equal(a, b)
    view = windowed.layer(0)
    assert view.shape == (2, 905, 2, 16) and view.lengths == [905, 905]
    assert view.first_keys == [768, 768] and full.layer(0).first_keys == [0, 0]
    assert np.array_equal(view.keys_as_float32()[:, 768:], full.layer(0).keys_as_float32()[:, 768:])
    assert windowed.bytes_in_use == 2 * 256 * windowed.bytes_per_token < full.bytes_in_use == 2 * 905 * full.bytes_per_token
    assert windowed.earliest_length == 768 + 99 and full.earliest_length == 0
    with pytest.raises(ValueError, match=r"^KvCache\.truncate: length: expected 0 or at least 867"):
        windowed.truncate(866)
    windowed.truncate(0)
    assert windowed.length == 0


def test_windows_by_layer():
    cache = heed.KvCache(layers=2, kv_heads=1, head_dim=4, capacity=1000, window_tokens=[None, 10])
    for _ in range(2):
        for layer in range(2):
            cache.append(layer, make(1, 400, 1, 4, seed=1), make(1, 400, 1, 4, seed=2))
        cache.commit(400)
    assert cache.layer(0).first_keys == [0] and cache.layer(1).first_keys == [256]
    with pytest.raises(ValueError, match="window_tokens: expected none or one for each of the 2 layers, got 1"):
        heed.KvCache(layers=2, kv_heads=1, head_dim=4, capacity=10, window_tokens=[5])
    with pytest.raises(ValueError, match="window_tokens: expected at least 1, got 0"):
        heed.KvCache(layers=2, kv_heads=1, head_dim=4, capacity=10, window_tokens=0)


@pytest.mark.parametrize("table_type", [np.int32, np.int64])
def test_pages(table_type):
    lengths, page = np.array([37, 0, 16], table_type), 16
    pages_k, pages_v = make(9, page, 2, 8, seed=1), make(9, page, 2, 12, seed=2)
    table = np.array([[7, 2, 5], [-1, -1, -1], [3, 99, 99]], table_type)
    q = make(3, 2, 4, 8, seed=3)
    view = heed.KvView.paged(k_pages=pages_k, v_pages=pages_v, block_table=table, lengths=lengths)
    out, lse = heed.attention(q, view, mask=heed.Mask.causal(), return_lse=True)
    assert view.lengths == [37, 0, 16] and view.value_dim == 12 and view.dtype == "float32"
    for b in (0, 2):
        rows = [pages_k[table[b, t // page], t % page] for t in range(lengths[b])], [pages_v[table[b, t // page], t % page] for t in range(lengths[b])]
        k, v = (np.stack(x)[None] for x in rows)
        expected = heed.attention(q[b : b + 1], k, v, mask=heed.Mask.causal())
        assert np.array_equal(out[b : b + 1], expected)
    assert not out[1].any() and np.isneginf(lse[1]).all()


def test_a_view_of_pages_keeps_them_alive():
    expected = None
    for _ in range(3):
        view = heed.KvView.paged(
            k_pages=np.ones((40, 256, 2, 64), np.float32), v_pages=np.ones((40, 256, 2, 64), np.float32),
            block_table=np.arange(40)[None], lengths=np.array([40 * 256]),
        )  # fmt: skip
        gc.collect()
        noise = np.full((40, 256, 2, 64), np.nan, np.float32)  # would take the place of pages that were freed
        out = heed.attention(np.ones((1, 1, 2, 64), np.float32), view)
        assert np.array_equal(out, np.ones_like(out)) and np.isnan(noise).all()
        expected = out if expected is None else expected


def test_page_errors_name_the_argument():
    pages, table, lengths = make(3, 4, 1, 8, seed=1), np.zeros((1, 2), np.int32), np.array([5])
    good = {"k_pages": pages, "v_pages": pages, "block_table": table, "lengths": lengths}
    for change, text in (
        ({"block_table": table + 3}, r"block_table: expected pages in \[0, 3\), got 3"),
        ({"lengths": np.array([9])}, "lengths: expected values from 0 to 2 pages of 4 tokens, got 9"),
        ({"v_pages": pages[:2]}, "v_pages: expected 3"),
        ({"block_table": table.astype(np.float32)}, "block_table: expected int32 or int64"),
    ):
        with pytest.raises(ValueError, match=text):
            heed.KvView.paged(**{**good, **change})


def test_int8_is_near_and_a_quarter():
    full = heed.KvCache(batch=2, kv_heads=2, head_dim=16, capacity=1000)
    small = heed.KvCache(batch=2, kv_heads=2, head_dim=16, capacity=1000, dtype="int8")
    for a, b in zip(run(full, [300, 1, 1, 40], 200), run(small, [300, 1, 1, 40], 200)):
        assert 0 < np.abs(a - b).max() < 0.03
    assert small.layer(0).dtype == "int8" and "int8" in repr(small)
    assert full.bytes_per_token == 2 * 2 * 16 * 4 and small.bytes_per_token == 2 * (2 * 16 + 8)
    k = full.layer(0).keys_as_float32()
    assert np.abs(small.layer(0).keys_as_float32() - k).max() <= np.abs(k).max() / 254 * 1.001
