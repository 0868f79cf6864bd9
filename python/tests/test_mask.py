# SPDX-License-Identifier: Apache-2.0
"""heed.Mask against its definitions, element by element."""

import pathlib
import pickle
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import heed

M = heed.Mask


def on_grid(grid, rule):
    """`rule` on the coordinates of a query and a key that are on the row-major grid."""
    size = grid[0] * grid[1]
    return lambda p, j: 0 <= p < size and j < size and rule(divmod(p, grid[1]), divmod(j, grid[1]))


LEAVES = st.one_of(
    st.just((M.none(), lambda p, j: True)),
    st.just((M.causal(), lambda p, j: j <= p)),
    st.tuples(st.none() | st.integers(0, 9), st.none() | st.integers(0, 9)).map(
        lambda w: (M.window(*w), lambda p, j: (w[0] is None or p - w[0] <= j) and (w[1] is None or j <= p + w[1]))),
    st.integers(1, 9).map(lambda n: (M.sliding_window(n), lambda p, j: p - n < j <= p)),
    st.integers(0, 9).map(lambda n: (M.prefix_lm(n), lambda p, j: j < n or j <= p)),
    st.integers(0, 9).map(lambda n: (M.sink_tokens(n), lambda p, j: j < n)),
    st.lists(st.integers(0, 40), max_size=4).map(lambda g: (M.global_tokens(g), lambda p, j: p in g or j in g)),
    st.tuples(st.integers(0, 9), st.integers(1, 9)).map(
        lambda d: (M.dilated(*d), lambda p, j: (p - j) % d[1] == 0 and abs(p - j) <= d[0] * d[1])),
    st.integers(1, 40).map(lambda s: (M.strided(s), lambda p, j: (p - j) % s == 0)),
    st.integers(1, 40).map(lambda n: (M.chunked(n), lambda p, j: p // n == j // n)),
    st.tuples(st.integers(1, 9), st.integers(0, 9)).map(
        lambda f: (M.fixed(sum(f), f[0]), lambda p, j: p // sum(f) == j // sum(f) or j % sum(f) >= f[1])),
    st.lists(st.integers(0, 40), max_size=4).map(lambda c: (M.columns(c), lambda p, j: j in c)),
    st.lists(st.integers(0, 40), max_size=4).map(lambda d: (M.diagonals(d), lambda p, j: p - j in d)),
    st.tuples(st.integers(1, 9), st.integers(1, 9)).map(lambda g: (M.axial(g), on_grid(g, lambda x, y: x[0] == y[0] or x[1] == y[1]))),
    st.tuples(st.integers(3, 9), st.integers(4, 9)).map(lambda g: (M.neighborhood(g, [3, 4]), on_grid(g, lambda x, y: all(
        0 <= b - min(max(a - w // 2, 0), n - w) < w for a, b, n, w in zip(x, y, g, (3, 4)))))),
    st.tuples(st.integers(1, 9), st.integers(1, 9)).map(lambda g: (M.shifted_window(g, [3, 4], [2, 1]), on_grid(
        g, lambda x, y: (x[0] - 2) // 3 == (y[0] - 2) // 3 and (x[1] - 1) // 4 == (y[1] - 1) // 4))),
    st.tuples(st.integers(1, 9), st.integers(1, 4)).map(
        lambda b: (M.in_blocks(b[0], M.window(b[1], 0)), lambda p, j: 0 <= p // b[0] - j // b[0] <= b[1])),
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
    assert statistics["density"] == mask.density(lq, lk, **options) == pytest.approx(want.mean() if want.size else 0.0)
    assert mask.describe().startswith("A query sees a key when ")
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


def test_patterns_with_more_to_them():
    tree = M.tree([None, 0, 0, 1, None])
    own = np.array([[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 0, 1, 0, 0], [1, 1, 0, 1, 0], [0, 0, 0, 0, 1]], bool)
    assert np.array_equal(tree.evaluate(5, 8), np.hstack([np.ones((5, 3), bool), own]))
    fixed = M.fixed(6, 2, rotation=3).evaluate(12, 12, heads=3)
    p, j = np.ogrid[:12, :12]
    for head in range(3):
        assert np.array_equal(fixed[0, head], (p // 6 == j // 6) | ((5 - j % 6) // 2 == head))
    blocks = M.random_blocks(4, 2, columns=8, seed=3, each_head=True).evaluate(32, 40, align="top_left", heads=2)[0]
    assert (blocks.sum(-1) == 8).all() and not blocks[..., 32:].any() and (blocks[0] != blocks[1]).any()
    assert np.array_equal(blocks[0], np.kron(blocks[0, ::4, ::4], np.ones((4, 4), bool)))
    past = M.random_blocks(4, 2, seed=3).evaluate(32, 32)
    assert np.array_equal(past.sum(-1), np.repeat([4] + [8] * 7, 4)) and not np.triu(past, 4).any()
    big_bird = M.big_bird(4, global_blocks=1, random_blocks=2, columns=8, seed=3)
    assert big_bird == M.in_blocks(4, M.window(1, 1) | M.global_tokens([0]) | M.parse("random_keys 2 8 3"))
    assert M.neighborhood([12], [3], [2]) == M.parse("neighborhood 12 3 2")
    with pytest.raises(ValueError, match="grid.*none"):
        M.axial([])
    with pytest.raises(ValueError, match="grid.*at most 6 axes"):
        M.axial([2] * 7)
    with pytest.raises(ValueError, match="window.*1 to 4, got 5"):
        M.neighborhood([4], [5])
    with pytest.raises(ValueError, match="parents of token 0"):
        M.tree([0])


PATTERNS = (pathlib.Path(__file__).parents[2] / "docs" / "patterns.md").read_text()


@pytest.mark.parametrize("expression, text", re.findall(r"`(heed\.Mask\.[^`]+)`\n\n```text\n(.*?)(?:, head \d)?\n", PATTERNS))
def test_expressions_of_the_patterns_page(expression, text):
    assert str(eval(expression, {"heed": heed})) == text


def test_the_patterns_page_has_an_expression_for_each_picture():
    assert len(re.findall(r"`heed\.Mask\.[^`]+`\n\n```text\n", PATTERNS)) == PATTERNS.count("```text") > 20


@pytest.mark.parametrize("text", ["causal &", "windw 3 0", "(causal", "window 1"])
def test_bad_text_is_an_error_with_a_column(text):
    with pytest.raises(ValueError, match="column"):
        M.parse(text)


def test_a_mask_has_no_truth_value():
    for combine in (lambda: M.causal() and M.window(2, 0), lambda: M.causal() or M.window(2, 0), lambda: not M.causal()):
        with pytest.raises(TypeError, match="&, | and ~"):
            combine()
