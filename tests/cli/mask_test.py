#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`heed mask`: text and pictures against the masks' formulas, element by element; errors."""
import pathlib
import struct
import tempfile
import unittest
import zlib

import numpy as np

import harness

OPTIONS = harness.parse_arguments()
HIDDEN, VISIBLE = np.array([244, 244, 240]), np.array([24, 72, 140])


def heed(*arguments):
    return harness.run(OPTIONS.heed, "mask", *arguments)


def read_png(path):
    """RGB [height, width, 3] of a file without filters; every chunk's checksum is checked."""
    data, at, chunks = path.read_bytes(), 8, {}
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at:at + 8])
        content = data[at + 8:at + 8 + size]
        assert struct.unpack(">I", data[at + 8 + size:at + 12 + size])[0] == zlib.crc32(kind + content)
        chunks[kind] = chunks.get(kind, b"") + content
        at += 12 + size
    width, height, *rest = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert rest == [8, 2, 0, 0, 0] and b"IEND" in chunks
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, 1 + 3 * width)
    assert (rows[:, 0] == 0).all()
    return rows[:, 1:].reshape(height, width, 3)


def visible(rule, queries, keys, offset):
    p, j = np.arange(queries)[:, None] + offset, np.arange(keys)[None]
    return rule(p, j) & np.ones((queries, keys), bool)


RULES = {
    "causal": lambda p, j: j <= p,
    "causal & (window 5 0 | sink_tokens 2)": lambda p, j: (j <= p) & ((p - j <= 5) | (j < 2)),
    "~window 3 3": lambda p, j: abs(p - j) > 3,
    "strided 4": lambda p, j: (p - j) % 4 == 0,
}


class MaskTest(unittest.TestCase):
    def test_text_and_numbers(self):
        for spec, rule in RULES.items():
            for queries, keys, flags, offset in ((12, 12, (), 0), (7, 50, (), 43), (9, 30, ("--top-left",), 0)):
                done = heed(spec, "--lq", queries, "--lk", keys, *flags)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                head, picture = done.stdout.split("\n\n")
                seen = np.array([[cell == "#" for cell in line.split()] for line in picture.split("\n") if line])
                expected = visible(rule, queries, keys, offset)
                self.assertTrue((seen == expected).all(), spec)
                self.assertIn(f"{100 * expected.mean():.2f} % of the pairs are visible", head)

    def test_pictures(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "mask.png"
            for spec, rule in RULES.items():
                for queries, keys in ((40, 40), (30, 100), (1500, 1500)):
                    self.assertEqual(heed(spec, "--lq", queries, "--lk", keys, "--png", path).returncode, 0)
                    pixels = read_png(path).astype(int)
                    side = -(-max(queries, keys) // 1024)  # elements of a cell
                    rows, columns = -(-queries // side), -(-keys // side)
                    scale = min(24, 1024 // max(rows, columns))
                    self.assertEqual(pixels.shape, (rows * scale, columns * scale, 3))
                    whole = np.full((rows * side, columns * side), np.nan)
                    whole[:queries, :keys] = visible(rule, queries, keys, keys - queries)
                    share = np.nanmean(whole.reshape(rows, side, columns, side), axis=(1, 3))
                    expected = HIDDEN + (VISIBLE - HIDDEN) * share[..., None]
                    middle = pixels[scale // 2::scale, scale // 2::scale]  # lines run along the cells' edges
                    self.assertLessEqual(abs(middle - expected).max(), 0.51, (spec, queries, keys))

    def test_heads(self):
        spec = "per_head (causal) (strided 3)"
        for head, rule in enumerate((RULES["causal"], lambda p, j: (p - j) % 3 == 0)):
            text = heed(spec, "--lq", 9, "--head", head).stdout.split("\n\n")[1]
            seen = np.array([[cell == "#" for cell in line.split()] for line in text.split("\n") if line])
            self.assertTrue((seen == visible(rule, 9, 9, 0)).all())
        self.assertIn("--head 2: there are 2 heads", heed(spec, "--lq", 9, "--head", 2).stderr)

    def test_errors(self):
        for arguments, code, text in (
            (("causl", "--lq", 4), 1, "at column 1, got 'causl'"),
            (("causal", "--lq", 0), 2, "--lq"),
            (("causal",), 2, "--lq is required"),
            (("causal", "--lq", 10**12), 2, "--lq"),
            (("causal", "--lq", 4, "--png", "/nowhere/mask.png"), 1, "/nowhere/mask.png"),
        ):
            done = heed(*arguments)
            self.assertEqual((done.returncode, done.stdout), (code, ""), arguments)
            self.assertIn(text, done.stderr)


if __name__ == "__main__":
    unittest.main(argv=[__file__])
