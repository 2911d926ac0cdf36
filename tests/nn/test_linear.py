"""Products by oneDNN are torch's own up to rounding, forwards and backwards, however their operands lie."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from trivium.nn import Network, Packed, lora
from trivium.nn import linear as products
from trivium.nn.linear import Linear, linear

pytestmark = pytest.mark.skipif(not products._ONEDNN, reason="no AVX-512 (or no oneDNN) here: torch's own products serve")


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_values_and_gradients_are_those_of_torch(data):
    rows, k, n = (data.draw(st.integers(1, 70)) for _ in range(3))
    turned, bias, batched = (data.draw(st.booleans()) for _ in range(3))
    dice = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    draw = lambda *size: torch.randn(size, generator=dice)  # noqa: E731
    x = draw(k, rows).t() if turned else draw(rows, k)
    weight = draw(k, n).t() if turned else draw(n, k)
    operands = [x[None] if batched else x, weight, draw(n) if bias else None]
    upstream = draw(rows, n)[None] if batched else draw(rows, n)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(products, "_SMALLEST", 1)
        assert products._uses_onednn(operands[0], weight)
        ours, theirs = (_run(run, operands, upstream) for run in (linear, functional.linear))
    for mine, its in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, its, atol=1e-4, rtol=1e-4)


def _run(run, operands, upstream):
    leaves = [None if one is None else one.detach().requires_grad_() for one in operands]
    out = run(*leaves)
    out.backward(upstream)
    return [out.detach(), *(one.grad for one in leaves if one is not None)]


@pytest.mark.parametrize("adapted", [False, True], ids=["whole", "lora"])
def test_a_network_learns_the_same_by_it(tiny_model, adapted, monkeypatch):
    network = Network.load(tiny_model)
    if adapted:
        lora(network, rank=4)
    view, tokens = Packed([20, 13]), torch.arange(33)
    found = []
    for worth in (2**60, 1):
        monkeypatch.setattr(products, "_SMALLEST", worth)
        network.zero_grad()
        logp, _ = network.logprobs(network.hidden(tokens, view.positions, view), tokens.flip(0))
        logp.sum().backward()
        found.append([logp.detach(), *(w.grad for w in network.parameters() if w.grad is not None)])
    assert len(found[1]) > 5
    for theirs, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_a_network_computes_by_it_and_elsewhere_by_torch(tiny_model):
    layers = [module for module in Network.load(tiny_model).modules() if isinstance(module, torch.nn.Linear)]
    assert layers and all(type(module) is Linear for module in layers)
    x, weight = torch.randn(512, 256), torch.randn(128, 256)
    assert products._uses_onednn(x, weight)
    assert not products._uses_onednn(x.double(), weight.double())
    assert not products._uses_onednn(x.bfloat16(), weight.bfloat16())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert linear(x, weight).dtype == torch.bfloat16


def test_a_small_product_stays_with_torch():
    assert not products._uses_onednn(torch.randn(64, 64), torch.randn(64, 64))
    assert products._uses_onednn(torch.randn(512, 256), torch.randn(128, 256))
