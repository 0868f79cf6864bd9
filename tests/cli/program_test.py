#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The heed program from outside: every command, exit codes, error texts, JSON, Ctrl-C, closed pipes. On a small random model of 256 bytes."""
import json
import math
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import unittest

import numpy as np

import harness
import tiny_models
import transformer

OPTIONS = harness.parse_arguments()
CONTEXT = 512  # of the small models
COMMANDS = ["run", "info", "tokenize", "perplexity", "rope", "mask", "kernels", "bench"]


def heed(*arguments, **options):
    return harness.run(OPTIONS.heed, *arguments, **options)


class ProgramTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.model = cls.folder / "qwen2.gguf"
        tiny_models.write_all(cls.folder)
        cls.endless = cls.folder / "endless.gguf"  # generates for minutes, unless it is stopped
        tiny_models.write_model(cls.endless, "qwen2", {"context_length": 100000})

    def good(self, *arguments, **options):
        done = heed(*arguments, **options)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def bad(self, code, *arguments, **options):
        """Standard error of a run that must fail with this code and print nothing."""
        done = heed(*arguments, **options)
        self.assertEqual((done.returncode, done.stdout), (code, ""), done.stderr)
        self.assertTrue(done.stderr.startswith("heed: error: " if code == 1 else "heed: "), done.stderr)
        return done.stderr


class Usage(ProgramTest):
    def test_help(self):
        self.assertIn("perplexity", self.good("--help").stdout)
        for command in COMMANDS:
            done = self.good(*command.split(), "--help")
            self.assertIn("Examples:\n", done.stdout, command)
            self.assertEqual(done.stderr, "", command)

    def test_version(self):
        self.assertRegex(self.good("--version").stdout, r"^heed \d+\.\d+\.\d+\n$")

    def test_mistakes(self):
        mistakes = [
            [], ["fly"], ["run"], ["run", self.model], ["run", self.model, "-p", "x", "--prompt-file", "y"],
            ["run", self.model, "-p", "x", "--nonsense"],
            ["run", self.model, "-p", "x", "--max-tokens", "many"], ["run", self.model, "-p", "x", "--max-tokens", "0"],
            ["run", self.model, "-p", "x", "--temperature", "-1"], ["run", self.model, "-p", "x", "--threads", "0"],
            ["run", self.model, "-p", "x", "--temperature", "inf"], ["run", self.model, "-p", "x", "--top-k", "-1"],
            ["run", self.model, "-p", "x", "--top-p", "0"], ["run", self.model, "-p", "x", "--system", "s"], ["run", self.model, "-p"], ["info"],
            ["tokenize", self.model], ["perplexity", self.model], ["perplexity", self.model, "--text-file", "-", "--context", "1"],
            ["bench", "--rounds", "0"], ["bench", "attention"], ["bench", "--suite", "speed"], ["bench", "--suite", "peak,speed"], ["bench", "--suite"],
            ["bench", "--quick", "--rounds", "2"], ["bench", "--fail-on-regression"], ["bench", "--compare"],
            ["bench", "--compare", "a", "b", "c"], ["bench", "--threads", "many"], ["kernels", "all"],
        ]
        for arguments in mistakes:
            with self.subTest(arguments=arguments):
                self.assertRegex(self.bad(2, *arguments), r"\nTry `heed[a-z ]* --help`\.\n$")
        self.assertIn("Try `heed run --help`", self.bad(2, "run", self.model))
        self.assertIn("Try `heed bench --help`", self.bad(2, "bench", "--rounds", "0"))
        self.assertIn('heed: there is no command "fly"\n', self.bad(2, "fly"))
        self.assertIn("speed not in {", self.bad(2, "bench", "--suite", "speed"))


class Files(ProgramTest):
    def every_command(self, model):
        """Standard error of each command that opens this model."""
        for command in (["run", "-p", "x"], ["info"], ["tokenize", "-p", "x"], ["perplexity", "--text-file", os.devnull]):
            yield self.bad(1, command[0], model, *command[1:])

    def test_missing(self):
        for text in self.every_command(self.folder / "nowhere.gguf"):
            self.assertIn("nowhere.gguf", text)
            self.assertIn("No such file", text)

    def test_truncated(self):
        content = self.model.read_bytes()
        for length in (0, 3, 20, 1000, len(content) // 2, len(content) - 40):
            path = self.folder / "short.gguf"
            path.write_bytes(content[:length])
            for text in self.every_command(path):
                self.assertIn("short.gguf", text)

    def test_other_format(self):
        path = self.folder / "text.gguf"
        path.write_text("GGML is not GGUF. " * 100)
        for text in self.every_command(path):
            self.assertIn("text.gguf", text)

    def test_folder(self):
        for text in self.every_command(self.folder):
            self.assertIn(str(self.folder), text)

    def test_missing_text(self):
        self.assertIn("no-prompt.txt: No such file", self.bad(1, "run", self.model, "--prompt-file", self.folder / "no-prompt.txt"))
        self.assertIn("no-text.txt: No such file", self.bad(1, "perplexity", self.model, "--text-file", self.folder / "no-text.txt"))


class Run(ProgramTest):
    def ids(self, *arguments, **options):
        done = self.good("run", self.model, "--print-ids", "--ignore-end", *arguments, **options)
        self.assertTrue(done.stdout.endswith("\n"))
        return [int(word) for word in done.stdout.split()]

    def test_same_every_time(self):
        ids = self.ids("-p", "abc", "--max-tokens", 20)
        self.assertEqual(len(ids), 20)
        self.assertEqual(self.ids("-p", "abc", "--max-tokens", 20, "--threads", 1), ids)
        self.assertEqual(self.ids("--prompt-file", "-", "--max-tokens", 20, stdin="abc"), ids)
        path = self.folder / "prompt.txt"
        path.write_text("abc")
        self.assertEqual(self.ids("--prompt-file", path, "--max-tokens", 20), ids)

    def test_greedy_is_the_oracles(self):
        prompt = [int(word) for word in self.good("tokenize", self.model, "-p", "abc").stdout.split()]
        expected = [token for token, gap in transformer.Model(self.model).greedy(prompt, 20) if gap > 1e-3]
        self.assertEqual(len(expected), 20, "choose another prompt: this one has near ties")
        self.assertEqual(self.ids("-p", "abc", "--max-tokens", 20), expected)

    def test_sampling(self):
        def draw(*more):
            return self.ids("-p", "abc", "--max-tokens", 20, "--temperature", 1, *more)
        self.assertEqual(draw("--seed", 5), draw("--seed", 5))
        self.assertNotEqual(draw("--seed", 5), draw("--seed", 6))
        greedy = self.ids("-p", "abc", "--max-tokens", 20)
        for only_the_likeliest in (["--top-k", 1], ["--top-p", 1e-6], ["--min-p", 1]):
            self.assertEqual(draw(*only_the_likeliest), greedy, only_the_likeliest)
        penalized = self.ids("-p", "abc", "--max-tokens", 20, "--repeat-penalty", 1000)
        self.assertEqual(len(set(penalized)), 20, "a strong penalty forbids repetition")

    def test_text(self):
        """The text is that of the ids, in valid UTF-8."""
        arguments = ["run", self.model, "-p", "abc", "--max-tokens", 60, "--ignore-end"]
        ids = self.ids("-p", "abc", "--max-tokens", 60)
        text = subprocess.run([str(part) for part in [OPTIONS.heed, *arguments]], capture_output=True, check=True).stdout
        table = tiny_models.byte_tokens()
        raw = b"".join(b"th" if i == 255 else bytes([i]) for i in ids)
        self.assertEqual(len(table), 256)
        self.assertEqual(text.decode("utf-8"), raw.decode("utf-8", "replace") + "\n")

    def test_statistics(self):
        done = self.good("run", self.model, "-p", "abcd", "--max-tokens", 5, "--ignore-end")
        self.assertRegex(done.stderr, r"^prompt +4 tokens, [\d.]+ tokens/s\ngeneration +4 tokens, [\d.]+ tokens/s\n$")

    def test_dash_prompt(self):
        self.assertEqual(len(self.ids("-p", "-x", "--max-tokens", 3)), 3)

    def test_end_token(self):
        """Token 0 ends a text of this model: it is not printed, nor is anything after it."""
        for seed in range(40):
            arguments = ["-p", "abc", "--max-tokens", 40, "--temperature", 5, "--seed", seed]
            ids = self.ids(*arguments)
            if 0 in ids:
                ended = self.good("run", self.model, "--print-ids", *arguments).stdout.split()
                self.assertEqual([int(word) for word in ended], ids[:ids.index(0)])
                return
        self.fail("no seed gave an end token")

    def test_no_chat_template(self):
        self.assertIn("template", self.bad(1, "run", self.model, "--chat", "-p", "x"))

    def test_empty_prompt(self):
        self.assertIn("the prompt is empty", self.bad(1, "run", self.model, "-p", ""))

    def test_context(self):
        self.assertIn(f"the prompt has 600 tokens, the context holds {CONTEXT}", self.bad(1, "run", self.model, "-p", "a" * 600))
        self.assertIn("the prompt has 17 tokens, the context holds 16", self.bad(1, "run", self.model, "-p", "a" * 17, "--context", 16))
        self.assertIn(f"--context asks for {CONTEXT + 1} tokens, the model was made for {CONTEXT}",
                      self.bad(1, "run", self.model, "-p", "a", "--context", CONTEXT + 1))

    def test_tiny_context(self):
        """Six more tokens fit behind ten; the seventh needs no room, as nothing follows it."""
        self.assertEqual(self.ids("-p", "a" * 10, "--context", 16), self.ids("-p", "a" * 10, "--max-tokens", 7))
        self.assertEqual(len(self.ids("-p", "a" * 16, "--context", 16)), 1)
        done = self.good("run", self.model, "-p", "a" * 10, "--context", 16, "--ignore-end")
        self.assertIn("the context of 16 tokens is full", done.stderr)
        self.assertEqual(len(self.ids("-p", "a", "--context", 1)), 1)
        self.assertEqual(len(self.ids("-p", "a" * CONTEXT)), 1)


class Interruption(ProgramTest):
    def start(self, *arguments, **options):
        command = [OPTIONS.heed, "run", str(self.endless), "-p", "abc", "--ignore-end", "--print-ids", "--max-tokens", "90000", *arguments]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)

    def test_ctrl_c(self):
        with self.start() as process:
            begin = process.stdout.read(20)
            process.send_signal(signal.SIGINT)
            rest, notes = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 130)
            self.assertRegex((begin + rest).decode(), r"^\d+( \d+)+\n$")
            self.assertRegex(notes.decode(), r"^prompt .* tokens/s\ngeneration .* tokens/s\n$")

    def test_ctrl_c_in_perplexity(self):
        path = self.folder / "long.txt"
        path.write_text("abcdefgh" * 100000)
        command = [OPTIONS.heed, "perplexity", str(self.endless), "--text-file", str(path), "--context", "512"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            process.stderr.readline()
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=60)
            self.assertEqual((process.returncode, out), (130, b""))

    def test_closed_pipe(self):
        with self.start() as process:
            process.stdout.read(5)
            process.stdout.close()
            notes = process.stderr.read().decode()
            self.assertEqual(process.wait(timeout=60), 0)
            self.assertNotIn("error", notes)

    def test_full_disk(self):
        with open("/dev/full", "wb") as full:
            done = subprocess.run([OPTIONS.heed, "kernels"], stdout=full, stderr=subprocess.PIPE, encoding="utf-8", check=False)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, "^heed: error: cannot write to standard output: No space left")

    def test_closed_output(self):
        done = subprocess.run(["/bin/sh", "-c", '"$0" kernels >&-', OPTIONS.heed], stderr=subprocess.PIPE, encoding="utf-8", check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("heed: error: cannot write to standard output", done.stderr)


class Info(ProgramTest):
    def test_text(self):
        text = self.good("info", self.model).stdout
        for part in ("qwen2: 3 layers", "GQA 3: 6 query heads on 2 KV heads of 16", "768 bytes a token"):
            self.assertIn(part, text)
        self.assertIn("MHA: 3 query heads", self.good("info", self.folder / "mha.gguf").stdout)
        self.assertIn("3 of 3 layers see the last 7 tokens", self.good("info", self.folder / "mistral.gguf").stdout)

    def test_json(self):
        info = json.loads(self.good("info", self.model, "--json").stdout)
        shape = tiny_models.Even
        self.assertEqual((info["architecture"], info["layers"], info["width"], info["vocabulary"]), ("qwen2", shape.layers, shape.width, 256))
        # qkv with biases, output projection; keys and values of every layer in float32
        q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.assertEqual(info["parameters"]["attention"], shape.layers * ((q + 2 * kv) * (shape.width + 1) + q * shape.width))
        self.assertEqual(info["parameters"]["ffn"], shape.layers * 3 * shape.width * shape.ffn)
        self.assertEqual(info["parameters"]["embedding"], 256 * shape.width)
        self.assertEqual(info["parameters"]["output"], 256 * shape.width)
        parts = [value for key, value in info["parameters"].items() if key != "total"]
        self.assertEqual(info["parameters"]["total"], sum(parts))
        self.assertEqual(info["weight_bytes"], 4 * sum(parts))
        self.assertEqual(info["kv_cache"]["bytes_per_token"], shape.layers * 2 * kv * 4)
        self.assertEqual(info["kv_cache"]["bytes_at_full_context"], shape.layers * 2 * kv * 4 * CONTEXT)
        self.assertEqual(info["types"]["F32"]["parameters"], sum(parts))


class Tokenize(ProgramTest):
    def test_ids(self):
        self.assertEqual(self.good("tokenize", self.model, "-p", "a thé").stdout, "97 32 255 195 169\n")
        self.assertEqual(self.good("tokenize", self.model, "--text-file", "-", stdin="abc").stdout, "97 98 99\n")
        self.assertEqual(self.good("tokenize", self.model, "-p", "").stdout, "\n")

    def test_json(self):
        result = json.loads(self.good("tokenize", self.model, "-p", "a\nth", "--json").stdout)
        self.assertEqual(result["tokens"], [97, 10, 255])
        self.assertEqual(result["pieces"], ["a", tiny_models.byte_tokens()[10], "th"])


class Perplexity(ProgramTest):
    TEXT = "To attend is to choose where to look. " * 4

    def windows_nll(self, tokens, context):
        oracle = transformer.Model(self.model, np.float64)
        windows = [tokens[i:i + context] for i in range(0, len(tokens), context)]
        counted = [window for window in windows if len(window) > 1]
        total = sum(oracle.nll(window) * (len(window) - 1) for window in counted)
        count = sum(len(window) - 1 for window in counted)
        return total / count, count

    def test_against_oracle(self):
        tokens = [int(word) for word in self.good("tokenize", self.model, "-p", self.TEXT).stdout.split()]
        for context in (CONTEXT, 50, 2):
            expected, count = self.windows_nll(tokens, context)
            done = self.good("perplexity", self.model, "--text-file", "-", "--context", context, stdin=self.TEXT)
            found = re.fullmatch(r"nll (\S+) ppl (\S+) tokens (\d+)", done.stdout.splitlines()[-1])
            self.assertTrue(found, done.stdout)
            self.assertEqual(int(found[3]), count)
            self.assertAlmostEqual(float(found[1]), expected, delta=1e-5 * expected)
            self.assertAlmostEqual(float(found[2]), math.exp(expected), delta=1e-4 * math.exp(expected))
            self.assertIn(f"{count}/{count} tokens", done.stderr)

    def test_json_and_limit(self):
        result = json.loads(self.good("perplexity", self.model, "--text-file", "-", "--json", "--max-tokens", 20, stdin=self.TEXT).stdout)
        self.assertEqual((result["tokens"], result["windows"], result["context"]), (19, 1, CONTEXT))
        self.assertAlmostEqual(result["ppl"], math.exp(result["nll"]), delta=1e-9 * result["ppl"])

    def test_short_text(self):
        self.assertIn("the text has 1 tokens, at least 2 are needed", self.bad(1, "perplexity", self.model, "--text-file", "-", stdin="a"))

    def test_context_of_the_model(self):
        self.assertIn(f"--context asks for 1000 tokens, the model was made for {CONTEXT}",
                      self.bad(1, "perplexity", self.model, "--text-file", "-", "--context", 1000, stdin=self.TEXT))


class Kernels(ProgramTest):
    def test_json(self):
        result = json.loads(self.good("kernels", "--json").stdout)
        families = {kernel["family"] for kernel in result["kernels"]}
        self.assertLessEqual({"attention.wide", "attention.narrow"}, families)
        for family in families:
            selected = [kernel for kernel in result["kernels"] if kernel["family"] == family and kernel["selected"]]
            self.assertEqual([kernel["isa"] for kernel in selected], [result["isa"]], family)
        for kernel in result["kernels"]:
            self.assertEqual(kernel["selected"], kernel["reason"] == "", kernel)

    def test_forced_isa(self):
        generic = {**os.environ, "HEED_ISA": "generic"}
        text = self.good("kernels", env=generic).stdout
        self.assertIn("instruction set generic", text)
        self.assertNotIn("slower than", text)  # nothing is slower than the portable kernels; what else runs here was ruled out
        self.assertIn("HEED_ISA", self.bad(1, "kernels", env={**os.environ, "HEED_ISA": "abacus"}))


if __name__ == "__main__":
    unittest.main(argv=["program_test.py", *OPTIONS.what], verbosity=1)
