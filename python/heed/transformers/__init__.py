# SPDX-License-Identifier: Apache-2.0
"""heed for Hugging Face transformers: `attn_implementation="heed"`.

    import heed.transformers
    heed.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="heed")

Training, generation with every kind of cache, padding, packed sequences, sliding windows, softcap and sinks are what `eager` computes.
Causal and window masks stay what they are, so that no L x L tensor is made and hidden tiles cost nothing.

Models that never ask for an attention by name (BLOOM, MPT, RemBERT, ...) go on in their own code, as with `eager`. Those with a table of
their own, such as Falcon and GPT-Neo, raise a KeyError of transformers' when they are built.
"""

from __future__ import annotations

from heed.transformers._attention import heed_attention_forward
from heed.transformers._masks import LazyMask, make_mask

__all__ = ["LazyMask", "heed_attention_forward", "make_mask", "register"]


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
