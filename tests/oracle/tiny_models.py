#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes small random models, one per architecture, so that every branch of the decoder meets the oracle.

    tests/oracle/tiny_models.py DIR        DIR/qwen2.gguf, DIR/qwen3.gguf, DIR/mistral.gguf, ...

Weights are random and the vocabulary is the 256 bytes, so the text means nothing; the logits do. Sizes are odd where they may be: head_dim
differs from width / heads, groups are not powers of two, windows are shorter than the prompts.
"""
import os
import struct
import sys

import numpy as np

U32, I32, F32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
VOCABULARY = 256


def text(value):
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def metadata_value(value):
    """A value with its type in front."""
    if isinstance(value, bool):
        return struct.pack("<I?", BOOL, value)
    if isinstance(value, int):
        return struct.pack("<II", U32, value)
    if isinstance(value, float):
        return struct.pack("<If", F32, value)
    if isinstance(value, str):
        return struct.pack("<I", STRING) + text(value)
    kind = I32 if isinstance(value[0], int) else STRING
    items = [struct.pack("<i", item) if kind == I32 else text(item) for item in value]
    return struct.pack("<IIQ", ARRAY, kind, len(items)) + b"".join(items)


def write(path, metadata, tensors):
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, value in metadata.items():
        header += text(key) + metadata_value(value)
    data = b""
    for name, values in tensors.items():
        header += text(name) + struct.pack("<I", values.ndim) + struct.pack(f"<{values.ndim}Q", *values.shape[::-1])
        header += struct.pack("<IQ", 0, len(data))
        data += values.astype("<f4").tobytes()
        data += b"\0" * (-len(data) % 32)
    with open(path, "wb") as file:
        file.write(header + b"\0" * (-len(header) % 32) + data)


def byte_tokens():
    """GPT-2's printable stand-ins of the 256 bytes: 0x21-0x7e, 0xa1-0xac, 0xae-0xff for themselves, the others from 256 on."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(256, 512))
    return [chr(b) if b in own else chr(next(others)) for b in range(256)]


class Shape:
    layers, width, ffn, heads, kv_heads, head_dim = 3, 96, 160, 6, 2, 32


def metadata(arch, shape, extra):
    values = {
        "general.architecture": arch,
        f"{arch}.block_count": shape.layers,
        f"{arch}.context_length": 512,
        f"{arch}.embedding_length": shape.width,
        f"{arch}.feed_forward_length": shape.ffn,
        f"{arch}.attention.head_count": shape.heads,
        f"{arch}.attention.head_count_kv": shape.kv_heads,
        f"{arch}.attention.key_length": shape.head_dim,
        f"{arch}.attention.value_length": shape.head_dim,
        f"{arch}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{arch}.rope.freq_base": 10000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": byte_tokens(),
        "tokenizer.ggml.token_type": [1] * VOCABULARY,
        "tokenizer.ggml.merges": ["t h"],
        "tokenizer.ggml.eos_token_id": 0,
    }
    values["tokenizer.ggml.tokens"][255] = "th"  # a merge needs its result in the vocabulary
    return values | {f"{arch}.{key}": value for key, value in extra.items()}


def tensors(shape, rng, biases, qk_norm, output):
    def matrix(rows, columns):
        return rng.normal(0, columns**-0.5, (rows, columns))

    def norm(size):
        return 1 + 0.3 * rng.normal(size=size)

    out = {"token_embd.weight": rng.normal(0, 1, (VOCABULARY, shape.width)), "output_norm.weight": norm(shape.width)}
    if output:
        out["output.weight"] = 3 * matrix(VOCABULARY, shape.width)
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    for layer in range(shape.layers):
        block = f"blk.{layer}."
        out[block + "attn_norm.weight"] = norm(shape.width)
        for name, rows in (("q", q), ("k", kv), ("v", kv)):
            out[f"{block}attn_{name}.weight"] = 1.5 * matrix(rows, shape.width)
            if biases:
                out[f"{block}attn_{name}.bias"] = rng.normal(size=rows)
        if qk_norm:
            out[block + "attn_q_norm.weight"] = 2 * norm(shape.head_dim)
            out[block + "attn_k_norm.weight"] = norm(shape.head_dim)
        out[block + "attn_output.weight"] = matrix(shape.width, q)
        out[block + "ffn_norm.weight"] = norm(shape.width)
        out[block + "ffn_gate.weight"] = matrix(shape.ffn, shape.width)
        out[block + "ffn_up.weight"] = matrix(shape.ffn, shape.width)
        out[block + "ffn_down.weight"] = matrix(shape.width, shape.ffn)
    return out


class Mha(Shape):
    heads, kv_heads, head_dim = 3, 3, 32


class Single(Shape):
    layers = 1


class Even(Shape):
    head_dim = Shape.width // Shape.heads  # what other programs insist on for qwen2


MODELS = {  # name -> (architecture, shape, metadata, biases, qk_norm, own output matrix)
    "qwen2": ("qwen2", Even, {"rope.freq_base": 1e6}, True, False, True),
    "qwen3": ("qwen3", Shape, {"rope.freq_base": 1e6}, False, True, False),
    "mistral": ("mistral", Shape, {"attention.sliding_window": 7}, False, False, True),
    "mha": ("llama", Mha, {}, False, False, False),
    "partial": ("llama", Shape, {"rope.dimension_count": 16}, False, False, True),
    "linear": ("llama", Shape, {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, False, False, True),
    "divisors": ("llama", Shape, {}, False, False, True),
    "yarn": ("llama", Shape, {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 128,
                              "rope.scaling.attn_factor": 0.8}, False, False, True),
    "longrope": ("llama", Shape, {"rope.scaling.type": "longrope", "rope.scaling.factor": 16.0,
                                  "rope.scaling.original_context_length": 32}, False, False, True),
    "single": ("qwen3", Single, {}, False, True, False),
}


def write_model(path, name, more_metadata=None):
    """One of MODELS; `more_metadata` (keys without the architecture) replaces what it says."""
    arch, shape, extra, biases, qk_norm, output = MODELS[name]
    weights = tensors(shape, np.random.default_rng(list(MODELS).index(name)), biases, qk_norm, output)
    if name == "divisors":
        weights["rope_freqs.weight"] = 1 + np.arange(shape.head_dim // 2)**2 / 20
    if name == "longrope":
        weights["rope_factors_short.weight"] = 1 + np.arange(shape.head_dim // 2) / 50
        weights["rope_factors_long.weight"] = 1 + np.arange(shape.head_dim // 2)**2 / 15
    write(path, metadata(arch, shape, extra | (more_metadata or {})), weights)


def write_all(folder):
    os.makedirs(folder, exist_ok=True)
    for name in MODELS:
        write_model(os.path.join(folder, name + ".gguf"), name)


if __name__ == "__main__":
    write_all(sys.argv[1])
