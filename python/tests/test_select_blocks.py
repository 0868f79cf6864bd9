# SPDX-License-Identifier: Apache-2.0
"""heed.select_blocks against NumPy."""

import numpy as np
import pytest

import heed


@pytest.mark.parametrize("layout", ["BLHD", "BHLD"])
def test_against_numpy(layout):
    rng = np.random.default_rng(1)
    q, k = rng.standard_normal((1, 96, 4, 8)).astype(np.float32), rng.standard_normal((1, 96, 2, 8)).astype(np.float32)
    given = (q, k) if layout == "BLHD" else (q.transpose(0, 2, 1, 3), k.transpose(0, 2, 1, 3))
    seen = heed.select_blocks(*given, block=16, keep=3, layout=layout).evaluate(96, 96, heads=4)
    means = [x[0].reshape(6, 16, -1, 8).mean(1) for x in (q, k)]  # [blocks, H, D]
    for head in range(4):
        for own in range(6):
            scores = [means[0][own, head] @ means[1][j, head // 2] if 0 < j < own else np.inf if j <= own else -np.inf for j in range(6)]
            kept = {j for j in sorted(range(own + 1), key=lambda j: -scores[j])[:3]}
            blocks = seen[0, head].reshape(6, 16, 6, 16)[own, -1].any(-1)  # the block's last query sees all of what is kept
            assert set(np.flatnonzero(blocks)) == kept


def test_errors():
    q = np.zeros((1, 8, 2, 4), np.float32)
    with pytest.raises(ValueError, match="select_blocks: keep: expected at least first [+] local, got 1"):
        heed.select_blocks(q, q, keep=1)
    with pytest.raises(ValueError, match="select_blocks: q: expected one sequence"):
        heed.select_blocks(np.zeros((2, 8, 2, 4), np.float32), q)
    with pytest.raises(TypeError, match="k: expected the same kind|k: expected an array"):
        heed.select_blocks(q, [1.0])
