# SPDX-License-Identifier: Apache-2.0
"""flash-attention's functions (its 2.x names, layouts, defaults and semantics) on the CPU, with gradients.

Where it differs: float32 and float64 are taken too, head dimensions up to 1024, dropout together with softcap, gradients are always
deterministic, and `S_dmask` is None. A row without keys has lse = -inf, the log of nothing, which merges with other parts exactly, as in
flash-attention 3 (2.x has +inf). `install()` lets `import flash_attn` find this package: the functions below, `flash_attn_interface`,
`bert_padding` and `layers.rotary`. Other modules (`ops`, `modules`, `losses`, ...) are not there.

>>> import torch
>>> from heed.flash_attn import flash_attn_func
>>> q, k, v = (torch.randn(2, 10, 4, 16) for _ in range(3))                       # [B, L, H, D]
>>> flash_attn_func(q, k, v, causal=True, window_size=(4, 0)).shape
torch.Size([2, 10, 4, 16])
"""

from heed.flash_attn._install import VERSION as __version__
from heed.flash_attn._install import install, uninstall
from heed.flash_attn.flash_attn_interface import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
    flash_attn_with_kvcache,
)

__all__ = [
    "__version__", "flash_attn_func", "flash_attn_kvpacked_func", "flash_attn_qkvpacked_func", "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func", "flash_attn_varlen_qkvpacked_func", "flash_attn_with_kvcache", "install", "uninstall",
]  # fmt: skip
