# SPDX-License-Identifier: Apache-2.0
"""attn_implementation="heed" against "eager": small models built from their configurations, with random weights."""

import copy
import os

os.environ["HF_HUB_OFFLINE"] = "1"
import pytest  # noqa: E402

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import heed.transformers  # noqa: E402

SMALL = dict(vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, max_position_embeddings=128)
GROUPED = dict(SMALL, num_key_value_heads=2)


def configurations():
    t = transformers
    yield "llama", t.LlamaForCausalLM, t.LlamaConfig(**GROUPED)
    yield "mistral", t.MistralForCausalLM, t.MistralConfig(**GROUPED, sliding_window=7)
    yield "gemma2", t.Gemma2ForCausalLM, t.Gemma2Config(
        **GROUPED, head_dim=16, sliding_window=6, attn_logit_softcapping=5.0, query_pre_attn_scalar=16, final_logit_softcapping=None)  # fmt: skip
    yield "qwen3", t.Qwen3ForCausalLM, t.Qwen3Config(**GROUPED, head_dim=16)
    yield "gpt2", t.GPT2LMHeadModel, t.GPT2Config(vocab_size=96, n_embd=64, n_layer=2, n_head=4, n_positions=128, bos_token_id=1, eos_token_id=2)
    yield "bert", t.BertForMaskedLM, t.BertConfig(**SMALL)
    if hasattr(t, "GptOssConfig"):
        yield "gpt_oss", t.GptOssForCausalLM, t.GptOssConfig(
            **dict(GROUPED, num_hidden_layers=2), head_dim=16, sliding_window=5, num_local_experts=2, num_experts_per_tok=1,
            layer_types=["sliding_attention", "full_attention"])  # fmt: skip


CASES = {name: (model, config) for name, model, config in configurations()}
DECODERS = [name for name in CASES if name != "bert"]
heed.transformers.register()


def build(name, implementation, dtype=torch.float32):
    """Its configuration is a copy: transformers 5 would let two models share one, and with it the attention that was asked for last."""
    model_class, config = CASES[name][0], copy.deepcopy(CASES[name][1])
    for key in ("hidden_dropout_prob", "attention_probs_dropout_prob", "attn_pdrop", "embd_pdrop", "resid_pdrop", "attention_dropout"):
        if hasattr(config, key):
            setattr(config, key, 0.0)
    torch.manual_seed(0)
    model = model_class._from_config(config, attn_implementation=implementation).to(dtype).eval()
    assert model.config._attn_implementation == implementation
    if name != "bert":
        model.generation_config.pad_token_id = 0
        model.generation_config.eos_token_id = None
    return model


def pair(name, dtype=torch.float32):
    """The same model twice, one of them with heed."""
    eager, ours = build(name, "eager", dtype), build(name, "heed", dtype)
    with torch.no_grad():
        for parameter in eager.parameters():  # scores of the size that trained models have: with weights of 0.02 any attention is a mean
            if parameter.dim() > 1:
                parameter.mul_(5.0)
    ours.load_state_dict(eager.state_dict())
    return eager, ours


@pytest.mark.parametrize("name", list(CASES))
def test_the_two_models_compared_differ_in_their_attention(name, monkeypatch):
    calls = []
    function = transformers.AttentionInterface._global_mapping["heed"]
    monkeypatch.setitem(transformers.AttentionInterface._global_mapping, "heed", lambda *a, **k: calls.append(1) or function(*a, **k))
    eager, ours = pair(name)
    assert eager.config is not ours.config
    eager(input_ids=tokens(1, 8))
    assert not calls
    ours(input_ids=tokens(1, 8))
    assert len(calls) == ours.config.num_hidden_layers


def tokens(batch, length, seed=0):
    return torch.randint(3, 96, (batch, length), generator=torch.Generator().manual_seed(seed))


def close(got, want, dtype=torch.float32):
    tolerance = {torch.float64: 1e-10, torch.float32: 2e-5}[dtype]
    assert (got - want).abs().max() <= tolerance * max(1.0, want.abs().max())


# The experts of gpt-oss have no float64 product in torch.
@pytest.mark.parametrize("name, dtype", [(n, d) for n in CASES for d in (torch.float32, torch.float64) if n != "gpt_oss" or d == torch.float32])
def test_logits_and_training_gradients(name, dtype):
    eager, ours = pair(name, dtype)
    ids = tokens(2, 21)
    losses = []
    for model in (eager, ours):
        model.train()
        result = model(input_ids=ids, labels=ids)
        result.loss.backward()
        losses.append(result)
    close(losses[1].logits, losses[0].logits, dtype)
    for (key, p), q in zip(eager.named_parameters(), ours.parameters()):
        if p.grad is not None:
            assert q.grad is not None, key
            close(q.grad, p.grad, dtype)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", list(CASES))
def test_padded_batches(name, side):
    eager, ours = pair(name)
    ids, mask = tokens(3, 19), torch.ones(3, 19, dtype=torch.long)
    for row, count in enumerate((0, 4, 11)):
        mask[row, slice(0, count) if side == "left" else slice(19 - count, 19)] = 0
    with torch.no_grad():
        want, got = (model(input_ids=ids, attention_mask=mask).logits for model in (eager, ours))
    close(got[mask.bool()], want[mask.bool()])


@pytest.mark.parametrize("name", DECODERS)
def test_greedy_generation_with_a_cache(name):
    eager, ours = pair(name)
    ids, mask = tokens(2, 9), torch.ones(2, 9, dtype=torch.long)
    mask[0, :3] = 0
    options = dict(attention_mask=mask, max_new_tokens=14, do_sample=False, output_logits=True, return_dict_in_generate=True)
    want, got = (model.generate(ids, **options) for model in (eager, ours))
    assert torch.equal(got.sequences, want.sequences)
    for g, w in zip(got.logits, want.logits):
        close(g, w)


def test_static_cache():
    eager, ours = pair("llama")
    ids = tokens(2, 9)
    options = dict(max_new_tokens=12, do_sample=False, cache_implementation="static", disable_compile=True)
    assert torch.equal(ours.generate(ids, **options), eager.generate(ids, **options))


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2"])
def test_chunked_prefill_on_a_cache(name):
    eager, ours = pair(name)
    ids, results = tokens(2, 24), []
    with torch.no_grad():
        for model in (eager, ours):
            cache = transformers.DynamicCache(config=model.config)
            logits = [model(input_ids=part, past_key_values=cache).logits for part in ids.split([9, 1, 8, 6], dim=1)]
            results.append(torch.cat(logits, 1))
        whole = ours(input_ids=ids).logits
    close(results[1], results[0])
    close(whole, results[0])


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_packed_sequences_by_position_ids(name):
    eager, ours = pair(name)
    ids, positions = tokens(1, 20), torch.cat([torch.arange(n) for n in (6, 9, 5)])[None]
    with torch.no_grad():
        want, got = (model(input_ids=ids, position_ids=positions, use_cache=False).logits for model in (eager, ours))
        alone = ours(input_ids=ids[:, 6:15]).logits
    close(got, want)
    close(got[:, 6:15], alone)


def test_masks_of_the_models_own_making():
    eager, ours = pair("llama")
    ids = tokens(2, 10)
    visible = torch.ones(10, 10).tril().bool() & (torch.rand(2, 1, 10, 10, generator=torch.Generator().manual_seed(1)) > 0.3)
    visible |= torch.eye(10, dtype=torch.bool)
    added = torch.zeros(visible.shape).masked_fill(~visible, torch.finfo(torch.float32).min)
    with torch.no_grad():
        want = eager(input_ids=ids, attention_mask=added).logits
        close(ours(input_ids=ids, attention_mask=added).logits, want)
        close(ours(input_ids=ids, attention_mask=visible).logits, want)


def masking_arguments(**changes):
    from transformers.masking_utils import causal_mask_function

    return {**dict(batch_size=2, q_length=5, kv_length=9, q_offset=4, kv_offset=0, mask_function=causal_mask_function), **changes}


def test_no_square_tensor_is_made_for_known_patterns():
    from transformers import masking_utils as m

    for function in (m.causal_mask_function, m.sliding_window_causal_mask_function(3), m.bidirectional_mask_function):
        lazy = heed.transformers.make_mask(**masking_arguments(mask_function=function))
        assert isinstance(lazy, heed.transformers.LazyMask) and lazy.shape == (2, 1, 5, 9)
        with torch._C.DisableTorchFunctionSubclass():
            assert lazy.untyped_storage().nbytes() == 1
        want = m.sdpa_mask(**masking_arguments(mask_function=function), allow_is_causal_skip=False)
        assert torch.equal(lazy & True, want.expand(2, 1, 5, 9)) and type(lazy[:, :, 1:]) is torch.Tensor
        mask = lazy.mask or heed.Mask.none()
        assert torch.equal(torch.from_numpy(mask.evaluate(5, 9, query_offset=lazy.query_offset)), want[0, 0])


def test_positions_of_transformers_4_are_understood():
    lazy = heed.transformers.make_mask(batch_size=2, cache_position=torch.arange(4, 9), kv_length=9)
    assert lazy.shape == (2, 1, 5, 9) and lazy.query_offset == 4 and lazy.mask == heed.Mask.causal()


def test_unknown_patterns_fall_back_to_a_tensor():
    from transformers import masking_utils as m

    def odd(batch, head, q, kv):
        return (q + kv) % 2 == 0

    got = heed.transformers.make_mask(**masking_arguments(mask_function=m.and_masks(m.causal_mask_function, odd)), use_vmap=True)
    assert type(got) is torch.Tensor
    assert torch.equal(got, m.sdpa_mask(**masking_arguments(mask_function=m.and_masks(m.causal_mask_function, odd)), use_vmap=True))
    chunked = m.chunked_causal_mask_function(3, torch.zeros(2, dtype=torch.long))
    assert type(heed.transformers.make_mask(**masking_arguments(mask_function=chunked))) is torch.Tensor


def test_bfloat16_training_stays_within_twice_eagers_error():
    exact, _ = pair("llama", torch.float64)
    eager, ours = pair("llama", torch.bfloat16)
    for model in (eager, ours):
        model.load_state_dict(exact.state_dict())
    exact.load_state_dict(eager.state_dict())  # the rounded weights
    ids = tokens(2, 30)
    logits = [model(input_ids=ids).logits.double() for model in (exact, eager, ours)]
    assert (logits[2] - logits[0]).abs().max() <= 2 * (logits[1] - logits[0]).abs().max()


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_compiles_as_one_graph(name):
    eager, ours = pair(name)
    ids = tokens(2, 12)
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    got = compiled(input_ids=ids, use_cache=False).logits
    close(got, eager(input_ids=ids, use_cache=False).logits)
    got.square().sum().backward()
    assert all(p.grad is not None for p in ours.parameters())
