# SPDX-License-Identifier: Apache-2.0
"""An ONNX model of one GroupQueryAttention node as protobuf bytes, without the `onnx` package. Field numbers: onnx.proto."""

from __future__ import annotations

FLOAT, INT32 = 1, 6  # TensorProto.DataType
_INT_ATTRIBUTE = 2  # AttributeProto.AttributeType.INT


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _field(number: int, payload: int | str | bytes) -> bytes:
    if isinstance(payload, int):
        return _varint(number << 3) + _varint(payload)
    data = payload.encode() if isinstance(payload, str) else payload
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _value_info(name: str, element: int, shape: tuple) -> bytes:
    dimensions = b"".join(_field(1, _field(2 if isinstance(size, str) else 1, size)) for size in shape)
    return _field(1, name) + _field(2, _field(1, _field(1, element) + _field(2, dimensions)))


def _attribute(name: str, value: int) -> bytes:
    return _field(1, name) + _field(3, value) + _field(20, _INT_ATTRIBUTE)


def gqa_model(q_heads: int, kv_heads: int, head_dim: int, window: int | None = None) -> bytes:
    """com.microsoft.GroupQueryAttention, float32, causal at the end of the cache: q [B, S, Hq * D], k, v [B, S, Hkv * D] are appended to
    past_key, past_value [B, Hkv, P, D]; seqlens_k int32 [B] is the total length less one, total int32 [1] the longest total length.
    """
    cache = ("B", kv_heads, "P", head_dim)
    inputs = [
        ("q", FLOAT, ("B", "S", q_heads * head_dim)),
        ("k", FLOAT, ("B", "S", kv_heads * head_dim)),
        ("v", FLOAT, ("B", "S", kv_heads * head_dim)),
        ("past_key", FLOAT, cache),
        ("past_value", FLOAT, cache),
        ("seqlens_k", INT32, ("B",)),
        ("total", INT32, (1,)),
    ]
    present = ("B", kv_heads, "T", head_dim)
    outputs = [("out", FLOAT, ("B", "S", q_heads * head_dim)), ("present_key", FLOAT, present), ("present_value", FLOAT, present)]
    attributes = {"num_heads": q_heads, "kv_num_heads": kv_heads, **({} if window is None else {"local_window_size": window})}
    node = b"".join(_field(1, name) for name, _, _ in inputs) + b"".join(_field(2, name) for name, _, _ in outputs)
    node += _field(4, "GroupQueryAttention") + _field(7, "com.microsoft")
    node += b"".join(_field(5, _attribute(name, value)) for name, value in attributes.items())
    graph = _field(1, node) + _field(2, "attention")
    graph += b"".join(_field(11, _value_info(*x)) for x in inputs) + b"".join(_field(12, _value_info(*x)) for x in outputs)
    opsets = _field(8, _field(2, 17)) + _field(8, _field(1, "com.microsoft") + _field(2, 1))
    return _field(1, 8) + _field(7, graph) + opsets
