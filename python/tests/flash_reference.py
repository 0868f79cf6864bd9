# SPDX-License-Identifier: Apache-2.0
"""flash-attention's documented semantics in plain float64 torch; shares nothing with heed."""

import torch


def make(*shape, seed=0, dtype=torch.float64, grad=False):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype).requires_grad_(grad)


def plain(q, k, v, causal=False, window=(-1, -1), softcap=0.0, slopes=None, scale=None, lengths=None, leftpad=None):
    """[B, L, H, D] in float64, one slot of the L x L matrix after the other's rule."""
    q, k, v = (x.double() for x in (q, k, v))
    group = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
    lq, lk = q.shape[1], k.shape[1]
    lengths = torch.full((q.shape[0],), lk) if lengths is None else lengths
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    distance = torch.arange(lk) - (torch.arange(lq)[:, None] + (lengths - lq)[:, None, None])  # [B, Lq, Lk]
    if slopes is not None:
        slopes = slopes.double() if slopes.dim() == 2 else slopes.double().expand(q.shape[0], -1)
        scores = scores - slopes[:, :, None, None] * distance[:, None].abs()
    left, right = window[0], 0 if causal else window[1]
    visible = torch.arange(lk) < lengths[:, None, None]
    if leftpad is not None:
        visible = visible & (torch.arange(lk) >= leftpad[:, None, None])
    visible = visible & (distance >= -left if left >= 0 else True) & (distance <= right if right >= 0 else True)
    scores = scores.masked_fill(~visible[:, None], -torch.inf)
    weights = torch.where(visible.any(-1)[:, None, :, None], scores, 0.0).softmax(-1) * visible[:, None]
    return torch.einsum("bhij,bjhd->bihd", weights, v), scores.logsumexp(-1)


def close(got, want, atol=1e-10):
    torch.testing.assert_close(got.double(), want.double(), atol=atol, rtol=0)


def rotated(x, cos, sin, positions, interleaved):
    """x [B, L, H, D]; positions [B, L]."""
    half = cos.shape[1]
    c, s = cos[positions][:, :, None], sin[positions][:, :, None]
    rotary, rest = x[..., : 2 * half], x[..., 2 * half :]
    a, b = (rotary[..., ::2], rotary[..., 1::2]) if interleaved else (rotary[..., :half], rotary[..., half:])
    parts = a * c - b * s, a * s + b * c
    return torch.cat([torch.stack(parts, -1).flatten(-2) if interleaved else torch.cat(parts, -1), rest], -1)
