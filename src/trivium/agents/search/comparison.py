"""What comparing search runs says beside what it says of any agent's: plain search, fused rollouts, pruning, hops.

And where they can be measured: on their own held-out questions, or on those of any folder in the BEIR layout.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from trivium.agents.search.baselines import SEARCHES, Ranked, fused, judged, plain_rankings, returned
from trivium.agents.search.fuse import check_rollouts, mean_length
from trivium.agents.search.harness import open_corpus, refusing
from trivium.agents.search.pruning import prune_measures, prune_report
from trivium.agents.search.tables import tables
from trivium.agents.search.teacher import Teacher, with_chain
from trivium.corpus import Corpus, open_embedder
from trivium.errors import InputError
from trivium.eval import Pool, Result
from trivium.harness import Harness
from trivium.loops.run import read_json, write_text
from trivium.policy import Policy
from trivium.recipe.base import Bench, Recipe, Suite
from trivium.recipe.compare import Numbers, Side, paired
from trivium.recipe.comparison import EXPERT, LEARNED, STAGES, Comparison, Speaker
from trivium.recipe.evaluate import Attempts, lines, row
from trivium.recipe.measured import Measured, Outcomes, name_of
from trivium.recipe.report import Table
from trivium.tasks.beir import beir_tasks
from trivium.trace import Episode, Sampling, Task

if TYPE_CHECKING:
    from trivium.agents.search.recipe import Search

WORLD_TASKS = 512  # where nobody says how many: of a real set all
ALL = 1 << 30

METRICS = (
    "f1", "output_recall", "trajectory_recall", "answer_found", "precision", "returned", "format_valid", "finished", "reward",
    "prune_rate", "prune_accuracy", "turns", "calls_per_turn", "searches", "spent",
)  # fmt: skip
RANKED = ("f1", "output_recall", "answer_found", "precision")
"""What can be said of a ranking, whoever made it."""
GAINS = ("output_recall", "f1", "answer_found")
EFFORT = ("searches", "reads", "turns", "calls_per_turn", "prune_rate", "output_recall")
PRUNING = (
    "prune_rate", "prunes", "prune_streak", "prune_dropped", "prune_wrong", "prune_random", "past_soft", "pruned_fitting",
)  # fmt: skip
TRAINING = (
    "reward", "format_valid", "prune_rate", "past_soft", "searches", "calls_per_turn", "turns", "returned", "entropy",
    "clipped", "no_signal", "staleness", "episodes_dropped", "grad_norm",
)  # fmt: skip
AGENTS = ("rl", "rl_greedy")  # whose number of returned documents plain search is given
NO_PRUNE = (Speaker("rl_no_prune", "rl", False, "no_prune"), Speaker("rl_greedy_no_prune", "rl", True, "no_prune"))


@dataclass(frozen=True)
class SearchSuite(Suite):
    """A run's own held-out questions, or those of a folder in the BEIR layout."""

    tasks: int = 0
    """how many questions; 0: 512 of generated worlds, all of a real set"""
    corpus: str = ""
    """another folder in the BEIR layout to measure on"""
    split: str = "test"
    """which questions of --corpus: test, train, or both as train+test"""
    hops: int = 0
    """only questions of so many hops; 0: of however many"""
    rollouts: int = 1
    """sampled attempts at each question, whose rankings are also fused into one"""
    no_prune: bool = False
    """attempt all again with pruning disabled, to say what it was worth"""

    def check(self) -> None:
        super().check()
        for name, least in (("hops", 0), ("rollouts", 1)):
            if getattr(self, name) < least:
                raise InputError(f"--{name} must be at least {least}, not {getattr(self, name)}")
        if self.split != "test" and not self.corpus:
            raise InputError(f"--split {self.split} is of a --corpus: name its folder")

    def __str__(self) -> str:
        own = "each run's own held-out questions"
        place = f"{self.split} of {Path(self.corpus).name}" if self.corpus else own
        return f"{place} of {self.hops} hops" if self.hops else place


@dataclass(frozen=True, slots=True)
class SearchBench(Bench):
    """A bench with its corpora, each with vectors, by the name of its world; of a real set the one there is, under ""."""

    corpora: Callable[[], dict[str, Corpus]] = field(default=dict)
    real: bool = False

    def corpus_of(self, task: Task) -> Corpus:
        return self.corpora()["" if self.real else task.id.partition("/")[0]]


@dataclass(frozen=True)
class SearchComparison(Comparison):
    """The comparison of search runs."""

    recipe: Search
    pairs: tuple[tuple[str, str], ...] = (*LEARNED, ("rl", "rl_no_prune"), ("rl_greedy", "rl_greedy_no_prune"))

    def metrics(self) -> tuple[str, ...]:
        return METRICS

    def training(self) -> tuple[str, ...]:
        return TRAINING

    # --- who is measured, and on what

    def speakers(self, suite: Suite) -> list[Speaker]:
        assert isinstance(suite, SearchSuite)
        stages = [replace(each, attempts=suite.rollouts if each.name == "rl" else 1) for each in STAGES]
        refused = NO_PRUNE if suite.no_prune and self.recipe.without != "pruning" else ()
        return [*stages, *refused, EXPERT]

    def variant(self, name: str, harness: Harness) -> Harness:
        return refusing(harness)

    def source(self, suite: Suite) -> str:
        assert isinstance(suite, SearchSuite)
        return suite.corpus or self.recipe.corpus or "generated worlds"

    def check(self, suite: Suite, recipes: Sequence[Recipe], greedy: bool = False) -> None:
        """InputError for several rollouts that would all be the same one, or prunes refused where there are none."""
        assert isinstance(suite, SearchSuite)
        check_rollouts(suite.rollouts, Sampling(temperature=0.0 if greedy else 1.0))
        if suite.no_prune and all(getattr(recipe, "without", "") == "pruning" for recipe in recipes):
            names = ", ".join(recipe.out for recipe in recipes)
            raise InputError(f"{names}: trained --without pruning, so there is nothing that --no-prune could refuse")

    def bench(self, suite: Suite) -> SearchBench:
        """InputError for no such questions."""
        assert isinstance(suite, SearchSuite)
        return self._elsewhere(suite) if suite.corpus else self._own(suite)

    def _own(self, suite: SearchSuite) -> SearchBench:
        recipe = self.recipe
        count = suite.tasks or (ALL if recipe.real else WORLD_TASKS)
        wider = replace(recipe, eval_tasks=(count + len(recipe.heldout_worlds)) * 4 if suite.hops else count)
        vars(wider).update({name: part for name, part in vars(recipe).items() if name in ("renderer", "passages", "worlds")})
        tasks = _of_hops(wider.heldout_tasks, suite.hops)[:count]
        key = [recipe.passages.digest] if recipe.real else [world.name for world in recipe.heldout_worlds]
        return SearchBench(
            tasks, wider.harness(), recipe.judge(), (key, recipe.results), recipe.data(),
            lambda: {"": recipe.passages} if recipe.real else self._world_corpora, recipe.real,
        )  # fmt: skip

    def _elsewhere(self, suite: SearchSuite) -> SearchBench:
        recipe, tasks = self.recipe, [task for split in suite.split.split("+") for task in beir_tasks(suite.corpus, split)]
        same = Path(suite.corpus).resolve() == Path(recipe.corpus).resolve() if recipe.corpus else False
        corpus = recipe.passages if same else open_corpus(suite.corpus, recipe.room)
        return SearchBench(
            _of_hops(tasks, suite.hops)[: suite.tasks or ALL], recipe.harness_on(corpus), recipe.judge_on(True),
            ([corpus.digest], recipe.results), {}, lambda: {"": corpus}, True,
        )  # fmt: skip

    @cached_property
    def _world_corpora(self) -> dict[str, Corpus]:
        embedder = open_embedder("minilm")
        return {world.name: self.recipe.world_corpus(world, embedder) for world in self.recipe.heldout_worlds}

    def expert(self, bench: Bench) -> Policy:
        """The perfect script; on passages that people wrote a strong one, and no bound."""
        assert isinstance(bench, SearchBench)
        return self.recipe.expert(with_chain(list(bench.tasks), bench.corpora()[""]) if bench.real else bench.tasks)

    def expert_source(self) -> str:
        """The teacher's file, and that of an agent which has a script of its own."""
        from trivium.agents.search.recipe import Search

        own = type(self.recipe).script
        files = [inspect.getfile(each) for each in (Teacher, *([own] if own is not Search.script else []))]
        return hashlib.blake2b(b"".join(Path(file).read_bytes() for file in files), digest_size=16).hexdigest()

    # --- what is kept of an episode

    def beside(self, episode: Episode) -> dict[str, float]:
        return effort(episode) | prune_measures(episode, self.recipe.room)

    def outcome(self, episode: Episode) -> list[Ranked]:
        return returned(episode)

    # --- results beside the policies'

    def further(
        self, run: Measured, speakers: Sequence[Speaker], outcomes: dict[str, Outcomes], progress: Callable[[int], None]
    ) -> dict[str, Result]:
        """Per task: each plain search cut to as many documents as an agent returned there, and at least one (`bm25@rl`); where
        there were several rollouts, their fused ranking, cut and whole, and their mean (`rl_fused`, `rl_uncut`, `rl_each`)."""
        plain, tasks, results = _plain(run, progress), run.tasks, {}
        for agent in AGENTS:
            lengths = {task.id: max(1, len(outcomes[agent][task.id, 0].outcome)) for task in tasks}
            for search in SEARCHES:
                cut = [[judged(task, plain[task.id][search][: lengths[task.id]])] for task in tasks]
                results[f"{search}@{agent}"] = Result.of(f"{search}@{agent}", tasks, cut)
        for speaker in (speaker for speaker in speakers if speaker.attempts > 1):
            results |= rollouts(tasks, speaker, outcomes[speaker.name])
        return results

    def sections(self, side: Side) -> Numbers:
        pools, trained = side.pools, [name for name in side.policies if not name.startswith("base")]
        return {
            "gains": {f"{a} over {b}": {m: list(pools[a].over(pools[b], m)) for m in GAINS} for a, b in LEARNED if b in pools},
            "plain": {agent: _against(pools, agent) for agent in AGENTS},
            "rollouts": _fusion(pools),
            "pruning": {name: _pruning(pools[name]) for name in trained},
            "hops": {name: _by_hops(side, pools[name]) for name in trained},
        }

    def tables(self, numbers: Numbers) -> Iterator[Table]:
        return tables(numbers)

    # --- `trivium eval`

    def further_lines(self, suite: Suite, bench: Bench, result: Result, episodes: Sequence[Episode], attempt: Attempts):
        """What several rollouts of a question are worth together, and what pruning is."""
        assert isinstance(suite, SearchSuite)
        if suite.rollouts > 1:
            yield together(result, bench.tasks, episodes, suite.rollouts)
        if suite.no_prune:
            bare, _ = attempt(self.variant("no_prune", bench.harness), "evaluate without pruning")
            rows = [row(name, result.minus(bare, name)) for name in sorted(result.scores.keys() & bare.scores.keys())]
            yield "\n".join(["with pruning, minus with pruning disabled (paired)", *rows])

    def attempts(self, suite: Suite) -> int:
        assert isinstance(suite, SearchSuite)
        return suite.rollouts


def _of_hops(tasks: Sequence[Task], hops: int) -> list[Task]:
    return [task for task in tasks if hops in (0, task.truth.get("hops"))]


def effort(episode: Episode) -> dict[str, float]:
    """How hard it tried, beside what `SearchReward` counts: reads, and all tokens that were read or sampled once."""
    thread = episode.agent
    return {
        "reads": float(sum(call.name == "read_document" for call in thread.calls)),
        "spent": float(sum(len(segment.tokens) - segment.carried for segment in thread.segments)),
    }


def together(alone: Result, tasks: Sequence[Task], episodes: Sequence[Episode], rollouts: int) -> str:
    """What the rollouts of each question answer together, less what one of them does in the mean (which `alone` holds)."""
    rankings = [returned(episode) for episode in episodes]
    parts = [rankings[at : at + rollouts] for at in range(0, len(rankings), rollouts)]
    scores = [judged(task, fused(part)[: mean_length(part)]) for task, part in zip(tasks, parts, strict=True)]
    result = Result.of("fused", tasks, [[each] for each in scores])
    spent = sum(effort(episode)["spent"] for episode in episodes) / len(tasks)
    head = f"{rollouts} rollouts fused, cut to their mean length, {spent:,.0f} tokens a question, not {spent / rollouts:,.0f}"
    less = [row(name, result.minus(alone, name)) for name in sorted(result.scores)]
    return "\n".join([head, *lines(result), "fused, minus one of them (paired)", *less])


def _plain(run: Measured, progress: Callable[[int], None]) -> dict[str, dict[str, list[Ranked]]]:
    """Task -> search -> its ranking; what needs no policy is kept as a file of its own."""
    bench = run.bench
    assert isinstance(bench, SearchBench)
    corpora = bench.corpora()
    key = hashlib.blake2b(json.dumps(sorted(c.digest for c in corpora.values())).encode(), digest_size=6).hexdigest()
    path = run.run.folder / f"compare-plain-{key}.json"
    rankings_by_task = read_json(path) if path.is_file() else {}
    names = {task.id: name_of(task) for task in bench.tasks}
    new = [task for task in bench.tasks if tuple(rankings_by_task.get(names[task.id], ())) != SEARCHES]
    for task in new:
        rankings = plain_rankings(bench.corpus_of(task), task)
        rankings_by_task[names[task.id]] = {name: [[f.doc, f.states] for f in ranking] for name, ranking in rankings.items()}
        progress(1)
    if new:
        write_text(path, json.dumps(rankings_by_task))
    return {
        id: {name: [Ranked(*each) for each in row] for name, row in rankings_by_task[key].items()} for id, key in names.items()
    }


def rollouts(tasks: Sequence[Task], speaker: Speaker, known: Outcomes) -> dict[str, Result]:
    """All rollouts of a task as one answer, of the mean length and of all that any of them returned, at the cost of all; and
    the mean of what each is alone."""
    cut, uncut, alone = [], [], []
    for task in tasks:
        each = [known[task.id, sample] for sample in range(speaker.attempts)]
        rankings = [attempt.outcome for attempt in each]
        cost = {name: sum(attempt.scores[name] for attempt in each) for name in ("spent", "searches")}
        whole = fused(rankings)
        cut.append([judged(task, whole[: mean_length(rankings)]) | cost])
        uncut.append([judged(task, whole) | cost])
        alone.append([{name: attempt.scores[name] for name in (*RANKED, "returned", *cost)} for attempt in each])
    parts = {f"{speaker.name}_fused": cut, f"{speaker.name}_uncut": uncut, f"{speaker.name}_each": alone}
    return {name: Result.of(name, tasks, attempts) for name, attempts in parts.items()}


# --- sections


def _against(pools: dict[str, Pool], agent: str) -> Numbers:
    """Each plain search at the agent's number of documents, and the agent less it."""
    return {
        search: {
            "scores": {metric: list(pools[f"{search}@{agent}"].interval(metric)) for metric in RANKED},
            "agent minus": paired(pools[agent], pools[f"{search}@{agent}"], RANKED),
        }
        for search in SEARCHES
    }


def _fusion(pools: dict[str, Pool]) -> Numbers:
    if "rl_fused" not in pools:
        return {}
    measures = (*RANKED, "returned", "spent", "searches")
    names = ("rl_fused", "rl_uncut", "rl_each")
    sides = {name: {metric: list(pools[name].interval(metric)) for metric in measures} for name in names}
    pairs = [(a, b) for b in ("rl_each", "rl_greedy") for a in ("rl_fused", "rl_uncut")]
    return {**sides, **{f"{a} minus {b}": paired(pools[a], pools[b], measures) for a, b in pairs}}


def _pruning(pool: Pool) -> dict[str, list[float]]:
    return {name: list(interval) for name, interval in prune_report({n: pool.values(n) for n in PRUNING}).items()}


def _by_hops(side: Side, pool: Pool) -> Numbers:
    """Effort by the hops of the task, of which the agent is told nothing."""
    hops = {task.id: task.truth.get("hops", 1) for run in side.runs for task in run.tasks}
    numbers: Numbers = {}
    for count in sorted(set(hops.values())):
        part = pool.where(lambda task, count=count: hops[task] == count)
        tasks = sum(each == count for each in hops.values())
        numbers[str(count)] = {"tasks": tasks, **{metric: list(part.interval(metric)) for metric in EFFORT}}
    return numbers
