"""One step's attempts, which may be under way while earlier steps are learned: slots, deadlines, re-runs, branches, scores."""

from __future__ import annotations

import asyncio
import heapq
import inspect
import itertools
import json
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec

from trivium.errors import InputError
from trivium.harness import Event, Harness, Snapshot, TurnEvent, Watch, silence_error, silent
from trivium.loops.plan import Plan
from trivium.policy import Policy
from trivium.reward import AnyScorer, GroupScorer, Verdict, verdicts
from trivium.trace import Episode, Store, Task

AGAIN = (1.0, 10.0, 60.0)
"""Seconds before each re-run of an episode whose policy could not speak: an engine has 71 s to come back."""


@dataclass(slots=True)
class Outcome:
    """What came of one attempt: its episode, with its scores or the error that left it unscored, and the branches of its last
    turn."""

    episode: Episode
    verdict: Verdict = field(default_factory=dict)
    branches: list[Outcome] = field(default_factory=list)

    @property
    def scores(self) -> dict[str, float]:
        """Its scores, none where it is unscored."""
        return {} if isinstance(self.verdict, Exception) else self.verdict


Tries = list[list[Outcome]]
"""The attempts of a step, task by task."""


@dataclass(slots=True)
class Flight:
    """The attempts of one step that are under way, task by task, and the comparisons of each task's attempts."""

    step: int
    scorer: AnyScorer
    began: float
    attempts: list[list[asyncio.Task[Outcome | None]]] = field(default_factory=list)
    comparisons: list[asyncio.Task[None]] = field(default_factory=list)
    reruns: int = 0
    silent: Episode | None = None  # one in which the policy could not speak

    @property
    def tasks(self) -> list[asyncio.Task]:
        """All that is to end before the step is whole."""
        return [*itertools.chain(*self.attempts), *self.comparisons]

    def overtake(self) -> None:
        """Give up on the attempts still under way. What has ended is still compared."""
        for attempt in itertools.chain(*self.attempts):
            attempt.cancel()

    @property
    def overtaken(self) -> int:
        return sum(attempt.cancelled() for attempt in itertools.chain(*self.attempts))

    def outcomes(self) -> Tries:
        """What came of it, in order, without those in which the policy could not speak. Raises what an attempt raised, and
        PolicyError (PlaceError for a place) where the policy could speak to the end in none; those that were overtaken say
        nothing of it."""
        for task in self.tasks:
            if not task.cancelled() and (error := task.exception()):
                raise error
        tries = [[each.result() for each in part if not each.cancelled()] for part in self.attempts]
        ended = list(itertools.chain(*tries))
        if self.silent and ended and not any(ended):
            raise silence_error(self.silent)
        return [[each for each in part if each] for part in tries]


class Slots:
    """At most `number` episodes at once; of those that wait, the oldest step's first, and of one step's as they came."""

    def __init__(self, number: int) -> None:
        self._free = number
        self._waiting: list[tuple[int, int, asyncio.Future]] = []
        self._arrivals = itertools.count()

    @asynccontextmanager
    async def __call__(self, step: int) -> AsyncGenerator[None]:
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

    def begin(self, step: int, tasks: Sequence[Task], scorer: AnyScorer) -> Flight:
        """All attempts of a step, under way."""
        refuse_strange_scorer(scorer)
        flight, create = Flight(step, scorer, asyncio.get_running_loop().time()), asyncio.create_task
        for task in tasks:
            part = [create(self._attempt(flight, task, sample)) for sample in range(self.plan.size)]
            flight.attempts.append(part)
            if isinstance(scorer, GroupScorer):
                flight.comparisons.append(create(self._compare(part, scorer)))
        return flight

    def stored(self, step: int, tasks: Sequence[Task], store: Store) -> Tries:
        """What the store has of a step that this run has made before: a run that was killed learns from it again, with the
        scores of then: opinions that came later are nothing that it learned from. InputError where what it has under these ids
        was made with another seed or another task: facts do not change, so ours would find no place."""
        stored = {episode.id: episode for episode in store.select(prefix=f"rl/{step}/")}
        parts = [[stored.get(identity(step, task, sample)) for sample in range(self.plan.size)] for task in tasks]
        for part, task in zip(parts, tasks, strict=True):
            if foreign := [e.id for e in part if e and not self._ours(e, step, task)]:
                raise InputError(f"{store.url} has {foreign[0]} of another run, by its seed or its task: give this one its own")
        branches: dict[str, list[Episode]] = defaultdict(list)
        for episode in sorted(stored.values(), key=lambda episode: episode.sample):
            branches[episode.parent].append(episode)

        def attempt(episode: Episode) -> Outcome:
            return Outcome(episode, store.own_scores(episode.id), [attempt(branch) for branch in branches[episode.id]])

        return [[attempt(episode) for episode in part if episode] for part in parts]

    def pin(self, store: Store) -> None:
        """InputError where `store` has steps that were made another way: of what this run asks for they would be no part."""
        plan, sampling = self.plan, msgspec.json.encode(self.plan.sampling).decode()
        ours = {"groups": plan.groups, "size": plan.size, "sampling": sampling, "harness": self.harness.digest}
        ours |= {"branches": plan.branches}
        theirs = {"branches": 0} | json.loads(store.pin("rl", json.dumps(ours)))  # older stores do not say
        if other := [name for name, value in ours.items() if theirs.get(name) != value]:
            raise InputError(f"{store.url} has steps of a run with other {', '.join(other)}: give this one a store of its own")

    def _ours(self, episode: Episode, step: int, task: Task) -> bool:
        one, other = [msgspec.msgpack.encode(each) for each in (episode.task, task)]  # in a store a tuple has become a list
        return episode.seed == self._stream(step) and one == other

    def _stream(self, step: int) -> int:
        return (self.plan.seed * 1_000_003 + step) % 2**63  # a store's number

    async def _attempt(self, flight: Flight, task: Task, sample: int) -> Outcome | None:
        """The attempt, and its branches; None where the policy could not speak. A group scorer scores it later, beside the
        others at its task."""
        last: deque[Snapshot] = deque(maxlen=1)
        async with self.slots(flight.step):
            episode = await self._persist(flight, task, sample, last)
        if episode is None:
            return None
        attempt = Outcome(episode)
        if not isinstance(flight.scorer, GroupScorer):
            await judge([attempt], flight.scorer)
        if self.plan.branches and episode.agent.stop and episode.agent.stop.reason == "finished":
            attempt.branches = await self._branches(flight, episode, last[0], sample)
        return attempt

    async def _branches(self, flight: Flight, episode: Episode, snapshot: Snapshot, sample: int) -> list[Outcome]:
        """The last turn of an attempt some times more, scored; without those in which the policy could not speak in time."""
        numbers = range(self.plan.branches * sample, self.plan.branches * (sample + 1))
        calls = [self._branch(flight, episode, snapshot, self.plan.size + number) for number in numbers]
        branches = []
        for branch in await asyncio.gather(*calls, return_exceptions=True):  # none goes on behind the back of one that failed
            if isinstance(branch, BaseException):
                raise branch
            if branch:
                branches.append(Outcome(branch))
        await judge(branches, flight.scorer)
        return branches

    async def _branch(self, flight: Flight, episode: Episode, snapshot: Snapshot, sample: int) -> Episode | None:
        """The last turn once more, and what may come after it. None where the policy could not speak in time."""
        async with self.slots(flight.step):
            branch = await self.harness.branch(
                snapshot, episode, self.policy, sample=sample, seed=episode.seed, seconds=self.seconds
            )
        return None if silent(branch) else branch

    async def _compare(self, part: Sequence[asyncio.Task[Outcome | None]], scorer: AnyScorer) -> None:
        """The comparison of a task's attempts, once all of them have ended. Those that broke are heard of elsewhere."""
        await asyncio.wait(part)
        results = [each.result() for each in part if not each.cancelled() and not each.exception()]
        await judge([each for each in results if each], scorer)

    async def _persist(self, flight: Flight, task: Task, sample: int, last: deque[Snapshot]) -> Episode | None:
        """The episode, begun anew where the policy could not speak to its end; in the end None. One whose time was used up is
        a bad end of its own doing and no reason to begin anew: no signal must pay better than a bad one (law 12)."""
        for pause in (*AGAIN, None):
            episode = await self._run(flight.step, task, sample, last)
            if not silent(episode):
                return episode
            flight.silent = episode
            if pause is not None:
                flight.reruns += 1
                await asyncio.sleep(pause)
        return None

    async def _run(self, step: int, task: Task, sample: int, last: deque[Snapshot]) -> Episode:
        return await self.harness.run(
            task,
            self.policy,
            sample=sample,
            seed=self._stream(step),
            id=identity(step, task, sample),
            sampling=self.plan.sampling,
            seconds=self.seconds,
            watch=_snapshots(last) if self.plan.branches else None,
        )


async def judge(attempts: Sequence[Outcome], scorer: AnyScorer) -> None:
    """Score attempts of one task: a group scorer compares them with each other."""
    results = await verdicts([attempt.episode for attempt in attempts], scorer, need="reward")
    for attempt, verdict in zip(attempts, results, strict=True):
        attempt.verdict = verdict


def refuse_strange_scorer(scorer: object) -> None:
    """InputError for what a function of the step would not give: somebody handed over the scorer itself."""
    if not callable(scorer) and not isinstance(scorer, GroupScorer):
        if inspect.iscoroutine(scorer):  # an async scorer, called with a step
            scorer.close()
        raise InputError("`rollouts` takes a function of the step that gives its scorer: write lambda step: scorer")


def _snapshots(last: deque[Snapshot]) -> Watch:
    """A watch that takes a snapshot before each turn of the agent."""

    def watch(event: Event) -> None:
        if isinstance(event, TurnEvent) and event.is_agent:
            last.append(event.snapshot())

    return watch


def identity(step: int, task: Task, sample: int) -> str:
    """An attempt's name in the store."""
    return f"rl/{step}/{task.id}/{sample}"
