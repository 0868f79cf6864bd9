# SPDX-License-Identifier: Apache-2.0
"""Attention in float64 NumPy, as its definition reads; shares nothing with heed."""

import numpy as np


def attention(q, k, v, visible=None, scale=None, softcap=None, bias=None, slopes=None, sinks=None, offset=None, lengths=None):
    """[B, L, H, D]; `visible` broadcasts to [B, H, Lq, Lk]. Returns out, lse [B, H, Lq]."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    group = q.shape[2] // k.shape[2]
    k, v = np.repeat(k, group, 2), np.repeat(v, group, 2)
    scores = np.einsum("bihd,bjhd->bhij", q, k) * (q.shape[3] ** -0.5 if scale is None else scale)
    if softcap is not None:
        scores = softcap * np.tanh(scores / softcap)
    if bias is not None:
        scores = scores + np.asarray(bias, np.float64)
    lq, lk = q.shape[1], k.shape[1]
    lengths = np.full(q.shape[0], lk) if lengths is None else np.asarray(lengths)
    start = lengths - lq if offset is None else np.broadcast_to(offset, lengths.shape)
    positions = start[:, None] + np.arange(lq)  # [B, Lq]
    if slopes is not None:
        slopes = np.broadcast_to(slopes, (q.shape[0], q.shape[2]))
        scores = scores - slopes[:, :, None, None] * np.abs(positions[:, None, :, None] - np.arange(lk))
    hidden = np.broadcast_to(np.arange(lk) >= lengths[:, None, None, None], scores.shape)
    if visible is not None:
        hidden = hidden | ~np.broadcast_to(visible, scores.shape)
    scores = np.where(hidden, -np.inf, scores)
    extra = np.full((1, q.shape[2], 1), -np.inf) if sinks is None else np.asarray(sinks, np.float64)[None, :, None]
    with np.errstate(all="ignore"):
        top = np.maximum(scores.max(-1, initial=-np.inf), extra)
        safe = np.where(np.isfinite(top), top, 0.0)
        weights = np.exp(scores - safe[..., None])
        total = weights.sum(-1) + np.exp(extra - safe)
        lse = safe + np.log(total)
        weights = np.divide(weights, total[..., None], out=np.zeros_like(weights), where=total[..., None] > 0)
    return np.einsum("bhij,bjhd->bihd", weights, v), lse


def causal(lq, lk, offset=None):
    return np.arange(lk) <= np.arange(lq)[:, None] + (lk - lq if offset is None else offset)
