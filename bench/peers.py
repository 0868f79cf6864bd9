#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""heed beside torch's SDPA, FlexAttention, ONNX Runtime's GroupQueryAttention and the formula written down, in turn in one process.

    python3 bench/peers.py                        every case on 1 and 2 threads; FlexAttention compiles for minutes
    python3 bench/peers.py --quick                every case on 2 threads within a minute, heed and torch alone where the others take long
    python3 bench/peers.py --only "decode|short" --threads 2 --json peers.json --svg peers.svg

Needs heed and torch, and takes onnxruntime and a C++ compiler (FlexAttention) where they are. docs/peers.md says how a figure is made.
The exit code is 1 where results differ (nothing is timed then), 0 otherwise, whoever wins.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import sys
import time
from dataclasses import replace

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

try:
    import torch  # noqa: F401  (before heed: both then use torch's copy of the OpenMP runtime, and share its threads)

    from peers import machine, plot, report
    from peers.cases import Case, all_cases
    from peers.contestants import PEERS, make_inputs
    from peers.measure import Effort, WrongAnswer, measure
except ImportError as missing:
    sys.exit(f"peers.py: {missing}; needs heed (pip install .) and torch")

_QUICK_SECONDS = 50.0  # of the 60 that --quick promises; the rest is for imports and the last case
_QUICK_HELP = "few rounds, 2 threads, no FlexAttention, nobody but torch where it is slow, within 60 seconds: to look at, not to quote"
_QUICK_PATIENCE = 0.04  # seconds of one call of ONNX Runtime or the naive formula


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=_QUICK_HELP)
    parser.add_argument("--only", metavar="REGEX", default="", help="cases whose 'name shape' matches")
    parser.add_argument("--threads", metavar="N,N", help="default 1,2; with --quick 2")
    parser.add_argument("--rounds", type=int, help="most rounds of a case (default 15, with --quick 5)")
    parser.add_argument("--seconds", type=float, help="after which 5 rounds of a case are enough (default 12; --quick: 3 after 0.4)")
    parser.add_argument("--peers", default=None, help=f"beside torch, from {','.join(PEERS[1:])} (default all, with --quick all but flex)")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--svg", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--from-json", type=pathlib.Path, metavar="FILE", help="measure nothing: print and draw what --json wrote")
    options = parser.parse_args(arguments)
    try:
        options.only = re.compile(options.only)
        options.threads = [int(n) for n in (options.threads or ("2" if options.quick else "1,2")).split(",")]
    except (re.error, ValueError) as error:
        parser.error(str(error))
    chosen = ("onnxruntime,naive" if options.quick else ",".join(PEERS[1:])) if options.peers is None else options.peers
    options.peers = ("torch", *(name for name in chosen.split(",") if name and name != "torch"))
    if unknown := set(options.peers) - set(PEERS):
        parser.error(f"--peers: expected names from {', '.join(PEERS)}, got {', '.join(sorted(unknown))}")
    if min(options.threads) < 1 or (options.rounds is not None and options.rounds < 1):
        parser.error("--threads and --rounds: expected at least 1")
    return options


def effort_of(options: argparse.Namespace) -> Effort:
    rounds, least, seconds = (5, 3, 0.4) if options.quick else (15, 5, 12.0)
    rounds = options.rounds or rounds
    seconds = seconds if options.seconds is None else options.seconds
    effort = Effort(rounds, min(least, rounds), seconds)
    return replace(effort, slice_seconds=0.004, patience=_QUICK_PATIENCE) if options.quick else effort


def run_case(case: Case, options: argparse.Namespace, rows: list[dict]) -> None:
    inputs = make_inputs(case)  # the same for every number of threads
    for threads in options.threads:
        rows.append(measure(case, inputs, threads, options.peers, effort_of(options)))
        print(report.line_of(rows[-1]), flush=True)


def run_cases(options: argparse.Namespace) -> tuple[list[dict], list[str]]:
    cases = [case for case in all_cases() if options.only.search(f"{case.name} {case.shape}")]
    if not cases:
        sys.exit("peers.py: --only matches no case")
    rows: list[dict] = []
    wrong: list[str] = []
    start = time.monotonic()
    print(report.header(), flush=True)
    for number, case in enumerate(cases):
        if options.quick and time.monotonic() - start > _QUICK_SECONDS:
            print(f"\nThe minute is over: {len(cases) - number} cases were not run.")
            break
        try:
            run_case(case, options, rows)
        except WrongAnswer as error:
            wrong.append(str(error))
    return rows, wrong


def print_notes(document: dict, wrong: list[str]) -> None:
    where = document["machine"]
    print()
    for line in [*report.summary(document["rows"]), "", *report.absences(document["rows"]), ""]:
        print(line)
    print(f"{where['cpu']}, {where['isa']}, {where['cores']} cores, load {where['load_average']}")
    print(f"OpenMP: {', '.join(where['openmp']) or 'none'}; set in the environment: {where['environment'] or 'nothing'}")
    for line in wrong:
        print(f"WRONG: {line}", file=sys.stderr)


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(arguments)
    wrong: list[str] = []
    if options.from_json:
        document = json.loads(options.from_json.read_text(encoding="utf-8"))
        print("\n".join([report.header(), *map(report.line_of, document["rows"])]))
    else:
        where = machine.describe(options.threads)  # its load average is the one before this program's own
        rows, wrong = run_cases(options)
        document = {"machine": where, "rows": rows}
    print_notes(document, wrong)
    if options.json:
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if options.svg and document["rows"]:
        plot.draw(document["rows"], document["machine"], options.svg)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
