# SPDX-License-Identifier: Apache-2.0
"""Small models of Hugging Face transformers, built from their configurations with random weights, and a plain attention to compare with."""

import copy

import torch
import transformers
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, eager_mask

import heed.transformers

SMALL = dict(vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, max_position_embeddings=128)
GROUPED = dict(SMALL, num_key_value_heads=2)
DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob", "attn_pdrop", "embd_pdrop", "resid_pdrop", "attention_dropout",
            "dropout", "dropout_rate")  # fmt: skip


def plain_attention(module, query, key, value, attention_mask, scaling=None, softcap=None, s_aux=None, **options):
    """The formula in the type of its inputs; transformers' own eager functions take the softmax in float32, whatever the model has."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    scores = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if attention_mask is not None:
        scores = scores + attention_mask[..., : key.shape[2]]
    if s_aux is not None:
        scores = torch.cat([scores, s_aux.to(scores.dtype).reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)], dim=-1)
    return (torch.softmax(scores, dim=-1)[..., : key.shape[2]] @ value).transpose(1, 2).contiguous(), None


AttentionInterface.register("plain", plain_attention)
AttentionMaskInterface.register("plain", eager_mask)
heed.transformers.register()


def configurations():
    t = transformers
    yield "llama", t.LlamaForCausalLM, t.LlamaConfig(**GROUPED)
    yield "mistral", t.MistralForCausalLM, t.MistralConfig(**GROUPED, sliding_window=7)
    yield "gemma2", t.Gemma2ForCausalLM, t.Gemma2Config(
        **GROUPED, head_dim=16, sliding_window=6, attn_logit_softcapping=5.0, query_pre_attn_scalar=16,
        final_logit_softcapping=None)  # fmt: skip
    yield "qwen3", t.Qwen3ForCausalLM, t.Qwen3Config(**GROUPED, head_dim=16)
    yield "gpt2", t.GPT2LMHeadModel, t.GPT2Config(
        vocab_size=96, n_embd=64, n_layer=2, n_head=4, n_positions=128, bos_token_id=1, eos_token_id=2)  # fmt: skip
    yield "bert", t.BertForMaskedLM, t.BertConfig(**SMALL)
    if hasattr(t, "GptOssConfig"):
        yield "gpt_oss", t.GptOssForCausalLM, t.GptOssConfig(
            **dict(GROUPED, num_hidden_layers=2), head_dim=16, sliding_window=5, num_local_experts=2, num_experts_per_tok=1,
            layer_types=["sliding_attention", "full_attention"])  # fmt: skip


CASES = {name: (model, config) for name, model, config in configurations()}
DECODERS = [name for name in CASES if name != "bert"]


def build(model_class, config, implementation, dtype=torch.float32):
    """Its configuration is a copy: transformers 5 would let two models share one, and with it the attention that was asked for last."""
    config = copy.deepcopy(config)
    for key in DROPOUTS:
        if hasattr(config, key):
            setattr(config, key, 0.0)
    torch.manual_seed(0)
    model = model_class._from_config(config, attn_implementation=implementation).to(dtype).eval()
    assert model.config._attn_implementation == implementation
    if getattr(model, "generation_config", None) is not None:
        model.generation_config.pad_token_id = 0
        model.generation_config.eos_token_id = None
    return model


def both_ways(model_class, config, dtype=torch.float32, other="eager"):
    """The same model twice, the second one with heed."""
    theirs, ours = build(model_class, config, other, dtype), build(model_class, config, "heed", dtype)
    with torch.no_grad():
        for parameter in theirs.parameters():  # scores as trained models have them: with weights of 0.02 any attention is a mean
            if parameter.dim() > 1:
                parameter.normal_(std=0.12)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def pair(name, dtype=torch.float32, other="eager"):
    return both_ways(*CASES[name], dtype, other)


def tokens(batch, length, seed=0):
    return torch.randint(3, 96, (batch, length), generator=torch.Generator().manual_seed(seed))


def padding(batch, length, counts, side="left"):
    mask = torch.ones(batch, length, dtype=torch.long)
    for row, count in enumerate(counts):
        mask[row, slice(0, count) if side == "left" else slice(length - count, length)] = 0
    return mask


def close(got, want, dtype=torch.float32):
    tolerance = {torch.float64: 1e-11, torch.float32: 1e-5}[dtype]
    error, size = (got - want).abs().max().item(), max(1.0, want.abs().max().item())
    assert error <= tolerance * size, f"{error:.2e} of {size:.2e}"


def same_gradients(theirs, ours, dtype=torch.float32):
    compared = 0
    for (key, p), q in zip(theirs.named_parameters(), ours.parameters()):
        assert (p.grad is None) == (q.grad is None), key
        if p.grad is not None:
            close(q.grad, p.grad, dtype)
            compared += 1
    assert compared > 0


def heed_calls(monkeypatch):
    """A list that grows by one with every call of heed's attention."""
    calls, function = [], AttentionInterface._global_mapping["heed"]
    monkeypatch.setitem(AttentionInterface._global_mapping, "heed", lambda *a, **k: calls.append(1) or function(*a, **k))
    return calls
