"""Law 4: one network. Law 10: no weights on trust. Law 11: same seed, same run (at the engine)."""

from __future__ import annotations

import asyncio

import pytest
import torch

from tests.laws.walks import TASK, keep, search, search_corpus
from trivium.engine import Engine
from trivium.engine.sample import sample
from trivium.errors import InputError, LawError, PolicyError, Unsupported
from trivium.harness import Harness, Limits, Window, prune_chunks
from trivium.nn import Network, Packed
from trivium.policy import Scripted, View
from trivium.policy.scripted import call, say
from trivium.trace import Prune, Sampling
from trivium.train import CISPO, Batch, Group, Learner
from trivium.weights import publish


def network(tiny_model, seed: int = 0) -> Network:
    return Network(Network.load(tiny_model).config, seed=seed)


def speak(engine: Engine, prompts: list[list[int]], sampling: Sampling, seed: int = 0):
    async def ask():
        views = [View(tokens, (), (), (seed, "t", number, "0", 0)) for number, tokens in enumerate(prompts)]
        return await asyncio.gather(*(engine.speak(view, sampling) for view in views))

    return asyncio.run(ask())


def learner_logprobs(network: Network, tokens: list[int]) -> torch.Tensor:
    run, view = torch.tensor(tokens), Packed([len(tokens)])
    with torch.inference_mode():
        return network.logprobs(network.hidden(run, view.positions, view)[:-1], run[1:])[0]


def prompts(count: int, length: int = 40) -> list[list[int]]:
    """Unequal prompts, the first two thirds of each shared."""
    generator = torch.Generator().manual_seed(1)
    shared = torch.randint(0, 256, (2 * length // 3,), generator=generator).tolist()
    return [shared + torch.randint(0, 256, (3 + 7 * n % 30,), generator=generator).tolist() for n in range(count)]


def test_logprobs_equal_the_learners_for_every_token(tiny_model, renderer):
    net = network(tiny_model)
    engine = Engine(net, renderer=renderer, slots=5, context=300)
    asked = prompts(12)
    for prompt, reply in zip(asked, speak(engine, asked, Sampling(max_tokens=60)), strict=True):
        wanted = learner_logprobs(net, [*prompt, *reply.tokens])[len(prompt) - 1 :]
        assert (wanted - torch.tensor(reply.logprobs)).abs().max() < 2e-5
    assert engine.cache.reused > 0


class Aside:
    """A script lives the episode; at every view of it the engine speaks too, and only we hear that."""

    def __init__(self, script: Scripted, engine: Engine) -> None:
        self.script, self.engine, self.heard = script, engine, []

    def __getattr__(self, name):
        return getattr(self.script, name)

    async def speak(self, view, sampling):
        self.heard.append((list(view.tokens), await self.engine.speak(view, Sampling(max_tokens=50))))
        return await self.script.speak(view, sampling)


def test_at_every_view_of_an_episode_that_prunes_the_engine_agrees_with_the_learner(tiny_model, renderer):
    net = network(tiny_model)
    engine = Engine(net, renderer=renderer, slots=4, context=2000)
    said = [call(search()), call(search()), call(keep("#2", "#5")), call(search(), keep("#2")), say("#2 #9")]
    harness = Harness([search_corpus, prune_chunks], Window(1900), "Search.", specs=False)
    asides = [Aside(Scripted(said, renderer, "agent"), engine) for _ in range(6)]

    async def live():
        return await asyncio.gather(*(harness.run(TASK, one, sample=n) for n, one in enumerate(asides)))

    for aside, episode in zip(asides, asyncio.run(live()), strict=True):
        assert sum(isinstance(op, Prune) for op in episode.ops) == 2
        for tokens, reply in aside.heard:
            wanted = learner_logprobs(net, [*tokens, *reply.tokens])[len(tokens) - 1 :]
            assert (wanted - torch.tensor(reply.logprobs)).abs().max() < 2e-5
    assert engine.cache.reused > 0


def test_what_a_request_samples_does_not_depend_on_its_company(tiny_model, renderer):
    asked = prompts(9)
    alone = [speak(Engine(network(tiny_model), renderer=renderer, slots=1, context=200), asked, Sampling(max_tokens=30))]
    packed = [speak(Engine(network(tiny_model), renderer=renderer, slots=9, context=200), asked, Sampling(max_tokens=30))]
    assert [r.tokens for r in alone[0]] == [r.tokens for r in packed[0]]


def test_what_an_engine_says_that_forgets_does_not_hang_on_what_it_said_before(tiny_model, renderer):
    def run(before: list[list[int]]):
        engine = Engine(network(tiny_model), renderer=renderer, slots=4, context=200)
        engine.forgets = True
        if before:
            speak(engine, before, Sampling(max_tokens=9))
        computed = engine.cache.computed
        said = [(r.tokens, r.logprobs) for r in speak(engine, prompts(6), Sampling(max_tokens=30))]
        return said, engine.cache.computed - computed

    assert run([]) == run(prompts(5, 60)) == run(prompts(6))


def test_the_same_seed_repeats_bit_for_bit_and_another_does_not(tiny_model, renderer):
    def run(seed):
        engine = Engine(network(tiny_model), renderer=renderer, slots=4, context=200)
        return [(r.tokens, r.logprobs) for r in speak(engine, prompts(6), Sampling(max_tokens=30), seed)]

    assert run(0) == run(0) != run(1)


def test_new_weights_in_mid_reply_are_stamped_and_never_mix_with_old_keys(tiny_model, renderer):
    """Each token's prefix is computed under the version that speaks it."""
    net, new = network(tiny_model), network(tiny_model, seed=1)
    engine = Engine(net, renderer=renderer, slots=4, context=200)
    state = {name: tensor.clone() for name, tensor in new.state().items()}
    (prompt,) = prompts(1)

    async def ask():
        view = View(prompt, (), (), (0, "t", 0, "0", 0))
        reply = asyncio.ensure_future(engine.speak(view, Sampling(max_tokens=40)))
        for _ in range(12):
            await asyncio.sleep(0)
        engine.load(state, 1)
        return await reply

    reply = asyncio.run(ask())
    assert set(reply.versions) == {0, 1} and list(reply.versions) == sorted(reply.versions)
    wanted = learner_logprobs(new, [*prompt, *reply.tokens])[len(prompt) - 1 :]
    spoken = [i for i, version in enumerate(reply.versions) if version == 1]
    assert (wanted - torch.tensor(reply.logprobs))[spoken].abs().max() < 2e-5


def test_published_weights_are_checked_where_they_arrive(tiny_model, renderer):
    engine = Engine(network(tiny_model), renderer=renderer, slots=2, context=200)
    better = network(tiny_model, seed=1)
    probe = list(range(30))
    assert publish(better, 1, engine, probe) < 1e-4
    assert engine.digest() == better.digest() and engine.version == 1

    class Deaf:
        """Says yes and keeps the old weights, as a well-known server does."""

        version, digest, logprobs = 0, better.digest, engine.logprobs

        def load(self, state, version):
            self.version = version

    third = network(tiny_model, seed=2)
    with pytest.raises(LawError, match="other weights"):
        publish(third, 2, Deaf(), probe)
    Deaf.digest = third.digest  # even one that lies about its digest
    with pytest.raises(LawError, match="logprobs"):
        publish(third, 2, Deaf(), probe)


def test_truncation_keeps_whole_logprobs_and_says_what_mass_it_kept():
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]]))
    draws = torch.tensor([0.999], dtype=torch.float64)
    token, logprob, kept = sample(logits, [Sampling(top_p=0.7)], draws)
    assert token.item() == 1 and logprob.exp().item() == pytest.approx(0.3) and kept.item() == pytest.approx(0.8)
    token, _, kept = sample(logits, [Sampling(top_k=1)], draws)
    assert token.item() == 0 and kept.item() == pytest.approx(0.5)
    token, logprob, _ = sample(logits, [Sampling(temperature=0)], draws)
    assert token.item() == 0 and logprob.exp().item() == pytest.approx(0.5)


def test_sampling_follows_the_distribution():
    logits = torch.log(torch.tensor([0.6, 0.3, 0.1])).repeat(20_000, 1)
    draws = torch.rand(20_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    tokens, _, _ = sample(logits, [Sampling()] * 20_000, draws)
    shares = torch.bincount(tokens) / 20_000
    assert shares.tolist() == pytest.approx([0.6, 0.3, 0.1], abs=0.015)


def test_a_probe_is_made_of_tokens(tiny_model, renderer):
    with pytest.raises(InputError, match="renderer.encode"):
        publish(network(tiny_model), 1, Engine(network(tiny_model), renderer=renderer), "a few words")


def test_what_does_not_fit_is_an_error_that_says_so(tiny_model, renderer):
    with pytest.raises(InputError, match="longer than this model"):
        Engine(network(tiny_model), renderer=renderer, context=10_000)
    engine = Engine(network(tiny_model), renderer=renderer, slots=1, context=50)
    with pytest.raises(PolicyError, match="do not fit"):
        speak(engine, [[1] * 40], Sampling(max_tokens=20))


@pytest.mark.parametrize("tokens", [[], [10**6], [-1]])
def test_a_view_that_cannot_be_read_harms_nobody_else(tiny_model, renderer, tokens):
    engine = Engine(network(tiny_model), renderer=renderer, context=200)
    good = View([5, 6, 7], (), (), (0, "t", 0, "0", 0))

    async def both():
        speaking = asyncio.create_task(engine.speak(good, Sampling(max_tokens=20)))
        await asyncio.sleep(0)
        with pytest.raises(PolicyError, match="a view is tokens"):
            await engine.speak(View(tokens, (), (), (0, "t", 1, "0", 0)), Sampling(max_tokens=20))
        return await speaking

    assert asyncio.run(both()).tokens


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": -1.0},
        {"temperature": 1e-40},
        {"temperature": float("nan")},
        {"top_p": 0.0},
        {"top_k": -1},
        {"max_tokens": 0},
    ],
)
def test_nobody_can_ask_for_what_cannot_be_drawn(bad):
    with pytest.raises(InputError, match="nobody can draw"):
        Sampling(**bad)


def interrupted(engine: Engine, view: View, sampling: Sampling, error: type[BaseException]) -> asyncio.AbstractEventLoop:
    """The loop in which the engine's first pass ended half-way, after its pages were laid out."""
    loop, hidden = asyncio.new_event_loop(), engine.network.hidden

    def broken(*asked):
        engine.network.hidden = hidden
        raise error

    engine.network.hidden = broken
    speaking = loop.create_task(engine.speak(view, sampling))
    with pytest.raises((error, PolicyError)):
        loop.run_until_complete(speaking)
    with pytest.raises(PolicyError, match=f"the engine broke: {error.__name__}"):
        loop.run_until_complete(speaking)
    return loop


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_a_step_that_ends_half_way_leaves_nothing_to_share(tiny_model, renderer, error, caplog):
    net = network(tiny_model)
    engine = Engine(net, renderer=renderer, slots=2, context=200)
    view = View(prompts(1, 90)[0], (), (), (0, "t", 0, "0", 0))
    loop = interrupted(engine, view, Sampling(max_tokens=20), error)
    reply = loop.run_until_complete(engine.speak(view, Sampling(max_tokens=20)))
    loop.close()
    wanted = learner_logprobs(net, [*view.tokens, *reply.tokens])[len(view.tokens) - 1 :]
    assert (wanted - torch.tensor(reply.logprobs)).abs().max() < 2e-5


def test_weights_may_come_from_another_thread(tiny_model, renderer):
    nets = [network(tiny_model, seed) for seed in range(2)]
    engine = Engine(network(tiny_model), renderer=renderer, slots=4, context=200)
    views = [View(prompt, (), (), (0, "t", number, "0", 0)) for number, prompt in enumerate(prompts(4))]

    async def main():
        speaking = [asyncio.create_task(engine.speak(view, Sampling(max_tokens=100))) for view in views]
        version = 0
        while not all(task.done() for task in speaking):
            version += 1
            await asyncio.to_thread(engine.load, nets[version % 2].state(), version)
        return [await task for task in speaking]

    replies = asyncio.run(main())
    assert len({version for reply in replies for version in reply.versions}) > 1
    for view, reply in zip(views, replies, strict=True):
        said = [learner_logprobs(net, [*view.tokens, *reply.tokens])[len(view.tokens) - 1 :] for net in nets]
        wanted = torch.stack([said[version % 2][place] for place, version in enumerate(reply.versions)])
        assert (wanted - torch.tensor(reply.logprobs)).abs().max() < 2e-5


def test_a_network_that_somebody_else_loads_is_spoken_with_no_more(tiny_model, renderer):
    net, other = network(tiny_model), network(tiny_model, seed=1)
    one, two = (Engine(net, renderer=renderer, slots=1, context=200) for _ in range(2))
    for engine in (one, two):
        assert len(speak(engine, prompts(1), Sampling(max_tokens=5))) == 1
    one.load(other.state(), 1)
    assert speak(one, prompts(1), Sampling(max_tokens=5))[0].versions == [1] * 5
    with pytest.raises(PolicyError, match="loaded by somebody else than its engine"):
        speak(two, prompts(1), Sampling(max_tokens=5))


def test_what_a_closed_loop_left_behind_stops_nobody_and_two_loops_at_once_are_refused(tiny_model, renderer):
    engine = Engine(network(tiny_model), renderer=renderer, slots=1, context=200)
    loop = asyncio.new_event_loop()
    left = loop.create_task(engine.speak(View(prompts(1)[0], (), (), (0, "t", 0, "0", 0)), Sampling(max_tokens=100)))
    loop.run_until_complete(asyncio.sleep(0.01))
    with pytest.raises(InputError, match="one engine, one loop"):
        speak(engine, prompts(1), Sampling(max_tokens=5))
    loop.close()
    assert not left.done() and len(speak(engine, prompts(1), Sampling(max_tokens=5))[0].tokens) == 5
    left._log_destroy_pending = engine._driver._log_destroy_pending = False  # it is left on purpose


def test_weights_that_gave_nan_leave_none_behind(tiny_model, renderer):
    """No mask hides NaN: a page that held some is written over before it is anybody's."""
    net = network(tiny_model)
    engine, prompt, asked = Engine(net, renderer=renderer, slots=2, context=200), prompts(1, 90), Sampling(max_tokens=10)
    good = {name: tensor.clone() for name, tensor in net.state().items()}
    before = speak(engine, prompt, asked)[0]
    engine.load({name: tensor * float("nan") for name, tensor in good.items()}, 1)
    speak(engine, prompt, Sampling(max_tokens=10, temperature=0.0))
    engine.load(good, 2)
    after = speak(engine, prompt, asked)[0]
    assert after.tokens == before.tokens and after.logprobs == before.logprobs


def test_after_half_of_a_load_an_engine_speaks_no_more(tiny_model, renderer):
    engine, other = Engine(network(tiny_model), renderer=renderer, slots=1, context=200), network(tiny_model, seed=1).state()
    *_, last = other
    with pytest.raises(NotImplementedError):
        engine.load({**other, last: other[last].to("meta")}, 1)
    with pytest.raises(PolicyError, match="load it twice"):
        speak(engine, prompts(1), Sampling(max_tokens=5))
    engine.load(other, 1)
    assert speak(engine, prompts(1), Sampling(max_tokens=5))[0].versions == [1] * 5


def test_whoever_ends_all_tasks_leaves_nobody_waiting(tiny_model, renderer):
    engine = Engine(network(tiny_model), renderer=renderer, slots=1, context=200)

    async def main() -> list:
        speaking = [asyncio.create_task(engine.speak(View(p, (), (), (0,)), Sampling(max_tokens=90))) for p in prompts(2)]
        while engine._driver is None:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        engine._driver.cancel()
        return await asyncio.wait_for(asyncio.gather(*speaking, return_exceptions=True), 20)

    assert all(isinstance(found, asyncio.CancelledError) for found in asyncio.run(main()))
    assert len(speak(engine, prompts(1), Sampling(max_tokens=5))[0].tokens) == 5


def test_a_groups_prompt_is_computed_once(tiny_model, renderer):
    engine = Engine(network(tiny_model), renderer=renderer, slots=8, context=400)
    (prompt,) = prompts(1, 300)

    async def group() -> None:
        asked = [View(prompt, (), (), (0, number)) for number in range(8)]
        await asyncio.gather(*(engine.speak(view, Sampling(max_tokens=4)) for view in asked))

    asyncio.run(group())
    assert engine.cache.computed < 1.5 * len(prompt)


def test_an_engine_without_slots_or_a_tokenizer_is_refused(tiny_model, renderer):
    with pytest.raises(InputError, match="slots is 0"):
        Engine(network(tiny_model), renderer=renderer, slots=0)
    with pytest.raises(InputError, match="give Engine a renderer"):
        Engine(network(tiny_model))
    assert Engine(Network.load(tiny_model), context=100).renderer.stop_tokens


def test_a_window_larger_than_the_engines_context_is_refused_at_once(tiny_model, renderer):
    engine = Engine(network(tiny_model), renderer=renderer, context=200)
    with pytest.raises(InputError, match="window of 900 tokens is more than agent's context of 200"):
        asyncio.run(Harness([search_corpus], Window(900), specs=False).run(TASK, engine))


def test_a_cancelled_request_frees_its_slot(tiny_model, renderer):
    engine = Engine(network(tiny_model), renderer=renderer, slots=1, context=200)

    async def ask():
        first = asyncio.ensure_future(engine.speak(View([1] * 20, (), (), (0, "a", 0, "0", 0)), Sampling(max_tokens=150)))
        for _ in range(6):
            await asyncio.sleep(0)
        first.cancel()
        return await engine.speak(View([2] * 20, (), (), (0, "b", 0, "0", 0)), Sampling(max_tokens=5))

    assert len(asyncio.run(ask()).tokens) >= 1
    assert not engine.cache.leased.any()


def test_what_was_cut_by_truncation_is_refused_by_name(tiny_model, renderer):
    """Law 7: a policy gradient needs the distribution that the tokens came from."""
    engine = Engine(network(tiny_model), renderer=renderer, slots=2, context=2000)
    harness = Harness([search_corpus], Window(1500), "Search.", Limits(turns=2), specs=False)

    async def pair(sampling):
        return [await harness.run(TASK, engine, sample=n, sampling=sampling) for n in range(2)]

    cut = asyncio.run(pair(Sampling(max_tokens=20, top_k=5)))
    learner = Learner(network(tiny_model), CISPO(), 1e-3)
    with pytest.raises(Unsupported, match="cut by top-p or top-k"):
        learner.learn(Batch([Group("t", cut, [0.0, 1.0])]))
    whole = asyncio.run(pair(Sampling(max_tokens=20)))
    assert learner.learn(Batch([Group("t", whole, [0.0, 1.0])])).metrics["updates"] == 1


def test_kept_mass_is_exactly_one_where_nothing_truncates():
    """float32 probabilities of a large vocabulary add up to 1 - 2e-6: such a row was once refused as truncated."""
    from trivium.engine.sample import sample

    logits = torch.randn(64, 50_000, generator=torch.Generator().manual_seed(0)) * 3
    samplings = [Sampling() if row else Sampling(top_p=0.5) for row in range(64)]
    _, _, kept = sample(logits, samplings, torch.full((64,), 0.5, dtype=torch.float64))
    assert 0.5 <= kept[0] < 0.9 and (kept[1:] == 1.0).all()


def test_a_cleared_cache_is_as_good_as_new(tiny_model):
    """A resumed run has an engine without a past; slots once came in another order there, and with them the last bits."""
    from transformers import AutoConfig

    from trivium.engine.cache import Cache

    used, fresh = (Cache(AutoConfig.from_pretrained(tiny_model), 4, 64, torch.float32) for _ in range(2))
    for lease in [used.lease([n, n + 1], 100) for n in range(3)][::-1]:
        used.extend(lease, [1] * (40 + 30 * lease.slot))
        used.release(lease)
    used.clear()

    def begin(cache):
        leases = [cache.lease([n], 10) for n in range(4)]
        return [(lease.slot, cache.extend(lease, [n])) for n, lease in enumerate(leases)]

    assert begin(used) == begin(fresh)
