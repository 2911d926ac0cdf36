"""Law 5 at the learner: a frozen thread's tokens contribute nothing, and a network only read stays as it was."""

from __future__ import annotations

import asyncio
import dataclasses
import random

import torch

from tests.harness.test_rough import Words, asks
from tests.laws.walks import TASK
from tests.train.house import gradients, groups, learner, network, record, thread
from trivium.engine import Engine
from trivium.harness import Harness, Subagent, Window, assign_task
from trivium.nn import Network
from trivium.trace import Sampling
from trivium.train import CISPO, Batch, Composer2, Group

NETWORK = network()


def with_helpers(batch: Batch, seed: int) -> Batch:
    """Each episode with a thread that a frozen policy spoke."""
    rng = random.Random(seed)

    def helped(episode):
        return dataclasses.replace(episode, threads=[*episode.threads, thread(rng, 2, policy="helper", id="helper")])

    return Batch([Group(g.task_id, [helped(e) for e in g.episodes], g.rewards) for g in batch.groups])


def test_frozen_threads_contribute_nothing():
    batch = Batch(groups())
    record(NETWORK, [e for g in batch.groups for e in g.episodes], noise=0.2)
    alone, _ = gradients(learner(NETWORK, CISPO()), batch)
    helped, metrics = gradients(learner(NETWORK, CISPO()), with_helpers(batch, 1))
    assert all(torch.equal(alone[0][name], helped[0][name]) for name in alone[0])
    both, more = gradients(learner(NETWORK, CISPO(), policies={"agent", "helper"}), with_helpers(batch, 1))
    assert more["tokens_trained"] > metrics["tokens_trained"]
    assert any(not torch.equal(alone[0][name], both[0][name]) for name in alone[0])


def test_the_reference_keeps_its_digest_and_the_network_changes_its():
    batch = Batch(groups())
    net = network(seed=3, dtype=torch.float32)
    record(net, [e for g in batch.groups for e in g.episodes])
    student = learner(net, Composer2())
    before, reference = net.digest(), student.reference.digest()
    student.learn(batch)
    assert student.reference.digest() == reference
    assert net.digest() != before


def test_only_frozen_threads_is_a_counted_no_op():
    batch = Batch(groups())
    net = network(seed=3, dtype=torch.float32)
    before = net.digest()
    step = learner(net, CISPO(), policies={"somebody else"}).learn(batch)
    assert step.metrics["no_signal"] == 1 and step.version == 1
    assert net.digest() == before


def test_a_step_on_episodes_with_frozen_sub_agents_moves_the_agents_weights_alone(tiny_model, renderer):
    """The sub-agent is an engine of its own, which spoke in each of them; its tokens and weights are nobody's lesson."""
    helper = Engine(Network.load(tiny_model), renderer=renderer, name="helper", slots=3, context=600)
    child = Subagent(helper, Harness([], Window(600), "Help.", specs=False), Sampling(max_tokens=12))
    harness = Harness([assign_task({"helper": child})], Window(1500), specs=False)
    assign = asks("assign_task", '{"agent": "helper", "prompt": "go"}')

    async def attempts() -> list:
        policies = [Words(renderer, assign, f"#{number}") for number in range(3)]
        return await asyncio.gather(*(harness.run(TASK, each, sample=n) for n, each in enumerate(policies)))

    episodes = asyncio.run(attempts())
    assert all([thread.policy for thread in each.threads] == ["agent", "helper"] for each in episodes)
    assert all(each.threads[1].turns == 1 for each in episodes)
    net = Network.load(tiny_model)
    assert net.digest() == helper.network.digest()
    frozen = helper.network.digest()
    step = learner(net, CISPO()).learn(Batch([Group(TASK.id, episodes, [0.0, 1.0, 2.0])]))
    assert net.digest() != frozen == helper.network.digest()
    spoken = [span for each in episodes for segment in each.agent.segments for span in segment.sampled()]
    assert step.metrics["tokens_trained"] == sum(span.stop - span.start for span in spoken)
