# SPDX-License-Identifier: Apache-2.0
"""heed: exact attention for CPUs, fast, maskable at will and trainable.

>>> import heed, numpy as np
>>> q, k, v = np.random.default_rng(0).standard_normal((3, 1, 128, 8, 64), np.float32)      # [B, L, H, D]
>>> heed.attention(q, k, v, mask=heed.Mask.causal() & heed.Mask.sliding_window(32)).shape
(1, 128, 8, 64)

For torch: `heed.torch.scaled_dot_product_attention`, `heed.flash_attn`, `heed.transformers.register()`.
"""

from typing import TYPE_CHECKING

from heed._core import (
    KvCache,
    KvView,
    Mask,
    PagedKvCache,
    RopeConfig,
    RopeDivisors,
    RopeDynamic,
    RopeLinear,
    RopeLlama3,
    RopeLong,
    RopeNtk,
    RopeProportional,
    RopeYarn,
    active_isa,
    get_num_threads,
    kernels,
    set_num_threads,
)
from heed._core import version as _version
from heed._functional import (
    AttentionGrads,
    apply_rope,
    attention,
    attention_backward,
    attention_varlen,
    attention_varlen_backward,
    explain,
    merge_states,
    rope_table,
    select_blocks,
)

__version__ = _version()

__all__ = [
    "AttentionGrads", "KvCache", "KvView", "Mask", "PagedKvCache", "RopeConfig", "RopeDivisors", "RopeDynamic", "RopeLinear", "RopeLlama3", "RopeLong",
    "RopeNtk", "RopeProportional", "RopeYarn", "active_isa", "apply_rope", "attention", "attention_backward", "attention_varlen",
    "attention_varlen_backward", "explain", "get_num_threads", "kernels", "merge_states", "rope_table",
    "select_blocks", "set_num_threads",
]  # fmt: skip

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """heed.torch and the like, imported at their first use: `import heed` alone needs nothing but NumPy."""
        if name not in ("flash_attn", "torch", "transformers"):
            raise AttributeError(f"module 'heed' has no attribute {name!r}")
        import importlib

        try:
            return importlib.import_module(f"heed.{name}")
        except ImportError as error:
            raise AttributeError(f"heed.{name} cannot be imported: {error}") from error
