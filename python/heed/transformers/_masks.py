# SPDX-License-Identifier: Apache-2.0
"""The mask function of heed in transformers: patterns that heed knows stay patterns, others become tensors."""

from __future__ import annotations

from typing import Any, Callable, Iterator, Optional

import torch

import heed
from heed.torch._attention import both

Tensor = torch.Tensor

_MASKING = "transformers.masking_utils"


class LazyMask(torch.Tensor):
    """A [B, 1, Lq, Lk] tensor that is only described, boolean or added. Whoever computes with it gets the real one; attention reads the description.

    Models hand the mask on as a tensor, and some slice or move it; so this is one, of a single byte of memory.
    """

    mask: Optional[heed.Mask]
    query_offset: int
    build: Callable[[], Tensor]

    @staticmethod
    def make(shape: tuple[int, int, int, int], mask: Optional[heed.Mask], query_offset: int, build: Callable[[], Tensor],
             dtype: torch.dtype = torch.bool) -> LazyMask:  # fmt: skip
        lazy = torch.ones((), dtype=dtype).expand(shape).as_subclass(LazyMask)
        lazy.mask, lazy.query_offset, lazy.build = mask, query_offset, build
        return lazy

    _DESCRIBES = {
        torch.Tensor.shape.__get__, torch.Tensor.dtype.__get__, torch.Tensor.device.__get__, torch.Tensor.ndim.__get__,
        torch.Tensor.layout.__get__, torch.Tensor.requires_grad.__get__, torch.Tensor.is_cpu.__get__, torch.Tensor.dim, torch.Tensor.size,
        torch.Tensor.numel, torch.Tensor.__len__, torch.Tensor.is_floating_point, torch.is_floating_point,
        # torch.compile holds these against the memory there is:
        torch.Tensor.stride, torch.Tensor.storage_offset, torch.Tensor._is_view, torch.Tensor._base.__get__,
    }  # fmt: skip

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, arguments: tuple = (), options: Optional[dict] = None) -> Any:
        options = options or {}
        if function not in cls._DESCRIBES:
            arguments = torch.utils._pytree.tree_map_only(LazyMask, _real, arguments)
            options = torch.utils._pytree.tree_map_only(LazyMask, _real, options)
        with torch._C.DisableTorchFunctionSubclass():
            return function(*arguments, **options)


def _real(lazy: LazyMask) -> Tensor:
    return lazy.build()


def _subclasses(parent: type) -> Iterator[type]:
    for child in parent.__subclasses__():
        yield child
        yield from _subclasses(child)


_adding: dict[type, bool] = {}


@torch.compiler.assume_constant_result
def _adds_its_mask(config_type: type) -> bool:
    """Whether no model of this configuration takes `sdpa`, whose masks are boolean.

    Whatever such models do with a mask in their own code, they do as with `eager`: BLOOM, MPT, RemBERT and others add it to the scores,
    DeepSeek V4 puts a bias for its compressed keys behind it. Of a boolean mask either would make a shift by 1 that hides nothing.
    """
    if config_type not in _adding:
        from transformers import PreTrainedModel

        own = [model for model in _subclasses(PreTrainedModel) if getattr(model, "config_class", None) in config_type.__mro__]
        _adding[config_type] = bool(own) and not any(getattr(model, "_supports_sdpa", False) for model in own)
    return _adding[config_type]


def _free_variables(function: Callable) -> dict[str, Any]:
    cells = function.__closure__ or ()
    return {name: cell.cell_contents for name, cell in zip(function.__code__.co_freevars, cells)}


def _translate(function: Callable, length: Optional[int]) -> Optional[heed.Mask]:
    """A mask function of transformers as a heed.Mask over positions; raises LookupError for one that is not known.

    `length`: of queries and of keys, where both are all the positions from 0 on, so that positions are indices; else None.
    """
    if getattr(function, "__module__", None) != _MASKING:
        raise LookupError
    name, variables = function.__qualname__, _free_variables(function)
    if name == "causal_mask_function":
        return heed.Mask.causal()
    if name == "bidirectional_mask_function":
        return heed.Mask.none()
    if name == "and_masks.<locals>.and_mask":
        mask = None
        for part in variables["mask_functions"]:
            mask = both(mask, _translate(part, length))
        return mask
    if name == "sliding_window_overlay.<locals>.inner_mask" and variables["sliding_window"] > 0:
        return heed.Mask.window(variables["sliding_window"] - 1, None)
    if name == "sliding_window_bidirectional_overlay.<locals>.inner_mask":
        return _bidirectional_window(function, variables["sliding_window"])
    if name == "packed_sequence_mask_function.<locals>.inner_mask" and variables["packed_sequence_mask"].shape[-1] == length:
        return heed.Mask.documents(variables["packed_sequence_mask"].to(torch.int64).contiguous())
    if name == "remap_positions_for_packed_sequence.<locals>.inner_mask" and variables["position_ids"].shape[-1] == length:
        # Always beside packed_sequence_mask_function, which splits wherever positions do not rise by 1: inside, distances stay the same.
        # Chunks know positions, not distances: not these (hence None).
        return _translate(variables["mask_function"], None)
    if name == "chunked_overlay.<locals>.inner_mask" and length is not None:
        return _chunks(variables["chunk_size"], variables.get("left_padding"), length)
    raise LookupError


def _bidirectional_window(function: Callable, window: int) -> heed.Mask:
    """Measured rather than assumed: versions differ in whether the last distance is seen."""
    reach = [distance for distance in range(window + 2) if bool(function(0, 0, distance, 0))]
    ahead = [distance for distance in range(window + 2) if bool(function(0, 0, 0, distance))]
    if not reach or not ahead or reach != list(range(len(reach))) or ahead != list(range(len(ahead))):
        raise LookupError
    return heed.Mask.window(reach[-1], ahead[-1])


def _chunks(size: int, left_padding: Optional[Tensor], length: int) -> heed.Mask:
    """Positions, counted behind the padding, that are in the same chunk."""
    positions = torch.arange(length)
    if left_padding is not None:
        positions = positions - left_padding.reshape(-1, 1)
    return heed.Mask.documents((positions // size).to(torch.int64).contiguous())


def _padding(attention_mask: Optional[Tensor], kv_length: int, kv_offset: int) -> Optional[Tensor]:
    """Boolean [B, kv_length] of the keys that exist; None: all of them."""
    if attention_mask is None:
        return None
    missing = kv_offset + kv_length - attention_mask.shape[-1]
    seen = torch.nn.functional.pad(attention_mask.bool(), (0, missing)) if missing > 0 else attention_mask.bool()
    seen = seen[:, kv_offset : kv_offset + kv_length]
    return None if bool(seen.all()) else seen


def _query_range(q_length: Optional[int], q_offset: Any, cache_position: Optional[Tensor]) -> tuple[int, int]:
    """(length, first position); transformers 4 tells them by the positions themselves."""
    if cache_position is None:
        return int(q_length or 0), int(q_offset)
    return int(cache_position.shape[0]), int(cache_position[0]) if cache_position.numel() > 0 else 0


def make_mask(
    batch_size: int,
    q_length: Optional[int] = None,
    kv_length: int = 0,
    q_offset: Any = 0,
    kv_offset: int = 0,
    mask_function: Optional[Callable] = None,
    attention_mask: Optional[Tensor] = None,
    cache_position: Optional[Tensor] = None,
    **options: Any,
) -> Optional[Tensor]:
    """The mask function of transformers' AttentionMaskInterface: a LazyMask where the pattern is known, else what `sdpa` would get.

    Models that do not take `sdpa` get either of them as `eager` has it, added to the scores.
    """
    from transformers.masking_utils import causal_mask_function, eager_mask, sdpa_mask

    function = causal_mask_function if mask_function is None else mask_function
    queries = dict(q_length=q_length, q_offset=q_offset) if cache_position is None else dict(cache_position=cache_position)
    keys = dict(kv_length=kv_length, kv_offset=kv_offset, attention_mask=attention_mask)
    given = dict(batch_size=batch_size, mask_function=function, **queries, **keys)

    config = options.get("config")
    is_added = config is not None and _adds_its_mask(config.__class__)
    make = eager_mask if is_added else sdpa_mask

    def dense() -> Tensor:
        return make(**{**given, **options, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False})

    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return dense()
    length, first = _query_range(q_length, q_offset, cache_position)
    try:
        mask = _translate(function, length if first == 0 and kv_offset == 0 and length == kv_length else None)
    except LookupError:
        return dense()
    seen = _padding(attention_mask, kv_length, kv_offset)
    if mask == heed.Mask.none():
        if seen is None and options.get("allow_is_bidirectional_skip", False):
            return None
        mask = None
    if seen is not None:
        mask = both(mask, heed.Mask.from_array(seen[:, None, None].contiguous()))
    dtype = options.get("dtype", torch.float32) if is_added else torch.bool
    return LazyMask.make((batch_size, 1, length, kv_length), mask, first - kv_offset, dense, dtype)
