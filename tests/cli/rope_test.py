#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""RoPE options from outside: every scaling rule against the numpy oracle, what follows a growing length, wrong usage, and `heed rope`."""
import json
import math
import os
import pathlib
import re
import tempfile
import unittest

import numpy as np

import harness
import rope_scaling
import tiny_models
import transformer

OPTIONS = harness.parse_arguments()
os.environ["OMP_NUM_THREADS"] = "1"  # for the program: there is nothing to share in models this small, and many runs
CONTEXT = 512  # of the small models
TRAINED = 24   # what the rules below are told; the tests go past it
TOKENS = np.random.default_rng(3).integers(0, tiny_models.VOCABULARY, 45).tolist()

PAIRS = 16
FACTORS = {"short_factor": [1 + i / 40 for i in range(PAIRS)], "long_factor": [1 + i * i / 12 for i in range(PAIRS)]}
RULES = {  # options and the same as a rule of the oracle
    "none": ("--rope-scaling none", {"rope_type": "default"}),
    "base": ("--rope-scaling none --rope-base 500", {"rope_type": "default", "rope_theta": 500.0}),
    "linear": ("--rope-scaling linear --rope-factor 3", {"rope_type": "linear", "factor": 3.0}),
    "ntk": ("--rope-scaling ntk --rope-factor 3", {"rope_type": "ntk", "factor": 3.0}),
    "dynamic": ("--rope-scaling dynamic --rope-factor 2", {"rope_type": "dynamic", "factor": 2.0}),
    "yarn": ("--rope-scaling yarn --rope-factor 4", {"rope_type": "yarn", "factor": 4.0}),
    "yarn, all options": ("--rope-scaling yarn --rope-scale 4 --yarn-beta-fast 3 --yarn-beta-slow 0.5 --yarn-attention-factor 1.3 --rope-freq-base 3000",
                          {"rope_type": "yarn", "factor": 4.0, "beta_fast": 3.0, "beta_slow": 0.5, "attention_factor": 1.3, "rope_theta": 3000.0}),
    "longrope": ("--rope-scaling longrope --rope-factor 8 --longrope-factors FILE", {"rope_type": "longrope", "factor": 8.0, **FACTORS}),
    "longrope, magnitude": ("--rope-scaling longrope --longrope-factors FILE --longrope-attention-factor 0.9",
                            {"rope_type": "longrope", "factor": CONTEXT / TRAINED, "attention_factor": 0.9, **FACTORS}),
    "llama3": ("--rope-scaling llama3 --rope-factor 8", {"rope_type": "llama3", "factor": 8.0}),
    "llama3, all options": ("--rope-scaling llama3 --rope-factor 8 --llama3-low-freq 0.5 --llama3-high-freq 2",
                            {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 0.5, "high_freq_factor": 2.0}),
}


class RopeTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        tiny_models.write_all(cls.folder)
        cls.factors = cls.folder / "factors.json"
        cls.factors.write_text(json.dumps(FACTORS))

    def model(self, name):
        return self.folder / f"{name}.gguf"

    def rule(self, name):
        """(arguments, the oracle's rule), both told that training ended after TRAINED tokens."""
        text, rule = RULES[name]
        arguments = [self.factors if word == "FILE" else word for word in text.split()]
        if rule["rope_type"] != "default":
            arguments += ["--rope-original-context", TRAINED]
        return arguments, {**rule, "original_max_position_embeddings": TRAINED}

    def heed(self, *arguments, **options):
        done = harness.run(OPTIONS.heed, *arguments, **options)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def bad(self, code, *arguments):
        done = harness.run(OPTIONS.heed, *arguments)
        self.assertEqual((done.returncode, done.stdout), (code, ""), done.stderr)
        return done.stderr


class Logits(RopeTest):
    def check(self, got, expected, what):
        """The rule of oracle_test.py: float32 sums in another order."""
        error, scale = np.abs(got - expected).max(), np.abs(expected).max()
        self.assertLess(error, 4e-6 * scale, f"{what}: {error:.2e} of {scale:.1f}")

    def fed(self, oracle, prefill):
        """The oracle's logits, fed as dump_logits feeds: a pass over `prefill` tokens, then one for each."""
        cache = {}
        rows = list(oracle.logits(TOKENS[:prefill], cache))
        for token in TOKENS[prefill:]:
            rows += oracle.logits([token], cache)
        return np.array(rows)

    def test_every_rule(self):
        """Half and interleaved pairs, full and partial rotation, windows; prompts that end before, at and behind the trained length."""
        for model in ("qwen3", "mha", "mistral"):
            plain = np.array(list(transformer.Model(self.model(model), np.float64).logits(TOKENS)))
            for name in RULES:
                arguments, rule = self.rule(name)
                oracle = transformer.Model(self.model(model), np.float64, rule)
                cuts = (1, TRAINED - 3, TRAINED, TRAINED + 1, len(TOKENS)) if rule["rope_type"] in ("dynamic", "longrope") else (TRAINED,)
                for prefill in cuts:
                    got = harness.dump_logits(OPTIONS, self.model(model), TOKENS, prefill, 0, self.folder, *arguments)
                    self.check(got, self.fed(oracle, prefill), f"{model}, {name}, {prefill} together")
                if name != "none":
                    self.assertGreater(np.abs(got - plain)[30:].max(), 1e-3, f"{model}, {name}: the rule does something")

    def test_growing_length_is_a_pass_from_scratch(self):
        """Token by token, keys of one layer come from embeddings alone: each step must equal a pass over all tokens so far, by the frequencies
        of that length. (In deeper layers keys hold what earlier, shorter passes computed.)"""
        for name in ("dynamic", "longrope", "yarn"):
            arguments, rule = self.rule(name)
            oracle = transformer.Model(self.model("single"), np.float64, rule)
            got = harness.dump_logits(OPTIONS, self.model("single"), TOKENS, 1, 0, self.folder, *arguments)
            scratch = np.array([list(oracle.logits(TOKENS[:n + 1]))[-1] for n in range(len(TOKENS))])
            self.check(got, scratch, name)

    def test_rules_of_files(self):
        """What a file says itself, and that options take its place."""
        for model in ("yarn", "longrope", "divisors"):
            oracle = transformer.Model(self.model(model), np.float64)
            for prefill in (5, 40):
                self.check(harness.dump_logits(OPTIONS, self.model(model), TOKENS, prefill, 0, self.folder), self.fed(oracle, prefill), model)
            arguments, rule = self.rule("ntk")
            oracle = transformer.Model(self.model(model), np.float64, rule)
            self.check(harness.dump_logits(OPTIONS, self.model(model), TOKENS, 5, 0, self.folder, *arguments), self.fed(oracle, 5), model)

    def test_generation(self):
        """Dynamic: keys follow, what else the layers remember stays. LongRoPE: every token from scratch, as the text is read again past TRAINED."""
        prompt = "abcdefghijklmnop"  # 16 tokens
        for name in ("dynamic", "longrope"):
            arguments, rule = self.rule(name)
            oracle = transformer.Model(self.model("linear"), np.float64, rule)
            steps, tokens = oracle.greedy([ord(c) for c in prompt], 20), [ord(c) for c in prompt]
            if name == "longrope":
                kept, steps = steps, []
                for _ in range(20):
                    steps += oracle.greedy(tokens + [token for token, _ in steps], 1)
                self.assertNotEqual([token for token, _ in steps], [token for token, _ in kept], "choose another prompt: reading again shows")
            self.assertGreater(min(gap for _, gap in steps), 1e-3, "choose another prompt: this one has near ties")
            done = self.heed("run", self.model("linear"), "-p", prompt, "--print-ids", "--ignore-end", "--max-tokens", 20, *arguments)
            self.assertEqual([int(word) for word in done.stdout.split()], [token for token, _ in steps])

    def test_perplexity(self):
        """Windows longer than the pieces that the program feeds them in: one pass each all the same. And no trace of the window before."""
        text = "".join(chr(c) for c in np.random.default_rng(5).integers(97, 123, 700))
        tokens = [ord(c) for c in text.replace("th", "\xff")]
        for name in ("dynamic", "longrope", "llama3"):
            arguments, rule = self.rule(name)
            oracle = transformer.Model(self.model("qwen3"), np.float64, rule)
            windows = [tokens[i:i + 300] for i in range(0, len(tokens), 300)]
            expected = sum(oracle.nll(window) * (len(window) - 1) for window in windows) / sum(len(window) - 1 for window in windows)
            done = self.heed("perplexity", self.model("qwen3"), "--text-file", "-", "--context", 300, "--json", *arguments, stdin=text)
            self.assertAlmostEqual(json.loads(done.stdout)["nll"], expected, delta=1e-5 * expected, msg=name)


class Options(RopeTest):
    def test_mistakes(self):
        cases = {
            "--rope-factor 2": "--rope-factor needs --rope-scaling linear, ntk, dynamic, yarn, longrope or llama3",
            "--yarn-beta-fast 2": "--yarn-beta-fast needs --rope-scaling yarn",
            "--rope-scaling yarn": "--rope-scaling yarn needs --rope-factor",
            "--rope-scaling longrope --rope-factor 2": "--rope-scaling longrope needs --longrope-factors",
            "--rope-scaling none --rope-factor 2": "not to --rope-scaling none",
            "--rope-scaling linear --rope-factor 2 --yarn-beta-slow 2": "--yarn-beta-slow belongs to --rope-scaling yarn, not to --rope-scaling linear",
            "--rope-scaling yarn --rope-factor 2 --llama3-low-freq 2": "--llama3-low-freq belongs to --rope-scaling llama3, not to --rope-scaling yarn",
            "--rope-scaling ntk --rope-factor 2 --longrope-factors x": "--longrope-factors belongs to --rope-scaling longrope",
            "--rope-scaling sideways": "sideways not in {",
            "--rope-scaling yarn --rope-factor 0.5": "--rope-factor",
            "--rope-scaling yarn --rope-factor nan": "--rope-factor",
            "--rope-scaling yarn --rope-factor inf": "--rope-factor",
            "--rope-scaling yarn --rope-factor 2 --rope-original-context 0": "--rope-original-context",
            "--rope-base 1": "--rope-base",
            "--rope-base nan": "--rope-base",
            "--rope-base -5": "--rope-base",
        }
        for command in (["run", "-p", "x"], ["perplexity", "--text-file", "x"], ["rope"]):
            for text, expected in cases.items():
                with self.subTest(command=command, text=text):
                    self.assertIn(expected, self.bad(2, command[0], self.model("qwen3"), *command[1:], *text.split()))
        order = "--rope-scaling llama3 --rope-factor 2 --llama3-low-freq 4 --llama3-high-freq 4"
        self.assertIn("more than low_freq_factor 4, got 4", self.bad(1, "rope", self.model("qwen3"), *order.split()))

    def test_factor_files(self):
        short = FACTORS["short_factor"]
        cases = {
            "": "expected a JSON object", "[1]": "expected a JSON object", "{": "expected a JSON object", "{}": 'a list "short_factor"',
            json.dumps({"short_factor": short}): 'a list "long_factor"',
            json.dumps({"short_factor": short, "long_factor": 2}): 'a list "long_factor"',
            json.dumps({"short_factor": short, "long_factor": ["1"] * PAIRS}): "something that is no number",
            json.dumps({"short_factor": short, "long_factor": short[1:]}): f'"long_factor" has 15 numbers, this model\'s rotation has {PAIRS} pairs',
            json.dumps({"short_factor": short, "long_factor": [0] * PAIRS}): "long_factors",
            json.dumps({"short_factor": short, "long_factor": [-1] * PAIRS}): "long_factors",
            json.dumps({**FACTORS, "factor": 2}): 'unknown key "factor"',
        }
        path = self.folder / "bad.json"
        for content, expected in cases.items():
            path.write_text(content)
            with self.subTest(content=content):
                self.assertIn(expected, self.bad(1, "rope", self.model("qwen3"), "--rope-scaling", "longrope", "--longrope-factors", path))
        self.assertIn("No such file", self.bad(1, "rope", self.model("qwen3"), "--rope-scaling", "longrope", "--longrope-factors", "/nowhere"))

    def context(self, *arguments):
        done = self.heed("rope", "--json", *arguments)
        return json.loads(done.stdout)["context"], done.stderr

    def test_context(self):
        model = self.model("qwen3")
        self.assertEqual(self.context(model), (CONTEXT, ""))
        self.assertEqual(self.context(model, "--rope-base", 5), (CONTEXT, ""))
        yarn = ["--rope-scaling", "yarn", "--rope-factor"]
        context, note = self.context(model, *yarn, 4)
        self.assertEqual(context, 4 * CONTEXT)
        self.assertEqual(note, "RoPE: yarn, factor 4: the context is 2,048 tokens, the file's is 512\n")
        self.assertEqual(self.context(model, *yarn, 4, "--rope-original-context", 1000)[0], 4000)
        self.assertEqual(self.context(model, *yarn, 4, "--rope-original-context", 100), (CONTEXT, ""))  # never less than the file says
        self.assertEqual(self.context(model, *yarn, 1), (CONTEXT, ""))
        self.assertEqual(self.context(model, *yarn, 1.5)[0], 768)
        context, note = self.context(model, *yarn, 2, "--context", 3000)
        self.assertEqual(context, 3000)
        self.assertIn("--context asks for 3,000 tokens, yarn, factor 2 is made for 1,024", note)
        self.assertIn("is made for 512", self.context(model, "--rope-scaling", "none", "--context", 600)[1])
        # Factor 4 is in the file: another one starts from what was trained.
        context, note = self.context(self.model("yarn"), *yarn, 8)
        self.assertEqual(context, 8 * 128)
        self.assertIn("yarn, factor 8 takes the place of the file's own scaling (yarn)", note)

    def test_past_the_files_context(self):
        prompt = "a" * (CONTEXT + 8)
        command = ["run", self.model("qwen3"), "-p", prompt, "--max-tokens", 4, "--print-ids", "--ignore-end"]
        self.assertIn("the context holds 512", self.bad(1, *command))
        done = self.heed(*command, "--rope-scaling", "yarn", "--rope-factor", "2")
        self.assertEqual(len(done.stdout.split()), 4)
        self.assertIn("the context is 1,024 tokens", done.stderr)


class Explanation(RopeTest):
    def ropes(self, model, *arguments):
        return json.loads(self.heed("rope", self.model(model), "--json", *arguments).stdout)["ropes"]

    def test_numbers(self):
        """Each pair's wavelength, turns and divisor from the oracle's frequencies; magnitudes; bands that cover all pairs once."""
        for name in RULES:
            arguments, rule = self.rule(name)
            context = 100
            (rope,) = self.ropes("qwen3", "--context", context, *arguments)
            base = rule.get("rope_theta", 1e6)
            expected, magnitude = rope_scaling.frequencies(rule, 32, base, context)
            theta = base ** (-np.arange(0, 32, 2) / 32)
            trained = rope["trained_tokens"]
            self.assertEqual(trained, TRAINED if rule["rope_type"] != "default" else CONTEXT)
            np.testing.assert_allclose([pair["divided_by"] for pair in rope["pairs"]], theta / expected, rtol=1e-9, err_msg=name)
            np.testing.assert_allclose([pair["wavelength_tokens"] for pair in rope["pairs"]], 2 * np.pi / theta, rtol=1e-12)
            np.testing.assert_allclose([pair["trained_turns"] for pair in rope["pairs"]], trained * theta / (2 * np.pi), rtol=1e-12)
            self.assertAlmostEqual(rope["magnitude"], magnitude, delta=1e-12)
            self.assertEqual(rope["depends_on_length"], rule["rope_type"] in ("dynamic", "longrope"))
            covered = [i for band in rope["bands"] for i in range(band["first"], band["last"] + 1)]
            self.assertEqual(covered, list(range(PAIRS)), name)
            for band in rope["bands"]:
                for pair in rope["pairs"][band["first"]:band["last"] + 1]:
                    self.assertEqual(pair["treatment"], band["treatment"])
                    if band["treatment"] == "kept":
                        self.assertAlmostEqual(pair["divided_by"], 1, delta=1e-9)
                    if band["treatment"] == "interpolated":
                        self.assertGreater(pair["divided_by"], rope["factor"] * (1 - 1e-9))

    def test_golden_values(self):
        """Computed outside of this project in float64, see docs/rope.md."""
        yarn = "--rope-base 10000 --rope-scaling yarn --rope-factor 16 --rope-original-context 256".split()
        (rope,) = self.ropes("mha", *yarn)
        self.assertAlmostEqual(rope["magnitude"], 1.2772588722239782, delta=1e-15)
        # The ramp runs from pair 0 (0.4196 rounded down) to 7 (6.4402 rounded up).
        self.assertEqual([(band["treatment"], band["first"], band["last"]) for band in rope["bands"]],
                         [("kept", 0, 0), ("blended", 1, 6), ("interpolated", 7, 15)])
        (rope,) = self.ropes("mha", *"--rope-scaling dynamic --rope-factor 2 --rope-original-context 4096 --context 8192".split())
        # theta' / theta of the last pair is the whole of alpha = 2 * 8192 / 4096 - 1.
        self.assertAlmostEqual(rope["factor"], 3, delta=1e-12)
        self.assertAlmostEqual(rope["pairs"][15]["divided_by"], 3, delta=1e-9)
        for factor, magnitude in ((2, 1.0408330), (4, 1.0801234), (8, 1.1180340), (16, 1.1547005), (32, 1.1902381)):
            (rope,) = self.ropes("mha", "--rope-scaling", "longrope", "--rope-factor", factor, "--rope-original-context", 4096,
                                 "--longrope-factors", self.factors)
            self.assertAlmostEqual(rope["magnitude"], magnitude, delta=5e-8)

    def test_text(self):
        text = self.heed("rope", self.model("mha"), *"--rope-scaling yarn --rope-factor 16 --rope-original-context 256".split()).stdout
        for part in (r"scaling +yarn, factor 16\n", r"trained +256 tokens\n", r"context +4,096 tokens\n", r"magnitude +1.27726, ",
                     r"\n0 +6.28 +40.7 +kept +1 +turns at least 40.7 times within 256 tokens: kept, it encodes local order\n",
                     r"\n1-6 .* blended .* between 32 turns and 1: a ramp", r"\n7-15 .* interpolated +16 +turns at most "):
            self.assertTrue(re.search(part, text), f"{part}\n{text}")
        text = self.heed("rope", self.model("qwen3")).stdout
        self.assertIn("past them it shows angles that training never did", text)
        text = self.heed("rope", self.model("mistral")).stdout
        self.assertIn("these layers see the last 7", text)
        text = self.heed("rope", self.model("longrope")).stdout
        self.assertIn("keys are cached un-rotated", text)
        self.assertTrue(math.isclose(15 * 15 / 15 + 1, json.loads(self.heed("rope", self.model("longrope"), "--json").stdout)["ropes"][0]["pairs"][15]["divided_by"],
                                     rel_tol=1e-6))


if __name__ == "__main__":
    unittest.main(argv=["rope_test.py", *OPTIONS.what], verbosity=1)
