# SPDX-License-Identifier: Apache-2.0
"""heed.Mask against its definitions, element by element."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import heed

M = heed.Mask
LEAVES = st.one_of(
    st.just((M.none(), lambda p, j: True)),
    st.just((M.causal(), lambda p, j: j <= p)),
    st.tuples(st.none() | st.integers(0, 9), st.none() | st.integers(0, 9)).map(
        lambda w: (M.window(*w), lambda p, j: (w[0] is None or p - w[0] <= j) and (w[1] is None or j <= p + w[1]))),
    st.integers(1, 9).map(lambda n: (M.sliding_window(n), lambda p, j: p - n < j <= p)),
    st.integers(0, 9).map(lambda n: (M.prefix_lm(n), lambda p, j: j < n or j <= p)),
    st.integers(0, 9).map(lambda n: (M.sink_tokens(n), lambda p, j: j < n)),
    st.lists(st.integers(0, 40), max_size=4).map(lambda g: (M.global_tokens(g), lambda p, j: p in g or j in g)),
)  # fmt: skip


def combine(children):
    pairs = st.tuples(children, children)
    return st.one_of(
        pairs.map(lambda ab: (ab[0][0] & ab[1][0], lambda p, j: ab[0][1](p, j) and ab[1][1](p, j))),
        pairs.map(lambda ab: (ab[0][0] | ab[1][0], lambda p, j: ab[0][1](p, j) or ab[1][1](p, j))),
        children.map(lambda a: (~a[0], lambda p, j: not a[1](p, j))),
    )


MASKS = st.recursive(LEAVES, combine, max_leaves=5)


@settings(max_examples=150, deadline=None)
@given(MASKS, st.integers(0, 30), st.integers(0, 90), st.sampled_from(["bottom_right", "top_left", 5, -4]))
def test_expressions(pair, lq, lk, place):
    mask, rule = pair
    options = dict(align=place) if isinstance(place, str) else dict(query_offset=place)
    first = {"bottom_right": lk - lq, "top_left": 0}.get(place, place)
    want = np.array([[rule(i + first, j) for j in range(lk)] for i in range(lq)], bool).reshape(lq, lk)
    assert np.array_equal(mask.evaluate(lq, lk, **options), want)
    assert M.parse(str(mask)) == mask and hash(M.parse(str(mask))) == hash(mask) and pickle.loads(pickle.dumps(mask)) == mask
    assert repr(mask) == f"heed.Mask('{mask}')"
    statistics = mask.tile_statistics(lq, lk, **options)
    blocks = [[want[i : i + 48, j : j + 64] for j in range(0, lk, 64)] for i in range(0, lq, 48)]
    tiles = [tile for row in blocks for tile in row]
    assert statistics["tiles"] == len(tiles) and statistics["visited"] == sum(tile.any() for tile in tiles)
    assert statistics["partial"] >= sum(tile.any() and not tile.all() for tile in tiles)
    assert statistics["density"] == pytest.approx(want.mean() if want.size else 0.0)
    q, k = np.zeros((1, lq, 1, 4), np.float32), np.zeros((1, lk, 1, 4), np.float32)
    v = np.random.default_rng(0).standard_normal((1, lk, 1, 4)).astype(np.float32)
    means = np.array([v[0, row, 0].mean(0) if row.any() else np.zeros(4) for row in want]).reshape(lq, 4)
    np.testing.assert_allclose(heed.attention(q, k, v, mask=mask, **options)[0, :, 0], means, atol=1e-5)


def test_masks_made_of_arrays():
    ids = np.array([[0, 0, 1, 1, 1], [0, 1, 1, 2, 2]])
    assert np.array_equal(M.documents(ids).evaluate(5, 5, batch=2)[:, 0], ids[:, :, None] == ids[:, None])
    layout = np.array([[True, False], [True, True]])
    assert np.array_equal(M.block_sparse(layout, 3).evaluate(6, 6), np.kron(layout, np.ones((3, 3), bool)))
    given_mask = np.random.default_rng(1).random((2, 3, 4, 6)) < 0.5
    assert np.array_equal(M.from_array(given_mask).evaluate(4, 6, batch=2, heads=3), given_mask)
    assert np.array_equal(M.from_array(given_mask[:1, :1]).evaluate(4, 6), given_mask[0, 0])
    heads = M.per_head([M.causal(), M.none()]).evaluate(3, 3, heads=2)
    assert heads.shape == (1, 2, 3, 3) and heads[0, 1].all() and not heads[0, 0].all()
    with pytest.raises(TypeError, match="pickle"):
        pickle.dumps(M.from_array(given_mask))
    with pytest.raises(ValueError, match="batch"):
        M.documents(ids).evaluate(5, 5, batch=3)
    assert M.causal() != M.none() and M.causal() != "causal"


@pytest.mark.parametrize("text", ["causal &", "windw 3 0", "(causal", "window 1"])
def test_bad_text_is_an_error_with_a_column(text):
    with pytest.raises(ValueError, match="column"):
        M.parse(text)


def test_a_mask_has_no_truth_value():
    for combine in (lambda: M.causal() and M.window(2, 0), lambda: M.causal() or M.window(2, 0), lambda: not M.causal()):
        with pytest.raises(TypeError, match="&, | and ~"):
            combine()
