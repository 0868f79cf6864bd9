# SPDX-License-Identifier: Apache-2.0
"""A small Llama, built from its configuration, learns to count and then counts: training and generation through heed.

    pip install ".[transformers]" && python3 examples/python/finetune_and_generate.py        (half a minute on two free cores)
"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import heed.transformers

heed.transformers.register()
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=64, hidden_size=96, intermediate_size=192, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
    max_position_embeddings=128, bos_token_id=None, eos_token_id=None, pad_token_id=None,
)  # fmt: skip
model = LlamaForCausalLM._from_config(config, attn_implementation="heed")
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

print("learning to count on from any number, modulo 64")
for step in range(201):
    first = torch.randint(0, 64, (16, 1))
    sequence = (first + torch.arange(32)) % 64
    loss = model(input_ids=sequence, labels=sequence).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 50 == 0:
        print(f"step {step:3}: loss {loss.item():.3f}")

model.eval()
prompt = torch.tensor([[40, 41, 42, 43]])
counted = model.generate(prompt, max_new_tokens=12, do_sample=False, attention_mask=torch.ones_like(prompt))
print("prompt", prompt[0].tolist(), "goes on", counted[0, 4:].tolist())
