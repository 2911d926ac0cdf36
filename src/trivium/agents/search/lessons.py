"""The teacher's episodes that a warm-up imitates: made once, filtered, and where they cost money, paid for once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from trivium.agents.search.recipe import Parts
from trivium.agents.search.watcher import Watcher
from trivium.errors import CorruptError, InputError
from trivium.fleet import Rank
from trivium.harness import refuse_silence, silent
from trivium.loops.run import read_json, write_json
from trivium.policy import Endpoint, Policy
from trivium.reward import opinions, score
from trivium.tasks.filter import Scored, keep
from trivium.trace import Episode, Store, Task

WAVE = 16  # episodes that a teacher gives at once


class Lessons:
    """A rank's share of them, in a run's folder and its store."""

    def __init__(self, parts: Parts, store: Store, folder: Path, rank: Rank, watcher: Watcher) -> None:
        self.parts, self.store, self.rank, self.watcher = parts, store, rank, watcher
        self.seed, self.book = parts.recipe.seed, folder / "teacher.json"
        self.purse = Purse(parts.teacher, folder / f"teacher-tokens-{rank.number}.json")
        self.known = {episode.id: episode for episode in store.select(prefix="teacher/")}

    async def kept(self) -> list[Episode]:
        """Those of all ranks that pass Context-1's filter. What the store has is not made again: a teacher behind an endpoint
        costs money, and would not repeat itself."""
        made = await self._made(self._mine())
        if self.purse.exhausted:
            self.watcher.note(f"--teacher-tokens are used up after {len(made)} episodes: going on with those")
        every = [pair for part in self.rank.gather(made) for pair in part]
        kept = filtered([episode for episode, _ in every], [scores for _, scores in every], self.seed)
        if self.rank.first:
            write_json(self.book, {"episodes": len(every), "passed": len(kept)})
        return kept

    def _mine(self) -> list[tuple[Task, int]]:
        """Which attempts are this rank's: once the book is closed, those that were made."""
        tasks = self.parts.warmup_tasks
        mine = self.rank.share([(tasks[n % len(tasks)], n // len(tasks)) for n in range(self.parts.recipe.warmup)])
        closed = any(self.rank.gather(self.book.exists()))
        return [pair for pair in mine if _id(*pair) in self.known] if closed else mine

    async def _made(self, mine: Sequence[tuple[Task, int]]) -> list[tuple[Episode, dict[str, float]]]:
        self.watcher.stage("teacher", len(mine))
        made, start = [], 0
        while start < len(mine):
            wave = mine[start : start + self.purse.affords(len(made))]
            start += len(wave)
            if self.purse.exhausted:  # what was paid for before is still to be had
                wave = [pair for pair in wave if _id(*pair) in self.known]
            made += await self._wave(wave)
        return made

    async def _wave(self, wave: Sequence[tuple[Task, int]]) -> list[tuple[Episode, dict[str, float]]]:
        """A few, with their scores, kept before the next few are asked for."""
        episodes = await asyncio.gather(*(self._attempt(*pair) for pair in wave))
        if self.purse.exhausted:  # what it could not end for want of tokens is no lesson
            episodes = [episode for episode in episodes if not silent(episode)]
        else:
            refuse_silence(episodes)
        scores = await score(episodes, scorer := self.parts.scorer(0))
        self.store.write(episodes, opinions(episodes, scores, scorer))
        return list(zip(episodes, scores, strict=True))

    async def _attempt(self, task: Task, sample: int) -> Episode:
        id, teacher = _id(task, sample), self.parts.teacher
        try:
            return self.known.get(id) or await self.parts.harness.run(task, teacher, sample=sample, seed=self.seed, id=id)
        finally:
            self.watcher.advance()
            self.purse.keep()


def _id(task: Task, sample: int) -> str:
    return f"teacher/{task.id}/{sample}"


class Purse:
    """What a teacher may still cost. An endpoint is paid in tokens, and what it was paid is kept in `path`, whatever ends a
    run; a scripted teacher costs nothing."""

    def __init__(self, teacher: Policy, path: Path) -> None:
        self.paid = teacher if isinstance(teacher, Endpoint) else None
        self.path = path
        if self.paid and path.exists():
            if not isinstance(before := read_json(path), int):
                raise CorruptError(f"{path} holds no number of tokens: write into it what the teacher has been paid so far")
            self.paid.spent += before

    @property
    def exhausted(self) -> bool:
        return self.paid is not None and self.paid.exhausted

    def affords(self, made: int) -> int:
        """How many episodes to begin at once: as the tokens will do for, by what those made so far have cost. Else many would
        run out of them together, none at its end. The first one goes alone."""
        if self.paid is None:
            return WAVE
        left = self.paid.max_spend - self.paid.spent
        return max(1, min(WAVE, left * made // max(1, self.paid.spent)))

    def keep(self) -> None:
        if self.paid:
            write_json(self.path, self.paid.spent)


def filtered(episodes: Sequence[Episode], scores: Sequence[dict[str, float]], seed: int) -> list[Episode]:
    """Context-1's filter (tasks/filter.py) on scored teacher episodes. InputError when nothing passes."""
    records = [
        Scored(e.id, e.task.id, s["trajectory_recall"], s["output_recall"], s["format_valid"] < 1.0)
        for e, s in zip(episodes, scores, strict=True)
    ]
    passed = {record.id for record in keep(records, seed)}
    kept = [episode for episode in episodes if episode.id in passed]
    if not episodes:
        raise InputError("the teacher ended no episode: give another run more --teacher-tokens")
    if not kept:
        raise InputError(f"none of the teacher's {len(episodes)} episodes passes the filter: is it the right teacher?")
    return kept
