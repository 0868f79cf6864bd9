# SPDX-License-Identifier: Apache-2.0
"""What the figures were measured on: the object that `heed bench --json` writes, and the versions and settings of the peers."""

from __future__ import annotations

import os
import pathlib
import platform
import time
from importlib import metadata

import heed

_CPU0 = pathlib.Path("/sys/devices/system/cpu/cpu0")
_SETTINGS = ("HEED_ISA", "OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "GOMP_CPU_AFFINITY", "KMP_BLOCKTIME", "MKL_NUM_THREADS")


def _line(path: pathlib.Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def _cpu() -> str:
    for line in (_line(pathlib.Path("/proc/cpuinfo")) or "").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _bytes_of(text: str) -> int:
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1], 1)
    return int(text.rstrip("KMG")) * unit


def _caches() -> list[dict]:
    found = []
    for folder in sorted(_CPU0.glob("cache/index*")):
        level, kind, size = (_line(folder / name) for name in ("level", "type", "size"))
        if level and kind and size:
            found.append({"level": int(level), "type": kind, "bytes": _bytes_of(size)})
    return found


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def openmp_libraries() -> list[str]:
    """Paths of the OpenMP runtimes in this process: one, whose threads torch and heed share, or a pool for each."""
    lines = (_line(pathlib.Path("/proc/self/maps")) or "").splitlines()
    return sorted({line.split()[-1] for line in lines if any(name in line for name in ("libgomp", "libiomp", "libomp"))})


def load_average() -> list[float] | None:
    try:
        return list(os.getloadavg())
    except OSError:
        return None


def describe(threads: list[int]) -> dict:
    isas = {str(kernel["isa"]) for kernel in heed.kernels() if kernel["available"]}
    return {
        "cpu": _cpu(),
        "isa": heed.active_isa(),
        "instruction_sets": sorted(isas - {"reference"}),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": max(threads),
        "caches": _caches(),
        "compiler": None,
        "flags": None,
        "heed": heed.__version__,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "governor": _line(_CPU0 / "cpufreq/scaling_governor"),
        "load_average": load_average(),
        "python": platform.python_version(),
        "peers": {name: _version(name) for name in ("torch", "onnxruntime")},
        "openmp": openmp_libraries(),
        "environment": {name: os.environ[name] for name in _SETTINGS if name in os.environ},
    }
