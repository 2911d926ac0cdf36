"""A run's policies on held-out tasks: attempted once, by as many processes as one likes, and kept beside the run.

`RUN/compare.db` holds every episode that a comparison asked for. Its id names who spoke and a digest of all that decides
what it says: weights, sampling, seed, harness and data. So what is there is never made again, a killed
measurement goes on where it was, and other weights or another harness are another measurement.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from trivium.errors import InputError
from trivium.eval.suite import refuse_twins
from trivium.fleet import Rank, launch
from trivium.harness import Harness, refuse_gaps, silent
from trivium.policy import Policy
from trivium.recipe.base import Bench, Suite
from trivium.recipe.comparison import Speaker
from trivium.recipe.find import opened
from trivium.recipe.judged import judged
from trivium.recipe.watcher import Silent
from trivium.reward import AnyScorer, opinions, refuse_unscored, verdicts
from trivium.trace import Episode, Sampling, Score, Store, Task

WAVE = 128  # episodes that are kept together; a kill loses no more

Pair = tuple[str, int]
"""A task's id, and which attempt at it."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """What is needed of an episode once it is judged: its scores, and what the agent's comparison asks for."""

    scores: dict[str, float]
    outcome: Any = None


Outcomes = dict[Pair, Attempt]


class Measured:
    """One run on one suite. InputError for what is no finished run."""

    def __init__(self, folder: str, suite: Suite) -> None:
        from trivium.recipe.parts import Parts

        self.run, self.recipe = opened(folder)
        self.suite = suite
        self.parts = Parts(self.recipe, self.run.model())
        self.comparison = self.recipe.comparison()

    @property
    def name(self) -> str:
        return self.run.folder.name

    @cached_property
    def bench(self) -> Bench:
        bench = self.recipe.bench(self.suite)
        if not bench.tasks:
            raise InputError(f"{self.run.folder} has no task to be measured on: {self.suite}")
        refuse_twins(bench.tasks)
        return bench

    @property
    def source(self) -> str:
        return self.comparison.source(self.suite)

    @property
    def tasks(self) -> Sequence[Task]:
        return self.bench.tasks

    def speakers(self) -> list[Speaker]:
        """All that is measured: without those whose weights the run does not have any more, and a ceiling that nobody knows."""
        there = {"base": self._has_base(), "expert": self.expert is not None}
        return [speaker for speaker in self.comparison.speakers(self.suite) if there.get(speaker.stage, True)]

    @cached_property
    def expert(self) -> Policy | None:
        """The ceiling on this suite."""
        return self.comparison.expert(self.bench)

    def _has_base(self) -> bool:
        """Whether the model that the run began with can be had. A finished run stands alone, and may have outlived it."""
        folder = Path(self.recipe.base())
        return folder.is_dir() or not folder.is_absolute() and folder.name != "model-sft"

    def harness(self, speaker: Speaker) -> Harness:
        return self.comparison.variant(speaker.variant, self.bench.harness) if speaker.variant else self.bench.harness

    def sampling(self, speaker: Speaker) -> Sampling:
        return self.parts.greedy if speaker.greedy else self.parts.sampling

    def weights(self, stage: str) -> str:
        """The folder (or name) of a stage's weights. InputError where the run keeps none."""
        folder = self._folder(stage)
        if stage != "base" and not Path(folder).is_dir():
            raise InputError(f"{self.run.folder} keeps no {Path(folder).name}: an older Trivium trained it, train it again")
        return folder

    def _folder(self, stage: str) -> str:
        return {"base": self.recipe.base(), "sft": f"{self.run.folder}/model-sft"}.get(stage, f"{self.run.folder}/model")

    def policy(self, speaker: Speaker) -> Policy:
        from trivium.recipe.memory import fitting_engine

        if speaker.stage != "expert":
            return fitting_engine(self.weights(speaker.stage), self.parts.renderer, self.harness(speaker).window.budget)
        assert self.expert is not None  # else it is no speaker
        return self.expert

    # --- what is kept

    def prefix(self, speaker: Speaker) -> str:
        return f"{speaker.name}/{self._key(speaker)}/"

    def _key(self, speaker: Speaker) -> str:
        """A digest of all that decides what `speaker` says on a task."""
        weights = self.comparison.expert_source() if speaker.stage == "expert" else _digest(self.weights(speaker.stage))
        decides = [
            weights, asdict(self.sampling(speaker)), self.recipe.seed, not speaker.variant, self.bench.harness.digest,
            *self.bench.key,
        ]  # fmt: skip
        return hashlib.blake2b(json.dumps(decides).encode(), digest_size=6).hexdigest()

    def known(self, speaker: Speaker) -> Outcomes:
        """What there is of `speaker`, judged: what was measured before, and what the run measured at its own end, if that
        covers all tasks asked for."""
        readable = speaker.stage in ("expert", "base") or Path(self._folder(speaker.stage)).is_dir()
        before = self._read("compare.db", self.prefix(speaker)) if readable else {}
        if speaker.variant or speaker.stage == "expert":  # runs of before had the script call tools it lacked
            return before
        own = self._read("episodes.db", f"eval/{speaker.name}/", self._opens(speaker))
        return own | before if all((task.id, 0) in own for task in self.tasks) else before

    def _opens(self, speaker: Speaker) -> Callable[[Episode], bool]:
        """Whether an episode of the run's own was made in the harness as it is now, as far as its first tokens and where its
        answer ends tell."""
        harness, sampling, renderer = self.bench.harness, self.sampling(speaker), self.parts.renderer

        def same(episode: Episode) -> bool:
            task, first = episode.task, episode.agent.segments[0]
            messages = harness.opening(task.prompt, renderer, task.messages)
            opening = renderer.opening(messages, harness.specs)
            letters = harness.ending(episode.agent.answer) if harness.ending else None
            whole = letters is None or letters >= len(episode.agent.answer)  # else it was heard beyond its end
            return whole and first.sampling == sampling and first.tokens[: len(opening)] == list(opening)

        return same

    def _read(self, name: str, prefix: str, good: Callable[[Episode], bool] = lambda _: True) -> Outcomes:
        if not (self.run.folder / name).is_file():
            return {}
        tasks, store = {task.id: task for task in self.tasks}, Store(self.run.folder / name, readonly=True)
        same = (e for e in store.select(prefix=prefix) if (task := tasks.get(e.task.id)) and name_of(e.task) == name_of(task))
        episodes = [episode for episode in same if good(episode)]
        attempts = self._judged(episodes, store)
        store.close()
        return {(e.task.id, e.sample): attempt for e, attempt in zip(episodes, attempts, strict=True)}

    def _judged(self, episodes: Sequence[Episode], store: Store) -> list[Attempt]:
        judgements = asyncio.run(judged(episodes, self.bench.judge, store))
        refuse_unscored(episodes, judgements, str(self.run.folder))
        known = [
            {} if isinstance(verdict, Exception) else verdict | self.comparison.beside(episode)  # unscored: in no mean
            for episode, verdict in zip(episodes, judgements, strict=True)
        ]
        return [Attempt(each, self.comparison.outcome(episode)) for each, episode in zip(known, episodes, strict=True)]

    def missing(self, speaker: Speaker) -> list[Pair]:
        """What is still to be attempted, in order."""
        known = self.known(speaker)
        every = [(task.id, sample) for sample in range(speaker.attempts) for task in self.tasks]
        return [pair for pair in every if pair not in known]


@dataclass(frozen=True, slots=True)
class Job:
    """Attempts that are missing."""

    run: str
    suite: Suite
    speaker: Speaker
    pairs: tuple[Pair, ...]


def attempt_all(runs: Sequence[Measured], workers: int, watch: Callable[[], Any]) -> None:
    """Attempt what is missing, in `workers` processes; `watch` makes the Watcher of the first. InputError, before anything
    is attempted, where a run does not keep the weights that this takes."""
    jobs = [job for run in runs for speaker in run.speakers() if (job := _job(run, speaker)).pairs]
    if jobs:
        launch(_work, workers, jobs, watch)


def _job(run: Measured, speaker: Speaker) -> Job:
    job = Job(str(run.run.folder), run.suite, speaker, tuple(run.missing(speaker)))
    if job.pairs and speaker.stage != "expert":
        run.weights(speaker.stage)
    return job


def _work(rank: Rank, jobs: Sequence[Job], watch: Callable[[], Any]) -> None:
    runs = {job.run: Measured(job.run, job.suite) for job in jobs}
    with watch() if rank.first else Silent() as watcher:
        for job in jobs:
            mine = rank.share(job.pairs)
            watcher.stage(f"{Path(job.run).name} {job.speaker.name}", len(mine))
            _attempt(runs[job.run], job.speaker, mine, watcher.advance)
            rank.barrier()


def _attempt(run: Measured, speaker: Speaker, pairs: Sequence[Pair], progress: Callable[[int], None]) -> None:
    """Attempt `pairs` in waves, each kept before the next."""
    tasks = {task.id: task for task in run.tasks}
    harness, policy, sampling = run.harness(speaker), run.policy(speaker), run.sampling(speaker)
    prefix, store = run.prefix(speaker), Store(run.run.folder / "compare.db")

    async def attempt(task: str, sample: int) -> Episode:
        id, seed = f"{prefix}{name_of(tasks[task])}/{sample}", run.recipe.seed + 1
        episode = await harness.run(tasks[task], policy, sample=sample, seed=seed, id=id, sampling=sampling)
        progress(1)
        return episode

    async def wave(part: Sequence[Pair]) -> list[Episode]:
        return list(await asyncio.gather(*(attempt(*pair) for pair in part)))

    for start in range(0, len(pairs), WAVE):
        episodes = asyncio.run(wave(pairs[start : start + WAVE]))
        heard = [episode for episode in episodes if not silent(episode)]
        store.write(heard, asyncio.run(_opinions([e for e in heard if e.snapshots], run.bench.judge)))
        refuse_gaps(episodes)
    store.close()


async def _opinions(episodes: Sequence[Episode], judge: AnyScorer) -> list[Score]:
    """The scores of episodes whose places are there now, and will not be when they are read."""
    found = await verdicts(episodes, judge)
    return opinions(episodes, [{} if isinstance(verdict, Exception) else verdict for verdict in found], judge)


def name_of(task: Task) -> str:
    """Of a task as it is now, by what is asked and what judges it: a corrected one is another, though its id is the same."""
    truth = json.dumps([task.prompt, task.messages, task.tools, task.truth], sort_keys=True, default=str)
    return f"{task.id}/{hashlib.blake2b(truth.encode(), digest_size=6).hexdigest()}"


def _digest(model: str) -> str:
    """Of the weights in a folder; of a model in the local cache its name."""
    files = sorted(Path(model).glob("*.safetensors"))
    if not files:
        return model
    return hashlib.blake2b(b"".join(file.read_bytes() for file in files), digest_size=16).hexdigest()
