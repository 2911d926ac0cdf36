"""Fakes that take time instead of computing: an engine, a harness and a learner for the loop on a simulated clock.

    clock.run(operate())      where operate() iterates rl(rollouts(SimulatedHarness(), tasks, engine, ...), learner, engine, ())

What is simulated is who waits how long and who dies; `rollouts` and `rl` are the code that runs in earnest. All waiting is
asyncio's, so the same fakes also run on real time.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from trivium.errors import PolicyError
from trivium.loops.staleness import versions
from trivium.policy import Policy, Reply, View
from trivium.trace import Episode, Sampling, Segment, Stop, Task, Thread
from trivium.train import Batch, Step


def logprob(version: int) -> float:
    """What the simulated engine records for a token of a version: of another weights, another number."""
    return -1.0 / (1 + version)


class SimulatedEngine:
    """A Policy whose replies take `seconds(stream)` each and have `tokens` tokens, every one stamped with the version that
    was loaded when it came. `slots` requests run at once, the others wait in order. `die` and `rise` do what they say."""

    name, renderer = "agent", None

    def __init__(self, seconds: Callable[[tuple], float], slots: int = 128, tokens: int = 4, version: int = 0) -> None:
        self.seconds, self.tokens, self.version = seconds, tokens, version
        self.alive, self.busy = True, 0.0
        self._slots = asyncio.Semaphore(slots)
        self._running: set[asyncio.Future] = set()

    async def speak(self, view: View, sampling: Sampling) -> Reply:
        async with self._slots:
            each, versions = self.seconds(view.stream) / self.tokens, []
            for _ in range(self.tokens):
                await self._token(each)
                versions.append(self.version)
        return Reply([1] * self.tokens, [logprob(v) for v in versions], versions, [1.0] * self.tokens)

    async def _token(self, seconds: float) -> None:
        """So long, unless the engine dies meanwhile."""
        if not self.alive:
            raise PolicyError("the engine is dead")
        loop = asyncio.get_running_loop()
        token = loop.create_future()
        timer = loop.call_later(seconds, lambda: token.done() or token.set_result(None))
        self._running.add(token)
        try:
            await token
            self.busy += seconds
        finally:
            timer.cancel()
            self._running.discard(token)

    def load(self, state: object, version: int) -> None:
        if not self.alive:
            raise ConnectionError("the engine is dead")
        self.version = version

    def die(self) -> None:
        """All that is under way is lost."""
        self.alive = False
        for token in list(self._running):
            if not token.done():
                token.set_exception(PolicyError("the engine died"))

    def rise(self, version: int | None = None) -> None:
        """Back, with the weights it had or those of an older `version`."""
        self.alive, self.version = True, self.version if version is None else version


@dataclass(slots=True)
class SimulatedHarness:
    """Lives `turns(task, sample)` turns, in each of which the policy speaks once; an episode of one segment."""

    turns: Callable[[Task, int], int] = lambda task, sample: 1
    digest: str = "simulated"

    async def run(
        self,
        task: Task,
        policy: Policy,
        *,
        sample: int = 0,
        seed: int = 0,
        id: str = "",
        sampling: Sampling | None = None,
        seconds: float | None = None,
        watch: None = None,
    ) -> Episode:
        thread = Thread("0", policy.name, [Segment()])
        thread.segments[0].append([0, 0], "prompt")
        try:
            async with asyncio.timeout(seconds) as deadline:
                thread.stop = await self._live(thread, task, policy, sample, seed, sampling or Sampling())
        except TimeoutError:
            if not deadline.expired():
                raise
            thread.stop = Stop("timeout", f"its {seconds:g} s were used up")
        return Episode(id, task, sample, seed, [thread])

    async def _live(self, thread: Thread, task: Task, policy: Policy, sample: int, seed: int, sampling: Sampling) -> Stop:
        segment = thread.segments[0]
        for turn in range(self.turns(task, sample)):
            try:
                reply = await policy.speak(View(segment.tokens, (), (), (seed, task.id, sample, "0", turn)), sampling)
            except PolicyError as error:
                return Stop("policy", str(error))
            segment.speak(reply.tokens, reply.logprobs, reply.versions, reply.kept)
            segment.append([0], "message")
        return Stop("finished")


@dataclass(slots=True)
class SimulatedLearner:
    """A Learner whose step takes `seconds(version)`; `learned[n]` are the ids of the episodes of its n-th step."""

    seconds: Callable[[int], float] = lambda version: 1.0
    version: int = 0
    policies: frozenset[str] = frozenset({"agent"})
    network: None = None
    learned: list[list[str]] = field(default_factory=list)
    staleness: list[int] = field(default_factory=list)

    async def step(self, batch: Batch) -> Step:
        episodes = [episode for group in batch.groups for episode in group.episodes]
        stale = [self.version - min(versions(episode, self.policies), default=0) for episode in episodes]
        await asyncio.sleep(self.seconds(self.version))
        self.learned.append([episode.id for episode in episodes])
        self.staleness.append(max(stale, default=0))
        self.version += 1
        numbers = {
            "groups": len(batch.groups),
            "groups_dropped": 0,
            "episodes": len(episodes),
            "staleness_max": self.staleness[-1],
        }
        return Step(self.version, {name: float(number) for name, number in numbers.items()})


def publishing(seconds: float) -> Callable:
    """A publication that takes so long; ConnectionError where the engine is dead."""

    async def publish(network: object, version: int, engine: SimulatedEngine, probe: Sequence[int]) -> float:
        await asyncio.sleep(seconds)
        engine.load(None, version)
        return 0.0

    return publish


def log_normal(median: float, p95: float) -> Callable[[tuple], float]:
    """Seconds of a reply, decided by its stream: log-normal with this median and 95th percentile."""
    sigma = math.log(p95 / median) / 1.6448536269514722  # the normal distribution's 95th percentile
    return lambda stream: median * math.exp(sigma * random.Random(repr(stream)).gauss(0, 1))
