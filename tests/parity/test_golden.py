"""The golden numbers that peers compute, from the building blocks of our table, in float64.

One group, four rollouts of 4, 2, 3 and 1 tokens. What a peer has and our table does not (leave-one-out baselines,
prime-rl's mask on probabilities) is written here from the same pieces.
"""

from __future__ import annotations

import pytest
import torch

from trivium.train import CISPO, DAPO, GRPO, GSPO, DrGRPO
from trivium.train.algorithms import (
    Counts,
    Tokens,
    centred,
    cispo,
    constant,
    gspo,
    log_ratio,
    ppo,
    sequence_mean,
    sequence_sum,
    standardised,
    token_mean,
)

R = [1.0, 0.0, 0.0, 0.5]
OLD = [[-1.0, -0.5, -2.0, -0.1], [-0.7, -1.2], [-0.3, -0.9, -1.5], [-2.5]]
NEW = [[-0.7, -0.55, -1.5, -0.1], [-0.9, -1.0], [-0.8, -0.85, -1.1], [-2.0]]
TRL, VERL = standardised(1e-4), standardised(1e-6)


def flat(rows: list[list[float]]) -> torch.Tensor:
    return torch.tensor([x for row in rows for x in row], dtype=torch.float64)


def counts_of(lengths: list[int]) -> Counts:
    length = torch.tensor(lengths, dtype=torch.float64)
    return Counts(length, length.sum().expand(len(lengths)), len(lengths), 1, sum(lengths))


def leave_one_out(rewards: torch.Tensor) -> torch.Tensor:
    """NeMo-RL's baseline and std, each without the episode itself."""
    others = [torch.cat([rewards[:i], rewards[i + 1 :]]) for i in range(len(rewards))]
    return torch.stack([(r - o.mean()) / (o.std() + 1e-6) for r, o in zip(rewards, others, strict=True)])


def prime(tokens: Tokens, tau: float = 1e-3, low: float = 0.2, high: float = 0.2):
    """prime-rl: the mask is on probabilities, by the sign of A; the gradient goes through the ratio."""
    gap = (tokens.new.exp() - tokens.old.exp()).detach()
    drop = torch.where(tokens.advantage > 0, gap > high, gap < -low)
    return _masked(tokens, drop, tau)


def ipo(tokens: Tokens):
    return _masked(tokens, (tokens.new.exp() - tokens.old.exp()).detach().abs() > 0.1, 1e-3)


def _masked(tokens: Tokens, drop: torch.Tensor, tau: float):
    log = log_ratio(tokens)
    return torch.where(drop, 0.0, -tokens.advantage * log.exp()) + tau * log.square(), drop


def without_kl(tokens: Tokens):
    return prime(tokens, tau=0.0)


def evaluate(credit, loss, normaliser, part: slice = slice(None)) -> tuple[float, torch.Tensor]:
    """Loss and gradient on the golden batch; `part` restricts the loss to some rollouts (advantages see all)."""
    lengths = [len(row) for row in OLD[part]]
    own = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    new, old = flat(NEW[part]).requires_grad_(), flat(OLD[part])
    mean = torch.zeros(len(lengths), dtype=torch.float64).index_add_(0, own, (new - old).detach())
    advantage = credit(torch.tensor(R, dtype=torch.float64))[part]
    tokens = Tokens(new, old, advantage[own], (mean / torch.tensor(lengths))[own])
    value = (normaliser(counts_of(lengths))[own] * loss(tokens)[0]).sum()
    value.backward()
    return value.item(), new.grad


CLIP, HIGHER, WIDE = ppo(0.2, 0.2), ppo(0.2, 0.28), cispo(1.0, 4.0)
GOLDEN = [
    ("verl vanilla token-mean, SkyRL token_mean", VERL, CLIP, token_mean, -0.177727, 0.613775),
    ("verl seq-mean-token-mean, SkyRL sequence_mean, slime", VERL, CLIP, sequence_mean, -0.015389, 0.524995),
    ("verl seq-mean-token-sum", VERL, CLIP, sequence_sum, -0.444319, 1.534437),
    ("verl seq-mean-token-sum-norm", VERL, CLIP, constant(4), -0.111080, 0.383609),
    ("verl DAPO clip, slime .2/.28", VERL, HIGHER, token_mean, -0.200706, 0.613775),
    ("Dr.GRPO in full", centred, CLIP, constant(4), -0.053175, 0.183639),
    ("GSPO verl, SkyRL", VERL, gspo(0.2, 0.2), sequence_mean, -0.081572, 0.388437),
    ("CISPO .2/.2 verl", VERL, cispo(0.2, 0.2), token_mean, 0.113444, 0.996579),
    ("CISPO 1.0/4.0 verl, SkyRL", VERL, WIDE, token_mean, 0.223751, 1.095827),
    ("CISPO 1.0/4.0 slime sample mean", VERL, WIDE, sequence_mean, 0.156127, 0.916896),
    ("TRL grpo", TRL, CLIP, sequence_mean, -0.015386, 0.524887),
    ("TRL dapo", TRL, CLIP, token_mean, -0.177691, 0.613648),
    ("TRL dapo .2/.28", TRL, HIGHER, token_mean, -0.200664, None),
    ("TRL dr_grpo, scale group", TRL, CLIP, constant(4), -0.111057, 0.383530),
    ("TRL cispo, absolute cap 5", TRL, cispo(1.0, 5.0 - 1), token_mean, 0.223705, 1.095600),
    ("TRL cispo, absolute cap left at 0.2", TRL, cispo(1.0, 0.2 - 1), token_mean, 0.012009, 0.187965),
    ("TRL GSPO", TRL, gspo(0.2, 0.2), sequence_mean, -0.081555, 0.388357),
    ("prime-rl", centred, prime, token_mean, -0.157993, 0.501783),
    ("prime-rl, kl_tau 0", centred, without_kl, token_mean, -0.158101, 0.501843),
    ("prime-rl ipo 0.1", centred, ipo, token_mean, -0.129570, 0.361594),
]


@pytest.mark.parametrize("credit, loss, normaliser, value, size", [row[1:] for row in GOLDEN], ids=[r[0] for r in GOLDEN])
def test_losses(credit, loss, normaliser, value, size):
    ours, gradient = evaluate(credit, loss, normaliser)
    assert ours == pytest.approx(value, abs=1e-6)
    assert size is None or float(gradient.abs().sum()) == pytest.approx(size, abs=1e-6)


@pytest.mark.parametrize(
    "algorithm, value",
    [
        (DrGRPO(length=4), -0.053175),
        (GRPO(), -0.015389),
        (DAPO(), -0.200706),
        (CISPO(), 0.223751),
        (GSPO(0.2, 0.2), -0.081572),
    ],
    ids=lambda row: getattr(row, "name", ""),
)
def test_rows_of_the_table(algorithm, value):
    """The table wires the pieces as its peers do."""
    assert evaluate(algorithm.credit, algorithm.loss, algorithm.normaliser)[0] == pytest.approx(value, abs=1e-6)


def test_mean_of_micro_batch_means():
    """SkyRL's token_mean_legacy with micro-batches of two rollouts."""
    halves = [evaluate(VERL, CLIP, token_mean, part) for part in (slice(0, 2), slice(2, 4))]
    assert sum(value for value, _ in halves) / 2 == pytest.approx(-0.052045, abs=1e-6)
    assert sum(float(g.abs().sum()) for _, g in halves) / 2 == pytest.approx(0.594484, abs=1e-6)


@pytest.mark.parametrize(
    "credit, golden",
    [
        (VERL, [1.305580, -0.783348, -0.783348, 0.261116]),
        (TRL, [1.305310, -0.783186, -0.783186, 0.261062]),
        (centred, [0.625, -0.375, -0.375, 0.125]),
        (leave_one_out, [2.88674, -1.0, -1.0, 0.28867]),
    ],
    ids=["verl", "trl", "centred", "nemo"],
)
def test_advantages(credit, golden):
    digits = 1e-6 if credit is not leave_one_out else 1e-5  # the reference prints NeMo's with five digits
    assert credit(torch.tensor(R, dtype=torch.float64)).tolist() == pytest.approx(golden, abs=digits)


@pytest.mark.parametrize(
    "credit, loss, golden",
    [
        (VERL, CLIP, [0, -0.1242, 0, -0.1306]),
        (VERL, cispo(0.2, 0.2), [-0.1567, -0.1242, -0.1567, -0.1306]),
        (VERL, WIDE, [-0.1762, -0.1242, -0.2153, -0.1306]),
        (centred, prime, [-0.0843, -0.0595, -0.1029, -0.0625]),
    ],
    ids=["ppo", "cispo", "cispo wide", "prime-rl"],
)
def test_gradient_of_the_first_rollout(credit, loss, golden):
    assert evaluate(credit, loss, token_mean)[1][:4].tolist() == pytest.approx(golden, abs=5.1e-5)


def test_gspo_gives_the_first_rollout_no_gradient():
    assert evaluate(VERL, gspo(0.2, 0.2), sequence_mean)[1][:4].tolist() == [0.0] * 4


@pytest.mark.parametrize(
    "normaliser, before, by_rows",
    [
        (token_mean, -0.177727, -0.177727),
        (sequence_mean, -0.015389, -0.296355),
        (sequence_sum, -0.444319, -0.355455),
        (constant(4), -0.111080, -0.088864),
    ],
    ids=["token_mean", "sequence_mean", "sequence_sum", "constant"],
)
def test_split_table(normaliser, before, by_rows):
    """5.7: rollout 0 in two segments. Counting rows is off by up to 19x; counting episodes is what `Counts` does."""
    credit = VERL(torch.tensor(R, dtype=torch.float64))

    def total(lengths: list[int], episode: list[int], counts: Counts, weight_of: list[int]) -> float:
        own = torch.repeat_interleave(torch.tensor(episode), torch.tensor(lengths))
        weight = torch.repeat_interleave(normaliser(counts)[weight_of], torch.tensor(lengths))
        return float((weight * CLIP(Tokens(flat(NEW), flat(OLD), credit[own]))[0]).sum())

    rows, episode = [2, 2, 2, 3, 1], [0, 0, 1, 2, 3]
    assert total([4, 2, 3, 1], [0, 1, 2, 3], counts_of([4, 2, 3, 1]), [0, 1, 2, 3]) == pytest.approx(before, abs=1e-6)
    assert total(rows, episode, counts_of([4, 2, 3, 1]), episode) == pytest.approx(before, abs=1e-6)
    assert total(rows, episode, counts_of(rows), [0, 1, 2, 3, 4]) == pytest.approx(by_rows, abs=1e-6)


def test_advantages_over_rows_would_drag_the_baseline():
    by_rows = VERL(torch.tensor([1.0, 1.0, 0.0, 0.0, 0.5], dtype=torch.float64))
    assert by_rows.tolist() == pytest.approx([1, 1, -1, -1, 0], abs=1e-4)
