# SPDX-License-Identifier: Apache-2.0
"""Frequencies of a scaled rotation, float64, from the papers' formulas and the keys of a Hugging Face `rope_parameters` block.

A rule is a dict: rope_type and what belongs to it (factor, original_max_position_embeddings, beta_fast, ...). LongRoPE and dynamic NTK look at
the length of the sequence; dynamic's limit is original_max_position_embeddings here, as a block has no other place for it.
"""
import math

import numpy as np


def correction_range(rule, d, base):
    """YaRN's two pair indices: what turns beta_fast times within the original length, and what turns beta_slow times."""
    original = rule["original_max_position_embeddings"]

    def index(turns):
        return d * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    return max(math.floor(index(rule.get("beta_fast", 32))), 0), min(math.ceil(index(rule.get("beta_slow", 1))), d - 1)


def yarn(rule, d, base, theta):
    low, high = correction_range(rule, d, base)
    ramp = np.clip((np.arange(d // 2) - low) / max(high - low, 0.001), 0, 1)
    factor = rule["factor"]
    default = 0.1 * math.log(factor) + 1 if factor > 1 else 1.0
    return theta / factor * ramp + theta * (1 - ramp), rule.get("attention_factor", default)


def longrope(rule, length, theta):
    factor, original = rule["factor"], rule["original_max_position_embeddings"]
    default = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    divisors = rule["long_factor"] if length > original else rule["short_factor"]
    return theta / np.array(divisors), rule.get("attention_factor", default)


def llama3(rule, theta):
    factor, low, high = rule["factor"], rule.get("low_freq_factor", 1.0), rule.get("high_freq_factor", 4.0)
    original = rule["original_max_position_embeddings"]
    out = []
    for frequency in theta:
        wavelength = 2 * math.pi / frequency
        if wavelength < original / high:
            out.append(frequency)
        elif wavelength > original / low:
            out.append(frequency / factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            out.append((1 - smooth) * frequency / factor + smooth * frequency)
    return np.array(out)


def frequencies(rule, d, base, length):
    """([d / 2] radians per token, what multiplies cosines and sines) for a sequence of `length` tokens."""
    kind = rule["rope_type"]
    theta = base ** (-np.arange(0, d, 2) / d)
    if kind == "default":
        return theta, 1.0
    if kind == "linear":
        return theta / rule["factor"], 1.0
    if kind == "ntk":
        return (base * rule["factor"] ** (d / (d - 2))) ** (-np.arange(0, d, 2) / d), 1.0
    if kind == "dynamic":
        limit = rule["original_max_position_embeddings"]
        alpha = rule["factor"] * max(length, limit) / limit - (rule["factor"] - 1)
        return (base * alpha ** (d / (d - 2))) ** (-np.arange(0, d, 2) / d), 1.0
    if kind == "yarn":
        return yarn(rule, d, base, theta)
    if kind == "longrope":
        return longrope(rule, length, theta)
    if kind == "llama3":
        return llama3(rule, theta), 1.0
    raise ValueError(kind)
