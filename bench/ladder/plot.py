#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the JSON of `heed_ladder --json FILE` and puts its table into docs/kernel-ladder.md.

  bench/ladder/plot.py ladder.json                                  prints the table
  bench/ladder/plot.py ladder.json --svg docs/images/kernel-ladder.svg --page docs/kernel-ladder.md
The table goes between the page's ladder:begin and ladder:end lines. Python's standard library suffices.
"""
import argparse
import datetime
import html
import json
import pathlib
import re
import sys

MARKERS = re.compile(r"(<!-- ladder:begin[^\n]*-->\n).*?(<!-- ladder:end -->)", re.DOTALL)
COLOURS = ("#9ecae1", "#08519c", "#fd8d3c", "#7f2704")  # one per head dimension
LEFT, WIDTH, BAR, GAP, TOP = 190, 520, 13, 9, 46


def load(path):
    """The machine, the head dimensions in order, and {(step, head dimension): row}."""
    report = json.loads(path.read_text(encoding="utf-8"))
    rows = {}
    for row in report["rows"]:
        if not 0 < row["ratio"] < 100:  # a disturbed probe in one of few rounds can push a share above 1; a typing error pushes it far
            sys.exit(f"plot: {path}: {row['name']}: a share of {row['ratio']} cannot be")
        rows[row["name"], int(re.search(r"D(\d+)", row["shape"])[1])] = row
    steps = list(dict.fromkeys(step for step, _ in rows))
    dims = list(dict.fromkeys(dim for _, dim in rows))
    return report["machine"], steps, dims, rows


def title(step):
    """step05_queries_in_lanes -> 5 queries in lanes"""
    number, name = re.fullmatch(r"step(\d+)_(\w+)", step).groups()
    return f"{int(number)} {name.replace('_', ' ')}"


def percent(ratio):
    return f"{100 * ratio:.0f} %" if ratio >= 0.095 else f"{100 * ratio:.1f} %"


def caption(machine, rows):
    first = next(iter(rows.values()))
    date = datetime.date.fromisoformat(machine["date"])
    length = re.search(r"L(\d+)", first["shape"])[1]
    return (f"{machine['cpu']}, {machine['isa']}, {machine['compiler']}, heed {machine['version']}, one thread, L {length}, {date:%B %Y}")


def table(machine, steps, dims, rows):
    yield f"Medians (quartiles) on {caption(machine, rows)}. FMA peak {rows[steps[0], dims[0]]['peak']:.0f} GFLOP/s."
    yield ""
    yield "| step | " + " | ".join(f"D {dim}: GFLOP/s | share of the peak" for dim in dims) + " |"
    yield "|---|" + "---|" * (2 * len(dims))
    for step in steps:
        cells = []
        for dim in dims:
            row = rows[step, dim]
            cells += [f"{row['value']:.1f}", f"**{percent(row['ratio'])}** ({100 * row['ratio_q1']:.1f}-{100 * row['ratio_q3']:.1f})"]
        yield f"| {title(step)} | " + " | ".join(cells) + " |"


def svg(machine, steps, dims, rows):
    slot = BAR * len(dims) + GAP
    bottom = TOP + slot * len(steps)
    yield (f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 70}" height="{bottom + 44}" '
           f'viewBox="0 0 {LEFT + WIDTH + 70} {bottom + 44}" font-family="sans-serif" font-size="12" role="img">')
    yield f"<title>Share of the FMA peak, step by step: {html.escape(caption(machine, rows))}</title>"
    yield '<rect width="100%" height="100%" fill="white"/>'
    for share in range(0, 101, 20):
        x = LEFT + WIDTH * share / 100
        yield f'<line x1="{x:.0f}" x2="{x:.0f}" y1="{TOP - 6}" y2="{bottom}" stroke="#ddd"/>'
        yield f'<text x="{x:.0f}" y="{TOP - 11}" text-anchor="middle" fill="#555">{share} %</text>'
    yield f'<text x="8" y="18" fill="#222" font-weight="bold">Share of the FMA peak</text>'
    for i, dim in enumerate(dims):
        yield f'<rect x="{LEFT + 90 * i}" y="8" width="12" height="12" fill="{COLOURS[i % len(COLOURS)]}"/>'
        yield f'<text x="{LEFT + 17 + 90 * i}" y="18" fill="#222">D {dim}</text>'
    for n, step in enumerate(steps):
        y = TOP + n * slot
        yield f'<text x="8" y="{y + slot / 2:.0f}" fill="#222">{html.escape(title(step))}</text>'
        for i, dim in enumerate(dims):
            ratio = rows[step, dim]["ratio"]
            yield f'<rect x="{LEFT}" y="{y + i * BAR}" width="{WIDTH * ratio:.1f}" height="{BAR - 1}" fill="{COLOURS[i % len(COLOURS)]}"/>'
            yield f'<text x="{LEFT + WIDTH * ratio + 5:.1f}" y="{y + i * BAR + 10}" fill="#222" font-size="11">{percent(ratio)}</text>'
    yield f'<text x="8" y="{bottom + 26}" fill="#555" font-size="11">{html.escape(caption(machine, rows))}</text>'
    yield "</svg>"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("json", type=pathlib.Path)
    parser.add_argument("--svg", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--page", type=pathlib.Path, metavar="FILE")
    options = parser.parse_args()
    report = load(options.json)
    if options.svg:
        options.svg.write_text("\n".join(svg(*report)) + "\n", encoding="utf-8")
    text = "\n".join(table(*report)) + "\n"
    if not options.page:
        print(text, end="")
        return
    page = options.page.read_text(encoding="utf-8")
    if not MARKERS.search(page):
        sys.exit(f"plot: {options.page} has no ladder:begin and ladder:end lines")
    options.page.write_text(MARKERS.sub(lambda match: match[1] + text + match[2], page), encoding="utf-8")


if __name__ == "__main__":
    main()
