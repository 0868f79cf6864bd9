# SPDX-License-Identifier: Apache-2.0
"""Lets packages that insist on flash_attn find heed.flash_attn under that name."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
import re
import sys
from typing import Any, Iterator, Optional

VERSION = "2.8.3"
"""The version of flash-attention whose interface this is."""

_MODULES = ("", ".flash_attn_interface", ".bert_padding", ".layers", ".layers.rotary")


class _Distribution(importlib.metadata.Distribution):
    """Package metadata for importlib.metadata.version("flash_attn")."""

    def read_text(self, filename: str) -> Optional[str]:
        if filename in ("METADATA", "PKG-INFO"):
            return f"Metadata-Version: 2.1\nName: flash_attn\nVersion: {VERSION}\nSummary: flash-attention's interface, by heed\n"
        return "flash_attn\n" if filename == "top_level.txt" else None

    def locate_file(self, path: Any) -> Any:
        raise FileNotFoundError(f"flash_attn is heed.flash_attn and has no files of its own: {path}")


class _Finder(importlib.machinery.PathFinder):
    """On sys.meta_path, where importlib.metadata asks for distributions; it finds no modules: these are in sys.modules."""

    @classmethod
    def find_spec(cls, fullname: str, path: Any = None, target: Any = None) -> None:
        return None

    @classmethod
    def find_distributions(cls, context: Any = None) -> Iterator[importlib.metadata.Distribution]:
        name = getattr(context, "name", None)
        if name is None or re.sub(r"[-_.]+", "-", name).lower() == "flash-attn":
            yield _Distribution()


def install(*, replace: bool = False) -> None:
    """Makes `import flash_attn` and its package metadata answer with heed.flash_attn, in this process.

    Raises RuntimeError where a flash_attn of its own is installed, unless `replace` is set. A second call changes nothing.

    >>> import heed.flash_attn
    >>> heed.flash_attn.install()
    >>> from flash_attn import flash_attn_func
    >>> heed.flash_attn.uninstall()
    """
    if _Finder in sys.meta_path:
        return
    if not replace and importlib.util.find_spec("flash_attn") is not None:
        raise RuntimeError("flash_attn is installed already; install(replace=True) puts heed in its place for this process")
    for suffix in _MODULES:
        module = importlib.import_module("heed.flash_attn" + suffix)
        sys.modules["flash_attn" + suffix] = module
    sys.meta_path.insert(0, _Finder)


def uninstall() -> None:
    """Takes back what `install` did; nothing where it was not called."""
    if _Finder not in sys.meta_path:
        return
    sys.meta_path.remove(_Finder)
    for suffix in _MODULES:
        sys.modules.pop("flash_attn" + suffix, None)
