# SPDX-License-Identifier: Apache-2.0
"""The picture for the README: how many times as fast as torch's SDPA, a bar for each case, on a logarithmic axis."""

from __future__ import annotations

import math
import pathlib
from xml.sax.saxutils import escape

WIDTH, LEFT, RIGHT, TOP, BOTTOM, STEP, BAR = 780, 312, 70, 64, 62, 26, 16
FASTER, SLOWER, TEXT, GRID = "#0072b2", "#d55e00", "#222", "#ececec"  # distinct for colour-blind readers, too
_TICKS = (0.25, 0.5, 1, 2, 5, 10, 20, 50, 100)


class Bar:
    """A case, or the short lengths of one mask and head dimension: the bar is the worst of them, the dots are all."""

    def __init__(self, label: str, rows: list[dict]) -> None:
        self.label, self.rows = label, rows
        self.values = sorted(row["speedup_vs_torch"] for row in rows)
        self.value = self.values[0]
        self.target = rows[0]["target"]
        only = rows[0] if len(rows) == 1 else None
        self.low, self.high = (only["speedup_low"], only["speedup_high"]) if only else (self.values[0], self.values[-1])


def bars_of(rows: list[dict]) -> list[Bar]:
    """Of the most threads that were measured, in the table's order."""
    most = max(row["threads"] for row in rows)
    groups: dict[str, list[dict]] = {}
    for row in rows:
        if row["threads"] != most:
            continue
        head_dim = row["shape"].rsplit("D", 1)[1]
        lengths = "L 128-512" if row["short"] else f"L {_length(row['shape'])}"
        groups.setdefault(f"{row['name'].removeprefix('short ')}, {lengths}, D {head_dim}", []).append(row)
    return [Bar(label, members) for label, members in groups.items()]


def _length(shape: str) -> str:
    return next(part.lstrip("Lk") for part in reversed(shape.split()) if part.startswith("L"))


class Axis:
    """Speed-ups to pixels, by logarithm; the ends are ticks."""

    def __init__(self, bars: list[Bar]) -> None:
        values = [v for bar in bars for v in (bar.low, bar.high, bar.value, bar.target or bar.value)]
        low = max((t for t in _TICKS if t <= min(*values, 0.5)), default=_TICKS[0])
        high = min((t for t in _TICKS if t >= max(*values, 2)), default=_TICKS[-1])
        self.ticks = [t for t in _TICKS if low <= t <= high]
        self.low, self.high = math.log2(low), math.log2(high)

    def __call__(self, value: float) -> float:
        place = (math.log2(value) - self.low) / (self.high - self.low)
        return LEFT + min(max(place, 0.0), 1.0) * (WIDTH - LEFT - RIGHT)


def _text(x: float, y: float, words: str, anchor: str = "start", size: int = 12, colour: str = TEXT) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{colour}">{escape(words)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, width: float = 1) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="{width}"/>'


def _draw_bar(bar: Bar, axis: Axis, y: float) -> list[str]:
    one, end, middle = axis(1), axis(bar.value), y + BAR / 2
    colour = FASTER if bar.value >= 1 else SLOWER
    parts = [
        _text(LEFT - 10, middle + 4, bar.label, "end"),
        f'<rect x="{min(one, end):.1f}" y="{y:.1f}" width="{abs(end - one):.1f}" height="{BAR}" fill="{colour}"/>',
    ]
    if len(bar.rows) > 1:
        style = f'r="3" fill="#fff" stroke="{colour}" stroke-width="1.4"'
        parts += [f'<circle cx="{axis(v):.1f}" cy="{middle:.1f}" {style}/>' for v in bar.values]
    else:
        parts.append(_line(axis(bar.low), middle, axis(bar.high), middle, TEXT, 1.2))
    if bar.target is not None:
        parts.append(_line(axis(bar.target), y - 3, axis(bar.target), y + BAR + 3, TEXT, 2))
    values = f"{bar.value:.2g}x" if len(bar.rows) == 1 else f"{bar.values[0]:.2g}-{bar.values[-1]:.2g}x"
    place = max(axis(v) for v in (bar.value, bar.high, bar.target or bar.value, 1.0))
    parts.append(_text(place + 8, middle + 4, values, colour=TEXT if bar.value >= 1 else SLOWER))
    return parts


def draw(rows: list[dict], machine: dict, path: pathlib.Path) -> None:
    bars = bars_of(rows)
    axis = Axis(bars)
    bottom = TOP + STEP * len(bars)
    height = bottom + BOTTOM
    threads = max(row["threads"] for row in rows)
    subtitle = f"{machine['cpu']}, {machine['isa']}, torch {machine['peers']['torch']}, {machine['date'][:10]}"
    title = f"Times as fast as PyTorch's scaled_dot_product_attention, {threads} thread{'s' if threads > 1 else ''}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12" fill="{TEXT}">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        _text(14, 24, title, size=16),
        _text(14, 42, subtitle, colour="#666"),
    ]
    for tick in axis.ticks:
        parts.append(_line(axis(tick), TOP - 6, axis(tick), bottom, "#888" if tick == 1 else GRID, 1.2 if tick == 1 else 1))
        parts.append(_text(axis(tick), bottom + 16, f"{tick:g}x", "middle"))
    for index, bar in enumerate(bars):
        parts += _draw_bar(bar, axis, TOP + STEP * index + (STEP - BAR) / 2)
    notes = (
        "Thin line: 10-90 % of the rounds. Upright mark: what heed promises. bf16: bfloat16, else float32.",
        "L 128-512: a dot for each length and batch (1 and 8), the bar is the worst of them. torch folded: docs/peers.md.",
    )
    parts += [_text(14, height - 26 + 16 * line, words, colour="#666") for line, words in enumerate(notes)]
    path.write_text("\n".join([*parts, "</svg>"]) + "\n", encoding="utf-8")
