# SPDX-License-Identifier: Apache-2.0
"""What is measured: sizes, masks, types, and the speed-up over torch's scaled_dot_product_attention that heed promises."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """One row. Arrays are [B, H, L, D], torch's order."""

    name: str
    kind: str  # forward, decode, backward
    batch: int
    q_heads: int
    kv_heads: int
    q_length: int
    k_length: int
    head_dim: int
    dtype: str = "float32"
    mask: str = "none"  # none, causal, or window (sliding_window(WINDOW))
    target: float | None = None  # of torch's time over heed's, with two threads
    torch_groups: str = "enable_gqa"  # or "folded", "repeated": how torch is told that query heads share keys
    is_short: bool = False  # for the plot

    @property
    def shape(self) -> str:
        lengths = f"L{self.k_length}" if self.q_length == self.k_length else f"Lq{self.q_length} Lk{self.k_length}"
        heads = f"H{self.q_heads}" if self.q_heads == self.kv_heads else f"H{self.q_heads}/{self.kv_heads}"
        return f"B{self.batch} {heads} {lengths} D{self.head_dim}"

    @property
    def visible_pairs(self) -> int:
        """(query, key) pairs of one head."""
        n = self.q_length
        if self.mask == "none":
            return n * self.k_length
        width = min(n, WINDOW if self.mask == "window" else n)
        return width * (width + 1) // 2 + (n - width) * width

    @property
    def flop(self) -> float:
        """Of what is visible: two products, five in the backward."""
        products = 5 if self.kind == "backward" else 2
        return 2.0 * products * self.head_dim * self.visible_pairs * self.q_heads * self.batch

    @property
    def cache_bytes(self) -> int:
        """Of the keys and values that one call reads."""
        return 2 * self.batch * self.kv_heads * self.k_length * self.head_dim * (4 if self.dtype == "float32" else 2)

    @property
    def score_bytes(self) -> int:
        """Of the float32 L x L matrices that an implementation without tiles makes."""
        return 4 * self.batch * self.q_heads * self.q_length * self.k_length


WINDOW = 256


def square(name: str, length: int, head_dim: int, *, batch: int = 1, kind: str = "forward", **rest: object) -> Case:
    return Case(name, kind, batch, 8, 8, length, length, head_dim, **rest)


def short_cases() -> list[Case]:
    return [
        square(f"short {mask_name}", length, head_dim, batch=batch, mask=mask, target=1.0, is_short=True)
        for mask, mask_name in (("none", "no mask"), ("causal", "causal"))
        for head_dim in (64, 128)
        for batch in (1, 8)
        for length in (128, 256, 512)
    ]


def decode(name: str, dtype: str, target: float | None, **rest: object) -> Case:
    return Case(name, "decode", 1, 32, 8, 1, 8192, 128, dtype=dtype, target=target, **rest)


def all_cases() -> list[Case]:
    return [
        square("forward no mask", 2048, 64, target=1.2),
        square("forward no mask", 2048, 128, target=1.2),
        square("forward causal", 2048, 64, mask="causal", target=1.5),
        square("forward causal", 2048, 128, mask="causal", target=1.5),
        square("forward no mask bf16", 2048, 128, dtype="bfloat16"),
        square("forward causal bf16", 2048, 128, dtype="bfloat16", mask="causal"),
        square(f"window {WINDOW}", 8192, 64, mask="window"),
        decode("decode GQA", "float32", 5.0),
        decode("decode GQA bf16", "bfloat16", 5.0),
        square("backward causal", 1024, 64, kind="backward", mask="causal", target=1.8),
        square("backward causal bf16", 1024, 64, kind="backward", mask="causal", dtype="bfloat16", target=5.0),
        *short_cases(),
        Case("call, 16 tokens", "forward", 1, 1, 1, 16, 16, 64),
        decode("decode GQA, torch repeated", "float32", None, torch_groups="repeated"),
        decode("decode GQA bf16, torch repeated", "bfloat16", None, torch_groups="repeated"),
        decode("decode GQA, torch folded", "float32", None, torch_groups="folded"),
        decode("decode GQA bf16, torch folded", "bfloat16", None, torch_groups="folded"),
    ]
