"""Prefixes computed once: loss, metrics and gradients are those of every row computed alone, for every algorithm."""

from __future__ import annotations

import random

import pytest
import torch

from tests.train.house import draw, gradients, learner, network, record, recut
from trivium.trace import Episode, Segment, Task, Thread
from trivium.train import GRPO, TABLE, Batch, Group

ROWS = [*TABLE, GRPO(kl=0.01)]


def prompted(count: int = 3, size: int = 4) -> Batch:
    """Groups under one system prompt; attempts at one question say the same for a while, and are cut in rows."""
    rng = random.Random(3)
    system, made = draw(rng, 4, 4), []
    for number in range(count):
        question, words, result = draw(rng, 3, 6), draw(rng, 5, 5), draw(rng, 3, 3)
        episodes = [_attempt(rng, number, n, [*system, *question], words, result) for n in range(size)]
        made.append(Group(f"t{number}", episodes, [float(n) + rng.random() / 2 for n in range(size)]))
    record(network(), [episode for group in made for episode in group.episodes], noise=0.4)
    cut = [[recut(e, [9, 14, 18][: n % 4]) for n, e in enumerate(group.episodes)] for group in made]
    return Batch([Group(g.task_id, episodes, g.rewards) for g, episodes in zip(made, cut, strict=True)])


def _attempt(rng: random.Random, number: int, sample: int, prompt: list, words: list, result: list) -> Episode:
    segment = Segment()
    segment.append(prompt, "prompt")
    said = [*words[: sample + 1], *draw(rng, 1, 3)]
    segment.speak(said, [-1.0] * len(said), [0] * len(said))
    segment.append(result, "chunk", "#1")
    segment.speak(last := draw(rng, 1, 4), [-1.0] * len(last), [1] * len(last))
    return Episode(f"t{number}/{sample}", Task(f"t{number}", "?"), threads=[Thread("agent", "agent", [segment])])


@pytest.mark.parametrize("micro_tokens", [40, 10_000])
@pytest.mark.parametrize("algorithm", ROWS, ids=lambda row: f"{row.name}{'+ref' if row.reference else ''}")
def test_equal_to_every_row_alone(algorithm, micro_tokens):
    batch = prompted()
    plain, alone = gradients(learner(network(), algorithm, substeps=2, share=False), batch)
    ours, told = gradients(learner(network(), algorithm, substeps=2, micro_tokens=micro_tokens), batch)
    for mine, other in zip(ours, plain, strict=True):
        for name in other:
            scale = float(other[name].abs().max())
            # transformers' RMSNorm rounds to float32 also in a float64 network; attention alone agrees to 1e-12 (tests/nn)
            torch.testing.assert_close(mine[name], other[name], rtol=0, atol=scale * 5e-7)
    assert told.pop("tokens_computed") < alone.pop("tokens_computed") == alone["tokens_seen"]
    assert told == pytest.approx(alone, rel=1e-6, abs=1e-9)
