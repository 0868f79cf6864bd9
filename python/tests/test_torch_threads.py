# SPDX-License-Identifier: Apache-2.0
"""Gradients in DataLoader workers and from several threads, beside torch's own threads."""

import threading

import pytest

torch = pytest.importorskip("torch")
import heed.torch  # noqa: E402

sdpa = heed.torch.scaled_dot_product_attention


def make(*shape, dtype=torch.float32, seed=0, grad=False):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype).requires_grad_(grad)


def _train(x):
    x = x.clone().requires_grad_()
    sdpa(x, x, x, is_causal=True).square().sum().backward()
    return x.grad


class _Gradients(torch.utils.data.Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return _train(make(1, 2, 80, 16, seed=index))


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_gradients_in_data_loader_workers(context):
    want = torch.stack([_train(make(1, 2, 80, 16, seed=i)) for i in range(6)])  # the parent's threads exist when it forks
    torch.mm(make(300, 300), make(300, 300))
    loader = torch.utils.data.DataLoader(_Gradients(), batch_size=2, num_workers=2, timeout=100, multiprocessing_context=context)
    assert torch.equal(torch.cat(list(loader)), want)


def test_gradients_from_several_threads():
    x = make(2, 4, 100, 32)
    want, got = _train(x), [None] * 4
    a = make(200, 200)

    def work(index):
        for _ in range(10):
            got[index] = _train(x)
            torch.mm(a, a)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert all(torch.equal(want, g) for g in got)
