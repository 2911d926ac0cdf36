"""One step's attempts, which may be under way while earlier steps are learned: slots, deadlines, re-runs, scores."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from trivium.errors import InputError, PolicyError, TriviumError
from trivium.harness import Harness
from trivium.policy import Policy
from trivium.reward import Scorer, score
from trivium.trace import Episode, Sampling, Store, Task

AGAIN = (1.0, 10.0, 60.0)
"""Seconds before each re-run of an episode whose policy could not speak: an engine has 71 s to come back."""

Scored = tuple[Episode, dict[str, float]]


@dataclass(slots=True)
class Flight:
    """The attempts of one step that are under way, task by task."""

    step: int
    tasks: list[Task]
    scorer: Scorer
    began: float
    attempts: list[asyncio.Task] = field(default_factory=list)
    reruns: int = 0

    def overtake(self) -> None:
        """Give up on what is still under way."""
        for attempt in self.attempts:
            attempt.cancel()

    @property
    def overtaken(self) -> int:
        return sum(attempt.cancelled() for attempt in self.attempts)

    def landed(self) -> list[list[Scored]]:
        """What came of each task, in order. Raises what an attempt raised, and PolicyError where the policy could speak to the
        end in none; those that were overtaken say nothing of it."""
        errors = [attempt.exception() for attempt in self.attempts if not attempt.cancelled()]
        for error in filter(None, errors):
            raise error
        found = [(None, {}) if attempt.cancelled() else attempt.result() for attempt in self.attempts]
        episodes = [episode for episode, _ in found if episode]
        if not episodes and self.overtaken < len(found):
            raise PolicyError(f"no episode of step {self.step} ended before its deadline, after {len(AGAIN)} re-runs of each")
        if episodes and all(map(silent, episodes)):
            raise PolicyError(episodes[0].agent.stop.detail)
        size = len(found) // max(1, len(self.tasks))
        parts = [found[at : at + size] for at in range(0, len(found), size)] if found else []
        return [[(episode, scores) for episode, scores in part if episode and not silent(episode)] for part in parts]


@dataclass(frozen=True, slots=True)
class Attempts:
    """How an attempt is made: at most `slots` at once, the oldest step's first; each within `seconds`."""

    harness: Harness
    policy: Policy
    size: int
    seed: int
    sampling: Sampling | None
    slots: asyncio.Semaphore
    seconds: float

    def begin(self, step: int, tasks: Sequence[Task], scorer: Scorer) -> Flight:
        """All attempts of a step, under way."""
        if not callable(scorer):
            if inspect.iscoroutine(scorer):  # an async scorer, called with a step
                scorer.close()
            raise InputError("`rollouts` takes a function of the step that gives its scorer: write lambda step: scorer")
        flight = Flight(step, list(tasks), scorer, asyncio.get_running_loop().time())
        for task in tasks:
            flight.attempts += [asyncio.create_task(self._attempt(flight, task, sample)) for sample in range(self.size)]
        return flight

    def kept(self, step: int, tasks: Sequence[Task], store: Store) -> list[list[Scored]]:
        """What the store has of a step that this run has made before, task by task: a run that was killed learns from it
        again, with the scores of then: opinions that came later are nothing that it learned from. InputError where what it
        has under these ids was made with another seed or another task: facts do not change, so ours would find no place."""
        stored = {episode.id: episode for episode in store.select(prefix=f"rl/{step}/")}
        wanted = [[stored.get(identity(step, task, sample)) for sample in range(self.size)] for task in tasks]
        for part, task in zip(wanted, tasks, strict=True):
            if foreign := [e.id for e in part if e and not self._ours(e, step, task)]:
                raise InputError(f"{store.url} has {foreign[0]} of another run, by its seed or its task: give this one its own")
        return [[(e, store.first_scores(e.id)) for e in part if e] for part in wanted]

    def pin(self, groups: int, store: Store) -> None:
        """InputError where `store` has steps that were made another way: of what this run asks for they would be no part."""
        sampling = msgspec.json.encode(self.sampling or Sampling()).decode()
        ours = {"groups": groups, "size": self.size, "sampling": sampling, "harness": self.harness.digest}
        theirs = json.loads(store.pin("rl", json.dumps(ours)))
        if other := [name for name, value in ours.items() if theirs.get(name) != value]:
            raise InputError(f"{store.url} has steps of a run with other {', '.join(other)}: give this one a store of its own")

    def _ours(self, episode: Episode, step: int, task: Task) -> bool:
        kept = [msgspec.msgpack.encode(each) for each in (episode.task, task)]  # in a store a tuple has become a list
        return episode.seed == self._stream(step) and kept[0] == kept[1]

    def _stream(self, step: int) -> int:
        return (self.seed * 1_000_003 + step) % 2**63  # a store's number

    async def _attempt(self, flight: Flight, task: Task, sample: int) -> tuple[Episode | None, dict[str, float]]:
        async with self.slots:
            episode = await self._persist(flight, task, sample)
        if episode is None or silent(episode):
            return episode, {}
        try:
            (scores,) = await score([episode], flight.scorer)
        except asyncio.CancelledError as error:
            if asyncio.current_task().cancelling():
                raise
            raise TriviumError(f"what the scorer of episode {episode.id} waited for was cancelled") from error
        except Exception as error:
            error.add_note(f"while episode {episode.id} was scored")
            raise
        if "reward" not in scores:
            raise InputError(f"the scorer gives no reward, only {', '.join(sorted(scores)) or 'nothing'}")
        return episode, scores

    async def _persist(self, flight: Flight, task: Task, sample: int) -> Episode | None:
        """The episode, begun anew where the policy could not speak to its end or the deadline passed (then None)."""
        for pause in (*AGAIN, None):
            episode = await self._run(flight.step, task, sample)
            if pause is None or (episode is not None and not silent(episode)):
                break
            flight.reruns += 1
            await asyncio.sleep(pause)
        return episode

    async def _run(self, step: int, task: Task, sample: int) -> Episode | None:
        id, seed = identity(step, task, sample), self._stream(step)
        try:
            async with asyncio.timeout(self.seconds) as deadline:
                return await self.harness.run(task, self.policy, sample=sample, seed=seed, id=id, sampling=self.sampling)
        except TimeoutError:
            if not deadline.expired():
                raise
            return None


def identity(step: int, task: Task, sample: int) -> str:
    """An attempt's name in the store."""
    return f"rl/{step}/{task.id}/{sample}"


def silent(episode: Episode) -> bool:
    """Whether its policy could not speak to the end: a dead engine's doing, and no attempt to learn from."""
    return episode.agent.stop is not None and episode.agent.stop.reason == "policy"
