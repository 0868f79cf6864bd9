# SPDX-License-Identifier: Apache-2.0
"""heed.PagedKvCache against sequences in contiguous caches."""

import threading

import numpy as np
import pytest

import heed

HEADS, DIM = 2, 16


def rows(ids, seed):
    """Keys or values of tokens, which depend on place and id."""
    table = np.random.default_rng(seed).standard_normal((50, HEADS, DIM)).astype(np.float32)
    return (table[np.asarray(ids) % 50] * np.cos(np.arange(len(ids)))[:, None, None].astype(np.float32))[None]


def extend(pool, sequence, ids):
    done = pool.length(sequence)
    pool.reserve(sequence, len(ids) - done)
    pool.append(0, sequence, rows(ids, 1)[:, done:], rows(ids, 2)[:, done:])
    pool.commit(sequence, ids[done:])


def make(pages=12, **options):
    return heed.PagedKvCache(kv_heads=HEADS, head_dim=DIM, capacity_pages=pages, **options)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_shared_prefixes_in_one_call(dtype):
    pool, prompts = make(dtype=dtype), [list(range(600)) + [n] * (5 * n + 1) for n in range(4)]
    sequences = []
    for n, prompt in enumerate(prompts):
        sequence, cached = pool.create(np.array(prompt, np.int32))
        assert cached == (512 if n else 0)
        extend(pool, sequence, prompt)
        sequences.append(sequence)
    assert pool.usage == {"used": 2 + 4, "cached": 0, "free": 6}
    q = np.random.default_rng(3).standard_normal((4, 1, 4, DIM)).astype(np.float32)
    out = heed.attention(q, pool.view(0, sequences), mask=heed.Mask.causal())
    for n, prompt in enumerate(prompts):
        alone = heed.KvCache(kv_heads=HEADS, head_dim=DIM, capacity=len(prompt), dtype=dtype)
        alone.append(0, rows(prompt, 1), rows(prompt, 2))
        assert np.array_equal(out[n : n + 1], heed.attention(q[n : n + 1], alone.layer(0), mask=heed.Mask.causal()))
    for sequence in sequences:
        pool.release(sequence)
    assert pool.usage == {"used": 0, "cached": 2, "free": 10}
    assert pool.create(prompts[0])[1] == 512


def test_fork_truncate_and_slots():
    pool, ids = make(), list(range(300))
    a, _ = pool.create()
    extend(pool, a, ids)
    b = pool.fork(a)
    assert pool.block_table(a) == pool.block_table(b)
    extend(pool, b, ids + [7])
    assert pool.block_table(a)[0] == pool.block_table(b)[0] and pool.block_table(a)[1] != pool.block_table(b)[1]
    pool.truncate(b, 10)
    assert pool.length(a) == 300 and pool.length(b) == 10
    assert np.array_equal(pool.view(0, [a]).keys_as_float32(), rows(ids, 1))
    pool.reserve(b, 2)
    slots = pool.slots(b, 10, 2)
    assert slots.dtype == np.int64 and (slots % 256 == [10, 11]).all()
    new = np.ones((3, HEADS, DIM), np.float32)
    pool.append_slots(0, new, new, [slots[0], -1, slots[1]])
    pool.commit(b)
    assert (pool.view(0, [b]).keys_as_float32()[0, 10:] == 1).all()


def test_errors_name_the_argument():
    pool = make(2)
    a, _ = pool.create()
    for call, text in (
        (lambda: pool.reserve(a, 513), "n: expected at most 512 tokens"),
        (lambda: pool.length(5), "sequence: expected one that was created and not released, got 5"),
        (lambda: pool.create(np.ones(3)), r"prompt: expected integers \[n\], got float64 \[3\]"),
        (lambda: pool.create([2**40]), "prompt: expected token ids of 32 bits"),
        (lambda: make(0), "capacity_pages: expected at least 1"),
        (lambda: make(2, dtype="int3"), "dtype: expected"),
        (lambda: pool.append_slots(0, np.ones((1, HEADS, DIM)), np.ones((1, HEADS, DIM)), [512]), r"slots: expected -1 or slots in \[0, 512\), got 512"),
    ):
        with pytest.raises(ValueError, match=text):
            call()


def test_threads_share_a_pool():
    pool, ids = make(40), list(range(700))
    failures = []

    def work(n):
        try:
            for _ in range(30):
                sequence, _ = pool.create(ids)
                extend(pool, sequence, ids)
                if not np.array_equal(pool.view(0, [sequence]).keys_as_float32(), rows(ids, 1)):
                    failures.append(n)
                pool.release(sequence)
        except Exception as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and pool.usage["used"] == 0
