# SPDX-License-Identifier: Apache-2.0
"""attn_implementation="heed" against "eager": logits, gradients, padding, caches, generation."""

import os
import subprocess
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
import pytest  # noqa: E402

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import heed.transformers  # noqa: E402
from transformers_models import CASES, DECODERS, build, close, heed_calls, padding, pair, same_gradients, tokens  # noqa: E402

OLD = int(transformers.__version__.split(".")[0]) < 5


@pytest.fixture(autouse=True)
def _later_transformers_for_bert(request):
    name = request.node.callspec.params.get("name") if hasattr(request.node, "callspec") else None
    if name == "bert" and OLD:
        pytest.skip("BERT of transformers 4.53 does not ask for an attention by name")


@pytest.mark.parametrize("name", list(CASES))
def test_the_two_models_compared_differ_in_their_attention(name, monkeypatch):
    calls = heed_calls(monkeypatch)
    eager, ours = pair(name)
    assert eager.config is not ours.config
    eager(input_ids=tokens(1, 8))
    assert not calls
    ours(input_ids=tokens(1, 8))
    assert len(calls) == ours.config.num_hidden_layers


def test_registering_twice_changes_nothing():
    before = dict(transformers.AttentionInterface._global_mapping)
    heed.transformers.register()
    assert dict(transformers.AttentionInterface._global_mapping) == before


def test_an_old_transformers_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers.masking_utils", None)
    with pytest.raises(RuntimeError, match="4.53 or later"):
        heed.transformers.register()


def test_importing_heed_imports_neither_torch_nor_transformers():
    code = "import heed, sys; assert not {'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# The experts of gpt-oss have no float64 product in torch; its softmax with sinks is tested in float32.
@pytest.mark.parametrize("name, dtype", [(n, torch.float32) for n in CASES] + [(n, torch.float64) for n in CASES if n != "gpt_oss"])
def test_logits_and_training_gradients(name, dtype):
    theirs, ours = pair(name, dtype, other="plain" if dtype == torch.float64 else "eager")
    ids, results = tokens(2, 21), []
    for model in (theirs, ours):
        results.append(model.train()(input_ids=ids, labels=ids))
        results[-1].loss.backward()
    close(results[1].logits, results[0].logits, dtype)
    close(results[1].loss, results[0].loss, dtype)
    same_gradients(theirs, ours, dtype)


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_bfloat16_errors_stay_within_twice_those_of_eager_and_gradients_within_thrice(name):
    eager, ours = pair(name, torch.bfloat16)
    exact = build(*CASES[name], "plain", torch.float64)
    exact.load_state_dict(eager.state_dict())
    ids, logits, gradients = tokens(2, 30), [], []
    for model in (exact, eager, ours):
        result = model(input_ids=ids, labels=ids)
        result.loss.backward()
        logits.append(result.logits.double())
        gradients.append(torch.cat([p.grad.double().flatten() for key, p in model.named_parameters() if "_proj" in key]))
    for (want, theirs, got), limit in ((logits, 2), (gradients, 3)):
        assert 0 < (got - want).norm() <= limit * (theirs - want).norm()
        assert (got - want).abs().max() <= limit * (theirs - want).abs().max()


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_autocast(name):
    """Norms leave float32 beside values in bfloat16, as in most training in mixed precision."""
    eager, ours = pair(name)
    ids, results = tokens(2, 30), []
    exact = eager(input_ids=ids).logits
    for model in (eager, ours):
        with torch.autocast("cpu", torch.bfloat16):
            result = model(input_ids=ids, labels=ids)
        result.loss.backward()
        results.append(result.logits.float())
    assert 0 < (results[1] - exact).abs().max() <= 2 * (results[0] - exact).abs().max()
    assert all(p.grad.isfinite().all() for p in ours.parameters())


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", list(CASES))
def test_padded_batches(name, side):
    eager, ours = pair(name)
    ids, mask = tokens(3, 19), padding(3, 19, (0, 4, 11), side)
    labels = torch.where((mask.roll(1, 1) & mask).bool() & (torch.arange(19) > 0), ids, -100)  # padded rows mean nothing
    results = [model(input_ids=ids, attention_mask=mask, labels=labels) for model in (eager, ours)]
    close(results[1].logits[mask.bool()], results[0].logits[mask.bool()])
    for result in results:
        result.loss.backward()
    same_gradients(eager, ours)


@pytest.mark.parametrize("name", DECODERS)
def test_greedy_generation_with_a_cache(name):
    eager, ours = pair(name)
    ids, mask = tokens(2, 9), padding(2, 9, (3,))
    options = dict(attention_mask=mask, max_new_tokens=14, do_sample=False, output_logits=True, return_dict_in_generate=True)
    want, got = (model.generate(ids, **options) for model in (eager, ours))
    assert torch.equal(got.sequences, want.sequences)
    for g, w in zip(got.logits, want.logits):
        close(g, w)


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2"])
def test_static_cache(name):
    """Slots past the current position hold no keys yet; those of the window's layers wrap around."""
    eager, ours = pair(name)
    ids, mask = tokens(2, 9), padding(2, 9, (3,))
    options = dict(attention_mask=mask, max_new_tokens=12, do_sample=False, cache_implementation="static", disable_compile=True,
                   output_logits=True, return_dict_in_generate=True)  # fmt: skip
    want, got = (model.generate(ids, **options) for model in (eager, ours))
    assert torch.equal(got.sequences, want.sequences)
    for g, w in zip(got.logits, want.logits):
        close(g, w)


def test_beam_search():
    eager, ours = pair("mistral")
    ids = tokens(2, 9)
    options = dict(attention_mask=torch.ones_like(ids), max_new_tokens=12, num_beams=3, do_sample=False)
    assert torch.equal(ours.generate(ids, **options), eager.generate(ids, **options))


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2"])
def test_chunked_prefill_on_a_cache(name):
    eager, ours = pair(name)
    ids, results = tokens(2, 24), []
    with torch.no_grad():
        for model in (eager, ours):
            cache = transformers.DynamicCache() if OLD else transformers.DynamicCache(config=model.config)
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
        alone = eager(input_ids=ids[:, 6:15]).logits
    close(got, want)
    if not OLD:  # earlier versions do not tell packed sequences apart
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
        close(ours(input_ids=ids, attention_mask=added.double()).logits, want)
        close(ours(input_ids=ids, attention_mask=visible).logits, want)


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing(reentrant):
    eager, ours = pair("mistral")
    ids, mask = tokens(2, 20), padding(2, 20, (0, 4), side="right")
    labels = ids.masked_fill(mask == 0, -100)
    for model in (eager, ours):
        model.train().gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
        model(input_ids=ids, attention_mask=mask, labels=labels, use_cache=False).loss.backward()
    same_gradients(eager, ours)


def test_dropout_is_for_training_and_repeats_with_the_seed():
    _, ours = pair("llama")
    for layer in ours.model.layers:
        layer.self_attn.attention_dropout = 0.3
    ids, results = tokens(2, 20), []
    with torch.no_grad():
        still = ours(input_ids=ids).logits
        assert torch.equal(ours(input_ids=ids).logits, still)
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            results.append(ours.train()(input_ids=ids).logits)
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2]) and not torch.equal(results[0], still)


@pytest.mark.skipif(not hasattr(transformers.PreTrainedModel, "set_attn_implementation"), reason="transformers 4.53 has none")
def test_a_built_model_changes_over(monkeypatch):
    calls = heed_calls(monkeypatch)
    model = pair("llama")[0]
    ids = tokens(2, 12)
    want = model(input_ids=ids).logits
    model.set_attn_implementation("heed")
    close(model(input_ids=ids).logits, want)
    assert len(calls) == 3


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_compiles_as_one_graph(name):
    eager, ours = pair(name)
    ids = tokens(2, 12)
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    for model in (compiled, eager):
        result = model(input_ids=ids, use_cache=False).logits
        result.square().sum().backward()
    close(compiled(input_ids=ids, use_cache=False).logits, result)
    for p, q in zip(eager.parameters(), ours.parameters()):
        close(q.grad / p.grad.abs().max(), p.grad / p.grad.abs().max())


def test_layers_compiled_one_by_one():
    """The mask is made outside and enters a compiled layer, which breaks its graph there."""
    eager, ours = pair("mistral")
    for layer in ours.model.layers:
        layer.compile(backend="aot_eager")
    for length in (9, 12):  # the second length makes it compile for any
        ids, mask = tokens(2, length), padding(2, length, (3,), side="right")
        for options in (dict(), dict(attention_mask=mask)):
            want, got = (model(input_ids=ids, use_cache=False, **options).logits for model in (eager, ours))
            close(got[mask.bool()], want[mask.bool()])
    for logits in (want, got):
        logits[mask.bool()].square().mean().backward()
    same_gradients(eager, ours)
