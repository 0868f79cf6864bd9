# SPDX-License-Identifier: Apache-2.0
"""Arrays of several libraries: what the extension reads, and results of the caller's kind. Nothing is copied on the way in."""

from __future__ import annotations

import sys
from typing import Any, Sequence

import numpy as np

Argument = Any
"""What heed._core takes: an object with a buffer or `__dlpack__`, or (address, dtype name, shape, strides in elements)."""


def _bfloat16() -> np.dtype:
    import ml_dtypes  # whoever has a bfloat16 NumPy array has this

    return np.dtype(ml_dtypes.bfloat16)


def _raw_numpy(x: np.ndarray, dtype: str, name: str) -> Argument:
    width = x.dtype.itemsize
    if any(stride % width for stride in x.strides):
        raise ValueError(f"{name}: strides that are no multiple of the element size are not supported")
    address = np.ndarray.__array_interface__.__get__(x)["data"][0]  # not a subclass's own idea of it
    return address, dtype, x.shape, tuple(stride // width for stride in x.strides)


class NumPyArrays:
    """numpy.ndarray; bfloat16 by ml_dtypes, whose arrays offer neither DLPack nor a buffer."""

    @staticmethod
    def argument(x: Any, name: str) -> Argument:
        return _raw_numpy(x, "bfloat16", name) if x.dtype.name == "bfloat16" else x

    @staticmethod
    def output(x: Any, name: str) -> Argument:
        if not x.flags.writeable:  # a raw address does not tell
            raise ValueError(f"{name}: expected a writable array, got a read-only one")
        return NumPyArrays.argument(x, name)

    @staticmethod
    def dtype_name(x: Any) -> str:
        return x.dtype.name

    @staticmethod
    def empty(like: Any, shape: Sequence[int], dtype: str | None = None) -> Any:
        numpy_dtype = like.dtype if dtype is None else np.dtype(dtype)
        order = "K" if like.ndim == len(shape) else "C"
        return np.empty_like(like, dtype=numpy_dtype, order=order, subok=False, shape=tuple(shape))

    @staticmethod
    def finish(memory: Any, like: Any) -> Any:
        return memory

    @staticmethod
    def from_numpy(x: np.ndarray, dtype: str, like: Any) -> Any:
        return x.view(_bfloat16()) if dtype == "bfloat16" else x


class TorchArrays:
    """torch.Tensor, on the CPU."""

    @staticmethod
    def argument(x: Any, name: str) -> Argument:
        if x.requires_grad:
            raise TypeError(f"{name}: a tensor that requires grad would lose it here; use heed.torch, or {name}.detach()")
        return TorchArrays.raw(x, name)

    @staticmethod
    def raw(x: Any, name: str) -> Argument:
        """Without a question about gradients, and in a tenth of DLPack's time."""
        if x.device.type != "cpu":
            raise TypeError(f"{name}: expected a tensor on the CPU, got one on {x.device}")
        if sys.modules["torch"]._C._is_tracing():  # it would record the empty memory of the result
            raise TypeError(f"{name}: torch.jit.trace cannot record this call; use heed.torch")
        if x.is_neg():  # the imaginary part of a conjugate: its memory holds other numbers than it shows
            raise TypeError(f"{name}: a lazily negated view; use {name}.resolve_neg()")
        try:
            return x.data_ptr(), str(x.dtype)[6:], x.shape, x.stride()
        except RuntimeError as error:  # sparse, nested, mkldnn, under a torch.func transform
            raise TypeError(f"{name}: expected a dense tensor with memory, got {type(x).__name__} of layout {x.layout}: {error}") from None

    @staticmethod
    def output(x: Any, name: str) -> Argument:
        return TorchArrays.argument(x, name)

    @staticmethod
    def dtype_name(x: Any) -> str:
        return str(x.dtype)[6:]

    @staticmethod
    def empty(like: Any, shape: Sequence[int], dtype: str | None = None) -> Any:
        torch = sys.modules["torch"]
        torch_dtype = like.dtype if dtype is None else getattr(torch, dtype)
        if tuple(shape) == tuple(like.shape):
            return torch.empty_like(like, dtype=torch_dtype, requires_grad=False)
        if len(shape) != like.dim():
            return like.new_empty(tuple(shape), dtype=torch_dtype)
        order = sorted(range(len(shape)), key=lambda axis: -like.stride(axis))
        memory = like.new_empty([shape[axis] for axis in order], dtype=torch_dtype)
        return memory.permute([order.index(axis) for axis in range(len(shape))])

    @staticmethod
    def finish(memory: Any, like: Any) -> Any:
        return memory

    @staticmethod
    def from_numpy(x: np.ndarray, dtype: str, like: Any) -> Any:
        torch = sys.modules["torch"]
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) if dtype == "bfloat16" else torch.from_numpy(x)


class OtherArrays:
    """Any library of the array API standard, JAX among them: results are NumPy memory, handed over at the end."""

    @staticmethod
    def argument(x: Any, name: str) -> Argument:
        return x if not isinstance(x, np.ndarray) else NumPyArrays.argument(x, name)

    @staticmethod
    def output(x: Any, name: str) -> Argument:
        return OtherArrays.argument(x, name)

    @staticmethod
    def dtype_name(x: Any) -> str:
        return getattr(x.dtype, "name", str(x.dtype))

    @staticmethod
    def empty(like: Any, shape: Sequence[int], dtype: str | None = None) -> Any:
        name = OtherArrays.dtype_name(like) if dtype is None else dtype
        return np.empty(tuple(shape), _bfloat16() if name == "bfloat16" else np.dtype(name))

    @staticmethod
    def finish(memory: Any, like: Any) -> Any:
        return like.__array_namespace__().asarray(memory) if isinstance(memory, np.ndarray) else memory

    @staticmethod
    def from_numpy(x: np.ndarray, dtype: str, like: Any) -> Any:
        return OtherArrays.finish(NumPyArrays.from_numpy(x, dtype, like), like)


def family_of(x: Any, name: str) -> Any:
    """How to read and make arrays of x's kind."""
    if isinstance(x, np.ndarray):
        return NumPyArrays
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return TorchArrays
    if hasattr(x, "__dlpack__") and hasattr(x, "__array_namespace__"):
        return OtherArrays
    raise TypeError(f"{name}: expected an array (numpy, torch, jax, or another with __dlpack__), got {type(x).__name__}")


def same_family(family: Any, **arrays: Any) -> None:
    """Raises TypeError naming the array of another kind."""
    for name, x in arrays.items():
        other = family_of(x, name)
        if other is not family:
            raise TypeError(f"{name}: expected the same kind of array as q, got {type(x).__name__}")


_KINDS = {"i": ("iu", "integers"), "f": ("iuf", "numbers"), "b": ("b", "booleans")}  # by kind of dtype: what it may be made of


def _from_numbers(x: Any, name: str, dtype: np.dtype) -> np.ndarray:
    """Numbers as an array of `dtype`; nothing is cut off on the way."""
    kinds, expected = _KINDS[dtype.kind]
    try:
        given = np.atleast_1d(np.asarray(x))
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"{name}: expected {expected}, nested evenly, or an array: {error}") from None
    if given.size and given.dtype.kind not in kinds:
        raise TypeError(f"{name}: expected {expected} or an array, got {x!r:.60}")
    if isinstance(x, memoryview):
        return given
    numbers = given.astype(dtype)
    if dtype.kind == "i" and (numbers < 0).any() and given.dtype.kind == "u":
        raise ValueError(f"{name}: expected integers below 2**63, got {x!r:.60}")
    return numbers


def option(x: Any, name: str, dtype: Any) -> Argument:
    """An optional array of any kind; numbers and lists become arrays of `dtype`."""
    if x is None:
        return None
    if isinstance(x, (int, float, list, tuple, np.generic, memoryview)):
        return _from_numbers(x, name, np.dtype(dtype))
    return family_of(x, name).argument(x, name)
