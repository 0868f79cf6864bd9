#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the cost curves of `heed bench --suite scaling --json scaling.json` as SVG: time and memory against L. Needs nothing but Python.

    python3 bench/plot_curves.py scaling.json --folder docs/figures
writes time.svg (log-log, with lines of slope 2 and 1 for the eye) and memory.svg (linear).
"""
import argparse
import json
import math
import pathlib
import sys
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 780, 460
LEFT, RIGHT, TOP, BOTTOM = 78, 205, 56, 58
COLOURS = {"forward dense": "#0072b2", "forward causal": "#d55e00", "forward window 1024": "#009e73"}  # distinct for colour-blind readers, too
OTHER_COLOUR = "#555555"


def load(path):
    """{(name, threads): [(L, seconds, bytes or None)]} in rising order of L, and the machine."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        curves = {}
        for row in document["rows"]:
            if row["suite"] == "scaling" and row["length"] is not None and row["seconds"] is not None:
                # The fastest round: a curve shows what the work costs, not what the neighbours did.
                fastest = row["seconds"] * row["value"] / row["value_max"]
                curves.setdefault((row["name"], row["threads"]), []).append((row["length"], fastest, row["memory_bytes"]))
        machine = document["machine"]
        title = f"{machine['cpu']}, {machine['isa']}, {machine['date'][:10]}"
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.exit(f"plot_curves: {path}: not what `heed bench --suite scaling --json` writes: {type(error).__name__}: {error}")
    if not curves:
        sys.exit(f"plot_curves: {path}: no rows of the suite scaling")
    return {key: sorted(points) for key, points in curves.items()}, title


class Axis:
    """From data to pixels, linearly or by logarithm."""

    def __init__(self, low, high, begin, end, log):
        self.transform = math.log2 if log else float
        self.low, self.high = self.transform(low), self.transform(high)
        self.begin, self.end = begin, end

    def __call__(self, value):
        return self.begin + (self.transform(value) - self.low) / (self.high - self.low) * (self.end - self.begin)


class Picture:
    def __init__(self, title, subtitle, x_label, y_label):
        self.parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12" fill="#222">',
                      f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>']
        self.text(LEFT, 24, title, size=16)
        self.text(LEFT, 42, subtitle, colour="#666")
        self.text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, x_label, anchor="middle")
        middle = (TOP + HEIGHT - BOTTOM) / 2
        self.text(18, middle, y_label, anchor="middle", extra=f' transform="rotate(-90 18 {middle:.1f})"')

    def text(self, x, y, words, anchor="start", size=12, colour="#222", extra=""):
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{colour}"{extra}>{escape(words)}</text>')

    def line(self, points, colour, width=2.0, dash=""):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        style = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"{style}/>')

    def dots(self, points, colour, hollow):
        fill = "#fff" if hollow else colour
        self.parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.2" fill="{fill}" stroke="{colour}" stroke-width="1.5"/>' for x, y in points]

    def grid(self, x_axis, x_ticks, y_axis, y_ticks):
        for value, label in x_ticks:
            x = x_axis(value)
            self.line([(x, TOP), (x, HEIGHT - BOTTOM)], "#ececec", 1)
            self.text(x, HEIGHT - BOTTOM + 18, label, anchor="middle")
        for value, label in y_ticks:
            y = y_axis(value)
            self.line([(LEFT, y), (WIDTH - RIGHT, y)], "#ececec", 1)
            self.text(LEFT - 8, y + 4, label, anchor="end")

    def legend(self, entries):
        x = WIDTH - RIGHT + 14
        for i, (label, colour, dash, mark) in enumerate(entries):
            y = TOP + 12 + 22 * i
            self.line([(x, y), (x + 26, y)], colour, 2 if mark else 1.2, dash)
            if mark:
                self.dots([(x + 13, y)], colour, mark == "hollow")
            self.text(x + 34, y + 4, label)

    def save(self, path):
        path.write_text("\n".join([*self.parts, "</svg>"]) + "\n", encoding="utf-8")
        print(path)


def tokens_text(length):
    return f"{length // 1024}k" if length >= 1024 else str(length)


def seconds_text(seconds):
    for unit, scale in (("s", 1), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale * 0.999:
            return f"{seconds / scale:.0f} {unit}"
    return f"{seconds:.0e} s"


def colour_of(name):
    return COLOURS.get(name, OTHER_COLOUR)


def style_of(threads, most):
    """Full dots and lines for the most threads, hollow and dashed for fewer."""
    return ("", "full") if threads == most else ("5 3", "hollow")


def lengths_of(curves):
    return sorted({length for points in curves.values() for length, _, _ in points})


def threads_text(threads):
    return "1 thread" if threads == 1 else f"{threads} threads"


def draw_time(curves, title, path):
    lengths = lengths_of(curves)
    times = [seconds for points in curves.values() for _, seconds, _ in points]
    decades = range(math.floor(math.log10(min(times))), math.ceil(math.log10(max(times))) + 1)
    x_axis = Axis(lengths[0], lengths[-1] if len(lengths) > 1 else 2 * lengths[0], LEFT, WIDTH - RIGHT, log=True)
    y_axis = Axis(10.0**decades[0], 10.0**decades[-1], HEIGHT - BOTTOM, TOP, log=True)
    picture = Picture("Time of one forward pass against length", title, "tokens (L = Lq = Lk), one head, D 64, float32", "time of the fastest round")
    picture.grid(x_axis, [(length, tokens_text(length)) for length in lengths], y_axis, [(10.0**d, seconds_text(10.0**d)) for d in decades])
    most = max(threads for _, threads in curves)
    legend = []
    for (name, threads), points in sorted(curves.items()):
        dash, mark = style_of(threads, most)
        pixels = [(x_axis(length), y_axis(seconds)) for length, seconds, _ in points]
        picture.line(pixels, colour_of(name), dash=dash)
        picture.dots(pixels, colour_of(name), mark == "hollow")
        legend.append((f"{name.removeprefix('forward ')}, {threads_text(threads)}", colour_of(name), dash, mark))
    legend += draw_guides(picture, curves, most, x_axis, y_axis)
    picture.legend(legend)
    picture.save(path)


def draw_guides(picture, curves, threads, x_axis, y_axis):
    """Lines of slope 2 through the dense curve's last point and of slope 1 through the window's: what the cost should look like."""
    entries = []
    for name, power, dash, words in (("forward dense", 2, "1 3", "proportional to L²"), ("forward window 1024", 1, "8 3 1 3", "proportional to L")):
        points = curves.get((name, threads))
        if not points or len(points) < 2:
            continue
        last_length, last_seconds, _ = points[-1]
        lowest = 2**y_axis.low
        guide = [(length, last_seconds * (length / last_length)**power) for length, _, _ in points]
        picture.line([(x_axis(length), y_axis(seconds)) for length, seconds in guide if seconds >= lowest], "#999", 1.2, dash)
        entries.append((words, "#999", dash, None))
    return entries


def step_of(most):
    """A round number that cuts 0..most in four to eight parts."""
    magnitude = 10.0**math.floor(math.log10(most / 4))
    return next(m * magnitude for m in (1, 2, 2.5, 5, 10) if most / (m * magnitude) <= 8)


def draw_memory(curves, title, path):
    most = max(threads for _, threads in curves)
    curves = {name: [(length, size / 1e6) for length, _, size in points if size is not None]
              for (name, threads), points in curves.items() if threads == most}
    curves = {name: points for name, points in curves.items() if points and points[-1][1] > 0}
    if not curves:
        print("no memory in these rows (it is read from /proc/self/status): no memory.svg")
        return
    lengths = sorted({length for points in curves.values() for length, _ in points})
    top = max(size for points in curves.values() for _, size in points) * 1.05
    x_axis = Axis(0, lengths[-1], LEFT, WIDTH - RIGHT, log=False)
    y_axis = Axis(0, top, HEIGHT - BOTTOM, TOP, log=False)
    picture = Picture("Memory of one forward pass against length", f"{title}, {threads_text(most)}", "tokens (L = Lq = Lk), one head, D 64, float32",
                      "MB beyond the idle program's")
    step = step_of(top)
    ticks = [i * step for i in range(int(top / step) + 1)]
    picture.grid(x_axis, [(length, tokens_text(length)) for length in lengths if length * 8 >= lengths[-1]], y_axis, [(t, f"{t:g}") for t in ticks])
    legend = []
    for name, points in sorted(curves.items()):
        pixels = [(x_axis(length), y_axis(max(size, 0))) for length, size in points]
        picture.line(pixels, colour_of(name))
        picture.dots(pixels, colour_of(name), False)
        legend.append((name.removeprefix("forward "), colour_of(name), "", "full"))
    inputs = [(length, 4 * 64 * 4 * length / 1e6) for length in lengths]  # q, k, v, out: [L, 64] float32
    picture.line([(x_axis(length), y_axis(size)) for length, size in inputs], "#999", 1.2, "1 3")
    legend.append(("q, k, v and out", "#999", "1 3", None))
    picture.legend(legend)
    picture.save(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("json", type=pathlib.Path)
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("."), help="where the pictures go")
    options = parser.parse_args()
    curves, title = load(options.json)
    options.folder.mkdir(parents=True, exist_ok=True)
    draw_time(curves, title, options.folder / "time.svg")
    draw_memory(curves, title, options.folder / "memory.svg")


if __name__ == "__main__":
    main()
