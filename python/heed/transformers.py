# SPDX-License-Identifier: Apache-2.0
"""heed for Hugging Face transformers: `attn_implementation="heed"`.

    import heed.transformers
    heed.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="heed")

Training, generation with every kind of cache, padding, packed sequences, sliding windows, softcap and sinks are what `eager` computes.
Causal and window masks stay what they are, so that no L x L tensor is made and hidden tiles cost nothing.
"""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch

import heed
from heed.torch._attention import attention, both

Tensor = torch.Tensor

_MASKING = "transformers.masking_utils"


class LazyMask(torch.Tensor):
    """A boolean [B, 1, Lq, Lk] tensor that is only described. Whoever computes with it gets the real one; attention reads the description.

    Models hand the mask on as a tensor, and some slice or move it; so this is one, of a single byte of memory.
    """

    mask: Optional[heed.Mask]
    query_offset: int
    build: Callable[[], Tensor]

    @staticmethod
    def make(shape: tuple[int, int, int, int], mask: Optional[heed.Mask], query_offset: int, build: Callable[[], Tensor]) -> LazyMask:
        lazy = torch.ones((), dtype=torch.bool).expand(shape).as_subclass(LazyMask)
        lazy.mask, lazy.query_offset, lazy.build = mask, query_offset, build
        return lazy

    _DESCRIBES = {
        torch.Tensor.shape.__get__, torch.Tensor.dtype.__get__, torch.Tensor.device.__get__, torch.Tensor.ndim.__get__, torch.Tensor.layout.__get__,
        torch.Tensor.requires_grad.__get__, torch.Tensor.is_cpu.__get__, torch.Tensor.dim, torch.Tensor.size, torch.Tensor.numel, torch.Tensor.__len__,
        torch.Tensor.is_floating_point, torch.is_floating_point,
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


def _free_variables(function: Callable) -> dict[str, Any]:
    cells = function.__closure__ or ()
    return {name: cell.cell_contents for name, cell in zip(function.__code__.co_freevars, cells)}


def _translate(function: Callable, from_start: bool) -> Optional[heed.Mask]:
    """A mask function of transformers as a heed.Mask over positions; raises LookupError for one that is not known.

    `from_start`: keys and queries both start at position 0, so that positions are indices.
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
            mask = both(mask, _translate(part, from_start))
        return mask
    if name == "sliding_window_overlay.<locals>.inner_mask":
        return heed.Mask.window(variables["sliding_window"] - 1, None)
    if name == "sliding_window_bidirectional_overlay.<locals>.inner_mask":
        return _bidirectional_window(function, variables["sliding_window"])
    if name == "packed_sequence_mask_function.<locals>.inner_mask" and from_start:
        return heed.Mask.documents(variables["packed_sequence_mask"].to(torch.int64).contiguous())
    if name == "remap_positions_for_packed_sequence.<locals>.inner_mask" and from_start:
        return _translate(variables["mask_function"], from_start)  # always beside packed_sequence_mask_function: distances stay the same
    raise LookupError


def _bidirectional_window(function: Callable, window: int) -> heed.Mask:
    """Measured rather than assumed: versions differ in whether the last distance is seen."""
    reach = [distance for distance in range(window + 2) if bool(function(0, 0, distance, 0))]
    ahead = [distance for distance in range(window + 2) if bool(function(0, 0, 0, distance))]
    if not reach or not ahead or reach != list(range(len(reach))) or ahead != list(range(len(ahead))):
        raise LookupError
    return heed.Mask.window(reach[-1], ahead[-1])


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
    """The mask function of transformers' AttentionMaskInterface: a LazyMask where the pattern is known, else what `sdpa` would get."""
    from transformers.masking_utils import causal_mask_function, sdpa_mask

    function = causal_mask_function if mask_function is None else mask_function
    queries = dict(q_length=q_length, q_offset=q_offset) if cache_position is None else dict(cache_position=cache_position)
    skips = dict(allow_is_causal_skip=False, allow_is_bidirectional_skip=False)

    def dense() -> Tensor:
        return sdpa_mask(batch_size=batch_size, kv_length=kv_length, kv_offset=kv_offset, mask_function=function,
                         attention_mask=attention_mask, **{**queries, **options, **skips})  # fmt: skip

    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return dense()
    length, first = _query_range(q_length, q_offset, cache_position)
    try:
        mask = _translate(function, from_start=first == 0 and kv_offset == 0)
    except LookupError:
        return dense()
    seen = _padding(attention_mask, kv_length, kv_offset)
    if mask == heed.Mask.none():
        if seen is None and options.get("allow_is_bidirectional_skip", False):
            return None
        mask = None
    if seen is not None:
        mask = both(mask, heed.Mask.from_array(seen[:, None, None].contiguous()))
    return LazyMask.make((batch_size, 1, length, kv_length), mask, first - kv_offset, dense)


def _from_tensor(mask: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """A mask that the model made itself: boolean, or added to the scores; cut to the keys there are."""
    if mask.dim() == 2:
        mask = mask[:, None, None].bool()
    mask = mask[..., : key.shape[2]]
    if mask.dtype in (torch.bool, torch.float32, query.dtype):
        return mask
    return mask.to(query.dtype) if mask.is_floating_point() else mask.bool()


def _add_position_bias(bias: Optional[Tensor], position_bias: Optional[Tensor], query: Tensor) -> Optional[Tensor]:
    if position_bias is None:
        return bias
    if bias is None:
        return position_bias.to(query.dtype)
    if bias.dtype == torch.bool:
        return torch.where(bias, position_bias, -torch.inf).to(query.dtype)
    return (bias + position_bias).to(query.dtype)


def heed_attention_forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Optional[Tensor],
    dropout: float = 0.0,
    scaling: Optional[float] = None,
    is_causal: Optional[bool] = None,
    softcap: Optional[float] = None,
    s_aux: Optional[Tensor] = None,
    sliding_window: Optional[int] = None,
    position_bias: Optional[Tensor] = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """The attention function of transformers' AttentionInterface: query [B, Hq, Lq, D], key and value [B, Hkv, Lk, D].

    Returns (out [B, Lq, Hq, Dv], None): there are no attention weights to return; ask `eager` for these.
    """
    mask, offset, align, bias = None, None, "bottom_right", None
    if isinstance(attention_mask, LazyMask):
        mask, offset = attention_mask.mask, attention_mask.query_offset
    elif attention_mask is not None:
        bias = _from_tensor(attention_mask, query, key)
    elif query.shape[2] > 1 and (getattr(module, "is_causal", True) if is_causal is None else is_causal):
        mask, align = heed.Mask.causal(), "top_left"  # as sdpa has it, for a prompt in an empty cache of more slots
        if sliding_window is not None:
            mask = mask & heed.Mask.sliding_window(sliding_window)
    sinks = None if s_aux is None else s_aux.to(torch.float64 if query.dtype == torch.float64 else torch.float32)
    traced = torch.compiler.is_compiling()
    out = attention(
        query, key, value, mask=str(mask) if traced and mask is not None else mask, align=align, scale=scaling, softcap=softcap,
        bias=_add_position_bias(bias, position_bias, query), sink_logits=sinks, query_offset=offset, dropout_p=dropout, layout="BHLD",
    )  # fmt: skip
    return out.transpose(1, 2).contiguous(), None


def register() -> None:
    """Makes `attn_implementation="heed"` known to transformers, its masks included. A second call changes nothing.

    Raises RuntimeError where transformers is missing or older than 4.53.

    >>> import heed.transformers
    >>> heed.transformers.register()
    >>> from transformers import AttentionInterface
    >>> "heed" in AttentionInterface().valid_keys()
    True
    """
    try:
        from transformers import AttentionInterface
        from transformers.masking_utils import AttentionMaskInterface
    except ImportError as error:
        raise RuntimeError("heed.transformers needs transformers 4.53 or later: pip install -U transformers") from error
    AttentionInterface.register("heed", heed_attention_forward)
    AttentionMaskInterface.register("heed", make_mask)
