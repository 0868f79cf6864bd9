#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prompt and generation speed of heed and of llama.cpp, in turn on the same machine, as ratios.

    python3 -m venv peers && peers/bin/pip install llama-cpp-python      # compiles for about ten minutes
    peers/bin/python bench/compare_llama_cpp.py build/release/cli/heed models/smollm2.gguf models/gemma3.gguf

Both get the same text and the same number of threads. heed computes with float32 activations and a float32 cache; llama.cpp rounds activations to
int8 blocks and keeps a float16 cache, which is its default.
"""
import argparse
import re
import statistics
import subprocess
import time

from llama_cpp import Llama

NEW_TOKENS = 64


def heed_speed(program, model, text, threads):
    command = [program, "run", model, "-p", text, "--max-tokens", str(NEW_TOKENS + 1), "--threads", str(threads), "--ignore-end"]
    report = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return tuple(float(re.search(rf"{part} .* ([\d.]+) tokens/s", report)[1]) for part in ("prompt", "generation"))


def llama_speed(llama, tokens):
    llama.reset()
    start = time.perf_counter()
    llama.eval(tokens)
    prompt = time.perf_counter() - start
    start = time.perf_counter()
    for step in range(NEW_TOKENS):
        llama.eval([100 + step])
    return len(tokens) / prompt, NEW_TOKENS / (time.perf_counter() - start)


def compare(program, model, text, threads, rounds):
    llama = Llama(model, n_ctx=2048, n_batch=512, n_threads=threads, n_threads_batch=threads, verbose=False)
    tokens = llama.tokenize(text.encode())
    pairs = [(heed_speed(program, model, text, threads), llama_speed(llama, tokens)) for _ in range(rounds)]
    for part, name in enumerate(("prompt", "generation")):
        ours = statistics.median(heed[part] for heed, _ in pairs)
        theirs = statistics.median(other[part] for _, other in pairs)
        ratio = statistics.median(heed[part] / other[part] for heed, other in pairs)
        print(f"| {model.rsplit('/', 1)[-1]} | {threads} | {name} ({len(tokens) if part == 0 else NEW_TOKENS} tokens) | {ours:.0f} | {theirs:.0f} | **{ratio:.2f}** |",
              flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("heed")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--text-file", default="/usr/share/common-licenses/GPL-3")
    args = parser.parse_args()
    with open(args.text_file, encoding="utf-8") as file:
        text = file.read()[:2300]
    print("| model | threads | part | heed tokens/s | llama.cpp tokens/s | ratio |\n|---|---|---|---|---|---|")
    for model in args.models:
        compare(args.heed, model, text, args.threads, args.rounds)


if __name__ == "__main__":
    main()
