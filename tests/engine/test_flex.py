"""The CUDA device's kernel, run uncompiled on the CPU: it computes what the CPU's kernel computes."""

from __future__ import annotations

import asyncio
import random

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask

from trivium.assets import NANO
from trivium.engine import Engine, flex, products, view
from trivium.engine.cache import PAGE, Cache
from trivium.engine.flex import block_mask, tables
from trivium.engine.view import Contexts
from trivium.nn import Network, Packed
from trivium.policy import View
from trivium.trace import Sampling


@pytest.fixture(scope="module")
def net(tiny_model) -> Network:
    return Network.load(tiny_model)


def lives(net: Network, kernel, drawn: bool = False) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Three contexts over several steps: a shared prompt, one context that leaves it inside a page, long and short runs."""
    cache = Cache(net.config, slots=3, context=6 * PAGE, dtype=torch.float32)
    dice = random.Random(3)
    prompt = dice.choices(range(256), k=PAGE + 70)
    tokens = [prompt + [1], prompt + [2], prompt[: PAGE + 40] + [3] * 5]
    leases, found = [], []
    for context in tokens:  # the first reads all, the others what they do not share
        leases.append(cache.lease(context, 3 * PAGE))
        found.append(forward(net, cache, leases[-1:], [context[leases[-1].length :]], kernel, drawn))
    for lengths in ((1, 1, 1), (1, 2 * PAGE + 30, 7), (1, 3, 40), (2, 2, 4), (1, 1, 1)):
        new = sorted((dice.choices(range(256), k=n) for n in lengths), key=len)
        found.append(forward(net, cache, leases, new, kernel, drawn))
    return found


def forward(net, cache, leases, tokens, kernel, drawn) -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden states, of all tokens or (`drawn`) of those from which a next one is drawn, and where those stand: every token
    of speakers, the last one of the second context, of other readers none."""
    speakers = sum(len(new) < 5 for new in tokens)
    drawing = [number < speakers or number == 1 for number in range(len(tokens))]
    seen = Contexts(cache, leases, tokens, speakers, drawing, kernel)
    at = seen.at
    if not drawn:
        seen.at = None
    with torch.inference_mode():
        return net.hidden(torch.tensor([token for new in tokens for token in new]), seen.positions, seen, seen.at), at


def test_both_kernels_give_the_same_hidden_states(net):
    for (one, _), (other, _) in zip(lives(net, products), lives(net, flex), strict=True):
        assert torch.allclose(one, other, atol=2e-5)


@pytest.mark.parametrize("kernel", [products, flex], ids=["products", "flex"])
def test_who_is_drawn_from_alone_has_the_hidden_states_of_a_whole_pass(net, kernel):
    whole, drawn = lives(net, products), lives(net, kernel, drawn=True)
    assert [len(at) for _, at in whole] == [0, 1, 0, 3, 2, 4, 8, 3]  # of a reader that goes on alone: nothing
    for (states, at), (few, _) in zip(whole, drawn, strict=True):
        torch.testing.assert_close(few, states[at], rtol=0, atol=2e-5)


def test_the_pages_listed_are_those_that_the_mask_lets_through(net):
    cache = Cache(net.config, slots=2, context=4 * PAGE, dtype=torch.float32)
    prompt = list(range(200))
    leases = [cache.lease(prompt + [n], PAGE) for n in (1, 2)]
    for lease, n in zip(leases, (1, 2), strict=True):
        cache.extend(lease, (prompt + [n])[lease.length :])
    at = torch.tensor([[lease.length - 1] for lease in leases])
    ours = block_mask(tables(cache, leases, at))
    asked = create_block_mask(ours.mask_mod, 2, None, 1, cache.size * PAGE, device="cpu", BLOCK_SIZE=(128, PAGE))
    for row, pages in enumerate(asked.to_dense()[:, 0, 0].bool()):
        lists = (ours.kv_num_blocks, ours.kv_indices), (ours.full_kv_num_blocks, ours.full_kv_indices)
        some, whole = (listed[row, 0, 0, : number[row, 0, 0]].tolist() for number, listed in lists)
        assert len(whole) == 1 and sorted(some + whole) == pages.nonzero().flatten().tolist()


def test_an_engine_on_this_kernel_says_what_the_other_says(net, renderer, monkeypatch):
    tokens = random.Random(4).choices(range(256), k=PAGE + 20)

    def spoken() -> list:
        engine = Engine(net, renderer=renderer, slots=4, context=400)
        asked = [View(tokens, (), (), (0, 0, sample, 0)) for sample in range(3)]

        async def all_of_them():
            return await asyncio.gather(*(engine.speak(one, Sampling(max_tokens=12)) for one in asked))

        return asyncio.run(all_of_them())

    usual = spoken()
    monkeypatch.setattr(view, "products", flex)
    for one, other in zip(usual, spoken(), strict=True):
        assert one.tokens == other.tokens
        assert torch.allclose(torch.tensor(one.logprobs), torch.tensor(other.logprobs), atol=2e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here: the compiled kernel has not been run")
@pytest.mark.parametrize("nano", [False, True], ids=["tiny", "nano"])
def test_on_a_device_the_compiled_kernel_agrees_with_the_learner(tiny_model, renderer, nano):
    net = Network.load(NANO if nano else tiny_model, device="cuda")
    for length in (PAGE + 20, 4 * PAGE, 5):  # one H100 had no kernel for a short run of nano's
        tokens = random.Random(length).choices(range(256), k=length)
        reply = asyncio.run(Engine(net, renderer=renderer, slots=4, context=800).speak(
            View(tokens, (), (), (0, 0, 0, 0)), Sampling(max_tokens=12)
        ))  # fmt: skip
        whole = torch.tensor([*tokens, *reply.tokens], device="cuda")
        packed = Packed([len(whole)])
        with torch.inference_mode():
            hidden = net.hidden(whole, packed.positions.cuda(), packed)
            wanted = net.logprobs(hidden[:-1], whole[1:])[0][-len(reply.tokens) :].cpu()
        assert torch.allclose(wanted, torch.tensor(reply.logprobs), atol=1e-3)
