"""The episodes that a warm-up imitates: a log's, or a teacher's, made once, and where they cost money, paid for once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from trivium.errors import CorruptError, InputError
from trivium.fleet import Rank
from trivium.harness import refuse_silence, silence, silence_error, silent
from trivium.loops.attempts import AGAIN
from trivium.loops.run import read_json, write_json
from trivium.policy import Endpoint, Policy
from trivium.recipe.judged import judged
from trivium.recipe.parts import Parts
from trivium.recipe.watcher import Watcher
from trivium.reward import Verdict, opinions, refuse_unscored, verdicts
from trivium.trace import Episode, Store, Task

WAVE = 16  # episodes that a teacher gives at once


Lesson = tuple[Episode, dict[str, float]]
"""An episode and its scores."""


class Lessons:
    """A rank's share of the teacher's episodes, in a run's folder and its store."""

    def __init__(self, parts: Parts, store: Store, folder: Path, rank: Rank, watcher: Watcher) -> None:
        self.parts, self.store, self.rank, self.watcher = parts, store, rank, watcher
        self.seed, self.book = parts.recipe.seed, folder / "teacher.json"
        self.purse = Purse(parts.teacher, folder / f"teacher-tokens-{rank.number}.json")
        before = store.select(prefix="teacher/")
        self.known = {episode.id: episode for episode in before if not silent(episode)}  # an older Trivium kept broken ones
        self.broken: list[Episode] = []

    async def selected(self) -> list[Episode]:
        """Those of all ranks that the recipe selects. What the store has is not asked for again: a teacher behind an endpoint
        costs money, and would not repeat itself. Raises InputError where there is none, and as `Recipe.select` does."""
        lessons = await self._log() if self.parts.log else await self._taught()
        episodes, scores = [episode for episode, _ in lessons], [scores for _, scores in lessons]
        if not episodes:
            raise InputError("the teacher ended no episode: give another run more --teacher-tokens")
        selected = self.parts.recipe.select(episodes, scores)
        if self.rank.first:
            write_json(self.book, {"episodes": len(episodes), "lessons": len(selected)})
            if self.parts.harvest:
                write_json(self.book.with_name("warmup-from.json"), self.parts.harvest.provenance())
        return selected

    async def _log(self) -> list[Lesson]:
        """Episodes that somebody lived before, the same on every rank, scored as if they were lived now."""
        log, scorer, harvest = self.parts.log, self.parts.recipe.scorer(0), self.parts.harvest
        if not harvest:
            return self._scored(log, await verdicts(log, scorer))
        with closing(harvest.store()) as store:
            return self._scored(log, await judged(log, scorer, store))

    def _scored(self, episodes: Sequence[Episode], judgements: Sequence[Verdict]) -> list[Lesson]:
        """Those that could be scored. ScorerError where none could."""
        refuse_unscored(episodes, judgements, "the warm-up's")
        pairs = zip(episodes, judgements, strict=True)
        lessons = [(episode, verdict) for episode, verdict in pairs if not isinstance(verdict, Exception)]
        if unscored := len(episodes) - len(lessons):
            self.watcher.note(f"{unscored} episodes of the warm-up could not be scored: going on without them")
        return lessons

    async def _taught(self) -> list[Lesson]:
        """All ranks' lessons. Those that infrastructure ended again and again are counted and left out; raises what ended them
        where there are no others."""
        lessons = await self._attempts(self._share())
        if self.purse.exhausted:
            self.watcher.note(f"--teacher-tokens are used up after {len(lessons)} episodes: going on with those")
        parts = self.rank.gather((lessons, self.broken))
        lessons, broken = [lesson for part, _ in parts for lesson in part], [each for _, part in parts for each in part]
        if broken and not lessons:
            raise silence_error(broken[0])
        if broken:
            why = silence(broken[0])
            self.watcher.note(f"{len(broken)} episodes of the teacher broke each time ({why}): going on without them")
        return lessons

    def _share(self) -> list[tuple[Task, int]]:
        """Which attempts are this rank's: once the book is closed, those that were made."""
        tasks = self.parts.lesson_tasks
        share = self.rank.share([(tasks[n % len(tasks)], n // len(tasks)) for n in range(self.parts.lesson_count)])
        closed = any(self.rank.gather(self.book.exists()))
        return [pair for pair in share if _id(*pair) in self.known] if closed else share

    async def _attempts(self, share: Sequence[tuple[Task, int]]) -> list[Lesson]:
        self.watcher.stage("teacher", len(share))
        lessons, start = [], 0
        while start < len(share):
            wave = share[start : start + self.purse.affords(len(lessons))]
            start += len(wave)
            if self.purse.exhausted:  # what was paid for before is still to be had
                wave = [pair for pair in wave if _id(*pair) in self.known]
            lessons += await self._wave(wave)
        return lessons

    async def _wave(self, wave: Sequence[tuple[Task, int]]) -> list[Lesson]:
        """A few, with their scores, kept before the next few are asked for."""
        episodes = await self._ended(wave)
        judgements = await judged(episodes, scorer := self.parts.recipe.scorer(0), self.store)
        scores = [{} if isinstance(verdict, Exception) else verdict for verdict in judgements]
        self.store.write(episodes, opinions(episodes, scores, scorer))
        return self._scored(episodes, judgements)

    async def _ended(self, wave: Sequence[tuple[Task, int]]) -> list[Episode]:
        """Those of a wave that came to an end of their own: what broke is no lesson, nor what ended for want of tokens."""
        episodes = await asyncio.gather(*(self._attempt(*pair) for pair in wave))
        if not self.purse.exhausted:
            refuse_silence(episodes)
        pairs = zip(wave, episodes, strict=True)
        episodes = await asyncio.gather(*(self._persist(*pair, episode) for pair, episode in pairs))
        if not self.purse.exhausted:
            self.broken += filter(silent, episodes)
        return [episode for episode in episodes if not silent(episode)]

    async def _attempt(self, task: Task, sample: int) -> Episode:
        try:
            return self.known.get(_id(task, sample)) or await self._live(task, sample)
        finally:
            self.watcher.advance()

    async def _persist(self, task: Task, sample: int, episode: Episode) -> Episode:
        """The episode, begun anew where infrastructure ended it, as an attempt of RL is, while the teacher can be paid."""
        for pause in AGAIN:
            if not silent(episode) or self.purse.exhausted:
                break
            await asyncio.sleep(pause)
            episode = await self._live(task, sample)
        return episode

    async def _live(self, task: Task, sample: int) -> Episode:
        teacher = self.parts.teacher
        assert teacher is not None  # else there is a log, or no warm-up
        try:
            return await self.parts.harness.run(task, teacher, sample=sample, seed=self.seed, id=_id(task, sample))
        finally:
            self.purse.keep()


def _id(task: Task, sample: int) -> str:
    return f"teacher/{task.id}/{sample}"


class Purse:
    """What a teacher may still cost. An endpoint is paid in tokens, and what it was paid is kept in `path`, whatever ends a
    run; a scripted teacher costs nothing."""

    def __init__(self, teacher: Policy | None, path: Path) -> None:
        self.paid = teacher if isinstance(teacher, Endpoint) else None
        self.path = path
        if self.paid and path.exists():
            if not isinstance(before := read_json(path), int):
                raise CorruptError(f"{path} holds no number of tokens: write into it what the teacher has been paid so far")
            self.paid.spent += before

    @property
    def exhausted(self) -> bool:
        return self.paid is not None and self.paid.exhausted

    def affords(self, episodes: int) -> int:
        """How many episodes to begin at once, when so many were made."""
        return self.paid.affords(episodes, WAVE) if self.paid else WAVE

    def keep(self) -> None:
        if self.paid:
            write_json(self.path, self.paid.spent)
