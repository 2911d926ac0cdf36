"""One step's attempts, which may be under way while earlier steps are learned: slots, deadlines, re-runs, branches, scores."""

from __future__ import annotations

import asyncio
import heapq
import inspect
import itertools
import json
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec

from trivium.errors import InputError, PolicyError, TriviumError
from trivium.harness import Harness, Snapshot, silence, silent
from trivium.loops.plan import Plan
from trivium.policy import Policy
from trivium.reward import Scorer, score
from trivium.trace import Episode, Store, Task

AGAIN = (1.0, 10.0, 60.0)
"""Seconds before each re-run of an episode whose policy could not speak: an engine has 71 s to come back."""

Scored = tuple[Episode, dict[str, float]]

Found = tuple[list[list[Scored]], list[list[Scored]]]
"""What came of a step: the attempts at each task, and the branches of each attempt that has any."""


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

    def landed(self) -> Found:
        """What came of it, in order. Raises what an attempt raised, and PolicyError where the policy could speak to the end in
        none; those that were overtaken say nothing of it."""
        errors = [attempt.exception() for attempt in self.attempts if not attempt.cancelled()]
        for error in filter(None, errors):
            raise error
        each = [[(None, {})] if attempt.cancelled() else attempt.result() for attempt in self.attempts]
        found = [whole for whole, *_ in each]
        episodes = [episode for episode, _ in found if episode]
        if not episodes and self.overtaken < len(found):
            raise PolicyError(f"no episode of step {self.step} ended before its deadline, after {len(AGAIN)} re-runs of each")
        if episodes and all(map(silent, episodes)):
            raise PolicyError(silence(episodes[0]))
        size = len(found) // max(1, len(self.tasks))
        parts = [found[at : at + size] for at in range(0, len(found), size)] if found else []
        whole = [[(episode, scores) for episode, scores in part if episode and not silent(episode)] for part in parts]
        return whole, [branches for _, *branches in each if branches]


class Slots:
    """At most `number` episodes at once; of those that wait, the oldest step's first, and of one step's as they came."""

    def __init__(self, number: int) -> None:
        self._free = number
        self._waiting: list[tuple[int, int, asyncio.Future]] = []
        self._arrivals = itertools.count()

    @asynccontextmanager
    async def __call__(self, step: int) -> AsyncIterator[None]:
        await self._take(step)
        try:
            yield
        finally:
            self._give()

    async def _take(self, step: int) -> None:
        if self._free:
            self._free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (step, next(self._arrivals), turn))
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # its turn had come
                self._give()
            raise

    def _give(self) -> None:
        while self._waiting:
            *_, turn = heapq.heappop(self._waiting)
            if not turn.done():
                return turn.set_result(None)
        self._free += 1


@dataclass(frozen=True, slots=True)
class Attempts:
    """How the attempts of a plan are made: at most as many at once as there are slots, the oldest step's first."""

    harness: Harness
    policy: Policy
    plan: Plan
    seconds: float
    slots: Slots

    def begin(self, step: int, tasks: Sequence[Task], scorer: Scorer) -> Flight:
        """All attempts of a step, under way."""
        if not callable(scorer):
            if inspect.iscoroutine(scorer):  # an async scorer, called with a step
                scorer.close()
            raise InputError("`rollouts` takes a function of the step that gives its scorer: write lambda step: scorer")
        flight = Flight(step, list(tasks), scorer, asyncio.get_running_loop().time())
        for task in tasks:
            flight.attempts += [asyncio.create_task(self._attempt(flight, task, sample)) for sample in range(self.plan.size)]
        return flight

    def kept(self, step: int, tasks: Sequence[Task], store: Store) -> Found:
        """What the store has of a step that this run has made before: a run that was killed learns from it again, with the
        scores of then: opinions that came later are nothing that it learned from. InputError where what it has under these ids
        was made with another seed or another task: facts do not change, so ours would find no place."""
        stored = {episode.id: episode for episode in store.select(prefix=f"rl/{step}/")}
        wanted = [[stored.get(identity(step, task, sample)) for sample in range(self.plan.size)] for task in tasks]
        for part, task in zip(wanted, tasks, strict=True):
            if foreign := [e.id for e in part if e and not self._ours(e, step, task)]:
                raise InputError(f"{store.url} has {foreign[0]} of another run, by its seed or its task: give this one its own")
        branches: dict[str, list[Episode]] = defaultdict(list)
        for episode in sorted(stored.values(), key=lambda episode: episode.sample):
            branches[episode.parent].append(episode)

        def scored(part: Sequence[Episode | None]) -> list[Scored]:
            return [(episode, store.own_scores(episode.id)) for episode in part if episode]

        made = [branches[e.id] for part in wanted for e in part if e and branches[e.id]]
        return [scored(part) for part in wanted], [scored(part) for part in made]

    def pin(self, store: Store) -> None:
        """InputError where `store` has steps that were made another way: of what this run asks for they would be no part."""
        plan, sampling = self.plan, msgspec.json.encode(self.plan.sampling).decode()
        ours = {"groups": plan.groups, "size": plan.size, "sampling": sampling, "harness": self.harness.digest}
        ours |= {"branches": plan.branches}
        theirs = {"branches": 0} | json.loads(store.pin("rl", json.dumps(ours)))  # older stores do not say
        if other := [name for name, value in ours.items() if theirs.get(name) != value]:
            raise InputError(f"{store.url} has steps of a run with other {', '.join(other)}: give this one a store of its own")

    def _ours(self, episode: Episode, step: int, task: Task) -> bool:
        kept = [msgspec.msgpack.encode(each) for each in (episode.task, task)]  # in a store a tuple has become a list
        return episode.seed == self._stream(step) and kept[0] == kept[1]

    def _stream(self, step: int) -> int:
        return (self.plan.seed * 1_000_003 + step) % 2**63  # a store's number

    async def _attempt(self, flight: Flight, task: Task, sample: int) -> list[tuple[Episode | None, dict[str, float]]]:
        """The attempt, and behind it its branches."""
        last: deque[Snapshot] = deque(maxlen=1)
        async with self.slots(flight.step):
            episode = await self._persist(flight, task, sample, last)
        if episode is None or silent(episode):
            return [(episode, {})]
        whole = episode, await self._scores(flight, episode)
        if not self.plan.branches or not episode.agent.stop or episode.agent.stop.reason != "finished":
            return [whole]
        numbers = range(self.plan.branches * sample, self.plan.branches * (sample + 1))
        making = [self._branch(flight, episode, last[0], self.plan.size + number) for number in numbers]
        found = await asyncio.gather(*making, return_exceptions=True)  # none goes on behind the back of one that failed
        for error in found:
            if isinstance(error, BaseException):
                raise error
        return [whole, *filter(None, found)]

    async def _branch(self, flight: Flight, episode: Episode, snapshot: Snapshot, sample: int) -> Scored | None:
        """The last turn once more, and what may come after it. None where the policy could not speak in time."""
        async with self.slots(flight.step):
            try:
                async with asyncio.timeout(self.seconds) as deadline:
                    branch = await self.harness.branch(snapshot, episode, self.policy, sample=sample, seed=episode.seed)
            except TimeoutError:
                if not deadline.expired():
                    raise
                return None
        return None if silent(branch) else (branch, await self._scores(flight, branch))

    async def _scores(self, flight: Flight, episode: Episode) -> dict[str, float]:
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
        return scores

    async def _persist(self, flight: Flight, task: Task, sample: int, last: deque[Snapshot]) -> Episode | None:
        """The episode, begun anew where the policy could not speak to its end or the deadline passed (then None)."""
        for pause in (*AGAIN, None):
            episode = await self._run(flight.step, task, sample, last)
            if pause is None or (episode is not None and not silent(episode)):
                break
            flight.reruns += 1
            await asyncio.sleep(pause)
        return episode

    async def _run(self, step: int, task: Task, sample: int, last: deque[Snapshot]) -> Episode | None:
        asked = {"sample": sample, "seed": self._stream(step), "sampling": self.plan.sampling}
        watched = {"on_turn": last.append} if self.plan.branches else {}  # a snapshot is a copy
        try:
            async with asyncio.timeout(self.seconds) as deadline:
                return await self.harness.run(task, self.policy, id=identity(step, task, sample), **asked, **watched)
        except TimeoutError:
            if not deadline.expired():
                raise
            return None


def identity(step: int, task: Task, sample: int) -> str:
    """An attempt's name in the store."""
    return f"rl/{step}/{task.id}/{sample}"
