# SPDX-License-Identifier: Apache-2.0
# The usual commands by name. Each does one thing, says what it does, and may be run again. Settings: JOBS (parallel compilers).

.DEFAULT_GOAL := help
.PHONY: help demo test test-peers test-isa build lint format tidy bench sanitize tsan clean

help:  ## This list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | while IFS="$$(printf '\t')" read -r name text; do printf '  make %-10s %s\n' "$$name" "$$text"; done

demo:  ## Install what is missing, build, fetch a small model (98 MB) and let it write
	tools/demo

test:  ## Install what is missing, build, fetch both models (351 MB) and run every test
	tools/test

test-peers:  ## The Python tests with torch, transformers and ONNX Runtime, in a virtual environment (downloads gigabytes)
	tools/test-python --peers

test-isa:  ## Kernel tests of the instruction sets that this machine lacks, under emulation (FORCE_EMULATION=1: of all)
	tools/test-isa

build:  ## Release build in build/release
	tools/setup build
	tools/build release

lint:  ## Include direction, file headers, sizes, formatting, weak symbols
	tools/lint

format:  ## Rewrite the sources with clang-format
	tools/setup lint
	tools/format

tidy:  ## clang-tidy over src/ and cli/ (minutes)
	tools/setup lint
	tools/tidy

bench:  ## Kernels as shares of this machine's own peaks (a minute); `heed bench --list` says what else there is
	tools/setup build
	tools/build release
	build/release/cli/heed bench

sanitize:  ## All tests under AddressSanitizer and UndefinedBehaviorSanitizer
	tools/test-sanitized asan-ubsan

tsan:  ## All tests under ThreadSanitizer
	tools/test-sanitized tsan

clean:  ## Remove build folders; models and downloads stay
	rm -rf build
