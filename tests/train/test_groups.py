"""What a group teaches: of equal rewards, of one attempt, over a stated baseline, the best of a bad one. Numbers by hand.

Two tasks of the golden batch (tests/parity): `bright`, the rollouts of 4 and 2 tokens with rewards 1 and 0; `dull`, those of
3 and 1 tokens with equal rewards. `new - old` of the four tokens of `dull` is -0.5, 0.05, 0.4 and 0.5.
"""

from __future__ import annotations

import math

import pytest
import torch

from tests.parity.test_golden import NEW, OLD, flat
from tests.parity.test_golden_learner import Said, golden_batch
from tests.train.house import gradients
from trivium.errors import InputError
from trivium.loops.staleness import fresh
from trivium.train import CISPO, DAPO, GRPO, GSPO, RFT, SFT, AdamW, Batch, Composer2, DrGRPO, Group, Kimi, Learner

EPISODES = golden_batch([]).groups[0].episodes
BRIGHT, DULL = EPISODES[:2], EPISODES[2:]
SQUARES = [0.25, 0.0025, 0.16, 0.25]


class Reference(Said):
    """Says -1 of every token, and is read, never changed."""

    def __init__(self) -> None:
        super().__init__()
        self.new.data.fill_(-1.0)


def learn(algorithm, *groups: Group):
    """The gradient of each of the ten tokens, and the step's metrics."""
    reference = Reference() if algorithm.reference else None
    learner = Learner(Said(), algorithm, 1e-3, reference=reference, optimizer=AdamW(max_grad_norm=math.inf))
    seen, metrics = gradients(learner, Batch(list(groups)))
    return (seen[0]["new"] if seen else None), metrics


def both(reward: float = 0.5):
    return Group("bright", BRIGHT, [1.0, 0.0]), Group("dull", DULL, [reward] * 2)


@pytest.mark.parametrize("algorithm", [CISPO(), DAPO()], ids=lambda row: row.name)
def test_dropped_whole(algorithm):
    alone, numbers = learn(algorithm, both()[0])
    beside, metrics = learn(algorithm, *both())
    assert torch.equal(alone, beside) and metrics["loss"] == numbers["loss"]
    assert (metrics["groups"], metrics["groups_dropped"], metrics["episodes"]) == (2, 1, 2)


@pytest.mark.parametrize("algorithm", [DrGRPO(length=4), GRPO(), GSPO(0.2, 0.2), Composer2(kl=0)], ids=lambda row: row.name)
def test_counted_in_the_mean_over_episodes_which_is_then_half_as_large(algorithm):
    alone, numbers = learn(algorithm, both()[0])
    beside, metrics = learn(algorithm, *both())
    torch.testing.assert_close(beside, alone / 2, rtol=1e-12, atol=0)
    assert metrics["loss"] == pytest.approx(numbers["loss"] / 2, rel=1e-12)
    assert (metrics["groups_dropped"], metrics["episodes"], metrics["tokens_trained"]) == (1, 2, 6), "nothing of it is computed"


def test_dr_grpo_divides_by_all_that_was_sampled():
    """Two tokens of advantage +-0.5 in one of two tasks, Z = 4: -0.5 * exp(0.5 - 0.3) ... summed, over 4 episodes * 4."""
    ratios = (flat(NEW[:2]) - flat(OLD[:2])).exp()
    gains = [0.5] * 4 + [-0.5] * 2
    each = [min(r * a, max(0.8, min(1.2, r)) * a) for r, a in zip(ratios.tolist(), gains, strict=True)]
    _, metrics = learn(DrGRPO(length=4), *both())
    assert metrics["loss"] == pytest.approx(-sum(each) / (4 * 4), abs=1e-7)


def test_kimis_square_acts_where_rewards_are_equal():
    """Advantage 0: tau * (log rho)^2 alone, over the group's own four tokens, the mean of two groups."""
    gradient, metrics = learn(Kimi(-0.3, 0.3, 0.1), *both())
    ratios = [-0.5, 0.05, 0.4, 0.5]
    assert gradient[6:].tolist() == pytest.approx([0.1 * 2 * x / 4 / 2 for x in ratios], abs=1e-7)
    assert (metrics["groups_dropped"], metrics["episodes"], metrics["updates"]) == (1, 4, 1)
    _, metrics = learn(Kimi(-0.3, 0.3, 0.1), both()[1])
    assert metrics["loss"] == pytest.approx(0.1 * sum(SQUARES) / 4, abs=1e-7) and metrics["updates"] == 1
    _, metrics = learn(Kimi(tau=0.0), both()[1])
    assert metrics["no_signal"] == 1, "without its square nothing is left"


def test_k3_acts_where_rewards_are_equal():
    """Each episode's mean of kl * (1 - exp(reference - new)), the mean of two episodes."""
    gradient, metrics = learn(GRPO(kl=0.1), both()[1])
    new = flat(NEW[2:])
    pull = [0.1 * (1 - math.exp(-1 - x)) for x in new.tolist()]
    expected = [pull[0] / 6, pull[1] / 6, pull[2] / 6, pull[3] / 2]
    assert gradient[6:].tolist() == pytest.approx(expected, abs=1e-7) and metrics["episodes"] == 2
    gaps = [-1 - x for x in new.tolist()]
    each = [0.1 * (math.exp(gap) - gap - 1) for gap in gaps]
    assert metrics["loss"] == pytest.approx(sum(each[:3]) / 6 + each[3] / 2, abs=1e-7)


def test_k1_acts_where_rewards_are_equal():
    """Advantage -kl * (new - reference), through the ratio, over 2 episodes * Z = 4; where the clip cuts it, not."""
    gradient, _ = learn(Composer2(length=4, kl=0.1), both()[1])
    news, olds = flat(NEW[2:]).tolist(), flat(OLD[2:]).tolist()
    ratios = [math.exp(new - old) for new, old in zip(news, olds, strict=True)]  # 0.61, 1.05, 1.49, 1.65
    gains = [-0.1 * (new + 1) for new in news]  # -0.02, -0.015, 0.01, 0.1
    kept = [ratio * gain for ratio, gain in zip(ratios, gains, strict=True)]
    assert gradient[6:].tolist() == pytest.approx([0.0, -kept[1] / 8, 0.0, 0.0], abs=1e-7)


@pytest.mark.parametrize(
    "algorithm", [CISPO(), DAPO(), DrGRPO(length=4), Kimi(-9, 9, 0.0), GRPO(), GSPO(9, 9), Composer2(kl=0)]
)
def test_a_group_of_one_learns_over_a_stated_baseline(algorithm):
    """Reward 1 over a baseline of .25 is an advantage of .75, whatever the row: A is divided by nothing."""
    one = Group("one", EPISODES[3:], [1.0], baseline=0.25)
    gradient, metrics = learn(algorithm, one)
    ratio = math.exp(0.5)  # of its only token, clipped at 1.2 by PPO: then without a gradient
    slope = {"cispo": ratio, "kimi": ratio, "gspo": ratio}.get(algorithm.name, 0.0)
    over = 4.0 if algorithm.name == "dr_grpo" else 1.0
    assert gradient[9].item() == pytest.approx(-0.75 * slope / over, abs=1e-7)
    assert (metrics["groups_dropped"], metrics["episodes"]) == (0, 1)
    (worse, _), (none, numbers) = (
        learn(algorithm, Group("one", EPISODES[3:], [0.0], 0.25)),
        learn(algorithm, Group("one", EPISODES[3:], [1.0])),
    )
    assert worse[9].item() > 0, "worse than the baseline: less likely, and where the ratio is high PPO does not cut that"
    assert none is None and (numbers["groups_dropped"], numbers["no_signal"]) == (1, 1), (
        "without a baseline there is nothing to say"
    )


def test_a_stated_baseline_takes_the_place_of_the_groups_own():
    gradient, _ = learn(CISPO(), Group("t", BRIGHT, [1.0, 0.0], baseline=0.75))
    ratios = (flat(NEW[:2]) - flat(OLD[:2])).exp().tolist()
    gains = [0.25] * 4 + [-0.75] * 2
    assert gradient[:6].tolist() == pytest.approx([-r * a / 6 for r, a in zip(ratios, gains, strict=True)], abs=1e-7)
    _, metrics = learn(CISPO(), Group("t", BRIGHT, [0.5, 0.5], baseline=0.5))
    assert metrics["groups_dropped"] == 1, "all as good as expected"
    _, metrics = learn(CISPO(), Group("t", BRIGHT, [0.5, 0.5], baseline=0.25))
    assert metrics["groups_dropped"] == 0
    with pytest.raises(InputError, match="the baseline nan is not finite"):
        Group("t", BRIGHT, [1.0, 0.0], baseline=math.nan)


def test_imitation_reads_no_baseline():
    plain, _ = learn(SFT(), Group("t", BRIGHT, [1.0, 0.0]))
    stated, _ = learn(SFT(), Group("t", BRIGHT, [1.0, 0.0], baseline=5.0))
    assert torch.equal(plain, stated)


@pytest.mark.parametrize(
    "algorithm, rewards, baseline, chosen",
    [
        (RFT(), [1.0, 0.5], None, [0]),
        (RFT(), [0.0, -1.0], None, []),  # the best of a bad group
        (RFT(above=0.5), [0.5, 0.1], None, []),
        (RFT(above=0.5), [0.51, 0.1], None, [0]),
        (RFT(above=-2.0), [0.0, -1.0], None, [0]),
        (RFT(), [0.5, 0.1], 0.6, []),
        (RFT(), [0.7, 0.1], 0.6, [0]),
        (RFT(), [0.7, 0.7], 0.6, [0, 1]),
        (RFT(), [0.7, 0.7], None, []),  # nothing to choose
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_rejection_sampling_imitates_the_best_that_is_good_enough(algorithm, rewards, baseline, chosen):
    gradient, metrics = learn(algorithm, Group("t", BRIGHT, rewards, baseline))
    assert metrics["episodes"] == len(chosen)
    if chosen:
        tokens = [place for place, of in enumerate([0] * 4 + [1] * 2) if of in chosen]
        assert gradient[tokens].tolist() == pytest.approx(
            [-1 / len(tokens)] * len(tokens)
        ) and gradient.abs().sum() == pytest.approx(1)


def test_one_that_is_left_of_a_group_goes_unless_a_baseline_is_stated():
    old, new = golden_batch([]).groups[0].episodes[:2]
    new.agent.segments[0].versions = [type(run)(run.start, run.stop, 7) for run in new.agent.segments[0].versions]
    groups = [Group("t", [old, new], [1.0, 0.0]), Group("t", [old, new], [1.0, 0.0], baseline=0.5)]
    left, dropped = fresh(groups, version=7, max_lag=0, policies={"agent"})
    assert dropped == 3 and [(group.episodes, group.rewards, group.baseline) for group in left] == [([new], [0.0], 0.5)]
