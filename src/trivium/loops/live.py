"""Real-time RL: one turn of listen, learn, be judged, be tried out, be deployed or not.

    traffic -> window -> rewards -> a step of the learner -> candidate -> gate -> canary -> promoted, or rolled back

Each turn leaves a record (loops/cycles.py), which is written anew after every stage. Who is killed goes on behind the last
stage that was written: a stage does nothing that could not be done again. An episode is used once, since the record that says
which episodes a turn takes is the cursor, too.

What is held (not shown to be better) does not serve, and the next turn learns on from it; what is rejected or rolled back is
left behind, and the next turn learns on from the incumbent.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trivium import files
from trivium.errors import InputError
from trivium.eval.canary import Canary
from trivium.eval.gate import Decision, refuse_weights
from trivium.loops.cycles import Cycle, Cycles, Outcome
from trivium.loops.deploy import Deployments, Release, Withdrawn
from trivium.loops.traffic import Rules, Window, extend, held_out
from trivium.reward.baseline import RunningBaseline, kind_of
from trivium.reward.detectors import Detector, disbelieve, quarantined, watch
from trivium.reward.distill import Distilled
from trivium.trace import Episode, Store
from trivium.trace.people import user_of
from trivium.train import Batch, Checkpoints, Group, Learner

POLL = 0.5
"""Seconds between two looks at the store."""

ENOUGH = 32
"""Episodes of a canary of which a share says something."""

Examine = Callable[[Path, int, Path, int], Awaitable[Decision]]
"""The gate: the folder and version of the candidate and of the incumbent, each to be spoken by an engine of its own."""


@dataclass(frozen=True, slots=True)
class Listening:
    """What is made of traffic: which of it, what it is worth, what is looked for in it, how tasks are told apart.

    least      episodes to learn from that a turn waits for
    patience   seconds that it waits for them
    """

    rules: Rules
    worth: Distilled
    detectors: Sequence[Detector] = ()
    kind: Callable[[Episode], str] = kind_of
    least: int = 64
    patience: float = 3600.0


@dataclass(frozen=True, slots=True)
class Trying:
    """The canary: the share of the users who are served by it, its rule, and the seconds that it has to show something."""

    share: float = 0.2
    rule: Canary = Canary()
    patience: float = 3600.0


class Live:
    """The loop of one run. `learner` makes one that begins with the weights in a folder."""

    def __init__(
        self,
        run: str | Path,
        store: Store,
        learner: Callable[[Path], Learner],
        examine: Examine,
        listening: Listening,
        trying: Trying = Trying(),
    ) -> None:
        self.cycles, self.deployments, self.store = Cycles(run), Deployments(run), store
        self.listening, self.trying = listening, trying
        self._learner, self._examine = learner, examine

    async def cycle(self) -> Cycle:
        """One turn: a new one, or the one that was stopped, to its end. Raises InputError where no traffic came in time, where
        the incumbent's weights are gone, and whatever learning and measuring raise: then the same call goes on."""
        self._begin()
        cycle = self.cycles.last()
        if cycle is None or cycle.stage == "done":
            cycle = await self._take(cycle)
        return await self._go_on(cycle)

    async def try_out(self, model: Path, why: str) -> Cycle:
        """A turn with a candidate that was made elsewhere: it meets the same gate and the same canary. One that was stopped is
        gone on with, with the weights as they were. InputError for a folder without weights, and while another turn is under
        way."""
        self._begin()
        last = self.cycles.last()
        if last and last.stage != "done":
            if last.origin != why:
                raise InputError(
                    f"cycle {last.number} is under way: `trivium live {self.cycles.run}` brings it to its end first"
                )
            return await self._go_on(last)
        if not any(model.glob("*.safetensors")):
            raise InputError(f"{model} holds no weights: no *.safetensors there{files.model_inside(model)}")
        cycle = self._next(last)
        if self.cycles.model(cycle.version).exists():  # of a turn that was killed before it had a record
            shutil.rmtree(self.cycles.model(cycle.version))
        shutil.copytree(model, self.cycles.model(cycle.version))
        cycle.base, cycle.stage, cycle.origin = cycle.incumbent, "learned", why
        self.cycles.keep(cycle)
        return await self._go_on(cycle)

    def _begin(self) -> None:
        """Where nothing is deployed yet, the run's own model is. Raises as `Deployments.check` for what serves."""
        if not self.deployments.path.exists():
            self.deployments.begin(self.deployments.release(0, self.cycles.model(0)))
        self.deployments.check(self.deployments.read().incumbent)

    async def _go_on(self, cycle: Cycle) -> Cycle:
        stages = {"taken": self._learn, "learned": self._judge, "judged": self._try, "canary": self._try}
        while cycle.stage != "done":
            await stages[cycle.stage](cycle)
            self.cycles.keep(cycle)
        return cycle

    # --- listen

    def _next(self, last: Cycle | None) -> Cycle:
        """The record of the turn behind `last`, which has taken nothing yet."""
        incumbent = self.deployments.read().incumbent.version
        every = list(self.cycles.all())
        known = max((cycle.version for cycle in every), default=0)
        after, number = (last.until, last.number + 1) if last else (0, 1)
        made = (cycle for cycle in reversed(every) if not cycle.origin and cycle.outcome != "nothing")
        own = next(made, None)  # the last that learned something here
        base = own.version if own and own.outcome == "held" and own.incumbent == incumbent else incumbent
        baseline = dict(last.baseline) if last else {}
        return Cycle(number, after, after, base, max(known, incumbent) + 1, incumbent, baseline=baseline)

    async def _take(self, last: Cycle | None) -> Cycle:
        """The record of a new turn, with the episodes that are its own from now on. InputError where too few come."""
        cycle = self._next(last)
        with _timed(cycle, "wait"):
            window = await self._wait(cycle)
        with _timed(cycle, "listen"):
            await self._listen(cycle, window)
        self.cycles.keep(cycle)
        return cycle

    async def _wait(self, cycle: Cycle) -> Window:
        deadline, line = time.monotonic() + self.listening.patience, self.cycles.lineage(cycle.base)
        window = Window(cycle.after, cycle.after)
        while True:
            await asyncio.to_thread(extend, window, self.store, self.listening.rules, line)
            if len(window.fresh) >= self.listening.least:
                return window
            if time.monotonic() > deadline:
                raise InputError(self._too_few(window))
            await asyncio.sleep(POLL)

    def _too_few(self, window: Window) -> str:
        """What to say of a window that a turn cannot learn from: why not, and what may be done."""
        fates = ", ".join(f"{count} {fate}" for fate, count in sorted(window.fates.items())) or "none came"
        waited = f"a turn waits for {self.listening.least} episodes to learn from, and there are {len(window.fresh)} ({fates})"
        hint = "say `trivium serve --temperature 1`" if window.fates["unsampled"] else "is somebody served by it, with consent?"
        return f"{waited} after {self.listening.patience:g} seconds: {hint}"

    async def _listen(self, cycle: Cycle, window: Window) -> None:
        """What the window's episodes are worth, by what people did up to now. What they do later stays in the store."""
        worth = {each.id: (await self._worth(each))["reward"] for each in window.every}
        findings = watch(window.fresh, self.listening.detectors)
        cycle.until, cycle.fates = window.until, dict(window.fates)
        cycle.alarms = [str(finding) for finding in findings if finding.alarm]
        cycle.fates["quarantined"] = len(quarantined(findings))
        cycle.learned = disbelieve({each.id: worth[each.id] for each in window.fresh}, findings)
        cycle.served = served(window.every, worth, self.listening.rules.holdout)

    async def _worth(self, episode: Episode) -> dict[str, float]:
        return await self.listening.worth(episode, self.store.feedback(episode.id))

    # --- learn

    async def _learn(self, cycle: Cycle) -> None:
        with _timed(cycle, "learn"):
            episodes = list(self._own(cycle))
            rewards, kinds = [cycle.learned[each.id] for each in episodes], [self.listening.kind(each) for each in episodes]
            known = RunningBaseline(cycle.baseline)
            learner = self._learner(self.cycles.model(cycle.base))
            checkpoints = Checkpoints(self.cycles.learner(cycle.base))
            if checkpoints.folders():
                checkpoints.load(learner)
            learner.version = cycle.version - 1
            groups = [
                Group(episode.id, [episode], [reward], baseline)  # people ask a question once
                for episode, reward, baseline in zip(episodes, rewards, known.of(kinds, rewards), strict=True)
            ]
            step = await learner.step(Batch(groups))
            self._save(cycle.version, learner)
        cycle.metrics = {**step.metrics}
        cycle.baseline = dict(known.after(kinds, rewards).known)
        cycle.stage = "learned"
        if step.metrics["no_signal"]:
            _end(cycle, "nothing", "every episode was worth what its kind is worth")

    def _own(self, cycle: Cycle) -> Iterator[Episode]:
        """The episodes that this turn learns from, but for those that somebody had deleted meanwhile."""
        after = cycle.after
        while after < cycle.until and (part := self.store.tail(after, 256)):
            yield from (each for number, each in part if number <= cycle.until and each.id in cycle.learned)
            after = part[-1][0]

    def _save(self, version: int, learner: Learner) -> None:
        """The candidate. One that a killed turn left is made again: from the same episodes."""
        for folder in (self.cycles.model(version), self.cycles.learner(version)):
            if folder.exists():
                shutil.rmtree(folder)
        Checkpoints(self.cycles.learner(version), keep=1).save(learner)
        learner.network.save(self.cycles.model(version))

    # --- dare not break it

    async def _judge(self, cycle: Cycle) -> None:
        incumbent = self.deployments.read().incumbent
        cycle.incumbent = incumbent.version
        self.deployments.check(incumbent)
        candidate = self.cycles.model(cycle.version)
        with _timed(cycle, "judge"):
            decision = await asyncio.to_thread(refuse_weights, candidate) or await self._examine(
                candidate, cycle.version, self.deployments.model(incumbent), incumbent.version
            )
        cycle.decision, cycle.reason, cycle.stage = decision.as_json(), decision.reason, "judged"
        if decision.verdict != "promote":
            _end(cycle, "held" if decision.verdict == "hold" else "rejected", decision.reason)

    async def _try(self, cycle: Cycle) -> None:
        """The canary, and what becomes of the candidate by it."""
        release = self.deployments.release(cycle.version, self.cycles.model(cycle.version))
        try:
            if self.trying.share and not self._is_promoted(release):
                if cycle.stage != "canary":
                    cycle.canary = {"after": self._newest(cycle.until)}
                    cycle.stage = "canary"
                    self.cycles.keep(cycle)
                self.deployments.canary(release, self.trying.share, f"cycle {cycle.number}: {cycle.reason}")
                with _timed(cycle, "canary"):
                    decision = await self._watch(cycle)
                cycle.canary |= decision.as_json()
                if decision.verdict != "promote":
                    raise Withdrawn(decision.reason)
                cycle.reason = decision.reason
            self.deployments.promote(release, f"cycle {cycle.number}: {cycle.reason}")
            _end(cycle, "promoted", cycle.reason)
        except Withdrawn as why:
            self.deployments.withdraw(cycle.version, str(why))
            _end(cycle, "rolled_back", str(why))

    def _is_promoted(self, release: Release) -> bool:
        """Whether a turn that was killed behind its promotion has it behind it."""
        return self.deployments.read().incumbent.version == release.version

    def _newest(self, after: int) -> int:
        """The number of the newest episode in the store."""
        while part := self.store.tail(after, 1000):
            after = part[-1][0]
        return after

    async def _watch(self, cycle: Cycle) -> Decision:
        """What people make of the canary, once something is shown, or nothing in the time that it has. Raises Withdrawn where
        an alarm, or a person, took it back meanwhile."""
        deadline = time.monotonic() + self.trying.patience
        seen: dict[str, tuple[bool, float]] = {}
        mine: list[Episode] = []
        number = cycle.canary["after"]
        while True:
            now = self.deployments.read()
            if cycle.version in now.withdrawn:
                raise Withdrawn(now.reason)
            number = await self._see(cycle, number, seen, mine)
            decision = self.trying.rule.decide(seen.values())
            if decision.verdict != "hold":
                return decision
            if time.monotonic() > deadline:
                return Decision("hold", f"not shown in {self.trying.patience:g} seconds: {decision.reason}", decision.evidence)
            await asyncio.sleep(POLL)

    async def _see(self, cycle: Cycle, after: int, seen: dict[str, tuple[bool, float]], mine: list[Episode]) -> int:
        """Add the first visit of everybody who came since, as people are drawn and not visits, and to `mine` what the canary
        said; the number of the last one that had time to be judged. Raises Withdrawn on an alarm of a detector about all that
        it said so far: in one look there are few."""
        lanes = {str(cycle.version): True, str(cycle.incumbent): False}
        now = time.time()
        for number, episode in self.store.tail(after, 1000):
            if now - self.listening.rules.settle < episode.ended <= now:
                break
            after = number
            if episode.deployment not in lanes:
                continue
            if lanes[episode.deployment]:
                mine.append(episode)
            if (user := user_of(episode.account, episode.session)) not in seen:
                seen[user] = (lanes[episode.deployment], ((await self._worth(episode))["reward"] + 1) / 2)
        alarms = [str(each) for each in watch(mine, self.listening.detectors) if each.alarm and each.episodes >= ENOUGH]
        if alarms:
            cycle.alarms += alarms
            raise Withdrawn(f"an alarm about the canary: {alarms[0]}")
        return after


def served(episodes: Sequence[Episode], worth: Mapping[str, float], holdout: float) -> dict[str, dict[str, float]]:
    """For each deployment: how many episodes it served, what people made of them in the mean, and the mean chance with which it
    was to serve them. In `everybody` each episode stands for 1 / propensity like it (Horvitz and Thompson 1952), as if every
    version had served all; `held out` are users who are not learned from."""
    lanes: dict[str, list[Episode]] = {}
    for episode in episodes:
        lanes.setdefault(f"version {episode.deployment or 0}", []).append(episode)
        lanes.setdefault("everybody", []).append(episode)
        if held_out(user_of(episode.account, episode.session), holdout):
            lanes.setdefault("held out", []).append(episode)
    return {name: _summary(mine, worth, weighted=name == "everybody") for name, mine in lanes.items()}


def _summary(episodes: Sequence[Episode], worth: Mapping[str, float], weighted: bool) -> dict[str, float]:
    chances = [each.propensity or 1.0 for each in episodes]
    weights = [1 / chance if weighted else 1.0 for chance in chances]
    reward = sum(w * worth[each.id] for w, each in zip(weights, episodes, strict=True)) / sum(weights)
    return {"episodes": float(len(episodes)), "reward": reward, "propensity": sum(chances) / len(chances)}


def _end(cycle: Cycle, outcome: Outcome, reason: str) -> None:
    cycle.outcome, cycle.reason, cycle.stage = outcome, reason, "done"
    cycle.ended = time.time()


@contextmanager
def _timed(cycle: Cycle, part: str):
    """Add the seconds of a part of a turn to its record."""
    began = time.monotonic()
    try:
        yield
    finally:
        cycle.seconds[part] = round(cycle.seconds.get(part, 0.0) + time.monotonic() - began, 3)
