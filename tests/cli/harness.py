# SPDX-License-Identifier: Apache-2.0
"""What both test scripts need: where things are, and how to run the program."""
import argparse
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "oracle"))

SKIPPED = 77  # ctest's SKIP_RETURN_CODE


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--heed", required=True)
    parser.add_argument("--dump-logits", required=True)
    parser.add_argument("--models", type=pathlib.Path, required=True)
    parser.add_argument("what", nargs="*")
    options = parser.parse_args()
    options.models = pathlib.Path(os.environ.get("HEED_TEST_MODELS") or options.models)
    return options


def real_model(options, name):
    """The model's path; ends the script as skipped, saying so, when it is not there."""
    path = options.models / f"{name}.gguf"
    if not path.is_file():
        print(f"SKIPPED: {path} is missing. Fetch it with `tools/get-model {name}`, or name its folder in HEED_TEST_MODELS.")
        sys.exit(SKIPPED)
    return path


def run(*command, stdin="", timeout=300, **options):
    """Finished process with text output."""
    return subprocess.run([str(part) for part in command], input=stdin, capture_output=True, encoding="utf-8", errors="replace",
                          timeout=timeout, check=False, **options)


def output_of(*command, **options):
    done = run(*command, **options)
    assert done.returncode == 0, f"{command}: exit code {done.returncode}\n{done.stderr}"
    return done.stdout


def dump_logits(options, model, tokens, prefill, first, folder, *more):
    """The engine's logits after tokens[first:], [n, vocabulary]: the first `prefill` tokens fed together, the others one by one."""
    import numpy as np
    path = pathlib.Path(folder) / "logits.f32"
    output_of(options.dump_logits, model, path, prefill, first, *more, stdin=" ".join(map(str, tokens)))
    return np.fromfile(path, "<f4").reshape(len(tokens) - first, -1)
