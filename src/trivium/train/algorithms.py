"""Algorithms as rows of one table: each is (credit, loss, normaliser). The learner is blind to which one it runs.

    credit      rewards of a group [G] -> one advantage per episode [G]
    loss        trained tokens, flat -> (loss per token [N], which tokens were clipped or masked [N])
    normaliser  lengths and counts -> one weight per episode; the loss of a batch is sum(weight * loss) over its tokens

A *sequence* is always the trained tokens of one episode, however many segments or rows hold them (law 3). All losses
are minimised. Notation: rho = exp(new - old), A the advantage, sg stop-gradient. Sources: docs/algorithms.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from trivium.errors import LawError

if TYPE_CHECKING:
    from trivium.train.feedback import Feedback


@dataclass(frozen=True, slots=True)
class Tokens:
    """The trained tokens of a micro-batch, flat; each field [N].

    new        log-probability now, with gradient
    old        as recorded when sampled, by the engine
    advantage  of the token's episode
    sequence   mean of new - old over all trained tokens of the token's episode, detached; None unless asked for
    reference  log-probability by the reference network; None unless asked for
    """

    new: Tensor
    old: Tensor
    advantage: Tensor
    sequence: Tensor | None = None
    reference: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Counts:
    """What a normaliser may divide by: trained tokens of each episode [E], of its group [E], totals over all ranks.
    A group here is all that was learned of one task: its attempts, and their branches."""

    length: Tensor
    group_length: Tensor
    episodes: int
    groups: int
    tokens: int


Equal = Literal["drop", "count", "learn"]
"""What becomes of a group whose rewards are all equal: every advantage is 0, so nothing says which attempt was better."""

Credit = Callable[[Tensor], Tensor]
Loss = Callable[[Tokens], tuple[Tensor, Tensor]]
Normaliser = Callable[[Counts], Tensor]


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One row of the table.

    `samples`: it needs recorded logprobs, and compares attempts. `sequence`, `reference`: the loss reads that field of Tokens
    (a reference network must then be given to the learner). `rejects`: an episode of advantage 0 is thrown away, and counts in
    no mean. `equal`, of a group of equal rewards: "drop" it; "count" it in the normaliser, which is a mean over all that was
    sampled; or "learn" from it what the loss says at advantage 0, which is its regulariser. `feedback` is a term beside
    the loss, of turns that went wrong, whatever their rewards.
    """

    name: str
    credit: Credit
    loss: Loss
    normaliser: Normaliser
    samples: bool = True
    sequence: bool = False
    reference: bool = False
    rejects: bool = False
    equal: Equal = "drop"
    feedback: Feedback | None = None


# The table -----------------------------------------------------------------------------------------------------------


def SFT() -> Algorithm:
    """Imitation: -new, mean over tokens. Rewards are ignored, a text-only policy may be imitated."""
    return Algorithm("sft", ones, imitate, token_mean, samples=False)


def GRPO(low: float = 0.2, high: float = 0.2, kl: float = 0.0) -> Algorithm:
    """Shao et al. 2024 (arXiv:2402.03300): over std, PPO clip, mean of episodes' token means; k3 KL unless kl is 0."""
    loss = with_k3(ppo(low, high), kl)
    return Algorithm("grpo", standardised(), loss, sequence_mean, reference=kl != 0, equal=_regularised(kl))


def DrGRPO(low: float = 0.2, high: float = 0.2, length: int = 1024) -> Algorithm:
    """Liu et al. 2025 (arXiv:2503.20783): centred only, token sums over a constant: no bias by length or ease."""
    return Algorithm("dr_grpo", centred, ppo(low, high), constant(length), equal="count")


def Composer2(low: float = 0.2, high: float = 0.2, length: int = 1024, kl: float = 1e-3) -> Algorithm:
    """Dr.GRPO without std or length term, one epoch, k1 KL to a reference (Composer 2's report). `kl` is not published."""
    loss = ppo(low, high, k1=kl)
    return Algorithm("composer2", centred, loss, constant(length), reference=kl != 0, equal=_regularised(kl))


def DAPO(low: float = 0.2, high: float = 0.28) -> Algorithm:
    """Yu et al. 2025 (arXiv:2503.14476): clip-higher, mean over tokens; equal rewards dropped, as its dynamic sampling does.
    That it samples others in their place, and its penalty on length, are no losses."""
    return Algorithm("dapo", standardised(), ppo(low, high), token_mean)


def GSPO(low: float = 3e-4, high: float = 4e-4) -> Algorithm:
    """Zheng et al. 2025 (arXiv:2507.18071): the ratio of a whole sequence (its geometric mean) is clipped."""
    return Algorithm("gspo", standardised(), gspo(low, high), sequence_mean, sequence=True, equal="count")


def CISPO(low: float = 1.0, high: float = 4.0, eps: float = 1e-6) -> Algorithm:
    """MiniMax-M1 Eq. 4-5 (arXiv:2506.13585), as in Context-1: over std + eps, ratio capped at 1 + high, token mean, groups of
    equal rewards dropped (Context-1's report)."""
    return Algorithm("cispo", standardised(eps), cispo(low, high), token_mean)


def Kimi(low: float = -math.log(2), high: float = math.log(2), tau: float = 1e-3) -> Algorithm:
    """Equation 1 of Kimi K2.5's report: centred; log-ratios outside [low, high] masked; tau * log-ratio squared."""
    return Algorithm("kimi", centred, kimi(low, high, tau), group_mean, equal=_regularised(tau))


def RFT(above: float = 0.0) -> Algorithm:
    """Rejection sampling: the best of each group is imitated where it earned more than `above`, all else is thrown away. What
    RL has to beat. The reports name no threshold; at 0 an attempt that failed is never imitated."""
    return Algorithm("rft", best(above), imitate, token_mean, rejects=True)


def _regularised(coefficient: float) -> Equal:
    """A regulariser acts on every token that was sampled, however equal the rewards."""
    return "learn" if coefficient else "count"


# Credit: rewards [G] -> advantages [G] -------------------------------------------------------------------------------


def ones(rewards: Tensor) -> Tensor:
    return torch.ones_like(rewards)


def best(above: float) -> Credit:
    """1 for the best of a group, all of them where several are, 0 for the others, and for all where none has more than
    `above`."""

    def credit(rewards: Tensor) -> Tensor:
        return ((rewards == rewards.max()) & (rewards > above)).to(rewards.dtype)

    return credit


def centred(rewards: Tensor) -> Tensor:
    """R - mean (Dr.GRPO)."""
    return rewards - rewards.mean()


def standardised(eps: float = 1e-6) -> Credit:
    """(R - mean) / (std + eps), std with n - 1; a group of one has no baseline and gets 0 (peers give it R)."""

    def credit(rewards: Tensor) -> Tensor:
        if len(rewards) < 2:
            return torch.zeros_like(rewards)
        return centred(rewards) / (rewards.std() + eps)

    return credit


# Losses: Tokens -> (loss [N], clipped [N]) ---------------------------------------------------------------------------


def log_ratio(tokens: Tokens) -> Tensor:
    """new - old, bounded to +-20 so that its exponential stays finite (verl does the same)."""
    return (tokens.new - tokens.old).clamp(-20.0, 20.0)


def imitate(tokens: Tokens) -> tuple[Tensor, Tensor]:
    """-A * new; A is 1."""
    return -tokens.advantage * tokens.new, _none(tokens)


def ppo(low: float, high: float, k1: float = 0.0) -> Loss:
    """-min(rho * A, clip(rho, 1 - low, 1 + high) * A).

    With `k1`, A is first lowered by k1 * sg(new - reference): the KL is a penalty in the reward. As a term of the loss
    its expected gradient would be zero, since E[grad new] = 0 under the policy itself.
    """

    def loss(tokens: Tokens) -> tuple[Tensor, Tensor]:
        advantage = tokens.advantage
        if k1:
            advantage = advantage - k1 * (tokens.new.detach() - _given(tokens.reference))
        return clipped(log_ratio(tokens).exp(), advantage, low, high)

    return loss


def clipped(ratio: Tensor, advantage: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """PPO's pessimistic bound and where it cut the gradient."""
    free, bound = ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage
    return -torch.minimum(free, bound), (bound < free).detach()


def gspo(low: float, high: float) -> Loss:
    """s = exp(mean log rho of the episode); a token stands for it with sg(s) * exp(new - sg(new)); then PPO's clip."""

    def loss(tokens: Tokens) -> tuple[Tensor, Tensor]:
        ratio = _given(tokens.sequence).clamp(-20.0, 20.0).exp() * (tokens.new - tokens.new.detach()).exp()
        return clipped(ratio, tokens.advantage, low, high)

    return loss


def cispo(low: float, high: float) -> Loss:
    """-sg(clip(rho, 1 - low, 1 + high)) * A * new: no token loses its gradient. low = 1: no lower bound, as rho > 0."""

    def loss(tokens: Tokens) -> tuple[Tensor, Tensor]:
        ratio = log_ratio(tokens).exp().detach()
        bound = ratio.clamp(1 - low, 1 + high)
        return -bound * tokens.advantage * tokens.new, bound != ratio

    return loss


def kimi(low: float, high: float, tau: float) -> Loss:
    """-[low <= log rho <= high] * rho * A + tau * (log rho)^2, masked whatever A's sign, the square on every token."""

    def loss(tokens: Tokens) -> tuple[Tensor, Tensor]:
        log = log_ratio(tokens)
        outside = ((log < low) | (log > high)).detach()
        gain = torch.where(outside, 0.0, log.exp() * tokens.advantage)
        return -gain + tau * log.square(), outside

    return loss


def with_k3(loss: Loss, kl: float) -> Loss:
    """loss + kl * k3, k3 = exp(reference - new) - (reference - new) - 1 >= 0, unbiased on policy."""
    if not kl:
        return loss

    def penalised(tokens: Tokens) -> tuple[Tensor, Tensor]:
        value, cut = loss(tokens)
        gap = _given(tokens.reference) - tokens.new
        return value + kl * (gap.exp() - gap - 1), cut

    return penalised


def _given(field: Tensor | None) -> Tensor:
    """A field of Tokens that the row of the table asks for."""
    if field is None:
        raise LawError("a loss reads a field of Tokens that its algorithm does not ask for")
    return field


def _none(tokens: Tokens) -> Tensor:
    return torch.zeros_like(tokens.new, dtype=torch.bool)


# Normalisers: Counts -> weight of each episode's tokens [E] ----------------------------------------------------------


def token_mean(counts: Counts) -> Tensor:
    """Every trained token weighs the same."""
    return torch.full_like(counts.length, 1 / counts.tokens)


def sequence_mean(counts: Counts) -> Tensor:
    """Mean of the episodes' token means."""
    return 1 / (counts.length * counts.episodes)


def sequence_sum(counts: Counts) -> Tensor:
    """Mean of the episodes' token sums."""
    return torch.full_like(counts.length, 1 / counts.episodes)


def constant(length: int) -> Normaliser:
    """Mean of the episodes' token sums, over a constant length (Dr.GRPO's Z)."""
    return lambda counts: sequence_sum(counts) / length


def group_mean(counts: Counts) -> Tensor:
    """Token mean inside a group, then mean over groups: Kimi's E_x [1/N sum], SkyRL's prompt_mean."""
    return 1 / (counts.group_length * counts.groups)


TABLE = (SFT(), GRPO(), DrGRPO(), Composer2(), DAPO(), GSPO(), CISPO(), Kimi(), RFT())
"""Every algorithm with its defaults: what the laws are tested on and docs/algorithms.md lists."""
