"""Lag 0 is the synchronous loop bit for bit; beyond it, real episodes carry right versions and logprobs (laws 4, 11)."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
import torch

from tests.laws.walks import search_corpus
from tests.loops.house import attempts
from trivium.engine import Engine
from trivium.errors import InputError
from trivium.harness import Harness, Limits, Window, prune_chunks
from trivium.loops import rl, sft, through
from trivium.nn import Network, Packed
from trivium.trace import Sampling, Store, Task, rows
from trivium.train import CISPO, RFT, SFT, Batch, Group, Learner
from trivium.weights import Publisher, Subscriber, publish

TASKS = [Task(f"t{number}", f"Find {number}.") for number in range(6)]
STEPS, GROUPS, SIZE, PROBE = 4, 2, 3, list(range(40))
SAMPLING = Sampling(max_tokens=24)


async def judge(episode):
    """Something that differs between attempts."""
    return {"reward": float(sum(episode.agent.segments[0].tokens) % 7), "turns": float(episode.agent.turns)}


class Stepping(Learner):
    """Learns between decode steps, after a fixed number of them: which tokens are of which version is decided by rule."""

    async def step(self, batch):
        for _ in range(30):
            await asyncio.sleep(0)
        return self.learn(batch)


def parts(tiny_model, renderer, kind=Learner):
    config = Network.load(tiny_model).config
    harness = Harness([search_corpus, prune_chunks], Window(900), "Search.", Limits(turns=3), specs=False)
    engine = Engine(Network(config, seed=0), renderer=renderer, slots=GROUPS * SIZE, context=900)
    return harness, engine, kind(Network(config, seed=0), CISPO(), 1e-2)


def source(harness, engine, **options):
    chosen = dict(groups=GROUPS, size=SIZE, steps=STEPS, seed=3, sampling=SAMPLING) | options
    return attempts(harness, TASKS, engine, lambda step: judge, **chosen)


def asynchronous(tiny_model, renderer, max_lag, kind=Stepping, keep=None, **options):
    """Weights, numbers and batches of a run; `keep(learner)` is called after each step."""
    harness, engine, learner = parts(tiny_model, renderer, kind)
    batches, numbers = [], []

    async def seen(batch_source):
        async for groups, scores in batch_source:
            batches.append([episode for group in groups for episode in group.episodes])
            yield groups, scores

    async def main():
        if keep:
            keep(learner)
        made = source(harness, engine, max_lag=max_lag, **options)
        async for event in rl(dataclasses.replace(made, batches=seen(made)), learner, engine, PROBE):
            numbers.append({name: value for name, value in event.metrics.items() if "seconds" not in name})
            if keep:
                keep(learner)

    asyncio.run(main())
    return learner.network.digest(), numbers, batches


def synchronous(tiny_model, renderer):
    """The loop as it was before there was a lag: all attempts, their scores, one step, publish."""
    harness, engine, learner = parts(tiny_model, renderer)

    async def main():
        batches = []
        for step in range(STEPS):
            tasks = [TASKS[(step * GROUPS + number) % len(TASKS)] for number in range(GROUPS)]
            attempts = [
                harness.run(t, engine, sample=n, seed=3 * 1_000_003 + step, id=f"rl/{step}/{t.id}/{n}", sampling=SAMPLING)
                for t in tasks
                for n in range(SIZE)
            ]
            episodes = await asyncio.gather(*attempts)
            rewards = [(await judge(episode))["reward"] for episode in episodes]
            cuts = range(0, len(episodes), SIZE)
            groups = [Group(episodes[a].task.id, episodes[a : a + SIZE], rewards[a : a + SIZE]) for a in cuts]
            done = await learner.step(Batch(groups))
            publish(learner.network, done.version, engine, PROBE)
            batches.append(episodes)
        return batches

    return asyncio.run(main()), learner.network.digest()


def said(batches):
    """What was sampled, to the last bit."""
    segments = [(e.id, s) for batch in batches for e in batch for s in e.agent.segments]
    return [(id, s.tokens, repr(s.logprobs), s.versions) for id, s in segments]


def test_lag_0_is_the_synchronous_loop_bit_for_bit(tiny_model, renderer):
    batches, digest = synchronous(tiny_model, renderer)
    found, numbers, mine = asynchronous(tiny_model, renderer, 0, Learner)
    assert said(mine) == said(batches) and found == digest
    assert all(metrics["staleness_max"] == 0 for metrics in numbers)


def test_beyond_lag_0_every_token_carries_the_version_and_the_logprob_of_who_spoke_it(tiny_model, renderer):
    """Each token is scored again by the weights of the version that it is stamped with."""
    weights: dict[int, Network] = {}

    def keep(learner):
        network = Network(learner.network.config, seed=0)
        network.load_state({name: tensor.clone() for name, tensor in learner.network.state().items()})
        weights[learner.version] = network

    _, numbers, batches = asynchronous(tiny_model, renderer, 1, keep=keep)
    made = [row for batch in batches for episode in batch for row in rows(episode, {"agent"})]
    assert any(len(set(row.versions[row.mask].tolist())) > 1 for row in made), "no episode saw an update in its middle"
    for row in made:
        for version in set(row.versions[row.mask].tolist()):
            spoken = torch.tensor(row.mask & (row.versions == version))[1:]
            gap = (learner_logprobs(weights[version], row.tokens.tolist()) - torch.tensor(row.logprobs[1:]))[spoken].abs()
            assert gap.max() < 5e-5
    assert max(metrics["staleness_max"] for metrics in numbers) == 1


@torch.inference_mode()
def learner_logprobs(network, tokens):
    run, view = torch.tensor(tokens), Packed([len(tokens)])
    return network.logprobs(network.hidden(run, view.positions, view)[:-1], run[1:])[0]


def test_where_updates_fall_by_rule_a_run_repeats_bit_for_bit_at_lag_1_too(tiny_model, renderer):
    one, other = (asynchronous(tiny_model, renderer, 1) for _ in range(2))
    assert one[0] == other[0] and said(one[2]) == said(other[2])


@pytest.mark.parametrize("max_lag", [0, 2])
def test_a_killed_run_learns_again_from_what_the_store_has(tiny_model, renderer, tmp_path, max_lag):
    """Its learner goes through the same weights, though beyond lag 0 episodes would not come out the same again."""
    store = Store(tmp_path / "episodes.db")
    digest, numbers, batches = asynchronous(tiny_model, renderer, max_lag, store=store)

    class Mute(Engine):
        async def speak(self, view, sampling):
            raise AssertionError("nothing is attempted again")

    harness, engine, learner = parts(tiny_model, renderer)
    engine.__class__ = Mute

    async def again():
        made = source(harness, engine, max_lag=max_lag, store=store)
        return [event.metrics async for event in rl(made, learner, engine, PROBE)]

    repeated = asyncio.run(again())
    assert learner.network.digest() == digest
    assert all(metrics.pop("episodes_stored") == len(batch) for metrics, batch in zip(repeated, batches, strict=True))
    kept = [{n: v for n, v in metrics.items() if "seconds" not in n and n in numbers[0]} for metrics in repeated]
    assert kept == [{n: v for n, v in metrics.items() if n in kept[0]} for metrics in numbers]


def test_a_store_that_another_seed_has_filled_is_refused(tiny_model, renderer, tmp_path):
    store = Store(tmp_path / "episodes.db")
    asynchronous(tiny_model, renderer, 0, Learner, store=store, steps=1)
    with pytest.raises(InputError, match="of another run"):
        asynchronous(tiny_model, renderer, 0, Learner, store=store, steps=1, seed=4)


def test_a_line_that_goes_on_from_a_checkpoint_first_gives_the_engine_its_weights(tiny_model, renderer):
    harness, engine, learner = parts(tiny_model, renderer)
    learner.version = 2

    async def on():
        async for event in rl(source(harness, engine, first=2, steps=3), learner, engine, PROBE):
            return event.metrics

    metrics = asyncio.run(on())
    assert metrics["episodes_dropped"] == 0 and metrics["episodes"] > 0 and engine.version == 3


def test_an_engine_with_other_weights_of_the_same_number_is_not_believed(tiny_model, renderer):
    harness, engine, learner = parts(tiny_model, renderer)
    other = Engine(Network(learner.network.config, seed=1), renderer=renderer, slots=GROUPS * SIZE, context=900)

    async def main():
        return [event.metrics async for event in rl(source(harness, other, steps=1), learner, other, PROBE)]

    (metrics,) = asyncio.run(main())
    assert metrics["gap"] < 1e-4


def test_a_line_that_goes_on_gives_the_engine_its_weights_by_any_way(tiny_model, renderer, tmp_path):
    harness, engine, learner = parts(tiny_model, renderer)
    learner.version = 2
    way = through(Publisher(tmp_path / "weights"), Subscriber(tmp_path / "weights"))

    async def on():
        async for event in rl(source(harness, engine, first=2, steps=3), learner, engine, PROBE, publish=way):
            return event.metrics

    metrics = asyncio.run(on())
    assert metrics["episodes_dropped"] == 0 and metrics["episodes"] > 0 and engine.version == 3


def test_weights_may_go_by_way_of_a_folder(tiny_model, renderer, tmp_path):
    """Bit for bit as handed over in one process, at lag 0."""
    digest, _, _ = asynchronous(tiny_model, renderer, 0, Learner)
    harness, engine, learner = parts(tiny_model, renderer)
    way = through(Publisher(tmp_path / "weights"), Subscriber(tmp_path / "weights"))

    async def main():
        return [event.metrics async for event in rl(source(harness, engine), learner, engine, PROBE, publish=way)]

    numbers = asyncio.run(main())
    assert learner.network.digest() == digest == engine.digest()
    assert all(metrics["publish_failed"] == 0 for metrics in numbers) and engine.version == STEPS


def test_rounded_weights_go_by_deltas_and_are_exactly_what_the_engine_holds(tiny_model, renderer, tmp_path):
    """float32 learner, bfloat16 on the way, at lag 1; the learner keeps its own."""
    harness, engine, learner = parts(tiny_model, renderer)
    publisher = Publisher(tmp_path / "weights", dtype=torch.bfloat16)
    way = through(publisher, Subscriber(tmp_path / "weights"))

    async def main():
        made = rl(source(harness, engine, max_lag=1), learner, engine, PROBE, publish=way)
        return [event.metrics async for event in made]

    numbers = asyncio.run(main())
    assert all(metrics["publish_failed"] == 0 and metrics["publish_gap"] < 1e-4 for metrics in numbers)
    assert [entry.base for entry in publisher.objects.entries()] == [None, 1, 2, 3]
    rounded = publisher.rounded(learner.network.state())
    assert all(torch.equal(held, rounded[name].float()) for name, held in engine.network.state().items())
    assert engine.digest() != learner.network.digest()


def test_the_version_after_a_torn_one_comes_in_full(tiny_model, renderer, tmp_path):
    harness, engine, learner = parts(tiny_model, renderer)
    publisher = Publisher(tmp_path / "weights")
    way, put = through(publisher, Subscriber(tmp_path / "weights")), publisher.objects.put
    publisher.objects.put = lambda name, data: put(name, data[:-1] if name.startswith("00000002-") else data)

    async def main():
        return [event.metrics async for event in rl(source(harness, engine, max_lag=1), learner, engine, PROBE, publish=way)]

    numbers = asyncio.run(main())
    assert [metrics["publish_failed"] for metrics in numbers][:3] == [0, 1, 0]
    assert learner.network.digest() == engine.digest() and engine.version == learner.version
    assert [entry.why for entry in publisher.objects.entries()][1:3] == ["", "asked for"]


def test_there_must_be_something_to_imitate(tiny_model, renderer):
    *_, learner = parts(tiny_model, renderer)

    async def main():
        return [event async for event in sft(learner, [], steps=1, size=1)]

    with pytest.raises(InputError, match="no episodes to imitate"):
        asyncio.run(main())


def test_a_step_of_a_frozen_teachers_episodes_alone_is_passed(tiny_model, renderer):
    harness, engine, comparing = parts(tiny_model, renderer)
    learner = Learner(comparing.network, SFT(), 1e-2)

    async def main():
        ours = await harness.run(TASKS[0], engine, sampling=SAMPLING)
        engine.name = "frozen"
        theirs = await harness.run(TASKS[1], engine, sampling=SAMPLING)
        events = [event async for event in sft(learner, [ours, theirs], steps=2, size=1)]
        with pytest.raises(InputError, match=r"learns from \['agent'\], these are by \['frozen'\]"):
            await anext(sft(learner, [theirs], steps=1, size=1))
        mute = dataclasses.replace(ours, threads=[dataclasses.replace(ours.agent, segments=[])])
        with pytest.raises(InputError, match="in these nobody says a word"):
            await anext(sft(learner, [mute], steps=1, size=1))
        with pytest.raises(InputError, match="cispo has no use for single episodes"):
            await anext(sft(comparing, [ours], steps=1, size=1))
        return events

    events = asyncio.run(main())
    assert len(events) == 2 and sorted(bool(event.metrics["tokens_trained"]) for event in events) == [False, True]


def test_a_learner_that_knows_nobody_who_speaks_is_refused(tiny_model, renderer):
    harness, engine, learner = parts(tiny_model, renderer)
    learner.policies = frozenset({"solver"})

    async def main():
        return [event async for event in rl(source(harness, engine), learner, engine, PROBE)]

    with pytest.raises(InputError, match=r"learns from \['solver'\], these are by \['agent'\]"):
        asyncio.run(main())


def test_an_algorithm_that_rejects_a_whole_step_goes_on(tiny_model, renderer):
    harness, engine, learner = parts(tiny_model, renderer)
    learner.algorithm = dataclasses.replace(RFT(), credit=torch.zeros_like)

    async def main():
        return [event async for event in rl(source(harness, engine), learner, engine, PROBE)]

    events = asyncio.run(main())
    assert len(events) == STEPS and {event.metrics["no_signal"] for event in events} == {1.0}


def test_a_network_that_both_learns_and_speaks_is_refused(tiny_model, renderer):
    harness, engine, learner = parts(tiny_model, renderer)
    learner.network = engine.network

    async def main():
        return [event async for event in rl(source(harness, engine), learner, engine, PROBE)]

    with pytest.raises(InputError, match="load it twice"):
        asyncio.run(main())
