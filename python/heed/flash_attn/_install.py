# SPDX-License-Identifier: Apache-2.0
"""Lets packages that insist on flash_attn find heed.flash_attn under that name."""

from __future__ import annotations

import importlib
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


class _Finder(importlib.metadata.DistributionFinder):
    """On sys.meta_path, where importlib.metadata asks for distributions; it finds no modules: these are in sys.modules."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        return None

    def find_distributions(self, context: Any = None) -> Iterator[importlib.metadata.Distribution]:
        asked = {} if context is None else vars(context)
        name = asked.get("name")
        if "path" not in asked and (name is None or re.sub(r"[-_.]+", "-", name).lower() == "flash-attn"):
            yield _Distribution()


class _State:
    """What `install` did."""

    finder: Optional[_Finder] = None
    hidden: dict[str, Any] = {}


def _is_flash_attn(module: str) -> bool:
    return module == "flash_attn" or module.startswith("flash_attn.")


def _take_modules() -> dict[str, Any]:
    """All of flash_attn out of sys.modules: nothing of a real one may stay beside ours, nor of ours beside a real one."""
    return {name: sys.modules.pop(name) for name in list(sys.modules) if _is_flash_attn(name)}


def _is_there() -> bool:
    if "flash_attn" in sys.modules or importlib.util.find_spec("flash_attn") is not None:
        return True
    try:
        importlib.metadata.version("flash_attn")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def install(*, replace: bool = False) -> None:
    """Makes `import flash_attn` and its package metadata answer with heed.flash_attn, in this process.

    Call it before what needs flash_attn is imported: names that were imported from a real one stay what they were, and transformers
    remembers its first look. A second call changes nothing.

    Parameters
    ----------
    replace : bool
        Also where a flash_attn of its own is installed or imported; `uninstall` brings that one back.

    Raises
    ------
    RuntimeError
        Where there is one, and `replace` is not set. Nothing is changed then.

    Examples
    --------
    >>> import heed.flash_attn
    >>> heed.flash_attn.install()
    >>> from flash_attn import flash_attn_func
    >>> heed.flash_attn.uninstall()
    """
    if _State.finder is not None:
        return
    if not replace and _is_there():
        raise RuntimeError("flash_attn is installed already; install(replace=True) puts heed in its place for this process")
    ours = {"flash_attn" + suffix: importlib.import_module("heed.flash_attn" + suffix) for suffix in _MODULES}
    _State.hidden = _take_modules()
    sys.modules.update(ours)
    _State.finder = _Finder()
    sys.meta_path.insert(0, _State.finder)


def uninstall() -> None:
    """Takes back what `install` did, and brings back what it replaced; nothing where it was not called."""
    if _State.finder is None:
        return
    if _State.finder in sys.meta_path:
        sys.meta_path.remove(_State.finder)
    _take_modules()
    sys.modules.update(_State.hidden)
    _State.finder, _State.hidden = None, {}
