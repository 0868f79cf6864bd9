# SPDX-License-Identifier: Apache-2.0
"""Llama, Mistral, Qwen 2 and 3 and Gemma 3 in numpy, straight from their papers and model cards: the truth that the engine is compared with.

Weights are dequantized once; activations, keys and values stay in `dtype` (float32, or float64 to see how far float32 itself is off).
Short rather than fast, and nothing in it is shared with the engine.
"""
from concurrent.futures import ThreadPoolExecutor
import os
import time

import numpy as np

from gguf import Gguf
import rope_scaling

CHUNK = 256  # tokens per pass: bounds the [chunk, vocabulary] logits
THREADS = len(os.sched_getaffinity(0))
POOL = ThreadPoolExecutor(THREADS)


def seconds(work):
    """Best of three: the first call of a threaded BLAS starts its threads."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def blas_is_fast():
    """Debian's default BLAS is the reference one, three times slower than einsum; OpenBLAS is ten times faster."""
    x, w = np.ones((64, 512), np.float32), np.ones((512, 512), np.float32)
    return seconds(lambda: x @ w.T) < seconds(lambda: np.einsum("ni,oi->no", x, w))


FAST_BLAS = blas_is_fast()


def linear(x, weight):
    """x [n, in] times weight [out, in] transposed."""
    if FAST_BLAS:
        return x @ weight.T
    out = np.empty((len(x), len(weight)), x.dtype)
    cuts = np.linspace(0, len(weight), THREADS + 1).astype(int)

    def part(first, last):
        np.einsum("ni,oi->no", x, weight[first:last], out=out[:, first:last])

    list(POOL.map(part, cuts[:-1], cuts[1:]))
    return out


def rms_norm(x, weight, epsilon):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + epsilon) * weight


def silu(x):
    return x / (1 + np.exp(-x))


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def rope(x, positions, frequencies, magnitude, interleaved):
    """x [n, heads, D]: pair i turns by position * frequencies[i] and grows by the magnitude, i < d / 2 <= D / 2; the elements past d stay
    as they are. Angles in float64, as float32 loses them at long contexts."""
    d = 2 * len(frequencies)
    angle = positions[:, None] * frequencies
    cos, sin = ((magnitude * wave(angle))[:, None, :].astype(x.dtype) for wave in (np.cos, np.sin))
    first = np.s_[..., 0:d:2] if interleaved else np.s_[..., :d // 2]
    second = np.s_[..., 1:d:2] if interleaved else np.s_[..., d // 2:d]
    out = x.copy()
    out[first] = x[first] * cos - x[second] * sin
    out[second] = x[first] * sin + x[second] * cos
    return out


def attention(q, k, v, first, window):
    """q [n, Hq, d] at positions first..; k, v [m, Hkv, d] at positions 0..: causal, at most `window` keys, the current one included."""
    n, heads, d = q.shape
    group = heads // k.shape[1]
    p, j = first + np.arange(n)[:, None], np.arange(len(k))[None, :]
    hidden = (j > p) | (j <= p - window)
    out = np.empty_like(q)
    for h in range(heads):
        scores = linear(q[:, h], np.ascontiguousarray(k[:, h // group])) / np.sqrt(d).astype(q.dtype)
        scores[hidden] = -np.inf
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        out[:, h] = linear(weights, np.ascontiguousarray(v[:, h // group].T))
    return out.reshape(n, heads * d)


class Model:
    """`rope`: a rule of rope_scaling.py in place of the file's, `rope_theta` in it a base. Keys are kept un-rotated: a call of logits is one
    forward pass, in which all keys turn by the frequencies of the length at its end."""

    def __init__(self, path, dtype=np.float32, rope=None):
        file = Gguf(path)
        self.arch = file.metadata["general.architecture"]
        assert self.arch in ("llama", "mistral", "qwen2", "qwen3", "gemma3"), self.arch
        self.gemma, self.dtype = self.arch == "gemma3", dtype

        def get(key, default=None):
            return file.metadata.get(f"{self.arch}.{key}", default)

        self.layers, self.width = get("block_count"), get("embedding_length")
        self.heads, self.kv_heads = get("attention.head_count"), get("attention.head_count_kv")
        self.head_dim = get("attention.key_length", self.width // self.heads)
        self.epsilon = get("attention.layer_norm_rms_epsilon")
        self.rope_base, self.window = get("rope.freq_base"), get("attention.sliding_window", 1 << 40)
        self.rope_dims = get("rope.dimension_count", self.head_dim)
        self.weights = {name: file.tensor(name, dtype) for name in file.infos}
        self.file_rope, self.rope = self.rule_of(get), rope

    def rule_of(self, get):
        """The file's own rule. GGUF's attn_factor multiplies YaRN's magnitude; this one's attention_factor is the end of it."""
        rule = {"rope_type": get("rope.scaling.type", "default"), "factor": get("rope.scaling.factor", 1.0),
                "original_max_position_embeddings": get("rope.scaling.original_context_length", get("context_length"))}
        if "rope_freqs.weight" in self.weights:
            return {"rope_type": "default"}
        if rule["rope_type"] == "longrope":
            rule |= {f"{which}_factor": self.weights[f"rope_factors_{which}.weight"] for which in ("short", "long")}
        if rule["rope_type"] == "yarn" and get("rope.scaling.attn_factor"):
            rule["attention_factor"] = get("rope.scaling.attn_factor") * (0.1 * np.log(rule["factor"]) + 1)
        return rule

    def layer_kind(self, layer, length):
        """((RoPE frequencies, magnitude), window) of a layer: every sixth layer of Gemma 3 is global, the others look at a window with
        base 10,000 and no scaling."""
        if self.gemma and layer % 6 != 5:
            return rope_scaling.frequencies({"rope_type": "default"}, self.rope_dims, 10000.0, length), self.window
        rule = self.rope or self.file_rope
        frequencies, magnitude = rope_scaling.frequencies(rule, self.rope_dims, rule.get("rope_theta", self.rope_base), length)
        if not self.rope:
            frequencies = frequencies / self.weights.get("rope_freqs.weight", 1.0)
        return (frequencies, magnitude), 1 << 40 if self.gemma else self.window

    def norm(self, x, name):
        return rms_norm(x, self.weights[name + ".weight"], self.epsilon)

    def qkv(self, h, layer):
        """Un-rotated."""
        block = f"blk.{layer}.attn_"

        def project(name):
            y = linear(h, self.weights[f"{block}{name}.weight"])
            if self.arch == "qwen2":
                y = y + self.weights[f"{block}{name}.bias"]
            return y.reshape(len(h), -1, self.head_dim)

        q, k, v = (project(name) for name in "qkv")
        if self.arch in ("qwen3", "gemma3"):
            q, k = self.norm(q, block + "q_norm"), self.norm(k, block + "k_norm")
        return q, k, v

    def run_layer(self, x, layer, cache, positions, length):
        block = f"blk.{layer}."
        q, k, v = self.qkv(self.norm(x, block + "attn_norm"), layer)
        if layer in cache:
            k, v = np.concatenate([cache[layer][0], k]), np.concatenate([cache[layer][1], v])
        cache[layer] = (k, v)
        rotation, window = self.layer_kind(layer, length)
        # The converter of llama files permutes the rows of Q and K, which turns half pairs into neighbours.
        neighbours = self.arch in ("llama", "mistral")
        q, k = rope(q, positions, *rotation, neighbours), rope(k, np.arange(len(k)), *rotation, neighbours)
        o = linear(attention(q, k, v, positions[0], window), self.weights[block + "attn_output.weight"])
        x = x + (self.norm(o, block + "post_attention_norm") if self.gemma else o)
        h = self.norm(x, block + "ffn_norm")
        gate = (gelu_tanh if self.gemma else silu)(linear(h, self.weights[block + "ffn_gate.weight"]))
        f = linear(gate * linear(h, self.weights[block + "ffn_up.weight"]), self.weights[block + "ffn_down.weight"])
        return x + (self.norm(f, block + "post_ffw_norm") if self.gemma else f)

    def logits(self, tokens, cache=None, skip=0):
        """Yields [vocabulary] after each of `tokens` but the first `skip`, a chunk at a time; `cache` carries keys and values from call to call."""
        cache = {} if cache is None else cache
        past = len(cache[0][0]) if cache else 0
        for first in range(0, len(tokens), CHUNK):
            part = np.asarray(tokens[first:first + CHUNK])
            x = self.weights["token_embd.weight"][part]
            if self.gemma:
                x = x * np.sqrt(self.width).astype(self.dtype)
            for layer in range(self.layers):
                x = self.run_layer(x, layer, cache, past + first + np.arange(len(part)), past + len(tokens))
            x = self.norm(x, "output_norm")[max(0, skip - first):]
            if len(x):
                yield from linear(x, self.weights.get("output.weight", self.weights["token_embd.weight"]))

    def greedy(self, tokens, count):
        """[(token, gap to the runner-up)] * count, the lowest id on ties."""
        cache, out = {}, []
        fed = list(tokens)
        for _ in range(count):
            *_, last = self.logits(fed, cache, len(fed) - 1)
            token = int(np.argmax(last))
            runner_up = np.max(np.delete(last, token))
            out.append((token, float(last[token] - runner_up)))
            fed = [token]
        return out

    def nll(self, tokens):
        """Mean negative log-likelihood of tokens[1:], each given all before it."""
        losses = []
        for row, target in zip(self.logits(tokens[:-1]), tokens[1:]):
            row = row.astype(np.float64)
            top = row.max()
            losses.append(top + np.log(np.exp(row - top).sum()) - row[target])
        return float(np.mean(losses))
