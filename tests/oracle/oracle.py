#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the numpy models by hand. Token ids come on standard input or in --tokens; see transformer.py.

    build/release/cli/heed tokenize models/smollm2.gguf -p "Once upon a time" | tests/oracle/oracle.py models/smollm2.gguf greedy
"""
import argparse
import math
import sys

import numpy as np

from transformer import Model


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("what", choices=["greedy", "nll", "logits"])
    parser.add_argument("--tokens", help="ids, separated by blanks (default: standard input)")
    parser.add_argument("--count", type=int, default=32, help="tokens to generate")
    parser.add_argument("--out", help="logits: float32 file, [tokens, vocabulary]")
    parser.add_argument("--float64", action="store_true")
    args = parser.parse_args()
    tokens = [int(t) for t in (args.tokens if args.tokens is not None else sys.stdin.read()).split()]
    model = Model(args.model, np.float64 if args.float64 else np.float32)
    if args.what == "greedy":
        steps = model.greedy(tokens, args.count)
        print(*(token for token, _ in steps))
        print(f"smallest gap {min(gap for _, gap in steps):.4f}", file=sys.stderr)
    elif args.what == "nll":
        nll = model.nll(tokens)
        print(f"nll {nll:.6f} ppl {math.exp(nll):.4f} tokens {len(tokens) - 1}")
    else:
        with open(args.out, "wb") as file:
            for row in model.logits(tokens):
                file.write(row.astype("<f4").tobytes())


if __name__ == "__main__":
    main()
