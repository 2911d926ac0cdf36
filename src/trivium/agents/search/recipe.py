"""The recipe: one dataclass that says what a run is, and what is built from it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import msgspec
from blake3 import blake3

from trivium.agents.search.reward import SearchReward
from trivium.agents.search.teacher import Imperfection, Teacher, with_chain
from trivium.agents.search.tools import BRIEF, BRIEF_UNPRUNED, PROMPT, QUOTES, search_tools
from trivium.corpus import Corpus, Document, open_embedder, read_documents
from trivium.errors import CorruptError, InputError
from trivium.fleet import Rank
from trivium.harness import Harness, Limits, Window
from trivium.loops.source import step_tasks
from trivium.nn import Network, lora
from trivium.policy import Endpoint, Policy, Renderer, Scripted, View
from trivium.reward import repetition
from trivium.tasks.beir import beir_tasks
from trivium.tasks.cloze import cloze_tasks
from trivium.tasks.curriculum import two_phases
from trivium.tasks.world import World
from trivium.trace import Sampling, Task
from trivium.train import CISPO, TABLE, Algorithm

NANO = Path(__file__).parents[2] / "assets" / "nano"
"""The nano base that the package carries."""
READER = NANO.with_name("nano-reader")
"""The same after it has learned to read pages, for passages that people wrote."""

HOPS = (1, 2, 3, 4)
TRAIN_WORLDS, HELDOUT_WORLDS, WORLD_SIZE = 24, 4, 450
"""Generated worlds of 450 passages each. With one world of 600 a warm-up of 60 steps learned its names by heart: trajectory
recall in a held-out world fell from 0.43 to 0.08 (docs/log.md)."""

EPSILON, EPSILON_ON_PASSAGES = 0.5, 0.1
"""Added to the std of a group's rewards (not published: reports.md 8). With 1e-6 a group whose members all found the answer and
differ by one passage too many (0.04) teaches as much as one in which half failed; with 0.1 still so much that answers of four
passages die out while four hops are being learned (docs/log.md). On passages that people wrote 0.5 makes answers too long."""

EFFORT = 0.06
"""The weight of Composer 2's effort penalty in generated worlds: a third turn costs .04, a fourth .02, an eighth .004. Where
one search shows the answer a prune costs nothing else: without it one policy of three pruned in a quarter of such episodes,
and where a third turn cost .02 in one of fifteen, sampled (docs/log.md)."""
Without = Literal["nothing", "pruning", "trajectory", "answer", "penalty", "recall", "effort", "curriculum", "blunders"]


@dataclass(frozen=True)
class Search:
    """Train an agent to search, as Context-1 was: a warm-up on a teacher's episodes, then RL in the same harness.

    Without --corpus it learns in generated worlds whose facts are known; with --corpus on the questions of a folder in
    the BEIR layout. Run the same command again to go on with a run that was stopped.
    """

    out: str = "runs/search"
    """the run's folder"""
    model: str = "nano"
    """a model folder, or a name in the local Hugging Face cache; nano: the base in the package, with --corpus one that reads"""
    corpus: str = ""
    """a folder in the BEIR layout with qrels/train.tsv and qrels/test.tsv; default: generated worlds"""
    seed: int = 0
    """decides everything that is drawn"""
    window: int = 0
    """tokens of context the agent may hold; default: 640 for the generated world, 2048 for passages"""
    results: int = 0
    """passages a search returns; 0: 6, for passages that people wrote 2 (docs/log.md). In the generated world 4 leave room for
    three hops, and RL unlearns to prune; 16 with --window 800 for a quarter of what four hops need"""
    warmup: int = 0
    """questions that the teacher answers for the warm-up; 0: 1600, for passages 3000"""
    teacher: str = ""
    """base URL and model of an OpenAI-compatible teacher, as URL#MODEL, its key in OPENAI_API_KEY; default: a scripted expert
    that errs on purpose"""
    teacher_tokens: int = 5_000_000
    """the most tokens that a teacher behind an endpoint may use"""
    sft_steps: int = -1
    """steps of the warm-up, 32 episodes each; -1: 120, for passages 96; 0 for a --model that is warm already, as the model-sft
    of a run"""
    steps: int = -1
    """steps of RL; -1: 48, for passages 60"""
    groups: int = 16
    """questions a step"""
    size: int = 8
    """attempts at each question: they share a baseline"""
    branches: int = 4
    """answers drawn besides from the last view of each attempt that finished: they share a baseline of their own, so that what
    they teach does not hang on what came before them (docs/learning.md). 0: none"""
    algorithm: Literal["cispo", "dr_grpo", "composer2", "grpo", "dapo", "gspo", "kimi", "rft"] = "cispo"
    """a row of docs/algorithms.md"""
    without: Without = "nothing"
    """leave one part out, to see what it is for: the tool that prunes; the reward's trajectory recall, answer bonus, prune
    penalty, weight on recall (β 0.5) or price on effort; the curriculum of β, which then stays at 4; what the scripted teacher
    does wrong more often than right (which on passages it never does)"""
    skew: float = 0.5
    """share of questions of few hops in the first half of RL; 0.5: half, 0.75: few first (does not pay: docs/learning.md)"""
    substeps: int = 0
    """optimizer updates a step; 0: 2, or 1 where --max-lag is above 0 (docs/loop.md)"""
    cap: float = 2.0
    """largest ratio of new to old probability that CISPO learns with; above it the token is clipped. No report gives one: at 5
    nothing was ever clipped here, at 2 some tokens are, in generated worlds (docs/learning.md)"""
    lora: int = 0
    """rank of low-rank adapters to train in place of all weights; 0: all weights"""
    max_lag: int = 0
    """versions that the learner may be ahead of what it learns from: 0 takes turns, above that sampling goes on meanwhile, and
    equal seeds no longer give equal runs"""
    sft_lr: float = 1e-3
    """learning rate of the warm-up"""
    lr: float = 0.0
    """learning rate of RL; 0: 4e-4, for passages 1.5e-4"""
    eval_tasks: int = 256
    """held-out questions at the end"""
    workers: int = 2
    """equal processes of one thread each"""
    device: Literal["cpu", "cuda"] = "cpu"
    """where the policy is: on the CPU, or on a CUDA device, which all workers share; there equal seeds give no equal runs"""
    track: bool = False
    """also write TensorBoard event files, which W&B reads with sync_tensorboard"""

    def __post_init__(self) -> None:
        """What suits passages that people wrote was found on HotpotQA (docs/log.md), updates above lag 0 too (docs/loop.md)."""
        chosen = (("results", 6, 2), ("warmup", 1600, 3000), ("lr", 4e-4, 1.5e-4), ("sft_steps", 120, 96), ("steps", 48, 60))
        for name, world, passages in chosen:
            if getattr(self, name) == getattr(type(self), name):
                object.__setattr__(self, name, passages if self.corpus else world)
        object.__setattr__(self, "substeps", self.substeps or (1 if self.max_lag else 2))

    def fields(self) -> dict[str, Any]:
        """What the run's folder keeps of it: all but where that folder is."""
        return {name: value for name, value in asdict(self).items() if name != "out"}

    @classmethod
    def of(cls, kept: dict[str, Any], out: str) -> Search:
        """The recipe that a run's folder keeps."""
        known = {field.name for field in fields(cls)}
        if unknown := sorted(kept.keys() - known):
            raise InputError(f"{out} was made by another Trivium: its recipe has a field {unknown[0]!r}")
        try:
            skew = 0.5 if kept.get("without") == "curriculum" else 0.75
            before = {"results": 6, "branches": 0, "skew": skew}  # these were fields
            return msgspec.convert({**before, **kept, "out": out}, cls)
        except msgspec.ValidationError as error:
            raise CorruptError(f"the recipe in {out} is none: {error}") from error


class Parts:
    """What a recipe is built of, each part made when first asked for; `progress` is told of vectors that are made."""

    def __init__(self, recipe: Search, progress: Callable[[int, int], None] | None = None) -> None:
        self.recipe, self.progress = recipe, progress

    def check(self) -> None:
        """Raises InputError for what would fail later: no such model, no such questions, a window that they do not fit."""
        if len(self.heldout_tasks) < self.recipe.workers:
            raise InputError(f"{self.recipe.corpus} has fewer test questions than --workers {self.recipe.workers}")
        learned = {task.prompt for task in self.train_tasks}
        if self.real and (both := [task.id for task in self.heldout_tasks if task.prompt in learned]):
            raise InputError(
                f"{self.recipe.corpus} asks {len(both)} test questions in train too, {both[0]} first: hold them out"
            )
        asked = (*self.heldout_tasks, *self.train_tasks, *self.warmup_tasks, *self.rl_tasks)
        questions = {task.prompt for task in asked}
        longest = max(questions, key=lambda question: len(self.renderer.tokenizer.encode(question)))
        opening = self.harness.opening(longest, self.renderer)
        self.window.check(len(self.renderer.opening(opening, self.harness.specs)))
        for step in range(self.recipe.steps):
            step_tasks(self.rl_tasks, self.recipe.groups, Rank(), step)

    def inputs(self, network: Network) -> dict[str, str]:
        """Digests of what the recipe names or makes and does not hold: the weights of `network`, which training begins with,
        questions, and documents where they are somebody's."""
        asked = [[each.id, each.prompt, each.truth] for each in (*self.train_tasks, *self.heldout_tasks)]
        questions = blake3(msgspec.msgpack.encode(asked)).hexdigest()
        documents = {"documents": self.corpus.digest} if self.real else {}
        return {"weights": network.digest(), "questions": questions, **documents}

    @cached_property
    def model(self) -> str:
        return str(READER if self.real else NANO) if self.recipe.model == "nano" else self.recipe.model

    def network(self) -> Network:
        """The network that training begins with, made anew."""
        network = Network.load(self.model, device=self.recipe.device)
        return lora(network, self.recipe.lora, seed=self.recipe.seed) if self.recipe.lora else network

    @cached_property
    def renderer(self) -> Renderer:
        return Renderer.load(self.model)

    @cached_property
    def real(self) -> bool:
        """Whether the corpus is one of passages that people wrote."""
        return bool(self.recipe.corpus)

    @cached_property
    def window(self) -> Window:
        budget = self.recipe.window or (2048 if self.real else 640)
        return Window(budget, soft=0.5, hard=0.85, reply=128 if self.real else 96)  # for two searches, or a whole question

    @property
    def slots(self) -> int:
        """Episodes that a worker's engine speaks for at once: its share of a step."""
        return max(8, self.recipe.groups * self.recipe.size // self.recipe.workers)

    @cached_property
    def worlds(self) -> list[World]:
        """Many to learn in, so that names are copied and not remembered, and then some, of other words, to be measured in."""
        seed = 1000 * self.recipe.seed
        splits = [("train", TRAIN_WORLDS), ("heldout", HELDOUT_WORLDS)]
        return [World.make(seed + n, WORLD_SIZE, split) for split, count in splits for n in range(count)]

    @cached_property
    def harness(self) -> Harness:
        """The one harness: for the teacher, for RL, for evaluation and for serving."""
        return self.harness_on(self.corpus if self.real else self._corpus_of)

    def harness_on(self, corpus: Corpus | Callable[[Task], Corpus]) -> Harness:
        """The same on other documents: the tools and the prompt that the policy was trained with."""
        return harness_on(corpus, self.window, self.recipe.results, self.recipe.without != "pruning", quoting=self.real)

    @cached_property
    def corpus(self) -> Corpus:
        """The passages of --corpus."""
        return open_corpus(self.recipe.corpus, self.window, self.progress)

    @cached_property
    def documents(self) -> list[Document]:
        """Those of --corpus, uncut."""
        return read_documents(self.recipe.corpus)

    def _corpus_of(self, task: Task) -> Corpus:
        return self._corpora[task.id.partition("/")[0]]

    @cached_property
    def _corpora(self) -> dict[str, Corpus]:
        return {world.name: Corpus.build(world.documents) for world in self.worlds}

    def _questions(self, worlds: list[World], count: int) -> list[Task]:
        """`count` questions of 1 to 4 hops, from all `worlds` in turn."""
        each = -(-count // len(worlds))
        asked = [world.tasks(each, HOPS, self.recipe.seed) for world in worlds]
        return [task for round in zip(*asked, strict=True) for task in round][:count]

    @cached_property
    def train_tasks(self) -> list[Task]:
        """The questions of RL, and the first of the warm-up."""
        if self.real:
            return with_chain(beir_tasks(self.recipe.corpus, "train"), self.corpus)
        wanted = max(self.recipe.warmup, self.recipe.groups * self.recipe.steps)
        return self._questions(self.worlds[:TRAIN_WORLDS], wanted)

    @cached_property
    def warmup_tasks(self) -> list[Task]:
        """The questions that the teacher answers for the warm-up. Real ones are few and would be learned by heart, so the
        corpus asks others of itself."""
        if not self.real:
            return self.train_tasks
        missing = max(0, self.recipe.warmup - len(self.train_tasks))
        made = cloze_tasks(self.documents, missing, self.recipe.seed)
        return [*self.train_tasks, *with_chain(made, self.corpus)]

    @cached_property
    def rl_tasks(self) -> list[Task]:
        """The questions of RL in order. On passages, after each that a person asked, one of two hops that the corpus asks of
        itself: few of people's need what a second search finds. In the second half people ask alone, for two documents are
        always enough for the corpus' own, and while those were asked to the end a third was unlearned (docs/log.md)."""
        groups, total = self.recipe.groups, self.recipe.groups * self.recipe.steps
        linked = self._linked(total // 2) if self.real else []
        if len(linked) < groups:  # they would come twice in a step
            return self._phases(total // 2)
        mixed = total // 2 if len(self.train_tasks) >= 2 * groups else total  # fewer of people's would, too
        asked = self._phases((total - mixed // 2 + 1) // 2)
        pairs = zip(asked[: mixed // 2], _cycle(linked, mixed // 2), strict=True)
        return [*(task for pair in pairs for task in pair), *asked[mixed // 2 :]]

    def _phases(self, half: int) -> list[Task]:
        """`half` of the first phase (reports.md 3.6), `half` and a step's more of the second."""
        first, second = two_phases(self.train_tasks, self.recipe.skew, self.recipe.seed)
        return [*_cycle(first, half), *_cycle(second, half + self.recipe.groups)]

    def _linked(self, count: int) -> list[Task]:
        """At most `count` questions of two hops that the passages ask of themselves, each sentence once."""
        made = cloze_tasks(self.documents, 2 * count, self.recipe.seed)
        once = {task.truth["sentence"]: task for task in reversed(made) if task.truth["hops"] == 2}
        return [*reversed(once.values())]

    @cached_property
    def heldout_tasks(self) -> list[Task]:
        """The questions that decide: never learned from, in the generated world about other names too."""
        if self.real:
            return beir_tasks(self.recipe.corpus, "test")[: self.recipe.eval_tasks]
        return self._questions(self.worlds[TRAIN_WORLDS:], self.recipe.eval_tasks)

    @cached_property
    def sampling(self) -> Sampling:
        return Sampling(temperature=1.0, max_tokens=self.window.reply)

    def scorer(self, step: int) -> SearchReward:
        """β anneals from 4 to 2 on a line over RL (reports.md 3.6 gives the ends, the shape is ours)."""
        beta = 4 - 2 * min(1.0, step / max(1, self.recipe.steps - 1))
        less = {"trajectory": {"trajectory": 0.0}, "answer": {"answer": 0.0}, "penalty": {"pruning": 0.0}}
        less |= {"recall": {"beta": 0.5}, "effort": {"effort": 0.0}, "curriculum": {"beta": 4.0}}
        return replace(self._reward(beta, self.real), **less.get(self.recipe.without, {}))

    @property
    def judge(self) -> SearchReward:
        """What held-out episodes are judged by: the whole reward, with the report's last β, whatever training left out."""
        return self.judge_on(self.real)

    def judge_on(self, real: bool) -> SearchReward:
        """The same on other documents: passages that people wrote, or not."""
        return self._reward(2.0, real)

    def _reward(self, beta: float, real: bool) -> SearchReward:
        return SearchReward(
            beta=beta, turns=priced_turns(self.window, real), effort=0.0 if real else EFFORT, window=self.window
        )

    @cached_property
    def algorithm(self) -> Algorithm:
        if self.recipe.algorithm == "cispo":
            return CISPO(high=self.recipe.cap - 1, eps=EPSILON_ON_PASSAGES if self.real else EPSILON)
        return next(row for row in TABLE if row.name == self.recipe.algorithm)

    def rate(self, step: int) -> float:
        """The factor on RL's learning rate: five steps up, then down on a line to a tenth. At a constant rate 144 steps were at
        their best half-way, and on passages answers swung between two documents and more to the end (docs/log.md)."""
        return min(1.0, (step + 1) / 5) * (1 - 0.9 * step / max(1, self.recipe.steps - 1))

    @property
    def momentum(self) -> float:
        """Less where gradients are late already: with 0.9 at lag 4 a policy swung between few searches and many, and found late
        what at lag 0 it finds early (docs/loop.md). Lag 1 was measured with 0.9."""
        return 0.5 if self.recipe.max_lag > 1 else 0.9

    @cached_property
    def teacher(self) -> Policy:
        """The scripted expert that is wrong on purpose (on passages less often than it is right), or an endpoint."""
        if self.recipe.teacher:
            url, _, model = self.recipe.teacher.partition("#")
            key, share = os.environ.get("OPENAI_API_KEY") or "none", self.recipe.teacher_tokens // self.recipe.workers
            return Endpoint(url, model, self.renderer, key, max_spend=share, name="teacher")
        less = {"pruning": {"prune": 0.0}, "blunders": {"forget": 0.3, "over_include": 0.35}}  # else 0.6 and 0.7
        faults = replace(Imperfection(), **(less.get(self.recipe.without, {}) | (less["blunders"] if self.real else {})))
        return Scripted(Teacher(faults, self.recipe.seed).script(self.warmup_tasks), self.renderer, name="teacher")

    async def greet(self) -> None:
        """A word with a teacher behind an endpoint: a wrong address, key or model is known before anything else is done.
        PolicyError."""
        messages = [{"role": "user", "content": "Say hello."}]
        view = View(self.renderer.opening(messages), messages, (), (self.recipe.seed, "hello", 0, "agent", 0))
        await self.teacher.speak(view, Sampling(max_tokens=16))

    @cached_property
    def expert(self) -> Policy:
        """The perfect script on the held-out questions: the ceiling."""
        perfect = replace(Imperfection.none(), prune=float("prune_chunks" in self.harness.tools))
        return Scripted(Teacher(perfect).script(self.heldout_tasks), self.renderer, name="expert")


def open_corpus(path: str, window: Window, progress: Callable[[int, int], None] | None = None) -> Corpus:
    """A person's documents (a folder, a JSONL file, the BEIR layout) in chunks that suit the window, with the offline
    embedder, whose vectors are cached; `progress` is told how many of how many new ones are made."""
    embedder = open_embedder("minilm", progress=progress)
    return Corpus.build(read_documents(path), embedder=embedder, chunk_words=min(150, 16 + window.budget // 80))


def harness_on(
    corpus: Corpus | Callable[[Task], Corpus], window: Window, results: int, pruning: bool = True, quoting: bool = False
) -> Harness:
    """The search agent's harness on any corpus. A small window gets the brief prompt, and no schemas to fill it."""
    brief = _small(window)
    prompt = (BRIEF if pruning else BRIEF_UNPRUNED) if brief else PROMPT
    tools = search_tools(corpus, results, pruning, quoting)
    return Harness(tools, window, prompt + QUOTES * quoting, limits_in(window), specs=not brief, ending=repetition)


def limits_in(window: Window) -> Limits:
    """How many turns an agent has in a window."""
    return Limits(turns=10 if _small(window) else 64)


def priced_turns(window: Window, real: bool) -> int:
    """The turns of which half are free. Without a price a policy paged on in passages until it had no turn left to answer
    (docs/log.md); in the generated world four hops need seven of ten."""
    return limits_in(window).turns if real else SearchReward().turns


def _small(window: Window) -> bool:
    return window.budget < 8192


def _cycle(tasks: list[Task], count: int) -> list[Task]:
    return [tasks[number % len(tasks)] for number in range(count if tasks else 0)]
