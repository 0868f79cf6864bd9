# SPDX-License-Identifier: Apache-2.0
"""The table that people read, and the verdict on a row."""

from __future__ import annotations

COLUMNS = (("flex", "Flex"), ("onnxruntime", "ORT"), ("naive", "naive"))


def time_text(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for scale, unit in ((1, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= scale or unit == "us":
            return f"{seconds / scale:.3g} {unit}"
    raise AssertionError("unreachable")


def verdict(row: dict) -> str:
    """What a reader must not miss: LOSES where torch is faster, below where a promise is not kept, and by whom else heed is beaten."""
    words = []
    if row["speedup_vs_torch"] < 1:
        words.append("LOSES")
    elif row["target"] is not None and row["speedup_vs_torch"] < row["target"]:
        words.append("below")
    faster = [title for key, title in COLUMNS if row[key] is not None and row[key] < row["heed"]]
    if faster:
        words.append(f"{', '.join(faster)} faster")
    if row["target"] is not None and not words:
        words.append("ok")
    return "; ".join(words)


def line_of(row: dict) -> str:
    others = " | ".join(time_text(row[key]) for key, _ in COLUMNS)
    spread = f"{row['speedup_low']:.2f}-{row['speedup_high']:.2f}"
    target = "" if row["target"] is None else f"{row['target']:g}"
    return (
        f"| {row['name']} | {row['shape']} | {row['threads']} | {time_text(row['heed'])} | {100 * row['ratio']:.0f} % {row['peak_of']} | "
        f"{time_text(row['torch'])} | **{row['speedup_vs_torch']:.2f}** | {spread} | {target} | {verdict(row)} | {others} |"
    )


def header() -> str:
    titles = ["case", "shape", "threads", "heed", "of peak", "torch", "heed vs torch", "10-90 %", "target", ""]
    titles += [title for _, title in COLUMNS]
    return f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}"


def absences(rows: list[dict]) -> list[str]:
    """Who took no part in what, and why; each reason once."""
    reasons: dict[tuple, list[str]] = {}
    for row in rows:
        for peer, reason in row["absent"].items():
            cases = reasons.setdefault((peer, reason), [])
            if row["name"] not in cases:
                cases.append(row["name"])
    return [f"{peer} not in {', '.join(cases)}: {reason}" for (peer, reason), cases in reasons.items()]


def summary(rows: list[dict]) -> list[str]:
    """Rows that lose or miss, by name, and how many keep their promise."""
    promised = [row for row in rows if row["target"] is not None]
    kept = sum(row["speedup_vs_torch"] >= row["target"] for row in promised)
    lines = [f"{kept} of {len(promised)} targets kept."] if promised else []
    for row in rows:
        what = verdict(row)
        if what not in ("", "ok"):
            lines.append(f"{row['name']} {row['shape']}, {row['threads']} threads: {row['speedup_vs_torch']:.2f} of torch's speed, {what}")
    return lines
