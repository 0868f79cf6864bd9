#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The engine against the numpy oracle: logits, greedy tokens and perplexity of the same files.

    oracle_test.py ... smollm2 | gemma3        a real model (exit code 77 without it)
    oracle_test.py ... architectures           small random models, one for each branch of the decoder
"""
import json
import os
import re
import sys
import tempfile
import unittest

import numpy as np

import harness
import tiny_models
import transformer

OPTIONS = harness.parse_arguments()
LICENCE = "/usr/share/common-licenses/BSD"
NEAR_TIE = 0.05  # logits; two float32 computations may disagree about the larger of two that are closer than this

# Prompts and their ids as llama.cpp 0.3.x cuts them, so that the tokenizer too has a judge from outside.
PROMPTS = {
    "smollm2": {
        "Once upon a time": [6403, 1980, 253, 655],
        "The capital of France is": [504, 3575, 282, 4649, 314],
        "def fibonacci(n):": [1604, 3987, 46477, 24, 94, 727],
        "In 1969, the first": [788, 216, 33, 41, 38, 41, 28, 260, 808],
    },
    "gemma3": {
        "Once upon a time": [2, 14946, 3324, 496, 990],
        "def fibonacci(n):": [2, 2063, 10779, 78113, 236769, 236749, 1473],
        "In 1969, the first": [2, 902, 236743, 236770, 236819, 236825, 236819, 236764, 506, 1171],
        "Zürich ist eine Stadt": [2, 236953, 105214, 3526, 5723, 30820],
    },
}


def ids(text):
    return [int(word) for word in text.split()]


class RealModel(unittest.TestCase):
    name, nll_tokens, long_tokens = "", 0, 0  # of the subclasses

    @classmethod
    def setUpClass(cls):
        cls.path = harness.real_model(OPTIONS, cls.name)
        cls.oracle = transformer.Model(cls.path)
        cls.licence = ids(harness.output_of(OPTIONS.heed, "tokenize", cls.path, "--text-file", LICENCE, "--no-special"))

    def test_tokens_of_prompts(self):
        for prompt, expected in PROMPTS[self.name].items():
            self.assertEqual(ids(harness.output_of(OPTIONS.heed, "tokenize", self.path, "-p", prompt)), expected, prompt)

    def test_greedy_tokens(self):
        """Each token is the oracle's likeliest given the tokens before it; a near tie may go the other way."""
        ties = 0
        for prompt, fed in PROMPTS[self.name].items():
            out = ids(harness.output_of(OPTIONS.heed, "run", self.path, "-p", prompt, "--print-ids", "--ignore-end", "--max-tokens", 32))
            self.assertEqual(len(out), 32)
            rows = list(self.oracle.logits(fed + out[:-1], skip=len(fed) - 1))
            for i, (row, token) in enumerate(zip(rows, out)):
                best = int(np.argmax(row))
                ties += token != best
                self.assertTrue(token == best or row[best] - row[token] < NEAR_TIE,
                                f"{prompt!r}: token {i} is {token}, the oracle's is {best}, {row[best] - row[token]:.4f} logits above it")
        print(f"{self.name}: {len(PROMPTS[self.name])} prompts, 32 tokens each, {ties} near ties went the other way")

    def test_perplexity_and_logits(self):
        tokens = self.licence[:self.nll_tokens]
        rows = np.array(list(self.oracle.logits(tokens)))
        top = rows[:-1].max(axis=1, keepdims=True).astype(np.float64)
        losses = np.log(np.exp(rows[:-1] - top).sum(axis=1)) + top[:, 0] - rows[np.arange(len(tokens) - 1), tokens[1:]]
        expected = float(np.mean(losses))

        begins = self.name == "gemma3"  # with a begin-of-sequence token, which --max-tokens does not count
        printed = harness.output_of(OPTIONS.heed, "perplexity", self.path, "--text-file", LICENCE, "--max-tokens", len(tokens) - begins)
        found = re.fullmatch(r"nll (\S+) ppl (\S+) tokens (\d+)", printed.splitlines()[-1])
        self.assertTrue(found, printed)
        self.assertEqual(int(found[3]), len(tokens) - 1)
        print(f"{self.name}: nll {found[1]}, oracle {expected:.6f}")
        # 1e-4 of the NLL is 0.01 % of the perplexity; float32 sums in another order differ by some 1e-7.
        self.assertAlmostEqual(float(found[1]), expected, delta=1e-4)
        self.assertAlmostEqual(float(found[2]), np.exp(expected), delta=1e-3 * np.exp(expected))

        self.compare_logits(tokens, rows[-24:], prefill=len(tokens) - 8)

    def test_logits_past_the_window(self):
        """More tokens than a sliding window holds, and more than one chunk of the decoder."""
        tokens = (self.licence * 3)[:self.long_tokens]
        self.compare_logits(tokens, np.array(list(self.oracle.logits(tokens, skip=len(tokens) - 8))), prefill=len(tokens) - 4)

    def test_scaled_rotation(self):
        """--rope-scaling reaches the layers that see everything, and no others."""
        tokens = self.licence[:60]
        self.oracle.rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1000}
        self.addCleanup(setattr, self.oracle, "rope", None)
        options = ["--rope-scaling", "yarn", "--rope-factor", 4, "--rope-original-context", 1000]
        self.compare_logits(tokens, np.array(list(self.oracle.logits(tokens)))[-8:], 56, *options)

    def compare_logits(self, tokens, expected, prefill, *options):
        with tempfile.TemporaryDirectory() as folder:
            got = harness.dump_logits(OPTIONS, self.path, tokens, prefill, len(tokens) - len(expected), folder, *options)
        error = np.abs(got - expected).max(axis=1)
        print(f"{self.name}: {len(tokens)} tokens, largest difference of logits {error.max():.2e}")
        # 0.05 would pass a wrong epsilon or a rounded scale; both computations in float32 differ by up to 2e-4.
        self.assertLess(error.max(), 2e-3, f"by position: {error}")

    def test_memory(self):
        """Weights, KV cache and 300 MB at most."""
        # From a small process: the peak of a forked child starts at what its parent holds, and this one holds the oracle.
        watcher = "import os, sys; print(os.wait4(os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ), 0)[2].ru_maxrss)"
        command = [OPTIONS.heed, "run", self.path, "--prompt-file", LICENCE, "--ignore-end", "--max-tokens", 8, "--print-ids"]
        peak = int(harness.output_of(sys.executable, "-c", watcher, *command).splitlines()[-1]) * 1024
        info = json.loads(harness.output_of(OPTIONS.heed, "info", self.path, "--json"))
        cache = (len(self.licence) + 8) * info["kv_cache"]["bytes_per_token"]
        print(f"{self.name}: peak memory {peak / 1e6:.0f} MB; weights {info['weight_bytes'] / 1e6:.0f} MB, KV cache {cache / 1e6:.0f} MB")
        self.assertLess(peak, info["weight_bytes"] + cache + 300e6)


class SmolLm2(RealModel):
    name, nll_tokens, long_tokens = "smollm2", 320, 530


class Gemma3(RealModel):
    name, nll_tokens, long_tokens = "gemma3", 200, 530


class Architectures(unittest.TestCase):
    def test_logits(self):
        with tempfile.TemporaryDirectory() as folder:
            tiny_models.write_all(folder)
            for name in tiny_models.MODELS:
                path = os.path.join(folder, name + ".gguf")
                tokens = np.random.default_rng(7).integers(0, tiny_models.VOCABULARY, 45).tolist()
                expected = np.array(list(transformer.Model(path, np.float64).logits(tokens)))
                got = harness.dump_logits(OPTIONS, path, tokens, 33, 0, folder)
                error, scale = np.abs(got - expected).max(), np.abs(expected).max()
                print(f"{name}: largest difference {error:.2e} of {scale:.1f}")
                self.assertLess(error, 4e-6 * scale, name)


CASES = {"smollm2": SmolLm2, "gemma3": Gemma3, "architectures": Architectures}

if __name__ == "__main__":
    if OPTIONS.what[0] != "architectures":
        harness.real_model(OPTIONS, OPTIONS.what[0])
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(CASES[OPTIONS.what[0]])
    raise SystemExit(not unittest.TextTestRunner(verbosity=2).run(suite).wasSuccessful())
