"""Toggle (Kimi K2.5's report, section 4.4.2, equation 2): fewer tokens where a task is solved anyway, and as many as it takes
elsewhere, by phases in turn.

    phase ⌊step / every⌋ even:  reward = r · 1[mean of the group's r < accuracy  or  tokens ≤ budget(task)]
    phase ⌊step / every⌋ odd:   reward = r

A budget that always bound would teach lengths, and a policy that can no longer use more. The report gives neither `every` (its
m) nor `accuracy` (its λ) nor the percentile (its ρ).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trivium.errors import InputError
from trivium.reward.base import AnyScorer, Verdict, verdicts, version
from trivium.trace import Episode


@dataclass(frozen=True, slots=True)
class Toggle:
    """A group scorer around one of your own: what `scorer` gives, its reward bound by `budgets` (tokens, by task; a task
    without one is never bound) in every other phase of `every` steps, in groups whose mean reward is at least `accuracy`.

    `scorer(step)` of a recipe makes it of that step. Beside the scores it gives `reward_unbound`, `tokens_sampled`, and
    `over_budget`, NaN where the task has none. Raises InputError for a phase of no steps.
    """

    seconds = math.inf  # `scorer` has its own

    scorer: AnyScorer
    budgets: Mapping[str, float]
    step: int
    every: int = 2
    accuracy: float = 0.75

    def __post_init__(self) -> None:
        if self.every < 1 or self.step < 0:
            raise InputError(f"a phase has at least one step, and steps count from 0, not {self.every} and {self.step}")

    @property
    def binds(self) -> bool:
        """Whether this step is of a phase in which budgets bind."""
        return self.step // self.every % 2 == 0

    @property
    def version(self) -> str:
        phase = "bound" if self.binds else "free"
        return f"{version(self.scorer)} {phase} accuracy={self.accuracy:g}"

    async def compare(self, episodes: Sequence[Episode]) -> list[Verdict]:
        """The scores of one task's attempts, in their order; what `scorer` left unscored stays so."""
        results = await verdicts(episodes, self.scorer, need="reward")
        rewards = [scores["reward"] for scores in results if not isinstance(scores, Exception)]
        binds = self.binds and bool(rewards) and float(np.mean(rewards)) >= self.accuracy
        pairs = zip(episodes, results, strict=True)
        return [scores if isinstance(scores, Exception) else self._bound(episode, scores, binds) for episode, scores in pairs]

    def _bound(self, episode: Episode, scores: Mapping[str, float], binds: bool) -> dict[str, float]:
        tokens, budget = sampled_tokens(episode), self.budgets.get(episode.task.id, math.nan)
        over = tokens > budget
        return {
            **scores,
            "reward": 0.0 if binds and over else scores["reward"],
            "reward_unbound": scores["reward"],
            "tokens_sampled": float(tokens),
            "over_budget": math.nan if math.isnan(budget) else float(over),
        }


def budgets(attempts: Iterable[tuple[Episode, Mapping[str, float]]], percentile: float, right: float = 1.0) -> dict[str, float]:
    """Task -> the percentile of the tokens of its attempts with a reward of at least `right`; none for a task without any. Made
    once, of attempts by the policy that training begins with, and kept: `evaluate(...)[1]` gives such attempts. Raises
    InputError for a percentile that is none, or where no attempt is right."""
    if not 0 <= percentile <= 100:
        raise InputError(f"a percentile is between 0 and 100, not {percentile:g}")
    lengths: dict[str, list[int]] = {}
    for episode, scores in attempts:
        if scores.get("reward", -math.inf) >= right:
            lengths.setdefault(episode.task.id, []).append(sampled_tokens(episode))
    if not lengths:
        raise InputError(f"no attempt has a reward of {right:g}, so nothing says how many tokens a right one takes")
    return {task: float(np.percentile(each, percentile)) for task, each in lengths.items()}


def sampled_tokens(episode: Episode) -> int:
    """Tokens that the agent itself sampled; a branch also has those that it saw of the attempt that it left."""
    first, *later = episode.agent.segments
    spans = [span for span in first.spans if span.kind == "sampled"]
    return sum(span.stop - span.start for span in [*spans, *(span for segment in later for span in segment.sampled())])
