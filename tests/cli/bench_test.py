#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`heed bench` from outside: what every suite writes, its sums, and verdicts of --compare over files made here. Judges no speed."""
import copy
import json
import os
import pathlib
import tempfile
import unittest

import harness

OPTIONS = harness.parse_arguments()
SUITES = ["overview", "peak", "forward", "causal", "decode", "backward", "short", "masks", "sparse", "kv", "scaling", "gate"]
TEXT_FIELDS = ["suite", "name", "shape", "dtype", "unit", "note"]
SPREAD = ["", "_low", "_high", "_min", "_max"]


def heed(*arguments, **options):
    return harness.run(OPTIONS.heed, "bench", *arguments, **options)


class BenchTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)

    def good(self, *arguments, **options):
        done = heed(*arguments, **options)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def bad(self, *arguments):
        """Standard error of a run that must fail and print nothing."""
        done = heed(*arguments)
        self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)
        self.assertTrue(done.stderr.startswith("heed: error: "), done.stderr)
        return done.stderr

    def write(self, name, document):
        path = self.folder / name
        path.write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8")
        return path


class Suites(BenchTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        path = cls.folder / "all.json"
        cls.done = heed("--suite", "all", "--quick", "--threads", 2, "--json", path)
        assert cls.done.returncode == 0, cls.done.stderr
        cls.document = json.loads(path.read_text(encoding="utf-8"))
        cls.rows = cls.document["rows"]

    def of(self, suite):
        return [row for row in self.rows if row["suite"] == suite]

    def test_list(self):
        listed = [line.split()[0] for line in self.good("--list").stdout.splitlines()]
        self.assertEqual(listed, SUITES + ["all"])
        self.assertEqual({row["suite"] for row in self.rows}, set(SUITES))

    def test_rows(self):
        keys = set()
        for row in self.rows:
            with self.subTest(suite=row["suite"], name=row["name"]):
                for field in TEXT_FIELDS:
                    self.assertIsInstance(row[field], str)
                self.assertGreater(row["value"], 0)
                self.assertEqual(row["threads"], 1 if row["name"].startswith("call") else 2)
                self.assertIn(row["better"], ("higher", "lower"))
                self.assertEqual(row["ratio"] is None, row["peak"] is None)
                for number in ["value", *(["ratio"] if row["ratio"] is not None else [])]:
                    middle, low, high, least, most = (row[number + end] for end in SPREAD)
                    self.assertTrue(least <= low <= middle <= high <= most, row)
                self.assertLessEqual(row["disturbed_rounds"], row["rounds"])
                keys.add((row["suite"], row["name"], row["shape"], row["dtype"], row["threads"]))
        self.assertEqual(len(keys), len(self.rows), "a row is told from the others by its suite, name, shape, dtype and threads")

    def test_one_round_is_its_own_ratio(self):
        """In one round, where nothing was turned into times or counted beside, the ratio is the value over the yardstick's mean."""
        for row in self.of("forward") + self.of("decode") + self.of("masks"):
            if row["ratio"] is not None:
                self.assertAlmostEqual(row["ratio"], row["value"] / row["peak"], delta=1e-9 * row["ratio"])
                self.assertEqual(row["rounds"], 1)

    def test_machine(self):
        machine = self.document["machine"]
        for field in ("cpu", "isa", "compiler", "flags", "heed"):
            self.assertIsInstance(machine[field], str)
        self.assertIn(machine["isa"], machine["instruction_sets"])
        self.assertRegex(machine["date"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
        self.assertEqual(machine["cores"], os.cpu_count())
        self.assertEqual(machine["threads"], 2)
        for field in ("caches", "governor", "load_average"):
            self.assertIn(field, machine)

    def test_gate_has_the_table(self):
        rows = {(row["name"], row["dtype"], "D128" if "D128" in row["shape"] else "D64") for row in self.of("gate")}
        layouts = ("[B,H,L,D]", "[B,L,H,D]")
        expected = {(f"forward {mask} {layout}", dtype, head_dim) for layout in layouts for head_dim in ("D64", "D128")
                    for mask, dtype in (("no mask", "float32"), ("causal", "float32"), ("no mask", "bfloat16"))}
        expected |= {("decode", dtype, "D128") for dtype in ("float32", "bfloat16")}
        expected |= {(f"backward causal {layout}", dtype, "D64") for layout in layouts for dtype in ("float32", "bfloat16")}
        self.assertEqual(rows, expected)

    def test_targets_follow_the_isa(self):
        def targets(isa):
            done = self.good("--suite", "gate", "--quick", "--threads", 1, "--json", env={**os.environ, "HEED_ISA": isa})
            rows = json.loads(done.stdout)["rows"]
            return {(row["name"].split(" [")[0], row["dtype"], row["shape"].split()[-1]): row["target"] for row in rows if row["name"] != "decode"}
        self.assertEqual(set(targets("generic").values()), {None})
        available = self.document["machine"]["instruction_sets"]
        if "avx2" in available:
            avx2 = targets("avx2")
            self.assertEqual(avx2["forward no mask", "float32", "D64"], 0.80)
            self.assertEqual(avx2["forward causal", "float32", "D128"], 0.75)
            self.assertEqual(avx2["forward no mask", "bfloat16", "D64"], 0.78)
            self.assertEqual(avx2["backward causal", "float32", "D64"], 0.62)
        if "avx512bf16" in available:
            native = targets("avx512bf16")
            self.assertEqual(native["forward no mask", "float32", "D128"], 0.85)
            self.assertEqual(native["forward no mask", "bfloat16", "D128"], 0.78)
            self.assertEqual(native["forward no mask", "bfloat16", "D64"], 0.70)

    def test_native_dot_is_its_own_yardstick(self):
        for row in self.of("gate"):
            if row["dtype"] == "bfloat16" and row["name"].startswith("forward"):
                self.assertEqual(row["peak_of"], "bf16 dot" if self.document["machine"]["isa"] == "avx512bf16" else "FMA")

    def test_scaling_has_points(self):
        rows = self.of("scaling")
        self.assertEqual(sorted(row["length"] for row in rows if row["name"] == "forward dense"), [256, 512, 1024])
        for row in rows:
            self.assertGreater(row["seconds"], 0)

    def test_table(self):
        self.assertIn("instruction set", self.done.stdout)
        for suite in SUITES:
            self.assertIn(f"\n{suite}\nkernel ", self.done.stdout)
        self.assertIn("--quick: ", self.done.stdout)
        self.assertNotRegex(self.done.stdout, "PASS|FAIL")  # 64 tokens can miss no target

    def test_default_is_the_overview(self):
        rows = json.loads(self.good("--quick", "--threads", 1, "--json").stdout)["rows"]
        self.assertEqual({row["suite"] for row in rows}, {"overview"})
        self.assertEqual({row["name"] for row in rows}, {"prefill no mask", "prefill causal", "decode", "backward causal"})

    def test_only(self):
        rows = json.loads(self.good("--suite", "gate,masks", "--quick", "--threads", 1, "--only", "causal [B,H,L,D] float32", "--json").stdout)["rows"]
        self.assertEqual({row["name"] for row in rows}, {"forward causal [B,H,L,D]", "backward causal [B,H,L,D]"})
        self.assertEqual({row["dtype"] for row in rows}, {"float32"})
        for suite in SUITES:
            done = heed("--suite", suite, "--quick", "--only", "no such row")
            self.assertEqual((done.returncode, done.stdout), (1, ""), suite)
            self.assertIn('no row\'s name, type and shape contain "no such row"', done.stderr)

    def test_thread_scaling(self):
        rows = json.loads(self.good("--suite", "gate", "--quick", "--json", env={**os.environ, "OMP_NUM_THREADS": "2"}).stdout)["rows"]
        found = {(row["name"], row["dtype"], row["shape"], row["threads"]): row for row in rows}
        pairs = [key for key in found if key[0].startswith("threads: ")]
        self.assertEqual(len(pairs), len(rows) // 3)
        for name, dtype, shape, threads in pairs:
            row = found[name, dtype, shape, threads]
            one, two = (found[name.removeprefix("threads: "), dtype, shape, n] for n in (1, 2))
            self.assertAlmostEqual(row["value"], two["value"] / one["value"], delta=1e-9 * row["value"])
            self.assertAlmostEqual(row["ratio"], two["ratio"] / one["ratio"], delta=1e-9 * row["ratio"])
            self.assertIn(row["target"], (None, 0.925))

    def test_unwritable_json(self):
        text = self.bad("--quick", "--json", "/nowhere/x.json")
        self.assertIn("No such file", text)
        self.assertNotIn("overview", text)  # before the measurement, not after it

    def test_below_target(self):
        """No kernel reaches 80 % of its peak over 64 tokens; portable kernels have no targets, so nothing to miss."""
        arguments = ["--suite", "gate", "--quick", "--threads", 1, "--fail-below-target"]
        self.assertEqual(heed(*arguments, env={**os.environ, "HEED_ISA": "generic"}).returncode, 0)
        if self.document["machine"]["isa"] not in ("generic", "neon"):
            self.assertEqual(heed(*arguments).returncode, 1)


def crafted_row(name, ratio, width, **changes):
    """A row whose median is known within +-width of itself."""
    row = {"suite": "forward", "name": name, "shape": "B1", "dtype": "float32", "threads": 1, "value": 100 * ratio, "unit": "GFLOP/s", "peak": 100.0,
           "peak_of": "FMA", "ratio": ratio, "ratio_min": ratio * (1 - 3 * width), "ratio_max": ratio * (1 + 3 * width), "ratio_low": ratio * (1 - width),
           "ratio_high": ratio * (1 + width), "target": None, "better": "higher"}
    return {**row, **changes}


def crafted(*rows):
    return {"machine": {"cpu": "abacus", "isa": "beads"}, "rows": list(rows)}


class Compare(BenchTest):
    def verdicts(self, before, after):
        """{name: verdict} of two crafted measurements."""
        text = self.good("--compare", self.write("old.json", crafted(*before)), self.write("new.json", crafted(*after))).stdout
        words = ("faster", "slower", "same", "unsure")
        return {line.split()[0]: next(word for word in line.split() if word in words) for line in text.splitlines()
                if any(word in line.split() for word in words) and "rows:" not in line}

    def test_verdicts(self):
        quiet, loud = 0.005, 0.2
        before = [crafted_row("up", 0.5, quiet), crafted_row("down", 0.5, quiet), crafted_row("still", 0.5, quiet), crafted_row("loud", 0.5, loud),
                  crafted_row("leap", 0.2, loud)]
        after = [crafted_row("up", 0.53, quiet), crafted_row("down", 0.47, quiet), crafted_row("still", 0.505, quiet), crafted_row("loud", 0.55, loud),
                 crafted_row("leap", 0.6, loud)]
        self.assertEqual(self.verdicts(before, after), {"up": "faster", "down": "slower", "still": "same", "loud": "unsure", "leap": "faster"})

    def test_noise_of_either_side_counts(self):
        for widths in ((0.2, 0.005), (0.005, 0.2)):
            self.assertEqual(self.verdicts([crafted_row("a", 0.5, widths[0])], [crafted_row("a", 0.45, widths[1])]), {"a": "unsure"})

    def test_lower_is_better(self):
        before = crafted_row("a", 1.0, 0.005, better="lower")
        self.assertEqual(self.verdicts([before], [crafted_row("a", 1.2, 0.005, better="lower")]), {"a": "slower"})
        self.assertEqual(self.verdicts([before], [crafted_row("a", 0.8, 0.005, better="lower")]), {"a": "faster"})

    def test_value_where_there_is_no_ratio(self):
        def row(value):
            return dict(crafted_row("a", 1.0, 0), ratio=None, peak=None, value=value, value_low=value * 0.99, value_high=value * 1.01, unit="us", better="lower")
        self.assertEqual(self.verdicts([row(4.0)], [row(5.0)]), {"a": "slower"})

    def test_ratio_counts_not_the_speed(self):
        """A machine at half its clock: half the speed, the same share."""
        self.assertEqual(self.verdicts([crafted_row("a", 0.8, 0.005)], [crafted_row("a", 0.8, 0.005, value=40.0, peak=50.0)]), {"a": "same"})

    def test_counts_and_strangers(self):
        old = self.write("old.json", crafted(crafted_row("a", 0.5, 0.005), crafted_row("gone", 0.5, 0.005)))
        other = crafted(crafted_row("a", 0.5, 0.005), crafted_row("a", 0.5, 0.005, threads=2))
        other["machine"]["cpu"] = "slide rule"
        text = self.good("--compare", old, self.write("new.json", other)).stdout
        self.assertIn("1 rows: 0 faster, 0 slower, 1 same, 0 unsure; 1 only before, 1 only after.", text)
        self.assertIn("Not the same machine or instruction set: before abacus (beads), after slide rule (beads).", text)

    def test_exit_codes(self):
        fast, slow = (self.write(f"{name}.json", crafted(crafted_row("a", ratio, 0.005))) for name, ratio in (("fast", 0.6), ("slow", 0.5)))
        self.good("--compare", fast, slow)
        self.good("--compare", slow, fast, "--fail-on-regression")
        self.assertEqual(heed("--compare", fast, slow, "--fail-on-regression").returncode, 1)
        other = self.write("other.json", crafted(crafted_row("b", 0.6, 0.005)))
        self.good("--compare", fast, other)
        done = heed("--compare", fast, other, "--fail-on-regression")
        self.assertEqual(done.returncode, 1, "nothing was compared")
        self.assertIn("no row in common", done.stderr)

    def test_against_a_run(self):
        path = self.folder / "run.json"
        self.good("--suite", "peak", "--quick", "--threads", 1, "--json", path)
        self.assertRegex(self.good("--suite", "peak", "--quick", "--threads", 1, "--compare", path).stdout, r"\n[23] rows: ")
        done = self.good("--suite", "peak", "--quick", "--threads", 1, "--compare", path, "--json")
        json.loads(done.stdout)  # nothing but JSON there
        self.assertRegex(done.stderr, r"\n[23] rows: ")

    def test_bad_files(self):
        row = crafted_row("a", 0.5, 0.005)
        cases = [
            ("", "not JSON"), ("{", "not JSON"), ("[]", "the document should be an object, is array"), ({}, '"machine" is missing'),
            ({"machine": {}}, '"rows" is missing'), ({"machine": {}, "rows": []}, "machine.cpu is missing"),
            ({"machine": 1, "rows": []}, "machine should be an object, is number"),
            ({"machine": {"cpu": "a", "isa": "b"}, "rows": {}}, "rows should be a list, is object"),
            (crafted(7), "rows[0] should be an object, is number"),
            (crafted(row, {**row, "ratio": "fast"}), 'rows[1].ratio should be a number or null, is "fast"'),
            (crafted({**row, "ratio": 0}), "rows[0].ratio should be a number above 0, is 0"),
            (crafted({**row, "value": None}), "rows[0].value should be a number above 0, is null"),
            (crafted({**row, "name": 3}), "rows[0].name should be text, is 3"), (crafted({**row, "better": "best"}), "rows[0].better should be"),
            (crafted({key: row[key] for key in row if key != "threads"}), "rows[0].threads is missing"),
        ]
        good = self.write("good.json", crafted(row))
        for document, message in cases:
            with self.subTest(message=message):
                path = self.write("bad.json", copy.deepcopy(document))
                for files in ([path], [path, good], [good, path]):
                    text = self.bad("--quick", "--compare", *files)
                    self.assertIn(f"bad.json: {message}", text)
        self.assertIn("No such file", self.bad("--compare", self.folder / "nowhere.json"))


if __name__ == "__main__":
    unittest.main(argv=["bench_test.py", *OPTIONS.what], verbosity=1)
