# SPDX-License-Identifier: Apache-2.0
"""A check that cannot fail proves nothing: plants one violation at a time in a small tree and expects each check to name it.

Usage: checks_test.py TOOLS_FOLDER
"""
import pathlib
import subprocess
import sys
import tempfile

HEADER = "// SPDX-License-Identifier: Apache-2.0\n// For this test.\n#pragma once\n"
CLEAN = {"src/base/a.hpp": HEADER, "src/kernels/b.hpp": HEADER + '#include "base/a.hpp"\n', "include/heed/mask.hpp": HEADER}
LONG_FUNCTION = HEADER + "int f(int x) {\n" + "  x += 1;\n" * 90 + "}\n"

# check, file, its text, what the message must say
CASES = [
    ("check-includes", "src/base/a.hpp", HEADER + '#include "kernels/b.hpp"\n', "kernels is not below base"),
    ("check-includes", "src/mask/c.hpp", HEADER + '#include "rope/r.hpp"\n', "rope is not below mask"),
    ("check-includes", "src/kernels/b.hpp", HEADER + "#include <heed/attention.hpp>\n", "attention is not below kernels"),
    ("check-includes", "src/mask/c.hpp", HEADER + "#include <immintrin.h>\n", "intrinsics live in"),
    ("check-includes", "src/base/a.hpp", HEADER + "#include <iostream>\n", "never prints"),
    ("check-includes", "src/mask/c.hpp", HEADER + "#include <thread>\n", "threads live behind"),
    ("check-includes", "include/heed/mask.hpp", HEADER + '#include "base/a.hpp"\n', "public headers include"),
    ("check-sources", "src/base/a.hpp", "#pragma once\n", "first line must say"),
    ("check-sources", "src/base/a.hpp", HEADER.replace("#pragma once\n", ""), "#pragma once is missing"),
    ("check-sources", "src/base/a.hpp", HEADER + "\n" * 1000, "1003 lines"),
    ("check-sources", "src/base/a.hpp", LONG_FUNCTION, "function of 92 lines"),
    ("check-sources", "src/base/a.hpp", HEADER + "// TO" + "DO later\n", "leftover note"),
    ("check-sources", "include/heed/mask.hpp", HEADER + "void f(int a, bool b);\n", "bool parameter"),
]


def run(tools, check, files):
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            path = pathlib.Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return subprocess.run([sys.executable, tools / check, "--root", folder], capture_output=True, text=True)


def main():
    tools = pathlib.Path(sys.argv[1])
    wrong = []
    for check in ("check-includes", "check-sources"):
        result = run(tools, check, CLEAN)
        if result.returncode != 0:
            wrong.append(f"{check} refuses a clean tree: {result.stdout}{result.stderr}")
    for check, name, text, expected in CASES:
        result = run(tools, check, {**CLEAN, name: text})
        if result.returncode == 0 or expected not in result.stdout or name not in result.stdout:
            wrong.append(f"{check} misses \"{expected}\" in {name}: {result.stdout}{result.stderr}")
    print("\n".join(wrong) if wrong else f"{len(CASES)} violations found, clean trees accepted")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
