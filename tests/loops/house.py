"""The loop on a simulated clock, ready to be disturbed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from trivium.clock import SimulatedClock
from trivium.loops import Event, Pace, Plan, Source, rl, rollouts
from trivium.loops.simulated import SimulatedEngine, SimulatedHarness, SimulatedLearner, publishing
from trivium.trace import Episode, Task

TASKS = [Task(f"t{number}", "?") for number in range(12)]


async def judge(episode: Episode) -> dict[str, float]:
    return {"reward": float(episode.sample), "turns": float(episode.agent.turns)}


def attempts(harness, tasks, policy, scorer, **options) -> Source:
    """`rollouts`, its plan and pace told by the names of their fields."""
    pace = Pace(**{name: options.pop(name) for name in ("max_lag", "slots", "seconds") if name in options})
    others = {name: options.pop(name) for name in ("store", "rank") if name in options}
    return rollouts(harness, tasks, policy, scorer, Plan(**options), pace=pace, **others)


@dataclass
class House:
    """`events`, and what came to the learner, after `run`. `batches[n]` are the episodes that step n was offered."""

    engine: SimulatedEngine = field(default_factory=lambda: SimulatedEngine(lambda stream: 4.0))
    learner: SimulatedLearner = field(default_factory=SimulatedLearner)
    harness: SimulatedHarness = field(default_factory=SimulatedHarness)
    publish: Callable = field(default_factory=lambda: publishing(0.1))
    clock: SimulatedClock = field(default_factory=SimulatedClock)
    events: list[Event] = field(default_factory=list)
    batches: list[list[Episode]] = field(default_factory=list)

    def run(self, *disturbers: Callable, max_lag: int = 0, steps: int = 6, groups: int = 2, size: int = 2, **options) -> None:
        """`steps` steps while the `disturbers` (async functions of this house) do their work."""
        rl_options = {name: options.pop(name) for name in ("deadline", "publish_seconds") if name in options}

        async def main() -> None:
            others = [asyncio.create_task(disturber(self)) for disturber in disturbers]
            grouped = dict(groups=groups, size=size, steps=steps, max_lag=max_lag) | options
            source = attempts(self.harness, TASKS, self.engine, lambda step: judge, **grouped)
            seen = replace(source, batches=self._seen(source))
            line = rl(seen, self.learner, self.engine, (), publish=self.publish, **rl_options)
            try:
                async for event in line:
                    self.events.append(event)
            finally:
                for other in others:
                    other.cancel()

        self.clock.run(main())

    async def _seen(self, source):
        try:
            async for groups, scores in source:
                self.batches.append([episode for group in groups for episode in group.episodes])
                yield groups, scores
        finally:
            await source.aclose()

    def total(self, name: str) -> float:
        return sum(event.metrics[name] for event in self.events)

    def account(self, asked: int) -> None:
        """Law: every attempt that was asked for is learned from once, or counted as dropped, overtaken or lost."""
        learned = [id for step in self.learner.learned for id in step]
        assert len(learned) == len(set(learned))
        gone = sum(self.total(f"episodes_{name}") for name in ("dropped", "overtaken", "lost", "unscored"))
        assert len(learned) + gone == asked
