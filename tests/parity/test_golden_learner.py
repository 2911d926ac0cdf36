"""The same golden numbers through the whole learner: episodes to rows to packed runs to a gradient, also when cut."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from tests.parity.test_golden import NEW, OLD, R, flat
from tests.train.house import gradients, recut
from trivium.trace import Episode, Segment, Task, Thread
from trivium.train import CISPO, DAPO, GRPO, GSPO, AdamW, Batch, Compute, DrGRPO, Group, Kimi, Learner
from trivium.train.batch import Lesson, counts, lessons, local

FIRST = 100
"""Sampled token number i of the batch has the id FIRST + i, by which the network below looks up what to say of it."""


class Said(torch.nn.Module):
    """In a network's place: the log-probability of each sampled token is a parameter."""

    sharded = False
    config = SimpleNamespace(vocab_size=FIRST + 100)

    def __init__(self) -> None:
        super().__init__()
        self.new = torch.nn.Parameter(flat(NEW))

    @property
    def model(self) -> Said:
        return self

    @property
    def head(self) -> SimpleNamespace:
        return SimpleNamespace(weight=self.new)

    def recompute(self, on: bool) -> None:
        """There is nothing to compute again."""

    def hidden(self, tokens, positions, view, at):
        return tokens[at, None].double()

    def logprobs(self, hidden, targets, temperature):
        return self.new[targets - FIRST], torch.zeros(len(targets))


def golden_batch(cuts: list[int]) -> Batch:
    episodes, number = [], FIRST
    for sample, row in enumerate(OLD):
        segment = Segment()
        segment.append([1, 2], "prompt")
        for turn in (row[:2], row[2:]):
            segment.speak(range(number, number + len(turn)), turn, [0] * len(turn))
            segment.append([3, 4, 5], "chunk")
            number += len(turn)
        episodes.append(recut(Episode(f"t/{sample}", Task("t", "?"), threads=[Thread("agent", "agent", [segment])]), cuts))
    return Batch([Group("t", episodes, R)])


@pytest.mark.parametrize("cuts", [[], [3], [7], [3, 5, 7, 8]], ids=str)
@pytest.mark.parametrize(
    "algorithm, loss, size",
    [
        (GRPO(), -0.015389, 0.524995),
        (DrGRPO(length=4), -0.053175, 0.183639),
        (DAPO(high=0.2), -0.177727, 0.613775),
        (DAPO(), -0.200706, 0.613775),
        (GSPO(0.2, 0.2), -0.081572, 0.388437),
        (CISPO(0.2, 0.2), 0.113444, 0.996579),
        (CISPO(), 0.223751, 1.095827),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_learner(algorithm, loss, size, cuts):
    learner = Learner(Said(), algorithm, 1e-3, optimizer=AdamW(max_grad_norm=float("inf")), compute=Compute(micro_tokens=12))
    (gradient,), metrics = gradients(learner, golden_batch(cuts))
    assert metrics["loss"] == pytest.approx(loss, abs=1e-6)
    assert float(gradient["new"].abs().sum()) == pytest.approx(size, abs=1e-6)
    assert metrics["gap"] == pytest.approx(float((flat(NEW) - flat(OLD)).abs().mean()), abs=1e-6)


def test_kimi_by_hand():
    """Two tokens inside the band, one outside; centred rewards +-0.5; one group of three tokens."""
    batch = golden_batch([])
    pair = Batch([Group("t", batch.groups[0].episodes[1:4:2], [1.0, 0.0])])
    learner = Learner(Said(), Kimi(-0.3, 0.3, 0.1), 1e-3, optimizer=AdamW(max_grad_norm=float("inf")))
    (gradient,), metrics = gradients(learner, pair)
    one, two = torch.tensor(-0.2).exp().item(), torch.tensor(0.2).exp().item()
    assert metrics["loss"] == pytest.approx((-0.5 * (one + two) + 0.1 * (0.04 + 0.04 + 0.25)) / 3, abs=1e-6)
    assert metrics["clipped"] == pytest.approx(1 / 3)
    expected = [(-0.5 * one - 0.04) / 3, (-0.5 * two + 0.04) / 3, 0.1 / 3]  # masked, the last keeps the square's pull
    assert gradient["new"][[4, 5, 9]].tolist() == pytest.approx(expected, abs=1e-6)


def test_what_normalisers_count():
    """Groups of 4 + 2 and 3 + 1 tokens: lengths of episodes and groups, and totals."""
    found, _ = lessons(golden_batch([5]), GRPO(), {"agent"})
    part = [Lesson(one.episode, number // 2, one.advantage, one.rows) for number, one in enumerate(found)]
    made = counts(part)
    assert made.length.tolist() == [4, 2, 3, 1] and made.group_length.tolist() == [6, 6, 4, 4]
    assert (made.episodes, made.groups, made.tokens) == (4, 2, 10) and local(part).tolist() == [4, 2, 10, 4]
    assert Kimi().normaliser(made).tolist() == pytest.approx([1 / 12, 1 / 12, 1 / 8, 1 / 8])
    assert GRPO().normaliser(made).tolist() == pytest.approx([1 / 16, 1 / 8, 1 / 12, 1 / 4])
