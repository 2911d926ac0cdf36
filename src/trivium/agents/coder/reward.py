"""What a coder's episode was worth: hidden tests, a price on effort, and prices on behaviour, each a score that can be seen.

reward = fixed - broken + bonus * solved - effort * C(x) - sum of price * term

fixed    share that passes of the hidden tests that the right change makes pass (SWE-bench calls them fail to pass)
broken   share that no longer passes of the others (pass to pass): leaving all as it was is worth nothing, not their share
solved   1 where all of them pass
C(x)     Composer 2's concave penalty of the weighted effort x (report 4.2, which gives no numbers: ours)
terms    agents/coder/behaviour.py; `unfinished` is an episode that came to no end of its own
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from trivium.agents.coder.behaviour import TERMS
from trivium.policy import Renderer
from trivium.reward import effort_penalty
from trivium.reward.effort import effort
from trivium.trace import Episode, Summarize, Task

WEIGHTS = {"thinking": 0.003, "calling": 0.002, "output": 0.0005, "final": 0.002, "calls": 0.1, "turns": 0.1}
"""What each kind of effort adds to x: with these a task of four calls on two files has an x of about 1.5."""

PRICES = {"open_todos": 0.05, "broken_calls": 0.1, "scratch": 0.02, "terminal_only": 0.1, "unfinished": 0.1}


class Grader(Protocol):
    """Runs hidden tests where the graded code cannot reach them."""

    async def grade(self, task: Task, snapshot: str) -> Mapping[str, bool]:
        """Whether each expected test of `task` passes on the files of `snapshot`."""
        ...


@dataclass(frozen=True, slots=True)
class CoderReward:
    """The scorer. A task without hidden tests cannot be scored, and one whose tests could not be run stays unscored."""

    grader: Grader
    renderer: Renderer
    bonus: float = 0.5
    effort: float = 0.06
    prices: Mapping[str, float] = field(default_factory=lambda: dict(PRICES))

    async def __call__(self, episode: Episode) -> dict[str, float]:
        results = await self.grader.grade(episode.task, episode.snapshots[-1] if episode.snapshots else "")
        fixed, broken = change(episode.task, results)
        solved = float(all(results.values()))
        terms = {**{name: term(episode) for name, term in TERMS.items()}, "unfinished": unfinished(episode)}
        spent = effort(episode, self.renderer)
        price = self.effort * effort_penalty(spent.weighted(WEIGHTS))
        behaviour = sum(self.prices.get(name, 0.0) * value for name, value in terms.items())
        return {
            "reward": fixed - broken + self.bonus * solved - price - behaviour,
            "fixed": fixed,
            "broken": broken,
            "solved": solved,
            **terms,
            "effort_price": price,
            "summaries": float(len(summaries(episode))),
            "summary_tokens": float(sum(summaries(episode))),
            "turns": spent.turns,
            "edits": float(sum(call.name == "edit_file" and not call.error for call in episode.agent.calls)),
        }


def change(task: Task, results: Mapping[str, bool]) -> tuple[float, float]:
    """Shares (fixed, broken) of a task's hidden tests. One that does not say which its change fixes has all of them to fix."""
    named = set(task.truth.get("fixed") or results)
    targets = [passes for id, passes in results.items() if id in named]
    others = [passes for id, passes in results.items() if id not in named]
    return sum(targets) / len(targets), others.count(False) / max(len(others), 1)


def unfinished(episode: Episode) -> float:
    """1 for an episode that did not come to an end of its own: its turns, its window or its time were used up."""
    stop = episode.agent.stop
    return float(stop is None or stop.reason != "finished")


def summaries(episode: Episode) -> list[int]:
    """Sampled tokens of each summary that the agent went on from, scratch included."""
    agent = episode.agent
    cuts = [op.before for op in episode.ops if isinstance(op, Summarize) and op.before.thread == agent.id]
    replies = [agent.segments[cut.segment].sampled()[-1] for cut in cuts]
    return [reply.stop - reply.start for reply in replies]
