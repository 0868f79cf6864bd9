# SPDX-License-Identifier: Apache-2.0
"""bench/peers.py: everybody computes the same, a wrong answer stops a case, the files have what readers look for. Speed is not judged."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

torch = pytest.importorskip("torch")

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"
if not (BENCH / "peers.py").exists():
    pytest.skip("bench/ is not here", allow_module_level=True)
if str(BENCH) not in sys.path:
    sys.path.append(str(BENCH))

from peers import contestants, measure, plot, report  # noqa: E402
from peers.cases import Case, all_cases  # noqa: E402

TINY = [
    Case("tiny", "forward", 2, 4, 4, 70, 70, 32),
    Case("tiny causal", "forward", 1, 4, 4, 70, 70, 32, mask="causal"),
    Case("tiny window", "forward", 1, 2, 2, 300, 300, 16, mask="window"),
    Case("tiny decode", "decode", 1, 8, 2, 1, 90, 32),
    Case("tiny decode repeated", "decode", 1, 8, 2, 1, 90, 32, torch_groups="repeated"),
    Case("tiny decode folded bf16", "decode", 1, 8, 2, 1, 90, 32, dtype="bfloat16", torch_groups="folded"),
    Case("tiny backward", "backward", 1, 2, 2, 40, 40, 16, mask="causal"),
    Case("tiny backward bf16", "backward", 1, 2, 2, 40, 40, 16, mask="causal", dtype="bfloat16"),
]
EFFORT = measure.Effort(rounds=2, least_rounds=2, seconds=0.0, slice_seconds=0.0)
PEERS = ("torch", "onnxruntime", "naive")


@pytest.fixture(autouse=True)
def _few_caches_and_the_callers_threads(monkeypatch):
    monkeypatch.setattr(contestants, "number_of_caches", lambda case: 3)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def row_of(**changes):
    row = {
        "name": "forward", "shape": "B1 H8 L64 D64", "dtype": "float32", "threads": 2, "heed": 1.0, "torch": 2.0,
        "flex": None, "onnxruntime": None, "naive": 4.0, "speedup_vs_torch": 2.0, "speedup_low": 1.9, "speedup_high": 2.1, "target": 1.5, "ratio": 0.8, "peak_of": "FMA",
        "short": False, "absent": {},
    }  # fmt: skip
    return {**row, **changes}


@pytest.mark.parametrize("case", TINY, ids=lambda case: case.name)
def test_everybody_agrees_and_is_timed(case):
    row = measure.measure(case, contestants.make_inputs(case), 1, PEERS, EFFORT)
    assert row["heed"] > 0 and row["torch"] > 0 and row["rounds"] == 2 and row["peak"] > 0
    assert row["speedup_vs_torch"] == pytest.approx(row["torch"] / row["heed"])
    assert row["speedup_low"] <= row["speedup_high"]
    for peer in ("onnxruntime", "naive"):
        assert (row[peer] is None) == (peer in row["absent"])


@pytest.mark.parametrize("case", [TINY[1], TINY[2], TINY[3]], ids=lambda case: case.name)
def test_onnxruntime_takes_part(case):
    pytest.importorskip("onnxruntime")
    prepared = contestants.prepare(case, contestants.make_inputs(case), 1, ("torch", "onnxruntime"))
    assert "onnxruntime" in prepared.calls, prepared.absent


@pytest.mark.parametrize("case", TINY, ids=lambda case: case.name)
def test_a_wrong_answer_stops_the_case_before_it_is_timed(case, monkeypatch):
    def wrong(case, inputs, threads):
        right = contestants.torch_call(case, inputs, threads)

        def call(i):
            results = tuple(x.clone() for x in measure.as_tuple(right(i)))
            results[0][0, 0, -1, 0] += 0.25 * results[0].abs().max()  # one element, of the last query
            return results if len(results) > 1 else results[0]

        return call

    monkeypatch.setitem(contestants.MAKERS, "naive", wrong)
    monkeypatch.setattr(measure, "run_rounds", lambda *_: pytest.fail("timed"))
    with pytest.raises(measure.WrongAnswer, match=f"{case.name}.*naive"):
        measure.measure(case, contestants.make_inputs(case), 1, ("torch", "naive"), EFFORT)


def test_not_a_number_is_wrong(monkeypatch):
    monkeypatch.setitem(contestants.MAKERS, "naive", lambda case, inputs, threads: lambda i: torch.full_like(inputs.q, float("nan")))
    with pytest.raises(measure.WrongAnswer, match="nan"):
        measure.measure(TINY[0], contestants.make_inputs(TINY[0]), 1, ("torch", "naive"), EFFORT)


def test_pairs_are_those_of_the_mask():
    for case in (*TINY, replace(TINY[2], q_length=100, k_length=100)):
        seen = contestants.visible(case, torch.arange(case.q_length))
        assert case.visible_pairs == (case.q_length * case.k_length if seen is None else int(seen.sum()))


def test_window_shows_256_tokens_with_the_own_one():
    seen = contestants.visible(TINY[2], torch.tensor([0, 255, 256, 299]))
    assert seen.sum(dim=1).tolist() == [1, 256, 256, 256] and bool(seen[3, 299]) and bool(seen[3, 44]) and not bool(seen[3, 43])


def test_quantile_is_numpys():
    values = [3.0, 1.0, 4.0, 1.5, 9.0, 2.6]
    for share in (0.0, 0.1, 0.5, 0.9, 1.0):
        assert measure.quantile(values, share) == pytest.approx(np.quantile(values, share))


def test_walk_visits_every_set_before_it_returns():
    walk = measure.Walk(4)
    assert sorted(walk.next() for _ in range(4)) == [0, 1, 2, 3]


def test_verdicts():
    assert report.verdict(row_of()) == "ok"
    assert report.verdict(row_of(speedup_vs_torch=1.4)) == "below"
    assert report.verdict(row_of(speedup_vs_torch=0.9)) == "LOSES"
    assert report.verdict(row_of(target=None)) == ""
    assert report.verdict(row_of(flex=0.5)) == "Flex faster"
    assert "LOSES" in "\n".join(report.summary([row_of(speedup_vs_torch=0.9)]))
    assert report.summary([row_of(), row_of(speedup_vs_torch=1.4)])[0] == "1 of 2 targets kept."


def test_the_promises_are_the_projects():
    promised = {(case.name, case.head_dim): case.target for case in all_cases() if case.target is not None and not case.is_short}
    assert promised == {
        ("forward no mask", 64): 1.2, ("forward no mask", 128): 1.2, ("forward causal", 64): 1.5, ("forward causal", 128): 1.5,
        ("decode GQA", 128): 5.0, ("decode GQA bf16", 128): 5.0, ("backward causal", 64): 1.8, ("backward causal bf16", 64): 5.0,
    }  # fmt: skip
    short = [case for case in all_cases() if case.is_short]
    assert len(short) == 24 and all(case.target == 1.0 for case in short)


def test_the_picture_shows_losses_in_their_own_colour(tmp_path):
    rows = [row_of(), row_of(name="slow <&>", speedup_vs_torch=0.5, speedup_low=0.4, speedup_high=0.6)]
    for n in (128, 256, 512):
        rows.append(row_of(name="short causal", short=True, shape=f"B1 H8 L{n} D64", speedup_vs_torch=1 + n / 1000, target=1.0))
    rows += [row_of(name="one thread", threads=1)]
    machine = {"cpu": "a CPU", "isa": "avx2", "date": "2026-01-01T00:00:00Z", "peers": {"torch": "2.13.0"}}
    plot.draw(rows, machine, tmp_path / "peers.svg")
    root = ElementTree.parse(tmp_path / "peers.svg").getroot()
    space = "{http://www.w3.org/2000/svg}"
    fills = [bar.get("fill") for bar in root.iter(space + "rect")][1:]
    assert fills == [plot.FASTER, plot.SLOWER, plot.FASTER]
    assert len(list(root.iter(space + "circle"))) == 3
    words = " ".join(text.text for text in root.iter(space + "text"))
    assert "slow <&>" in words and "1.1-1.5x" in words and "one thread" not in words


def test_script_writes_table_json_and_picture(tmp_path):
    files = ["--json", str(tmp_path / "peers.json"), "--svg", str(tmp_path / "peers.svg")]
    command = [sys.executable, str(BENCH / "peers.py"), "--only", "^call", "--threads", "1,2", "--rounds", "2", "--peers", "naive", *files]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "| call, 16 tokens | B1 H1 L16 D64 | 1 |" in done.stdout
    document = json.loads((tmp_path / "peers.json").read_text())
    assert {"cpu", "isa", "cores", "threads", "caches", "date", "heed", "peers", "openmp", "load_average"} <= set(document["machine"])
    assert [row["threads"] for row in document["rows"]] == [1, 2]
    names = {"name", "shape", "threads", "heed", "torch", "naive", "speedup_vs_torch", "speedup_low", "speedup_high", "target"}
    assert names <= set(document["rows"][0])
    ElementTree.parse(tmp_path / "peers.svg")
    again = subprocess.run([*command[:2], "--from-json", files[1]], capture_output=True, text=True, env=environment, timeout=120)
    assert again.returncode == 0 and again.stdout.splitlines()[2] in done.stdout


def test_script_names_a_bad_argument():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, str(BENCH / "peers.py"), "--peers", "jax"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 2 and "--peers" in done.stderr and "jax" in done.stderr
