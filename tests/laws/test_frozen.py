"""Law 5 at the learner: a frozen thread's tokens contribute nothing, and a network only read stays as it was."""

from __future__ import annotations

import dataclasses
import random

import torch

from tests.train.house import gradients, groups, learner, network, record, thread
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
