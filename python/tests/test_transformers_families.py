# SPDX-License-Identifier: Apache-2.0
"""Models whose attention is told more than a mask, that attend to another sequence, or that never ask for an attention by name."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
import pytest  # noqa: E402

torch = pytest.importorskip("torch")
t = pytest.importorskip("transformers")

import heed.transformers  # noqa: E402
from transformers_models import CASES, GROUPED, SMALL, both_ways, close, heed_calls, padding, pair, same_gradients, tokens  # noqa: E402

OLD = int(t.__version__.split(".")[0]) < 5
LATENT = dict(
    SMALL, num_hidden_layers=2, num_key_value_heads=4, moe_intermediate_size=32, n_routed_experts=4, num_experts_per_tok=2, n_group=1,
    topk_group=1, q_lora_rank=32, kv_lora_rank=32, qk_rope_head_dim=16, qk_nope_head_dim=16, v_head_dim=24, first_k_dense_replace=1,
    pad_token_id=0, index_topk=4, index_n_heads=4, index_head_dim=32,
)  # fmt: skip
BART = dict(vocab_size=96, d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
            encoder_ffn_dim=96, decoder_ffn_dim=96, max_position_embeddings=64)  # fmt: skip
FAMILIES = {
    "deepseek_v3": ("DeepseekV3ForCausalLM", "DeepseekV3Config", {k: v for k, v in LATENT.items() if not k.startswith("index")}),
    "llama4": ("Llama4ForCausalLM", "Llama4TextConfig", dict(
        GROUPED, num_hidden_layers=4, head_dim=16, intermediate_size_mlp=96, num_local_experts=2, attention_chunk_size=6,
        interleave_moe_layer_step=2)),
    # One choice of keys for each query, by an indexer.
    "deepseek_v32": ("DeepseekV32ForCausalLM", "DeepseekV32Config", LATENT),
    "glm_moe_dsa": ("GlmMoeDsaForCausalLM", "GlmMoeDsaConfig", LATENT),
    # One choice of blocks for each query and group of heads.
    "minimax_m3": ("MiniMaxM3VLForCausalLM", "MiniMaxM3VLTextConfig", dict(
        GROUPED, num_hidden_layers=2, head_dim=32, index_n_heads=2, index_head_dim=32,
        index_block_size=4, index_topk_blocks=2, index_local_blocks=1, num_local_experts=4, num_experts_per_tok=2, pad_token_id=0,
        layer_types=["full_attention", "minimax_m3_sparse"])),
    # Keys of a window, and behind them compressed ones whose mask the model adds to that of the window.
    "deepseek_v4": ("DeepseekV4ForCausalLM", "DeepseekV4Config", dict(
        SMALL, num_hidden_layers=2, num_key_value_heads=1, head_dim=16, sliding_window=5, q_lora_rank=32, moe_intermediate_size=32,
        n_routed_experts=4, num_experts_per_tok=2, index_topk=4, index_n_heads=4, index_head_dim=32, pad_token_id=0,
        layer_types=["heavily_compressed_attention", "compressed_sparse_attention"])),
}  # fmt: skip
ADDING = {
    "bloom": ("BloomForCausalLM", "BloomConfig", dict(vocab_size=96, hidden_size=64, n_layer=2, n_head=4)),
    "xglm": ("XGLMForCausalLM", "XGLMConfig", dict(
        vocab_size=96, d_model=64, ffn_dim=96, num_layers=2, attention_heads=4, max_position_embeddings=64)),
    "rembert": ("RemBertForMaskedLM", "RemBertConfig", dict(SMALL, input_embedding_size=32, output_embedding_size=32)),
    "mpt": ("MptForCausalLM", "MptConfig", dict(vocab_size=96, d_model=64, n_heads=4, n_layers=2, max_seq_len=64)),
}  # fmt: skip


def family(table, name):
    model, config, options = table[name]
    if not hasattr(t, model):
        pytest.skip(f"transformers {t.__version__} has no {model}")
    return both_ways(getattr(t, model), getattr(t, config)(**options))


@pytest.mark.parametrize("name", list(FAMILIES))
def test_decoders(name, monkeypatch):
    calls = heed_calls(monkeypatch)
    eager, ours = family(FAMILIES, name)
    ids, mask = tokens(2, 37), padding(2, 37, (0, 5), side="right")
    labels = ids.masked_fill(mask == 0, -100)
    results = [model(input_ids=ids, attention_mask=mask, labels=labels) for model in (eager, ours)]
    assert len(calls) == ours.config.num_hidden_layers
    close(results[1].logits[mask.bool()], results[0].logits[mask.bool()])
    for result in results:
        result.loss.backward()
    same_gradients(eager, ours)
    prompt = ids[:, :9]
    options = dict(max_new_tokens=9, do_sample=False, output_logits=True, return_dict_in_generate=True)
    want, got = (model.generate(prompt, attention_mask=torch.ones_like(prompt), **options) for model in (eager, ours))
    assert torch.equal(got.sequences, want.sequences)
    for g, w in zip(got.logits, want.logits):
        close(g, w)


@pytest.mark.parametrize("name", list(ADDING))
def test_models_that_add_their_masks_are_given_masks_to_add(name, monkeypatch):
    """They take any registered name and compute in their own code: the result must be theirs."""
    calls = heed_calls(monkeypatch)
    eager, ours = family(ADDING, name)
    ids, mask = tokens(2, 15), padding(2, 15, (0, 4))
    for options in (dict(), dict(attention_mask=mask)):
        assert torch.equal(ours(input_ids=ids, **options).logits, eager(input_ids=ids, **options).logits)
    assert not calls


@pytest.mark.skipif(OLD, reason="transformers 4 has no such models that compile")
def test_a_model_that_adds_its_mask_compiles_as_one_graph():
    eager, ours = family(ADDING, "xglm")
    ids = tokens(2, 12)
    from heed.transformers import _masks

    _masks._adding.clear()
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    close(compiled(input_ids=ids, use_cache=False).logits, eager(input_ids=ids, use_cache=False).logits)


@pytest.mark.skipif(OLD, reason="in transformers 4.53 T5 does not ask for an attention by name")
@pytest.mark.parametrize("model, config, options", [
    ("BartForConditionalGeneration", "BartConfig", BART),
    ("T5ForConditionalGeneration", "T5Config", dict(
        vocab_size=96, d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4, decoder_start_token_id=1)),
])  # fmt: skip
def test_encoder_and_decoder(model, config, options, monkeypatch):
    """Cross attention, and T5's position bias, which is learned."""
    calls = heed_calls(monkeypatch)
    eager, ours = both_ways(getattr(t, model), getattr(t, config)(**options))
    ids, labels, mask = tokens(2, 17), tokens(2, 11, seed=1), padding(2, 17, (0, 5), side="right")
    results = [model(input_ids=ids, attention_mask=mask, labels=labels) for model in (eager, ours)]
    assert len(calls) == 6
    close(results[1].logits, results[0].logits)
    for result in results:
        result.loss.backward()
    same_gradients(eager, ours)
    options = dict(attention_mask=mask, max_new_tokens=9, do_sample=False, num_beams=1)
    assert torch.equal(ours.generate(ids, **options), eager.generate(ids, **options))


def attend(*tensors, **options):
    return heed.transformers.heed_attention_forward(torch.nn.Module().eval(), *tensors, **options)[0]


@pytest.mark.parametrize("masked", ["lazily", "bool", "float", "no"])
def test_sinks_per_query(masked):
    """One more logit for each query, which takes weight and gives nothing."""
    g = torch.Generator().manual_seed(0)
    q, k, v, sinks, bias = (torch.randn(shape, generator=g, dtype=torch.float64).requires_grad_()
                            for shape in ((2, 4, 7, 8), (2, 2, 7, 8), (2, 2, 7, 6), (2, 4, 7, 1), (2, 4, 7, 7)))  # fmt: skip
    causal = torch.ones(7, 7).tril().bool()[None, None]
    seen = causal if masked != "no" else torch.ones_like(causal)
    mask = {"bool": causal, "no": None, "float": torch.zeros(causal.shape).masked_fill(~causal, -torch.inf)}.get(masked)
    if masked == "lazily":
        where = dict(cache_position=torch.arange(7)) if OLD else dict(q_length=7, q_offset=0)
        mask = heed.transformers.make_mask(batch_size=2, kv_length=7, attention_mask=padding(2, 7, (0, 2), "right").bool(), **where)
        seen = causal & padding(2, 7, (0, 2), "right").bool()[:, None, None]
    scores = (q @ k.repeat_interleave(2, 1).transpose(2, 3) * 0.3 + bias).masked_fill(~seen, -torch.inf)
    want = (torch.cat([scores, sinks], -1).softmax(-1)[..., :-1] @ v.repeat_interleave(2, 1)).transpose(1, 2)
    got = attend(q, k, v, mask, scaling=0.3, position_bias=bias, sinks=sinks, is_causal=False)
    close(got, want, torch.float64)
    weight = torch.randn(want.shape, generator=g, dtype=torch.float64)
    ours, theirs = (torch.autograd.grad((x * weight).sum(), (q, k, v, sinks, bias)) for x in (got, want))
    for a, b in zip(ours, theirs):
        close(a, b, torch.float64)


def test_chosen_keys_join_every_kind_of_mask():
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn((2, 4, 9, 8), generator=g, dtype=torch.float64) for _ in range(3))
    indices = torch.stack([torch.randperm(9, generator=g)[:4] for _ in range(18)]).reshape(2, 9, 4)
    indices[..., 0], indices[0, 3, 2] = 0, -1
    chosen = torch.tensor([[[slot in row for slot in range(9)] for row in rows] for rows in indices.tolist()])[:, None]
    causal = torch.ones(9, 9).tril().bool()[None, None]
    want = ((q @ k.transpose(2, 3) * 8**-0.5).masked_fill(~(chosen & causal), -torch.inf).softmax(-1) @ v).transpose(1, 2)
    where = dict(cache_position=torch.arange(9)) if OLD else dict(q_length=9)
    added = torch.zeros(1, 1, 9, 9).masked_fill(~causal, -torch.inf)
    for mask in (heed.transformers.make_mask(batch_size=2, kv_length=9, **where), causal, added, None):
        close(attend(q, k, v, mask, indices=indices), want, torch.float64)


def test_dropout_is_left_out_where_the_module_does_not_train():
    q = torch.randn(1, 2, 6, 8)
    assert torch.equal(attend(q, q, q, None, dropout=0.5), attend(q, q, q, None))


def test_learned_queries_are_shared_by_the_batch():
    q, (k, v) = torch.randn(1, 2, 3, 8), torch.randn(2, 4, 2, 5, 8)
    want = torch.softmax(q @ k.transpose(2, 3) * 8**-0.5, -1) @ v
    close(attend(q, k, v, None, is_causal=False), want.transpose(1, 2))


def test_learned_keys_are_shared_by_the_batch():
    q, (k, v) = torch.randn(4, 2, 3, 8), torch.randn(2, 1, 2, 5, 8)
    want = torch.softmax(q @ k.transpose(2, 3) * 8**-0.5, -1) @ v
    close(attend(q, k, v, None, is_causal=False), want.transpose(1, 2))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", ["llama", "mistral", "gpt_oss"])
def test_a_traced_model_computes_with_what_it_is_given(name):
    if name not in CASES:
        pytest.skip(f"transformers {t.__version__} has no {name}")
    eager, ours = pair(name)

    class Logits(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = ours

        def forward(self, ids):
            return self.model(input_ids=ids, use_cache=False).logits

    with torch.no_grad():
        trace = torch.jit.trace(Logits(), (tokens(2, 12),), check_trace=False)
        close(trace(tokens(2, 12, seed=1)), eager(input_ids=tokens(2, 12, seed=1)).logits)


def test_weights_are_not_returned_and_that_is_said():
    q = torch.randn(1, 2, 3, 8)
    with pytest.warns(UserWarning, match="eager"):
        attend(q, q, q, None, output_attentions=True)
