"""The prefix tree: what is shared is computed once, memory has a bound, and nothing of it changes a logprob."""

from __future__ import annotations

import asyncio
import random

import pytest
import torch
from transformers import GPTNeoXConfig

from trivium.engine import Engine
from trivium.engine.cache import LEAST_SHARED, PAGE, Cache
from trivium.engine.sample import sample
from trivium.errors import InputError
from trivium.nn import Network, Packed
from trivium.policy import View
from trivium.trace import Sampling


@pytest.fixture(scope="module")
def net(tiny_model) -> Network:
    return Network.load(tiny_model)


def cache(net, slots=4, context=256, **more) -> Cache:
    return Cache(net.config, slots, context, torch.float32, **more)


def fill(cache: Cache, tokens: list[int], keep: bool = False):
    """A context computed in full; returns its lease."""
    lease = cache.lease(tokens, 0)
    cache.extend(lease, tokens[lease.length :])
    if not keep:
        cache.release(lease)
    return lease


def numbers(count: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(256), k=count)


def whole(cache: Cache) -> None:
    """Every page is free, or in the tree exactly once; nobody's promise is left over."""
    found, edge = [], [cache._root]
    while edge:
        page = edge.pop()
        edge += page.children
        least = LEAST_SHARED if page is not cache._root else 0  # a context has few pages: the device's kernel counts on it
        assert all(child.parent is page and least <= child.start - page.start <= len(page.tokens) for child in page.children)
        found += [page.number] if page is not cache._root else []
    assert sorted(found + cache._free) == list(range(cache.size))


def test_a_group_shares_the_pages_of_its_prompt_and_each_writes_its_own(net):
    held, prompt = cache(net), numbers(3 * PAGE, 0)
    first = fill(held, [*prompt, 1], keep=True)
    others = [fill(held, [*prompt, n], keep=True) for n in (2, 3)]
    assert all(lease.numbers[:3] == first.numbers[:3] for lease in others)
    assert len({lease.numbers[3] for lease in (first, *others)}) == 3
    assert held.computed == 3 * PAGE + 3 and held.reused == 6 * PAGE


@pytest.mark.parametrize("common", [LEAST_SHARED - 1, LEAST_SHARED])
def test_few_tokens_of_a_page_are_copied_and_many_are_read_where_they_stand(net, common):
    held, prompt = cache(net), numbers(PAGE, 1)
    first = fill(held, prompt, keep=True)
    held.keys[0][first.numbers[0]] = 7.0
    second = fill(held, [*prompt[:common], 256, 256], keep=True)
    assert held.reused == common
    assert (second.numbers[0] == first.numbers[0]) == (common == LEAST_SHARED)
    assert (held.keys[0][second.numbers[0], :, :common] == 7.0).all()


def test_the_next_turn_goes_on_in_the_page_where_the_last_one_ended(net):
    held, first = cache(net), numbers(PAGE + 10, 2)
    before = fill(held, first)
    after = fill(held, first + numbers(20, 3))
    assert after.numbers == before.numbers and held.reused == len(first)


def test_a_prune_keeps_what_stands_before_its_first_cut(net):
    held, context = cache(net), numbers(3 * PAGE, 4)
    fill(held, context)
    pruned = context[: PAGE + 40] + context[PAGE + 60 :]
    assert held.prefix(pruned) >= PAGE + 40 and fill(held, pruned).counts[:2] == [PAGE, 40]


def test_memory_is_bounded_and_what_nobody_used_for_longest_goes_first(net):
    held = cache(net, slots=1, context=2 * PAGE, tokens=4 * PAGE)  # six pages
    contexts = [numbers(2 * PAGE, 10 + n) for n in range(3)]
    for context in contexts:
        fill(held, context)
    fill(held, contexts[0])  # used again, and its last token in a page of its own: the second is the oldest now
    fill(held, numbers(2 * PAGE, 20))
    assert held.evicted == 3
    assert [held.prefix(context) > 0 for context in contexts] == [True, False, True]
    whole(held)


def test_who_finds_no_room_waits_and_a_promise_is_kept(net):
    held = cache(net, slots=2, context=2 * PAGE, tokens=2 * PAGE)  # six pages
    first = held.lease([1], 4 * PAGE - 1)
    assert held.lease([2], 3 * PAGE) is None
    second = held.lease([2], 2 * PAGE - 1)
    held.extend(first, [1] * 4 * PAGE)
    held.extend(second, [2] * 2 * PAGE)
    held.release(first), held.release(second)
    whole(held)


def test_random_lives_under_memory_pressure_agree_with_the_learner(net, renderer):
    """Turns, groups, prunes and cancellations on a cache far too small for them: every logprob is the learner's."""
    engine = Engine(net, renderer=renderer, slots=6, context=400, memory=700)
    system, rng = numbers(70, 5), random.Random(0)
    heard: list[tuple[list[int], int, list[float]]] = []

    async def live(task: int, sample: int) -> None:
        dice = random.Random(100 * task + sample)
        tokens = system + numbers(50, 6 + task)
        for turn in range(5):
            sampling = Sampling(max_tokens=dice.randint(1, 30))
            asked = asyncio.ensure_future(engine.speak(View(tokens, (), (), (0, task, sample, turn)), sampling))
            if dice.random() < 0.2:
                await asyncio.sleep(0)
                asked.cancel()
                continue
            reply = await asked
            tokens = [*tokens, *reply.tokens]
            heard.append((tokens, len(reply.tokens), list(reply.logprobs)))
            tokens = [*tokens, *dice.choices(range(256), k=dice.randint(1, 60))]
            if dice.random() < 0.3 or len(tokens) > 350:
                tokens = tokens[: dice.randint(100, 130)] + tokens[-40:]

    async def everybody() -> None:
        await asyncio.gather(*(live(task, sample) for task in range(3) for sample in range(4)))

    asyncio.run(everybody())
    for tokens, drawn, logprobs in rng.sample(heard, 25):
        view = Packed([len(tokens)])
        with torch.inference_mode():
            hidden = net.hidden(torch.tensor(tokens), view.positions, view)
            wanted = net.logprobs(hidden[:-1], torch.tensor(tokens[1:]))[0][-drawn:]
        assert (wanted - torch.tensor(logprobs)).abs().max() < 2e-5
    assert engine.cache.evicted > 0 and engine.cache.reused > 0
    assert not engine.cache.leased.any() and engine.cache._promised == 0
    whole(engine.cache)


def test_a_model_whose_config_names_no_key_heads_has_one_for_each(renderer):
    tiny = dict(vocab_size=300, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2)
    speaker = Engine(Network(GPTNeoXConfig(**tiny, max_position_embeddings=256)), renderer=renderer, slots=2, context=200)
    assert speaker.cache.group == 1
    assert len(asyncio.run(speaker.speak(View([1, 2, 3], (), (), (0,)), Sampling(max_tokens=4))).tokens) > 0


def test_a_memory_smaller_than_one_context_is_refused(net, renderer):
    with pytest.raises(InputError, match="does not hold one context"):
        Engine(net, renderer=renderer, context=400, memory=300)


@pytest.mark.parametrize("size", [4, 64, 200])
def test_a_draw_inverts_the_running_sum_of_the_distribution(size):
    logits = torch.randn(300, size, generator=torch.Generator().manual_seed(size)) * 3
    draws = torch.rand(300, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    draws[:3] = torch.tensor([0.0, 1 - 2**-53, 0.5])
    tokens, logprobs, _ = sample(logits, [Sampling()] * 300, draws)
    sums = logits.double().softmax(-1).cumsum(-1)
    above, below = sums.gather(1, tokens[:, None])[:, 0], (sums - logits.double().softmax(-1)).gather(1, tokens[:, None])[:, 0]
    assert (below <= draws + 1e-6).all() and (above >= draws - 1e-6).all()
    assert torch.allclose(logprobs, logits.log_softmax(-1).gather(1, tokens[:, None])[:, 0], atol=2e-6)


def test_a_draw_at_the_very_end_never_finds_what_truncation_cut():
    logits = torch.zeros(1, 200)
    logits[0, :3] = 5.0
    draws = torch.tensor([1 - 2**-53], dtype=torch.float64)
    token, _, kept = sample(logits, [Sampling(top_k=3)], draws)
    assert token.item() == 2 and 0 < kept.item() < 1


def test_a_cleared_engine_repeats_a_new_one_bit_for_bit(net, renderer):
    """Law 11 across a resume: the past of an engine, once cleared, decides nothing."""

    def ask(engine: Engine, seed: int) -> list[tuple]:
        async def everybody():
            shared = numbers(100, seed)
            views = [View([*shared, *numbers(5 + 9 * n, n)], (), (), (seed, n)) for n in range(7)]
            return await asyncio.gather(*(engine.speak(view, Sampling(max_tokens=20)) for view in views))

        return [(reply.tokens, reply.logprobs) for reply in asyncio.run(everybody())]

    used, fresh = (Engine(net, renderer=renderer, slots=4, context=300, memory=800) for _ in range(2))
    ask(used, 1)
    used.clear()
    assert ask(used, 2) == ask(fresh, 2)
