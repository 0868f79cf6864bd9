# SPDX-License-Identifier: Apache-2.0
"""A GGUF reader and the meaning of its block formats, in numpy.

Written from the format's description only; shares nothing with the C++ reader, so that agreement means something. It trusts the file.
"""
import mmap
import struct

import numpy as np

SCALARS = ["<B", "<b", "<H", "<h", "<I", "<i", "<f", "<?", None, None, "<Q", "<q", "<d"]  # by value type; 8 string, 9 array
STRING, ARRAY = 8, 9


class Reader:
    """Walks over the header."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def scalar(self, code):
        (value,) = struct.unpack_from(code, self.data, self.at)
        self.at += struct.calcsize(code)
        return value

    def string(self):
        length = self.scalar("<Q")
        self.at += length
        return self.data[self.at - length:self.at]

    def value(self, kind):
        if kind == STRING:
            return self.string().decode("utf-8", "replace")
        if kind == ARRAY:
            element, count = self.scalar("<I"), self.scalar("<Q")
            return [self.value(element) for _ in range(count)]
        return self.scalar(SCALARS[kind])


class Gguf:
    """metadata: dict; tensor(name) -> float array [out, in] (or [n])."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        reader = Reader(self.data)
        assert reader.data[:4] == b"GGUF", "not a GGUF file"
        reader.at = 4
        assert reader.scalar("<I") in (2, 3), "GGUF version"
        tensor_count, metadata_count = reader.scalar("<Q"), reader.scalar("<Q")
        self.metadata = {}
        for _ in range(metadata_count):
            key = reader.string().decode()
            self.metadata[key] = reader.value(reader.scalar("<I"))
        self.infos = {}
        for _ in range(tensor_count):
            name = reader.string().decode()
            dims = [reader.scalar("<Q") for _ in range(reader.scalar("<I"))]
            kind, offset = reader.scalar("<I"), reader.scalar("<Q")
            self.infos[name] = (dims[::-1], kind, offset)
        alignment = self.metadata.get("general.alignment", 32)
        self.start = -(-reader.at // alignment) * alignment

    def tensor(self, name, dtype=np.float32):
        shape, kind, offset = self.infos[name]
        unpack, block_bytes, block_values = BLOCKS[kind]
        count = int(np.prod(shape)) // block_values
        raw = np.frombuffer(self.data, np.uint8, count * block_bytes, self.start + offset).reshape(count, block_bytes)
        out = np.empty((count, block_values), dtype)
        for first in range(0, count, 1 << 18):  # in slices: the intermediate arrays of a large embedding would take gigabytes
            out[first:first + (1 << 18)] = unpack(raw[first:first + (1 << 18)])
        return out.reshape(shape)


def half(raw, at):
    """The float16 at byte `at` of every block, as float32 [blocks, 1]. Exact."""
    return np.ascontiguousarray(raw[:, at:at + 2]).view("<f2").astype(np.float32)


def nibbles(quants):
    """[blocks, n] bytes -> low nibbles, then high nibbles."""
    return np.concatenate([quants & 15, quants >> 4], axis=1)


def unpack_f32(raw):
    return np.ascontiguousarray(raw).view("<f4")


def unpack_f16(raw):
    return np.ascontiguousarray(raw).view("<f2").astype(np.float32)


def unpack_q4_1(raw):  # d, m, qs[16]
    return half(raw, 0) * nibbles(raw[:, 4:20]) + half(raw, 2)


def unpack_q5_0(raw):  # d, qh u32, qs[16]
    high = np.unpackbits(raw[:, 2:6], axis=1, bitorder="little")
    return half(raw, 0) * ((nibbles(raw[:, 6:22]) | high << 4).astype(np.float32) - 16)


def unpack_q8_0(raw):  # d, i8 qs[32]
    return half(raw, 0) * raw[:, 2:34].view(np.int8)


def unpack_q4_k(raw):  # d, dmin, scales[12], qs[128]: eight runs of 32 values with a 6-bit scale and a 6-bit minimum each
    s = raw[:, 4:16]
    scale = np.concatenate([s[:, 0:4] & 63, (s[:, 8:12] & 15) | (s[:, 0:4] >> 6) << 4], axis=1)
    minimum = np.concatenate([s[:, 4:8] & 63, (s[:, 8:12] >> 4) | (s[:, 4:8] >> 6) << 4], axis=1)
    pairs = raw[:, 16:144].reshape(-1, 4, 32)  # bytes of runs (0, 1), (2, 3), ...
    quants = np.stack([pairs & 15, pairs >> 4], axis=2).reshape(-1, 8, 32)
    values = (half(raw, 0) * scale)[:, :, None] * quants - (half(raw, 2) * minimum)[:, :, None]
    return values.reshape(-1, 256)


def unpack_q6_k(raw):  # ql[128], qh[64], i8 scales[16], d: two halves of four runs of 32 values; one scale for 16
    ql, qh = raw[:, 0:128].reshape(-1, 2, 2, 32), raw[:, 128:192].reshape(-1, 2, 1, 32)
    low = np.concatenate([ql & 15, ql >> 4], axis=2)  # [blocks, half, run, 32]
    high = (qh >> np.array([0, 2, 4, 6], np.uint8)[:, None]) & 3
    quants = (low | high << 4).astype(np.float32) - 32
    scale = half(raw, 208) * raw[:, 192:208].view(np.int8)
    return (scale[:, :, None] * quants.reshape(-1, 16, 16)).reshape(-1, 256)


BLOCKS = {  # ggml's type number -> (meaning, bytes, values) of a block
    0: (unpack_f32, 4, 1),
    1: (unpack_f16, 2, 1),
    3: (unpack_q4_1, 20, 32),
    6: (unpack_q5_0, 22, 32),
    8: (unpack_q8_0, 34, 32),
    12: (unpack_q4_k, 144, 256),
    14: (unpack_q6_k, 210, 256),
}
