# SPDX-License-Identifier: Apache-2.0
"""Compiles and runs every complete program of the documentation and compares what it prints; follows every link to a file.

A program is a ```cpp block with a main function; its output is the next ```text block, whose lines that start with "$ " are commands.
Usage: readme_test.py ROOT --prefix INSTALLED_HEED --compiler CXX --work FOLDER
"""
import argparse
import os
import pathlib
import re
import subprocess
import sys

LINK = re.compile(r"\]\((?!https?:)([^)#]+)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def programs(document):
    """(source, expected output) of each complete program of a Markdown text."""
    blocks = FENCE.findall(document)
    for (language, body), following in zip(blocks, blocks[1:] + [("", "")]):
        if language == "cpp" and "int main(" in body:
            output = [line for line in following[1].splitlines() if not line.startswith("$ ")]
            yield body, "\n".join(output) if following[0] == "text" else None


def broken_links(page):
    return [f"{page}: {target}" for target in LINK.findall(page.read_text(encoding="utf-8")) if not (page.parent / target).exists()]


def flags_of(prefix):
    folder = next(prefix.rglob("heed.pc")).parent
    command = ["pkg-config", "--cflags", "--libs", "heed"]
    return subprocess.run(command, env={**os.environ, "PKG_CONFIG_PATH": str(folder)}, check=True, capture_output=True, text=True).stdout.split()


def build_and_run(source, name, options):
    options.work.mkdir(parents=True, exist_ok=True)
    path = options.work / f"{name}.cpp"
    path.write_text(source, encoding="utf-8")
    binary = path.with_suffix("")
    subprocess.run([options.compiler, "-std=c++20", "-O2", "-Wall", "-Wextra", "-Werror", path, "-o", binary, *flags_of(options.prefix)], check=True)
    return subprocess.run([binary], check=True, capture_output=True, text=True, timeout=60).stdout.strip()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=pathlib.Path)
    parser.add_argument("--prefix", type=pathlib.Path, required=True)
    parser.add_argument("--compiler", required=True)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    options = parser.parse_args()

    broken = [link for page in [*options.root.glob("*.md"), *(options.root / "docs").rglob("*.md")] for link in broken_links(page)]
    if broken:
        sys.exit("links to files that do not exist:\n" + "\n".join(broken))

    count = 0
    for page in [options.root / "README.md", *sorted((options.root / "docs").glob("*.md"))]:
        for source, expected in programs(page.read_text(encoding="utf-8")):
            count += 1
            printed = build_and_run(source, f"{page.stem}_{count}", options)
            if expected is not None and printed != expected.strip():
                sys.exit(f"{page.name}: program {count} prints\n{printed}\nbut the page says\n{expected}")
    if count == 0:
        sys.exit("no complete program in README.md or docs/")
    print(f"{count} programs of the documentation print what it says")


if __name__ == "__main__":
    main()
