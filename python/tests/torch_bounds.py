# SPDX-License-Identifier: Apache-2.0
"""How far float32 gradients may be from exact ones: a share of the terms that they sum, because sums may cancel to nothing."""

import torch

SHARE = 2e-6
"""Of float32's 6e-8: the scores carry about ten of its roundings into every weight, the sums a few more."""


def terms(weights, q, k, v, dout, scale):
    """The largest sums of absolute values behind (dq, dk, dv), and those behind each element of dS and delta.

    weights [B, Hq, Lq, Lk] are those of the softmax, q [B, Hq, Lq, D], k [B, Hkv, Lk, D], v [B, Hkv, Lk, Dv], dout [B, Hq, Lq, Dv].
        dS = weights * (dout v^T - delta)   delta = rowsum(dout * out)   dq = scale * dS k   dk = scale * dS^T q   dv = weights^T dout
    """
    weights, q, k, v, dout = (x.detach().double().abs() for x in (weights, q, k, v, dout))
    groups = q.shape[1] // k.shape[1]
    wide_k, wide_v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    delta = (dout * (weights @ wide_v)).sum(-1, keepdim=True)
    ds = weights * (dout @ wide_v.transpose(-1, -2) + delta)

    def of_group(x):
        return x.unflatten(1, (-1, groups)).sum(2)

    dq, dk = scale * ds @ wide_k, of_group(scale * ds.transpose(-1, -2) @ q)
    return [x.max() for x in (dq, dk, of_group(weights.transpose(-1, -2) @ dout))], ds, delta


def within(got, want, size):
    return bool((got.double() - want.double()).abs().max() <= SHARE * torch.as_tensor(size))
