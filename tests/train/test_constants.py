"""Every published constant of the table, and every one that is ours, by a number worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from tests.train.house import network
from trivium.train import CISPO, DAPO, GRPO, GSPO, SFT, TABLE, AdamW, Composer2, Compute, DrGRPO, Group, Kimi, Learner
from trivium.train.algorithms import Counts, Tokens


def loss(algorithm, ratio: float, advantage: float, new: float = -1.0, sequence: float | None = None, reference: float = -1.0):
    """The loss of one token of this ratio, and whether it was cut."""
    one = torch.tensor([new], dtype=torch.float64)
    tokens = Tokens(
        new=one,
        old=one - math.log(ratio),
        advantage=torch.tensor([advantage], dtype=torch.float64),
        sequence=None if sequence is None else torch.tensor([sequence], dtype=torch.float64),
        reference=torch.tensor([reference], dtype=torch.float64),
    )
    value, cut = algorithm.loss(tokens)
    return pytest.approx(value.item(), abs=1e-12), bool(cut.item())


@pytest.mark.parametrize(
    "algorithm, ratio, advantage, value, cut",
    [
        (GRPO(), 1.19, 1.0, -1.19, False),  # PPO's 0.2 above
        (GRPO(), 1.3, 1.0, -1.2, True),
        (GRPO(), 1.3, -1.0, 1.3, False),
        (GRPO(), 0.7, -1.0, 0.8, True),  # and below
        (GRPO(), 0.81, -1.0, 0.81, False),
        (GRPO(), 0.7, 1.0, -0.7, False),
        (DrGRPO(), 1.3, 2.0, -2.4, True),
        (DrGRPO(), 0.7, -2.0, 1.6, True),
        (DAPO(), 1.27, 1.0, -1.27, False),  # 0.28 above
        (DAPO(), 1.3, 1.0, -1.28, True),
        (DAPO(), 0.7, -1.0, 0.8, True),  # 0.2 below
        (Composer2(), 1.3, 1.0, -1.2, True),
        (Composer2(), 0.7, -1.0, 0.8, True),
        (CISPO(), 4.9, 1.0, 4.9, False),  # -rho * A * new, new = -1; capped at 1 + 4
        (CISPO(), 7.0, 1.0, 5.0, True),
        (CISPO(), 1e-6, -1.0, -1e-6, False),  # no lower bound
        (Kimi(), 1.99, 1.0, -1.99 + 1e-3 * math.log(1.99) ** 2, False),  # within +-log 2, tau 1e-3
        (Kimi(), 2.01, 1.0, 1e-3 * math.log(2.01) ** 2, True),
        (Kimi(), 0.501, 1.0, -0.501 + 1e-3 * math.log(0.501) ** 2, False),
        (Kimi(), 0.499, -1.0, 1e-3 * math.log(0.499) ** 2, True),
        (SFT(), 3.0, 1.0, 1.0, False),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_bounds(algorithm, ratio, advantage, value, cut):
    assert loss(algorithm, ratio, advantage) == (value, cut)


@pytest.mark.parametrize(
    "sequence, advantage, value, cut",
    [
        (math.log(1.0003), 1.0, -1.0003, False),
        (math.log(1.001), 1.0, -1.0004, True),  # 4e-4 above
        (math.log(0.9998), -1.0, 0.9998, False),
        (math.log(0.999), -1.0, 0.9997, True),  # 3e-4 below
        (30.0, -1.0, math.exp(20), False),  # bounded, so that it stays finite
        (-30.0, 1.0, -math.exp(-20), False),
    ],
)
def test_gspos_bounds_are_of_the_whole_sequence(sequence, advantage, value, cut):
    assert loss(GSPO(), 7.0, advantage, sequence=sequence) == (pytest.approx(value, rel=1e-12), cut)


def test_a_ratio_is_bounded_so_that_it_stays_finite():
    assert loss(GRPO(), math.exp(25), -1.0)[0] == pytest.approx(math.exp(20), rel=1e-9)
    assert loss(Kimi(-99, 99, 1.0), math.exp(-25), 0.0)[0] == 400.0, "minus 20, squared"


def test_regularisers():
    """k1 = new - reference lowers the advantage, k3 = exp(-k1) + k1 - 1 is a term of the loss."""
    assert loss(Composer2(), 1.0, 1.0, new=-1.0, reference=-3.0)[0] == -(1.0 - 1e-3 * 2.0)
    assert loss(Composer2(kl=0.5), 1.0, 1.0, new=-1.0, reference=0.0)[0] == -(1.0 + 0.5 * 1.0)
    assert loss(GRPO(kl=0.5), 1.0, 1.0, new=-1.0, reference=-3.0)[0] == -1.0 + 0.5 * (math.exp(-2.0) + 2.0 - 1.0)


def test_normalisers():
    """Two episodes of 3 and 5 tokens of one of 4 tasks, among 10 episodes and 40 tokens of all ranks."""
    counts = Counts(torch.tensor([3.0, 5.0]), torch.tensor([8.0, 8.0]), episodes=10, groups=4, tokens=40)
    weights = {row.name: row.normaliser(counts).tolist() for row in TABLE}
    assert weights["dr_grpo"] == weights["composer2"] == pytest.approx([1 / (10 * 1024)] * 2)
    assert weights["grpo"] == weights["gspo"] == pytest.approx([1 / (3 * 10), 1 / (5 * 10)])
    assert weights["sft"] == weights["dapo"] == weights["cispo"] == weights["rft"] == pytest.approx([1 / 40] * 2)
    assert weights["kimi"] == pytest.approx([1 / (8 * 4)] * 2)


def test_credit():
    """Rewards of 0 and 1e-5: their std with n - 1 is 1e-5 / sqrt(2), to which 1e-6 is added."""
    rewards = torch.tensor([0.0, 1e-5], dtype=torch.float64)
    over_std = 5e-6 / (1e-5 / math.sqrt(2) + 1e-6)
    for row in (GRPO(), DAPO(), GSPO(), CISPO()):
        assert row.credit(rewards).tolist() == pytest.approx([-over_std, over_std])
    for row in (DrGRPO(), Composer2(), Kimi()):
        assert row.credit(rewards).tolist() == pytest.approx([-5e-6, 5e-6])
    assert CISPO(eps=0.5).credit(rewards).tolist()[1] == pytest.approx(5e-6 / (1e-5 / math.sqrt(2) + 0.5))


def test_rewards_are_equal_within_a_millionth():
    assert not Group("t", [], []).differs
    assert Group("t", [None] * 2, [0.0, 1e-6]).differs
    assert [Group("t", [None] * 2, [0.5, 0.5 + gap]).differs for gap in (0.9e-6, 1.1e-6)] == [False, True]
    assert [Group("t", [None], [0.5], baseline=0.5 + gap).differs for gap in (0.9e-6, 1.1e-6)] == [False, True]


def test_the_learners_own():
    optimizer = Learner(network(), SFT(), 1e-3).optimizer
    assert all(
        group["betas"] == (0.9, 0.95) and group["weight_decay"] == 0 and group["eps"] == 1e-8
        for group in optimizer.param_groups
    )
    assert AdamW() == AdamW(substeps=1, max_grad_norm=1.0, momentum=0.9, weight_decay=0.0) and AdamW().schedule(7) == 1.0
    assert Compute() == Compute(micro_tokens=8192, autocast=False, share=True)
