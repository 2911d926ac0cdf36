"""Context-1 as a recipe: what its runs are, the worlds and documents it searches, its questions, teacher and reward."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from trivium.agents.search.citation import gold_of, quoted
from trivium.agents.search.comparison import SearchComparison, SearchSuite
from trivium.agents.search.curriculum import two_phases
from trivium.agents.search.filter import Record, keep
from trivium.agents.search.harness import LARGE, harness_on, open_corpus, priced_turns, small
from trivium.agents.search.labels import LABELS, PANELS
from trivium.agents.search.needs import needs
from trivium.agents.search.reward import SearchReward
from trivium.agents.search.teacher import Imperfection, Teacher, with_chain
from trivium.assets import NANO, READER
from trivium.corpus import Corpus, Document, Embedder, read_documents
from trivium.errors import InputError
from trivium.harness import Harness, Window
from trivium.policy import Policy, Scripted, View
from trivium.policy.message import Message
from trivium.recipe.base import Bench, Progress, Recipe, Suite
from trivium.tasks.beir import beir_tasks
from trivium.tasks.cloze import cloze_tasks
from trivium.tasks.names import Split
from trivium.tasks.world import World
from trivium.trace import Episode, Task
from trivium.viewer import Labels, Panels

if TYPE_CHECKING:
    from trivium.train import Algorithm

HOPS = (1, 2, 3, 4)
TRAIN_WORLDS, HELDOUT_WORLDS, WORLD_SIZE = 24, 4, 450
"""Generated worlds of 450 passages each. With one world of 600 a warm-up of 60 steps learned its names by heart: trajectory
recall in a held-out world fell from 0.43 to 0.08 (docs/log.md)."""

EPSILON, EPSILON_ON_PASSAGES = 0.5, 0.1
"""Added to the std of a group's rewards (no report gives a number). With 1e-6 a group whose members all found the answer and
differ by one passage too many (0.04) teaches as much as one in which half failed; with 0.1 still so much that answers of four
passages die out while four hops are being learned (docs/log.md). On passages that people wrote 0.5 makes answers too long."""

EFFORT = 0.06
"""The weight of Composer 2's effort penalty in generated worlds: a third turn costs .04, a fourth .02, an eighth .004. Where
one search shows the answer a prune costs nothing else: without it one policy of three pruned in a quarter of such episodes,
and where a third turn cost .02 in one of fifteen, sampled (docs/log.md)."""
Without = Literal["nothing", "pruning", "trajectory", "answer", "penalty", "recall", "effort", "curriculum", "blunders"]


@dataclass(frozen=True)
class Search(Recipe):
    """Train an agent to search, as Context-1 was: a warm-up on a teacher's episodes, then RL in the same harness.

    Without --corpus it learns in generated worlds whose facts are known; with --corpus on the questions of a folder in
    the BEIR layout. Run the same command again to go on with a run that was stopped.
    """

    out: str = "runs/search"
    """the run's folder"""
    model: str = "nano"
    """a model folder, or a name in the local Hugging Face cache; nano: the base in the package, with --corpus one that reads"""
    warmup: int = 0
    """questions that the teacher answers for the warm-up; 0: 1600, for passages 3000"""
    teacher: str = ""
    """base URL and model of an OpenAI-compatible teacher, as URL#MODEL, its key in OPENAI_API_KEY; default: a scripted expert
    that errs on purpose"""
    sft_steps: int = -1
    """steps of the warm-up, 32 episodes each; -1: 120, for passages 96; 0 for a --model that is warm already, as the model-sft
    of a run"""
    steps: int = -1
    """steps of RL; -1: 48, for passages 60"""
    groups: int = 16
    """questions a step; where fewer are there to learn from, all of them"""
    size: int = 8
    """attempts at each question: they share a baseline"""
    branches: int = 4
    """answers drawn besides from the last view of each attempt that finished: they share a baseline of their own, so that what
    they teach does not hang on what came before them (docs/learning.md). 0: none"""
    lr: float = 0.0
    """learning rate of RL; 0: 4e-4, for passages 1.5e-4"""
    eval_tasks: int = 256
    """held-out questions at the end"""
    corpus: str = ""
    """a folder in the BEIR layout with qrels/train.tsv and qrels/test.tsv; default: generated worlds"""
    window: int = 0
    """tokens of context the agent may hold; default: 640 for the generated world, 2048 for passages"""
    results: int = 0
    """passages a search returns; 0: 6, for passages that people wrote 2 (docs/log.md). In the generated world 4 leave room for
    three hops, and RL unlearns to prune; 16 with --window 800 for a quarter of what four hops need"""
    without: Without = "nothing"
    """leave one part out, to see what it is for: the tool that prunes; the reward's trajectory recall, answer bonus, prune
    penalty, weight on recall (β 0.5) or price on effort; the curriculum of β, which then stays at 4; what the scripted teacher
    does wrong more often than right (which on passages it never does)"""
    skew: float = 0.5
    """share of questions of few hops in the first half of RL; 0.5: half, 0.75: few first (does not pay: docs/learning.md)"""
    cap: float = 2.0
    """largest ratio of new to old probability that CISPO learns with; above it the token is clipped. No report gives one: at 5
    nothing was ever clipped here, at 2 some tokens are, in generated worlds (docs/learning.md)"""

    suite: ClassVar[type[Suite]] = SearchSuite
    labels: ClassVar[Labels] = LABELS
    panels: ClassVar[Panels] = PANELS
    live_score: ClassVar[str] = "f1"
    least: ClassVar[Mapping[str, float]] = {"window": 0, "results": 1, "warmup": 1, "cap": 1}

    def __post_init__(self) -> None:
        """What suits passages that people wrote was found on HotpotQA (docs/log.md), updates above lag 0 too (docs/loop.md)."""
        super().__post_init__()
        if Path(self.corpus).is_dir() and self.corpus:
            object.__setattr__(self, "corpus", os.path.abspath(self.corpus))
        defaults = (("results", 6, 2), ("warmup", 1600, 3000), ("lr", 4e-4, 1.5e-4), ("sft_steps", 120, 96), ("steps", 48, 60))
        for name, world, passages in defaults:
            if getattr(self, name) == getattr(Search, name):
                object.__setattr__(self, name, passages if self.corpus else world)

    @classmethod
    def upgrade(cls, saved: Mapping[str, Any]) -> dict[str, Any]:
        """`results`, `branches` and `skew` were no fields once."""
        return {"results": 6, "branches": 0, "skew": 0.5 if saved.get("without") == "curriculum" else 0.75, **saved}

    @classmethod
    def outside(cls, window: int) -> Self:
        return cls(window=window or LARGE)

    def check(self) -> None:
        super().check()
        if not 0.5 <= self.skew <= 1:
            raise InputError(f"--skew is a share from 0.5 (few hops as often as many) to 1, not {self.skew}")

    def _vain(self) -> list[tuple[str, bool, str]]:
        cold, default = not self.sft_steps, Search(corpus=self.corpus)
        return [
            *super()._vain(),
            ("cap", self.cap != default.cap and self.algorithm != "cispo", "it is CISPO's alone"),
            ("warmup", self.real and cold and self.warmup != default.warmup, "--sft-steps 0 has no warm-up"),
            ("without effort", self.without == "effort" and self.real, "on passages it has no price"),
            (
                "without blunders",
                self.without == "blunders" and bool(self.corpus or self.teacher),
                "only the scripted teacher of generated worlds makes them",
            ),
        ]

    # --- how it lives

    @property
    def real(self) -> bool:
        """Whether the corpus is one of passages that people wrote."""
        return bool(self.corpus)

    def base(self) -> str:
        return str(READER if self.real else NANO) if self.model == "nano" else super().base()

    @cached_property
    def room(self) -> Window:
        """Room for two searches, or a whole question; a large one has room for thoughts."""
        budget = self.window or (2048 if self.real else 640)
        reply = 128 if self.real else 96
        return Window(budget, soft=0.5, hard=0.85, reply=reply if small(budget) else budget // 16)

    def harness(self) -> Harness:
        return self.harness_on(self.passages if self.real else self.corpus_of)

    def harness_on(self, corpus: Corpus | Callable[[Task], Corpus]) -> Harness:
        """The same on other documents: the tools and the prompt that the policy was trained with."""
        return harness_on(corpus, self.room, self.results, self.without != "pruning", quoting=self.real)

    def harness_at(self, data: str, progress: Progress) -> Harness | None:
        """On documents that are named, or those of --corpus. A generated world is nobody's to ask about."""
        if data:
            return self.harness_on(open_corpus(data, self.room, progress))
        return self.harness() if self.real else None

    async def outcome(self, episode: Episode, harness: Harness) -> str:
        """The passages that it cites."""
        return quoted(episode.agent, episode.task)

    # --- what it searches

    @cached_property
    def passages(self) -> Corpus:
        """The passages of --corpus."""
        return open_corpus(self.corpus, self.room)

    @cached_property
    def documents(self) -> list[Document]:
        """Those of --corpus, uncut."""
        return read_documents(self.corpus)

    def prepare(self, progress: Progress) -> None:
        if self.real and "passages" not in vars(self):
            vars(self)["passages"] = open_corpus(self.corpus, self.room, progress)

    def data(self) -> dict[str, str]:
        return {"documents": self.passages.digest} if self.real else {}

    @cached_property
    def worlds(self) -> list[World]:
        """Many to learn in, so that names are copied and not remembered, and then some, of other words, to be measured in."""
        seed = 1000 * self.seed
        splits: list[tuple[Split, int]] = [("train", TRAIN_WORLDS), ("heldout", HELDOUT_WORLDS)]
        return [World.make(seed + n, WORLD_SIZE, split) for split, count in splits for n in range(count)]

    @property
    def heldout_worlds(self) -> list[World]:
        return self.worlds[TRAIN_WORLDS:]

    def world_corpus(self, world: World, embedder: Embedder | None = None) -> Corpus:
        """What is searched of a world; plain searches, with which runs are compared, need an embedder."""
        return Corpus.build(world.documents, embedder=embedder)

    def corpus_of(self, task: Task) -> Corpus:
        """The world that a question of generated worlds is about."""
        return self._corpora[task.id.partition("/")[0]]

    @cached_property
    def _corpora(self) -> dict[str, Corpus]:
        return {world.name: self.world_corpus(world) for world in self.worlds}

    # --- what it is asked

    def tasks(self, split: str) -> list[Task]:
        """InputError for a question of --corpus that is asked in train and in test."""
        if split == "train":
            return self.train_tasks
        learned = {task.prompt for task in self.train_tasks} if self.real else set()
        if both := [task.id for task in self.heldout_tasks if task.prompt in learned]:
            raise InputError(f"{self.corpus} asks {len(both)} test questions in train too, {both[0]} first: hold them out")
        return self.heldout_tasks

    @cached_property
    def train_tasks(self) -> list[Task]:
        """The questions of RL, and the first of the warm-up."""
        if self.real:
            return with_chain(beir_tasks(self.corpus, "train"), self.passages)
        wanted = max(self.warmup, self.groups * self.steps)
        return self.questions(self.worlds[:TRAIN_WORLDS], wanted)

    @cached_property
    def heldout_tasks(self) -> list[Task]:
        """The questions that decide: never learned from, in the generated world about other names too."""
        if self.real:
            return beir_tasks(self.corpus, "test")[: self.eval_tasks]
        return self.questions(self.heldout_worlds, self.eval_tasks)

    def questions(self, worlds: list[World], count: int) -> list[Task]:
        """`count` questions of 1 to 4 hops, from all `worlds` in turn."""
        each = -(-count // len(worlds))
        rows = [world.tasks(each, HOPS, self.seed) for world in worlds]
        return [task for round in zip(*rows, strict=True) for task in round][:count]

    def lesson_tasks(self) -> list[Task]:
        """Real questions are few and would be learned by heart, so the corpus asks others of itself."""
        if not self.real:
            return self.train_tasks
        missing = max(0, self.warmup - len(self.train_tasks))
        cloze = cloze_tasks(self.documents, missing, self.seed)
        return [*self.train_tasks, *with_chain(cloze, self.passages)]

    def rl_tasks(self) -> list[Task]:
        """On passages, after each question that a person asked, one of two hops that the corpus asks of
        itself: few of people's need what a second search finds. In the second half people ask alone, for two documents are
        always enough for the corpus' own, and while those were asked to the end a third was unlearned (docs/log.md)."""
        groups, total = self.tasks_per_step, self.tasks_per_step * self.steps
        linked = self._linked(total // 2) if self.real else []
        if len(linked) < groups:  # they would come twice in a step
            return self._phases(total // 2)
        mixed = total // 2
        people = self._phases((total - mixed // 2 + 1) // 2)
        pairs = zip(people[: mixed // 2], _cycle(linked, mixed // 2), strict=True)
        return [*(task for pair in pairs for task in pair), *people[mixed // 2 :]]

    def _phases(self, half: int) -> list[Task]:
        """`half` of the first phase (Context-1's report), `half` and a step's more of the second; where a phase would have too
        few questions for a step, all of them around and around."""
        groups, (first, second) = self.tasks_per_step, two_phases(self.train_tasks, self.skew, self.seed)
        if min(len(first), len(second)) >= groups:
            return [*_cycle(first, half), *_cycle(second, half + groups)]
        if self.skew != 0.5:
            raise InputError(
                f"--skew {self.skew} parts the questions in two phases of at least {groups}, as many as a step has: "
                f"there are {len(self.train_tasks)} to learn from, so leave it at 0.5 or take fewer --groups"
            )
        return _cycle([*first, *second], 2 * half + groups)

    def _linked(self, count: int) -> list[Task]:
        """At most `count` questions of two hops that the passages ask of themselves, each sentence once."""
        cloze = cloze_tasks(self.documents, 2 * count, self.seed)
        once = {task.truth["sentence"]: task for task in reversed(cloze) if task.truth["hops"] == 2}
        return [*reversed(once.values())]

    # --- what it is worth, and how it learns

    def scorer(self, step: int) -> SearchReward:
        """β anneals from 4 to 2 on a line over RL (Context-1's report gives the ends, the shape is ours)."""
        beta = 4 - 2 * min(1.0, step / max(1, self.steps - 1))
        less = {"trajectory": {"trajectory": 0.0}, "answer": {"answer": 0.0}, "penalty": {"pruning": 0.0}}
        less |= {"recall": {"beta": 0.5}, "effort": {"effort": 0.0}, "curriculum": {"beta": 4.0}}
        return replace(self.reward(beta, self.real), **less.get(self.without, {}))

    def judge(self) -> SearchReward:
        """The whole reward, with the report's last β, whatever training left out."""
        return self.judge_on(self.real)

    def judge_on(self, real: bool) -> SearchReward:
        """The same on other documents: passages that people wrote, or not."""
        return self.reward(2.0, real)

    def reward(self, beta: float, real: bool) -> SearchReward:
        """The whole reward at some β, of generated worlds or of passages that people wrote."""
        turns, effort = priced_turns(self.room, real), 0.0 if real else EFFORT
        return SearchReward(beta=beta, turns=turns, effort=effort, window=self.room)

    def loss(self) -> Algorithm:
        from trivium.train import CISPO

        if self.algorithm == "cispo":
            return CISPO(high=self.cap - 1, eps=EPSILON_ON_PASSAGES if self.real else EPSILON)
        return super().loss()

    # --- who teaches it

    def lessons(self) -> Policy:
        """The scripted expert that is wrong on purpose (on passages less often than it is right)."""
        less = {"pruning": {"prune": 0.0}, "blunders": {"forget": 0.3, "over_include": 0.35}}  # else 0.6 and 0.7
        faults = replace(Imperfection(), **(less.get(self.without, {}) | (less["blunders"] if self.real else {})))
        return Scripted(self.script(self.lesson_tasks(), faults, self.seed), self.renderer, name="teacher")

    def script(self, tasks: Sequence[Task], faults: Imperfection, seed: int = 0) -> Callable[[View], Message]:
        """What the scripted expert says at `tasks`, which have a chain."""
        return Teacher(faults, seed).script(tasks)

    def select(self, episodes: Sequence[Episode], scores: Sequence[Mapping[str, float]]) -> list[Episode]:
        """Context-1's filter (agents/search/filter.py). InputError when nothing passes."""
        records = [
            Record(e.id, e.task.id, s["trajectory_recall"], s["output_recall"], s["format_valid"] < 1.0)
            for e, s in zip(episodes, scores, strict=True)
        ]
        passed = {record.id for record in keep(records, self.seed)}
        if not passed:
            raise InputError(f"none of the teacher's {len(episodes)} episodes passes the filter: is it the right teacher?")
        return [episode for episode in episodes if episode.id in passed]

    def ceiling(self, tasks: Sequence[Task]) -> Policy | None:
        """The perfect script, in generated worlds."""
        return None if self.real else self.expert(tasks)

    def expert(self, tasks: Sequence[Task]) -> Policy:
        """The perfect script on tasks that have a chain."""
        perfect = replace(Imperfection.none(), prune=float(self.without != "pruning"))
        return Scripted(self.script(tasks, perfect), self.renderer, name="expert")

    def comparison(self) -> SearchComparison:
        return SearchComparison(self)

    def bench(self, suite: Suite) -> Bench:
        return self.comparison().bench(suite)

    def texts(self, task: Task) -> dict[str, str]:
        world = task.id.partition("/")[0]
        documents = self.documents if self.real else next((w.documents for w in self.worlds if w.name == world), [])
        gold = gold_of(task)
        return {each.id: f"{each.title}: {each.text}" for each in documents if each.id in gold}

    def needs(self) -> str:
        return "" if self.real else needs(self)


def _cycle(tasks: list[Task], count: int) -> list[Task]:
    return [tasks[number % len(tasks)] for number in range(count if tasks else 0)]
