# SPDX-License-Identifier: Apache-2.0
"""heed for torch: drop-in scaled_dot_product_attention, and attention with everything heed has, both with gradients.

>>> import torch, heed.torch
>>> q, k, v = (torch.randn(2, 4, 10, 16, requires_grad=True) for _ in range(3))
>>> heed.torch.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()
>>> q.grad.shape
torch.Size([2, 4, 10, 16])
"""

from heed.torch._attention import attention, attention_varlen
from heed.torch._patch import patched
from heed.torch._sdpa import scaled_dot_product_attention

__all__ = ["attention", "attention_varlen", "patched", "scaled_dot_product_attention"]
