"""A run's policies on held-out tasks: attempted once, by as many processes as one likes, and kept beside the run.

`RUN/compare.db` holds every episode that a comparison asked for. Its id names who spoke and a digest of all that decides
what it says: weights, sampling, seed, harness and corpus. So what is there is never made again, a killed
measurement goes on where it was, and other weights or another harness are another measurement.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from trivium.agents.search.baselines import SEARCHES, Found, plain_rankings, returned
from trivium.agents.search.pruning import prune_measures
from trivium.agents.search.recipe import HELDOUT_WORLDS, HOPS, TRAIN_WORLDS, Parts, Search, open_corpus
from trivium.agents.search.teacher import Imperfection, Teacher, with_chain
from trivium.agents.search.watcher import Silent
from trivium.corpus import Corpus, open_embedder
from trivium.engine import Engine
from trivium.errors import InputError
from trivium.eval.suite import refuse_twins
from trivium.fleet import Rank, launch
from trivium.harness import Harness, ToolError, prune_chunks, refuse_gaps, silent
from trivium.loops import Run
from trivium.loops.run import read_json, write_text
from trivium.policy import Policy, Scripted
from trivium.reward import score
from trivium.tasks.beir import beir_tasks
from trivium.trace import Episode, Sampling, Store, Task

WORLD_TASKS = 512  # where nobody says how many: of a real set all
WAVE = 128  # episodes that are kept together; a kill loses no more
ALL = 1 << 30

Pair = tuple[str, int]
"""A task's id, and which attempt at it."""


@dataclass(frozen=True, slots=True)
class Suite:
    """What a run is measured on: its own held-out questions, or those of a folder in the BEIR layout, of one split or of
    several (train+test); 0 tasks: 512 of generated worlds, all of a real set; 0 hops: of however many."""

    tasks: int = 0
    corpus: str = ""
    split: str = "test"
    hops: int = 0


@dataclass(frozen=True, slots=True)
class Speaker:
    """A policy of a run and how it speaks. `stage` is base, sft, rl or expert; without `pruning` that tool refuses."""

    name: str
    stage: str
    greedy: bool = False
    pruning: bool = True
    attempts: int = 1


def speakers(rollouts: int = 1, no_prune: bool = False) -> list[Speaker]:
    """All that a comparison measures, the ceiling last."""
    stages = [(stage, greedy) for stage in ("base", "sft", "rl") for greedy in (False, True)]
    made = [Speaker(f"{stage}_greedy" if greedy else stage, stage, greedy) for stage, greedy in stages]
    made = [replace(each, attempts=rollouts) if each.name == "rl" else each for each in made]
    bare = [Speaker("rl_no_prune", "rl", False, False), Speaker("rl_greedy_no_prune", "rl", True, False)]
    return [*made, *(bare if no_prune else []), Speaker("expert", "expert")]


@dataclass(frozen=True, slots=True)
class Attempt:
    """What is needed of an episode once it is judged."""

    scores: dict[str, float]
    returned: list[Found]


class Measured:
    """One run on one suite. InputError for what is no finished run."""

    def __init__(self, folder: str, suite: Suite) -> None:
        self.run, self.suite = Run.open(folder), suite
        self.recipe = Search.of(self.run.recipe(), folder)
        self.run.model()
        self.count = suite.tasks or (ALL if suite.corpus or self.recipe.corpus else WORLD_TASKS)
        among = (self.count + HELDOUT_WORLDS) * len(HOPS) if suite.hops else self.count  # each world's hops take turns
        self.parts = Parts(replace(self.recipe, eval_tasks=among))

    @property
    def name(self) -> str:
        return self.run.folder.name

    @cached_property
    def tasks(self) -> list[Task]:
        asked = [task for task in self._asked() if self.suite.hops in (0, task.truth.get("hops"))][: self.count]
        if not asked:
            raise InputError(f"{self.suite.corpus or self.run.folder} has no question of {self.suite.hops or 'any'} hops")
        refuse_twins(asked)
        return asked

    def _asked(self) -> list[Task]:
        if not self.suite.corpus:
            return self.parts.heldout_tasks
        return [task for split in self.suite.split.split("+") for task in beir_tasks(self.suite.corpus, split)]

    @cached_property
    def real(self) -> bool:
        return bool(self.suite.corpus) or self.parts.real

    @cached_property
    def corpora(self) -> dict[str, Corpus]:
        """Each with vectors, by the name of its world; of a real set the one there is, under ""."""
        if self.suite.corpus:
            return {"": open_corpus(self.suite.corpus, self.parts.window)}
        if self.real:
            return {"": self.parts.corpus}
        worlds = self.parts.worlds[TRAIN_WORLDS : TRAIN_WORLDS + HELDOUT_WORLDS]
        embedder = open_embedder("minilm")
        return {world.name: Corpus.build(world.documents, embedder=embedder) for world in worlds}

    @cached_property
    def _harness(self) -> Harness:
        if not self.suite.corpus:
            return self.parts.harness
        corpus = self.parts.corpus if self.suite.corpus == self.recipe.corpus else self.corpora[""]
        return self.parts.harness_on(corpus)

    def speakers(self, wanted: Sequence[Speaker]) -> list[Speaker]:
        """Those of `wanted` that are somebody else here: without the tool, one whose prunes are refused is not."""
        return [speaker for speaker in wanted if speaker.pruning or "prune_chunks" in self._harness.tools]

    def harness(self, speaker: Speaker) -> Harness:
        return self._harness if speaker.pruning else refusing(self._harness)

    def sampling(self, speaker: Speaker) -> Sampling:
        return Sampling(temperature=0.0 if speaker.greedy else 1.0, max_tokens=self.parts.window.reply)

    def weights(self, stage: str) -> str:
        """The folder (or name) of a stage's weights. InputError where the run keeps none."""
        folder = self._folder(stage)
        if stage != "base" and not Path(folder).is_dir():
            raise InputError(f"{self.run.folder} keeps no {Path(folder).name}: an older Trivium trained it, train it again")
        if stage == "base" and Path(folder).name == "model-sft" and not Path(folder).is_dir():
            raise InputError(f"{self.run.folder} began with {folder}, which is not here: go to where it was trained from")
        return folder

    def _folder(self, stage: str) -> str:
        return {"base": self.parts.model, "sft": f"{self.run.folder}/model-sft"}.get(stage, f"{self.run.folder}/model")

    def policy(self, speaker: Speaker) -> Policy:
        if speaker.stage != "expert":
            return Engine(self.weights(speaker.stage), renderer=self.parts.renderer, context=self.parts.window.budget)
        tasks = with_chain(self.tasks, self.corpora[""]) if self.real else self.tasks
        perfect = replace(Imperfection.none(), prune=float("prune_chunks" in self._harness.tools))
        return Scripted(Teacher(perfect).script(tasks), self.parts.renderer, name="expert")

    # --- what is kept

    def prefix(self, speaker: Speaker) -> str:
        return f"{speaker.name}/{self._key(speaker)}/"

    def _key(self, speaker: Speaker) -> str:
        """A digest of all that decides what `speaker` says on a task."""
        weights = _script() if speaker.stage == "expert" else _digest(self.weights(speaker.stage))
        decides = [
            weights, asdict(self.sampling(speaker)), self.recipe.seed, speaker.pruning, self._harness.digest, self._corpus_key,
            self.recipe.results,
        ]  # fmt: skip
        return hashlib.blake2b(json.dumps(decides).encode(), digest_size=6).hexdigest()

    @cached_property
    def _corpus_key(self) -> list[str]:
        if self.real:
            return [self.corpora[""].digest]
        return [world.name for world in self.parts.worlds[TRAIN_WORLDS:]]  # their tasks are compared one by one

    def known(self, speaker: Speaker) -> dict[Pair, Attempt]:
        """What there is of `speaker`, judged: what was measured before, and what the run measured at its own end, if that
        covers all tasks asked for."""
        kept = speaker.stage == "expert" or Path(self._folder(speaker.stage)).is_dir() or speaker.stage == "base"
        found = self._read("compare.db", self.prefix(speaker)) if kept else {}
        if self.suite.corpus or not speaker.pruning or speaker.stage == "expert":  # runs of before had it call tools it lacked
            return found
        own = self._read("episodes.db", f"eval/{speaker.name}/", self._opens(speaker))
        return own | found if all((task.id, 0) in own for task in self.tasks) else found

    def _opens(self, speaker: Speaker) -> Callable[[Episode], bool]:
        """Whether an episode of the run's own was made in the harness as it is now, as far as its first tokens and where its
        answer ends tell."""
        harness, sampling, renderer = self._harness, self.sampling(speaker), self.parts.renderer

        def same(episode: Episode) -> bool:
            asked, first = harness.opening(episode.task.prompt, renderer), episode.agent.segments[0]
            opening = renderer.opening(asked, harness.specs)
            letters = harness.ending(episode.agent.answer) if harness.ending else None
            whole = letters is None or letters >= len(episode.agent.answer)  # else it was heard beyond its end
            return whole and first.sampling == sampling and first.tokens[: len(opening)] == list(opening)

        return same

    def _read(self, name: str, prefix: str, good: Callable[[Episode], bool] = lambda _: True) -> dict[Pair, Attempt]:
        if not (self.run.folder / name).is_file():
            return {}
        asked, store = {task.id: task for task in self.tasks}, Store(self.run.folder / name)
        chosen = (e for e in store.select(prefix=prefix) if (task := asked.get(e.task.id)) and _name(e.task) == _name(task))
        episodes = [episode for episode in chosen if good(episode)]
        store.close()
        return {(e.task.id, e.sample): attempt for e, attempt in zip(episodes, self.judged(episodes), strict=True)}

    def judged(self, episodes: Sequence[Episode]) -> list[Attempt]:
        """Opinions are not kept with the facts: a judge that changes judges what is there anew."""
        scores, window = asyncio.run(score(episodes, self.parts.judge_on(self.real))), self.parts.window
        return [
            Attempt(found | effort(episode) | prune_measures(episode, window), returned(episode))
            for episode, found in zip(episodes, scores, strict=True)
        ]

    def missing(self, speaker: Speaker) -> list[Pair]:
        """What is still to be attempted, in order."""
        known = self.known(speaker)
        every = [(task.id, sample) for sample in range(speaker.attempts) for task in self.tasks]
        return [pair for pair in every if pair not in known]

    def plain(self, progress: Callable[[int], None]) -> dict[str, dict[str, list[Found]]]:
        """Task -> search -> its ranking; what needs no policy is kept as a file of its own."""
        corpora = self.corpora
        key = hashlib.blake2b(json.dumps(sorted(c.digest for c in corpora.values())).encode(), digest_size=6).hexdigest()
        path = self.run.folder / f"compare-plain-{key}.json"
        kept = read_json(path) if path.is_file() else {}
        names = {task.id: _name(task) for task in self.tasks}
        new = [task for task in self.tasks if tuple(kept.get(names[task.id], ())) != SEARCHES]
        for task in new:
            corpus = corpora["" if self.real else task.id.partition("/")[0]]
            rankings = plain_rankings(corpus, task)
            kept[names[task.id]] = {name: [[f.doc, f.states] for f in ranking] for name, ranking in rankings.items()}
            progress(1)
        if new:
            write_text(path, json.dumps(kept))
        return {id: {name: [Found(*f) for f in found] for name, found in kept[key].items()} for id, key in names.items()}


def refusing(harness: Harness) -> Harness:
    """The same harness with pruning disabled: the policy is told of the tool as ever, and every call of it is refused. So
    an episode that never prunes stays the same, token for token, and a paired difference is that of pruning alone."""

    def refuse(scene: Any, keep: list[str]) -> str:
        raise ToolError("pruning is disabled")

    tools = [replace(prune_chunks, function=refuse) if t.name == "prune_chunks" else t for t in harness.tools.values()]
    return harness.with_tools(tools)


def effort(episode: Episode) -> dict[str, float]:
    """How hard it tried, beside what `SearchReward` counts: reads, and all tokens that were read or sampled once."""
    thread = episode.agent
    return {
        "reads": float(sum(call.name == "read_document" for call in thread.calls)),
        "spent": float(sum(len(segment.tokens) - segment.carried for segment in thread.segments)),
    }


@dataclass(frozen=True, slots=True)
class Job:
    """Attempts that are missing."""

    run: str
    suite: Suite
    speaker: Speaker
    pairs: tuple[Pair, ...]


def attempt_all(runs: Sequence[Measured], wanted: Sequence[Speaker], workers: int, watch: Callable[[], Any]) -> None:
    """Attempt what is missing, in `workers` processes; `watch` makes the Watcher of the first. InputError, before anything
    is attempted, where a run does not keep the weights that this takes."""
    jobs = [job for run in runs for speaker in run.speakers(wanted) if (job := _job(run, speaker)).pairs]
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
        id, seed = f"{prefix}{_name(tasks[task])}/{sample}", run.recipe.seed + 1
        episode = await harness.run(tasks[task], policy, sample=sample, seed=seed, id=id, sampling=sampling)
        progress(1)
        return episode

    async def wave(part: Sequence[Pair]) -> list[Episode]:
        return list(await asyncio.gather(*(attempt(*pair) for pair in part)))

    for start in range(0, len(pairs), WAVE):
        episodes = asyncio.run(wave(pairs[start : start + WAVE]))
        store.write([episode for episode in episodes if not silent(episode)])
        refuse_gaps(episodes)
    store.close()


def _name(task: Task) -> str:
    """Of a task as it is now, by the question and what judges it: a corrected one is another, though its id is the same."""
    told = json.dumps([task.prompt, *(task.truth.get(name) for name in ("gold", "answer", "hops"))], sort_keys=True)
    return f"{task.id}/{hashlib.blake2b(told.encode(), digest_size=6).hexdigest()}"


def _script() -> str:
    """Of the perfect script, as it is now."""
    return hashlib.blake2b(Path(inspect.getfile(Teacher)).read_bytes(), digest_size=16).hexdigest()


def _digest(model: str) -> str:
    """Of the weights in a folder; of a model in the local cache its name."""
    files = sorted(Path(model).glob("*.safetensors"))
    if not files:
        return model
    return hashlib.blake2b(b"".join(file.read_bytes() for file in files), digest_size=16).hexdigest()
