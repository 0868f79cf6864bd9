# SPDX-License-Identifier: Apache-2.0
"""What comes in and goes out: kinds of arrays, strides, types, errors."""

import multiprocessing
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import reference

import heed


def make(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def triple(dtype=np.float32):
    return make(1, 5, 4, 8, dtype=dtype), make(1, 7, 2, 8, dtype=dtype, seed=1), make(1, 7, 2, 8, dtype=dtype, seed=2)


def test_any_strides_read_only_and_fortran_order():
    q, k, v = triple()
    want = reference.attention(q, k, v)[0]
    backwards = np.ascontiguousarray(k[:, ::-1])[:, ::-1]
    fortran = np.asfortranarray(v)
    padded = np.zeros((1, 5, 4, 11), np.float32)[..., 2:10]
    padded[:] = q
    for x in (padded, backwards, fortran):
        x.flags.writeable = False
    np.testing.assert_allclose(heed.attention(padded, backwards, fortran), want, atol=1e-6)
    one = np.broadcast_to(k[:, :1], k.shape)
    np.testing.assert_allclose(heed.attention(q, one, v), reference.attention(q, one, v)[0], atol=1e-6)
    shifted = np.frombuffer(b"\0" * 2 + q.tobytes(), np.uint8)[2:].view(np.float32).reshape(q.shape)
    np.testing.assert_allclose(heed.attention(shifted, k, v), want, atol=1e-6)


def test_out_is_written_and_returned():
    q, k, v = triple()
    out = np.full((1, 5, 4, 8), np.nan, np.float32)
    assert heed.attention(q, k, v, out=out) is out
    np.testing.assert_allclose(out, reference.attention(q, k, v)[0], atol=1e-6)
    for bad, text in ((out.astype(np.float64), "out"), (out[:, :4], "out"), (np.broadcast_to(out, out.shape), "out.*writable|out.*read-only")):
        with pytest.raises(ValueError, match=text):
            heed.attention(q, k, v, out=bad)
    with pytest.raises(ValueError, match="out"):
        heed.attention(q, k, v, out=q)


def test_bfloat16_of_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    arrays = triple(ml_dtypes.bfloat16)
    out, lse = heed.attention(*arrays, return_lse=True)
    assert out.dtype == ml_dtypes.bfloat16 and lse.dtype == np.float32
    want = reference.attention(*arrays)[0]
    assert np.abs(out.astype(np.float64) - want).max() <= 2**-8 * np.abs(want).max()
    merged = heed.merge_states([(out, lse)])[0]
    assert merged.dtype == ml_dtypes.bfloat16 and np.array_equal(merged, out)
    grads = heed.attention_backward(out, *arrays, out, lse)
    assert grads.dq.dtype == ml_dtypes.bfloat16


def test_torch_tensors_come_back():
    torch = pytest.importorskip("torch")
    q, k, v = (torch.from_numpy(x) for x in triple())
    out, lse = heed.attention(q, k, v, return_lse=True)
    assert isinstance(out, torch.Tensor) and isinstance(lse, torch.Tensor)
    np.testing.assert_allclose(out, reference.attention(q, k, v)[0], atol=1e-6)
    assert heed.attention(q.bfloat16(), k.bfloat16(), v.bfloat16()).dtype == torch.bfloat16
    assert heed.merge_states([(out, lse)])[0].dtype == torch.float32
    with pytest.raises(TypeError, match="k:.*same kind"):
        heed.attention(q, k.numpy(), v)
    with pytest.raises(TypeError, match="CPU"):
        heed.attention(q.to("meta"), k, v)


def test_jax_arrays_come_back():
    jax = pytest.importorskip("jax")
    q, k, v = (jax.numpy.asarray(x) for x in triple())
    out, lse = heed.attention(q, k, v, mask=heed.Mask.causal(), return_lse=True)
    assert isinstance(out, jax.Array) and isinstance(lse, jax.Array)
    np.testing.assert_allclose(out, reference.attention(*triple(), reference.causal(5, 7))[0], atol=1e-6)
    half = [x.astype("bfloat16") for x in (q, k, v)]
    assert heed.attention(*half).dtype == half[0].dtype


@pytest.mark.parametrize(
    "change, error, text",
    [
        (dict(q=[[1.0]]), TypeError, "q: expected an array"),
        (dict(q=make(5, 4, 8)), ValueError, "q: expected 4 axes"),
        (dict(k=make(1, 7, 3, 8)), ValueError, "^attention: k"),
        (dict(v=make(1, 6, 2, 8)), ValueError, "v"),
        (dict(k=make(1, 7, 2, 8).astype(np.int32)), ValueError, "k"),
        (dict(q=make(1, 5, 4, 8).astype(np.complex64)), TypeError, "q: dtype complex64"),
        (dict(q=make(1, 5, 4, 8).astype(">f4")), TypeError, "q: dtype"),
        (dict(mask="causl"), ValueError, "Mask.parse: text: .* column 1, got 'causl'"),
        (dict(mask=True), TypeError, "mask: expected a heed.Mask or None"),
        (dict(mask=make(5, 7) > 0), TypeError, "mask: expected a heed.Mask.*Mask.from_array"),
        (dict(mask=heed.Mask.causal), TypeError, r"mask: expected a heed.Mask.*causal\(\)"),
        (dict(align="left"), ValueError, "align"),
        (dict(scale="big"), TypeError, "scale"),
        (dict(scale=np.nan), ValueError, "scale"),
        (dict(softcap=0.0), ValueError, "softcap"),
        (dict(bias=make(5, 6)), ValueError, "bias"),
        (dict(alibi_slopes=make(3)), ValueError, "alibi_slopes"),
        (dict(sink_logits=make(3)), ValueError, "sink_logits"),
        (dict(kv_lengths=[8]), ValueError, "kv_lengths"),
        (dict(kv_lengths=[1, 2]), ValueError, "kv_lengths"),
        (dict(dropout_p=1.0), ValueError, "^attention: dropout_p: "),
        (dict(dropout_p=0.1, seed=-1), TypeError, "seed"),
        (dict(layout="HBLD"), ValueError, "layout"),
        (dict(mask=heed.Mask.per_head([heed.Mask.none()] * 3)), ValueError, "mask"),
    ],
)
def test_errors_name_the_argument(change, error, text):
    q, k, v = triple()
    with pytest.raises(error, match=text):
        heed.attention(**{**dict(q=q, k=k, v=v), **change})


def test_other_threads_run_meanwhile():
    q, k, v = (make(1, 2048, 8, 64, seed=s) for s in range(3))
    ticks, done = [], threading.Event()

    def tick():
        while not done.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    ticker = threading.Thread(target=tick)
    ticker.start()
    begin = time.perf_counter()
    for _ in range(5):
        heed.attention(q, k, v)
    end = time.perf_counter()
    done.set()
    ticker.join()
    assert sum(begin < t < end for t in ticks) >= 5


def test_many_threads_give_the_same_bits():
    q, k, v = (make(1, 200, 4, 32, seed=s) for s in range(3))
    want, got = heed.attention(q, k, v, mask=heed.Mask.causal()), []
    workers = [threading.Thread(target=lambda: got.extend(heed.attention(q, k, v, mask=heed.Mask.causal()) for _ in range(5))) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(got) == 20 and all(np.array_equal(x, want) for x in got)
    before = heed.get_num_threads()
    heed.set_num_threads(3)
    assert heed.get_num_threads() == 3 and np.array_equal(heed.attention(q, k, v, mask=heed.Mask.causal()), want)
    heed.set_num_threads(before)
    with pytest.raises(ValueError, match="n"):
        heed.set_num_threads(0)


def _in_a_child(queue):
    q, k, v = (make(1, 200, 4, 32, seed=s) for s in range(3))
    queue.put(heed.attention(q, k, v))


def test_forked_children_work():
    q, k, v = (make(1, 200, 4, 32, seed=s) for s in range(3))
    want = heed.attention(q, k, v)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_in_a_child, args=(queue,))
    child.start()
    got = queue.get(timeout=60)
    child.join(60)
    assert np.array_equal(got, want) and child.exitcode == 0


def test_the_instruction_set_can_be_forced():
    program = "import heed; print(heed.active_isa())"
    run = subprocess.run([sys.executable, "-c", program], env={**os.environ, "HEED_ISA": "generic"}, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "generic"
    entries = heed.kernels()
    assert any(e["family"] == "attention.wide" and e["selected"] for e in entries)
    assert "attention." in heed.explain((1, 64, 8, 64), (1, 64, 8, 64), "bfloat16")


def test_explain_takes_an_arrays_dtype_and_names_what_is_wrong():
    shape = (1, 64, 8, 64)
    want = heed.explain(shape, shape, "float16")
    assert "float16" in want
    assert heed.explain(shape, shape, np.float16) == heed.explain(shape, shape, np.dtype("float16")) == want
    with pytest.raises(ValueError, match="dtype: expected .*fp16"):
        heed.explain(shape, shape, "fp16")
    with pytest.raises(TypeError, match="k_shape: expected four integers"):
        heed.explain(shape, np.zeros(shape))


def test_errors_name_the_function_as_python_does():
    for name, call in {"parse: text": lambda: heed.Mask.parse("casual"), "from_array: ": lambda: heed.Mask.from_array(make(5, 5))}.items():
        with pytest.raises(ValueError, match=rf"^Mask\.{name}"):
            call()
    with pytest.raises(ValueError, match=r"^KvCache\.layer: layer: "):
        heed.KvCache(kv_heads=1, head_dim=8, capacity=8).layer(1)
