"""What a CUDA device alone can show: a learner there does what it does here, and its engine says what it learns from."""

from __future__ import annotations

import asyncio

import pytest
import torch

from tests.train.house import groups, learner, network, record
from trivium import CISPO, Engine, Harness, Learner, Limits, Network, Plan, Sampling, Window, rl, rollouts
from trivium.agents.search import search_tools
from trivium.agents.search.tools import BRIEF
from trivium.assets import NANO
from trivium.corpus import Corpus
from trivium.tasks.world import World
from trivium.trace import Episode
from trivium.train import SFT, TABLE, AdamW, Batch, Compute

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here: nothing has been trained on one")


@pytest.mark.parametrize("share", [True, False], ids=["prefixes shared", "whole rows"])
@pytest.mark.parametrize("algorithm", [row for row in TABLE if row.name != "sft"], ids=lambda row: row.name)
def test_a_learner_on_a_device_learns_what_it_learns_here(algorithm, share):
    found = []
    for device in ("cpu", "cuda"):
        net, batch = network(dtype=torch.float32), Batch(groups())
        record(net, [e for g in batch.groups for e in g.episodes], noise=0.1)  # here, for both to learn from the same
        student = learner(net.to(device), algorithm, substeps=2, share=share)
        if student.reference:
            student.reference.to(device)
        metrics = [student.learn(batch).metrics for _ in range(3)]
        assert net.head.weight.device.type == device
        found.append((metrics, {name: value.cpu() for name, value in net.state().items()}))
    (here, weights), (there, moved) = found
    for one, other in zip(here, there, strict=True):
        assert other == pytest.approx(one, rel=1e-3, abs=1e-4)
    for name, value in weights.items():
        torch.testing.assert_close(moved[name], value, rtol=0, atol=2e-3)  # six steps of AdamW, each of up to the rate


@pytest.mark.parametrize("autocast", [False, True])
def test_sft_overfits_on_a_device(autocast):
    student = Learner(network(dtype=torch.float32).to("cuda"), SFT(), 1e-2, compute=Compute(autocast=autocast))
    batch = Batch.imitate([e for g in groups() for e in g.episodes])
    losses = [student.learn(batch).metrics["loss"] for _ in range(60)]
    assert losses[0] > 2.0 and losses[-1] < 0.1


async def evenness(episode: Episode) -> dict[str, float]:
    """A reward in which any two attempts differ: the share of even numbers among the tokens that were sampled."""
    said = [segment.tokens[span.start : span.stop] for segment in episode.agent.segments for span in segment.sampled()]
    every = [token for tokens in said for token in tokens]
    return {"reward": sum(token % 2 == 0 for token in every) / len(every)}


def test_rl_on_a_device_learns_from_what_its_engine_says():
    """The engine's logprobs are the learner's, before each update and after it, through CUDA graphs, guesses and reads."""
    world = World.make(seed=0)
    harness = Harness(search_tools(Corpus.build(world.documents), 6), Window(640), BRIEF, Limits(turns=6), specs=False)
    engine = Engine(Network.load(NANO, device="cuda"), slots=32, context=640)
    student = Learner(Network.load(NANO, device="cuda"), CISPO(), 2e-4, optimizer=AdamW(substeps=2))
    probe = engine.renderer.encode("a few words whose logprobs must agree after every update")
    source = rollouts(
        harness, world.tasks(16, hops=(1,)), engine, lambda step: evenness,
        Plan(4, 8, steps=4, branches=2, sampling=Sampling(temperature=2.0, max_tokens=64)),
    )  # fmt: skip

    async def run() -> list:
        return [event async for event in rl(source, student, engine, probe)]

    for event in asyncio.run(run()):
        assert event.metrics["gap_max"] < 2e-3 and event.metrics["updates"] == 2
    assert engine.version == 4 and engine.digest() == student.network.digest()
