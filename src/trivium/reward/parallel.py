"""PARL, the reward of an orchestrator (Kimi K2.5's report, section 3):

    r = lambda1 r_parallel + lambda2 r_finish + r_perf,     both lambdas annealed to zero

The report gives neither a closed form of the first two nor any lambda; its authors' earlier post has one lambda, from .1 to 0.
Here r_parallel is how many sub-agents worked side by side, over `enough` and 1 at most: it keeps a policy from doing
everything itself before it knows what others are good for (serial collapse). r_finish is the share of all assignments that were
truly done, which is for `done` to say and not for calls that returned: it keeps a policy from assigning for the sake of it
(spurious parallelism). Who assigns nothing leaves nothing undone, and has 1: with 0 there, this term paid for splitting
whatever could be split, and a policy split all of it (docs/log.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trivium.reward.base import Scorer, verdicts
from trivium.trace import Episode, Spawn, critical_steps, episode_stages

Done = Callable[[Episode], Sequence[bool]]
"""Of each assignment of the agent, in order, whether it was truly done."""


@dataclass(frozen=True, slots=True)
class Parl:
    """`perf`, whose reward is r_perf and whose patience is its own, with both terms beside it. Scores: `r_perf`, `r_parallel`,
    `r_finish`, the agent's `assignments`, `parallelism` (the most side by side), `critical_steps`, and those of `perf`."""

    seconds = math.inf

    perf: Scorer
    done: Done
    parallel: float = 0.1
    finish: float = 0.1
    enough: int = 8

    async def __call__(self, episode: Episode) -> dict[str, float]:
        (scores,) = await verdicts([episode], self.perf, need="reward")
        if isinstance(scores, Exception):
            raise scores
        perf, done = scores.pop("reward"), self.done(episode)
        widest = max((len(stage.branches) for stage in episode_stages(episode)), default=0)
        parallel, finish = min(1.0, widest / self.enough), sum(done) / len(done) if done else 1.0
        return {
            "reward": self.parallel * parallel + self.finish * finish + perf,
            "r_perf": perf,
            "r_parallel": parallel,
            "r_finish": finish,
            "assignments": float(len(done)),
            "parallelism": float(widest),
            "critical_steps": float(critical_steps(episode)),
            **scores,
        }

    @property
    def version(self) -> str:
        """Both lambdas, by which a store tells apart the scores of one run."""
        return f"{self.parallel:g} {self.finish:g}"


def annealed(start: float, step: int, steps: int, share: float) -> float:
    """`start` at step 0, then down on a line to 0, where it is after that `share` of `steps` and stays."""
    return start * max(0.0, 1 - step / max(1.0, share * steps))


def assigned(episode: Episode) -> list[str]:
    """The ids of the threads that the agent itself began, in order."""
    calls = {call.id for call in episode.agent.calls}
    return [op.child for op in episode.ops if isinstance(op, Spawn) and op.call in calls]
