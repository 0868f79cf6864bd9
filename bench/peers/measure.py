# SPDX-License-Identifier: Apache-2.0
"""Rounds: the yardstick, then everybody in turn, over and over. Medians of what came out."""

from __future__ import annotations

import functools
import itertools
import math
import statistics
import time
from dataclasses import dataclass
from typing import Any, Callable

import torch

import heed
from heed import _core
from peers.cases import Case
from peers.contestants import Inputs, Prepared, naive_attention, prepare, visible

SETTLE_SECONDS = 0.012  # twice what libgomp's threads spin for after a region, in whoever's pool: nobody starts with a stolen core
_SLICE_SECONDS = 0.012  # shorter calls are repeated until they take so long
_PROBE_SECONDS = 0.006
# Error against float64, over the largest value. float32: the sums' order. bfloat16: who keeps scores in it (the naive formula) errs in a
# weight by the score's half unit, 2^-7 at scores of 4, and rounds weights and results. A wrong mask, scale or head is off by about 1.
_LIMITS = {"float32": 2e-5, "bfloat16": 2.0**-5}
_CHECKED_ROWS = 64  # queries, first and last among them


class WrongAnswer(Exception):
    """Names who is off, and by how much."""


@dataclass(frozen=True)
class Effort:
    rounds: int
    least_rounds: int
    seconds: float  # of one case; past them, least_rounds are enough
    slice_seconds: float = _SLICE_SECONDS
    patience: float = math.inf  # seconds of one call; who takes longer is left out, unless it is heed or torch


def as_tuple(result: Any) -> tuple:
    return result if isinstance(result, tuple) else (result,)


def set_truth(case: Case, inputs: Inputs) -> None:
    """The formula in float64: for some queries of a forward, since all scores of a long one take gigabytes; for every gradient."""
    q, k, v = (x.double() for x in (inputs.q, inputs.k[0], inputs.v[0]))
    inputs.rows = torch.linspace(0, case.q_length - 1, min(case.q_length, _CHECKED_ROWS)).long()
    if case.kind == "backward":
        leaves = [x.requires_grad_() for x in (q, k, v)]
        out = naive_attention(*leaves, visible(case, torch.arange(case.q_length)), torch.float64)
        inputs.truth = torch.autograd.grad(out, leaves, inputs.dout.double())
    else:
        inputs.truth = (naive_attention(q[:, :, inputs.rows], k, v, visible(case, inputs.rows), torch.float64),)


def check(case: Case, inputs: Inputs, prepared: Prepared) -> None:
    """Raises WrongAnswer where somebody's result is not the formula's. NaN counts as wrong."""
    for name, call in prepared.calls.items():
        for expected, got in zip(inputs.truth, as_tuple(call(0))):
            if case.kind != "backward":
                got = got[:, :, inputs.rows]
            error = ((got.double() - expected).abs().max() / expected.abs().max()).item()
            if got.shape != expected.shape or not error <= _LIMITS[case.dtype]:
                raise WrongAnswer(f"{case.name} {case.shape}: {name} is off the formula by {error:.1e} of the largest value")


def seconds_of(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


@functools.lru_cache
def rounds_per_second(probe: Callable[[int], float]) -> float:
    """Of one thread: with several, a neighbour that holds a core would be measured."""
    threads = heed.get_num_threads()
    heed.set_num_threads(1)
    best = min(seconds_of(lambda: probe(20000)) for _ in range(10))
    heed.set_num_threads(threads)
    return 20000 / best


class Yardstick:
    """What the machine does at this moment, with the threads of the case: multiply-adds, bf16 dots, or bytes read."""

    def __init__(self, case: Case, prepared: Prepared) -> None:
        self.read = prepared.read
        self.name, self.unit = ("read", "GB/s") if self.read else ("FMA", "GFLOP/s")
        self.work = case.cache_bytes if self.read else case.flop
        self.probe = _core.probe_fma
        if not self.read and case.dtype == "bfloat16" and _core.probe_bf16_dot(1) > 0:
            self.name, self.probe = "bf16 dot", _core.probe_bf16_dot
        self.rounds = max(1, int(rounds_per_second(self.probe) * _PROBE_SECONDS))

    def speed(self, index: int) -> float:
        """In 1e9 a second."""
        memory = self.read(index) if self.read else None
        self.probe(100)  # wakes the threads
        start = time.perf_counter()
        done = self.probe(self.rounds) if memory is None else _core.probe_read(memory)
        return done / (time.perf_counter() - start) * 1e-9


def quantile(values: list[float], share: float) -> float:
    """Linear between the ordered values."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


class Walk:
    """Everybody takes the next set of inputs, so each finds the one that was touched the longest ago."""

    def __init__(self, sets: int) -> None:
        self.turns = itertools.cycle(range(sets))

    def next(self) -> int:
        return next(self.turns)


def time_calls(call: Callable[[int], Any], calls: int, walk: Walk) -> float:
    """Seconds of one call. A short call needs one before the clock, which wakes the threads."""
    time.sleep(SETTLE_SECONDS)
    if calls > 1:
        call(walk.next())
    start = time.perf_counter()
    for _ in range(calls):
        call(walk.next())
    return (time.perf_counter() - start) / calls


def calls_of_a_round(prepared: Prepared, walk: Walk, effort: Effort) -> dict[str, int]:
    """As many as fill a slice; contestants beyond the effort's patience leave `prepared`."""
    calls = {}
    for name, call in list(prepared.calls.items()):
        once = seconds_of(lambda: call(walk.next()))
        if once < effort.slice_seconds:  # the first ones pay for scratch and pages
            once = min(seconds_of(lambda: call(walk.next())) for _ in range(3))
        if once > effort.patience and name not in ("heed", "torch"):
            del prepared.calls[name]
            prepared.absent[name] = f"a call takes more than {effort.patience:g} s"
            continue
        calls[name] = max(1, int(effort.slice_seconds / once))
    return calls


def run_rounds(case: Case, prepared: Prepared, effort: Effort) -> dict:
    """Seconds of each round by name, the yardstick's speeds, and the yardstick."""
    walk = Walk(prepared.sets)
    yardstick = Yardstick(case, prepared)
    calls = calls_of_a_round(prepared, walk, effort)
    taken: dict[str, list[float]] = {name: [] for name in prepared.calls}
    peaks: list[float] = []
    start = time.perf_counter()
    while len(peaks) < effort.rounds and (len(peaks) < effort.least_rounds or time.perf_counter() - start < effort.seconds):
        time.sleep(SETTLE_SECONDS)
        peaks.append(yardstick.speed(walk.next()))
        for name, call in prepared.calls.items():
            taken[name].append(time_calls(call, calls[name], walk))
    return {"seconds": taken, "peaks": peaks, "yardstick": yardstick}


def summarize(case: Case, threads: int, prepared: Prepared, rounds: dict) -> dict:
    taken, peaks, yardstick = rounds["seconds"], rounds["peaks"], rounds["yardstick"]
    medians = {name: statistics.median(values) for name, values in taken.items()}
    ratios = [theirs / ours for theirs, ours in zip(taken["torch"], taken["heed"])]
    speed = yardstick.work * 1e-9
    row = {
        "name": case.name,
        "kind": case.kind,
        "shape": case.shape,
        "dtype": case.dtype,
        "threads": threads,
        "heed": medians["heed"],
        "torch": medians["torch"],
        "flex": medians.get("flex"),
        "onnxruntime": medians.get("onnxruntime"),
        "naive": medians.get("naive"),
        "speedup_vs_torch": medians["torch"] / medians["heed"],
        "speedup_low": quantile(ratios, 0.1),
        "speedup_high": quantile(ratios, 0.9),
        "target": case.target if threads == 2 else None,
        "rounds": len(peaks),
        "unit": yardstick.unit,
        "value": speed / medians["heed"],
        "peak": statistics.median(peaks),
        "peak_of": yardstick.name,
        "ratio": statistics.median(speed / ours / peak for ours, peak in zip(taken["heed"], peaks)),
        "absent": prepared.absent,
        "short": case.is_short,
    }
    return row


def measure(case: Case, inputs: Inputs, threads: int, peers: tuple[str, ...], effort: Effort) -> dict:
    """One row; raises WrongAnswer before anything is timed."""
    torch.set_num_threads(threads)
    heed.set_num_threads(threads)
    prepared = prepare(case, inputs, threads, peers)
    if inputs.truth is None:
        set_truth(case, inputs)
    check(case, inputs, prepared)
    return summarize(case, threads, prepared, run_rounds(case, prepared, effort))
