"""Kimi K2.5's agent swarm as a recipe: its tasks, the orchestrator's harness, its frozen sub-agents, teacher and reward."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from trivium.agents.search.citation import cited, quoted, repetition
from trivium.agents.search.harness import open_corpus
from trivium.agents.search.tools import search_tools
from trivium.agents.swarm.reward import SwarmScore, truly_done
from trivium.agents.swarm.teacher import Habits, Teacher
from trivium.assets import NANO
from trivium.corpus import Corpus
from trivium.errors import InputError
from trivium.harness import Crew, Harness, Limits, Passage, Subagent, Tool, Window
from trivium.policy import Policy, Scripted
from trivium.recipe.base import Progress, Recipe
from trivium.reward import Parl, Scorer, annealed
from trivium.serve.aside import Aside
from trivium.tasks.names import Split
from trivium.tasks.tables import SIMPLE, WIDE, table_tasks
from trivium.tasks.world import World
from trivium.trace import Episode, Sampling, Task, Thread
from trivium.viewer import Labels, Panels

if TYPE_CHECKING:
    from trivium.engine import Engine

TRAIN_WORLDS, HELDOUT_WORLDS, WORLD_SIZE = 24, 4, 450
"""As the search agent's: many worlds to learn in, and some of other words to be measured in."""
MOST = max(rows * columns for rows, columns in WIDE)
"""Cells of a table: more sub-agents side by side would have nothing to do."""
CALLS = 12
"""Calls of one turn at most: an agent created, six cells, and some to spare."""
BRIEF = "Answer with the handles of passages. Tools: search_corpus(query)"
TEAM = ", create_subagent(name, system_prompt), assign_task(agent, prompt)"
"""The system prompt of a nano model, which learns the tools' use from its warm-up. It does not say when to use which."""
MEMBER = "Find the documents."
MEMBER_ROOM = Window(400, soft=0.9, hard=0.95, reply=64)

Without = Literal["nothing", "swarm", "parallel", "finish", "anneal"]


@dataclass(frozen=True)
class Swarm(Recipe):
    """Train an orchestrator that decides by itself when to split a task over frozen sub-agents, as Kimi K2.5's was (PARL).

    It fills tables of facts of generated worlds: wide ones, which nobody fills alone within the critical steps, and simple
    ones, which gain nothing from splitting. Run the same command again to go on with a run that was stopped.
    """

    out: str = "runs/swarm"
    """the run's folder"""
    warmup: int = 1200
    """tables that the teacher fills for the warm-up"""
    sft_steps: int = 400
    """steps of the warm-up, of 16 episodes each; 0 for a --model that is warm already, as the model-sft of a run"""
    steps: int = 18
    """steps of RL"""
    lr: float = 2.5e-4
    """learning rate of RL"""
    groups: int = 8
    """tables a step, half of them wide"""
    algorithm: Literal["cispo", "dr_grpo", "composer2", "grpo", "dapo", "gspo", "kimi", "rft"] = "kimi"
    """a row of docs/algorithms.md; kimi: the report's"""
    eval_tasks: int = 64
    """held-out tables at the end, half of them wide"""
    subagents: str = "nano"
    """the frozen sub-agents' model folder, as the model of a run of the search agent; nano: the base in the package"""
    critical: int = 4
    """critical steps of an episode"""
    price: float = 0.3
    """the share of a table's worth that all critical steps cost together"""
    parallel: float = 0.3
    """lambda 1 at the start: the weight of r_parallel"""
    finish: float = 0.3
    """lambda 2 at the start: the weight of r_finish"""
    anneal: float = 0.8
    """the share of RL's steps after which both are 0"""
    without: Without = "nothing"
    """leave one part out, to see what it is for: the sub-agents (a single agent, and its teacher one), r_parallel, r_finish,
    or the anneal of both"""

    least: ClassVar[Mapping[str, float]] = {"warmup": 1, "critical": 2, "price": 0, "parallel": 0, "finish": 0, "anneal": 0}
    live_score: ClassVar[str] = "item_f1"
    sft_size: ClassVar[int] = 16
    labels: ClassVar[Labels] = Labels(
        answer=lambda task: "; ".join(f"{k} | {' | '.join(c)}" for k, c in task.truth["rows"].items())
    )
    panels: ClassVar[Panels] = Panels(
        table=("item_f1", "success", "wide/item_f1", "wide/split", "simple/item_f1", "simple/split", "critical_steps"),
        held_out=("reward", "wide/item_f1", "simple/split"),
        behaviour=("assignments", "parallelism", "simple/split", "critical_steps"),
        arms=(
            ("reward", "wide/item_f1", "simple/item_f1", "r_finish", "finished"),
            ("parallelism", "wide/split", "simple/split", "critical_steps", "assignments"),
        ),
        shares=frozenset({"wide/split", "simple/split", "finished"}),
        progress={"r_perf": "reward", "wide/item_f1": "F1", "wide/split": "split", "simple/split": "simple"},
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if Path(self.subagents).is_dir():
            object.__setattr__(self, "subagents", os.path.abspath(self.subagents))

    def check(self) -> None:
        super().check()
        if self.subagents != "nano" and not Path(self.subagents).is_dir():
            raise InputError(
                f"--subagents {self.subagents} is no folder of a model: give one, or nano for the base in the package"
            )
        if self.price > 1:
            raise InputError(
                f"--price is a share, from 0 to 1, not {self.price:g}: at more than 1 a filled table is worth less than none"
            )

    def _vain(self) -> list[tuple[str, bool, str]]:
        default, alone = type(self), "--without swarm has no sub-agents"
        changed = [
            name for name in ("subagents", "parallel", "finish", "anneal") if getattr(self, name) != getattr(default, name)
        ]
        return [
            *super()._vain(),
            *((name, self.alone, alone) for name in changed),
            *((name, self.without == name, f"--without {name} leaves it out") for name in changed),
        ]

    # --- how it lives

    @property
    def alone(self) -> bool:
        """Whether there are no sub-agents."""
        return self.without == "swarm"

    @cached_property
    def room(self) -> Window:
        """Room for a table that was assigned cell by cell, in one reply, for what comes back and for a second such reply: with
        1024 tokens and replies of 320 there was none for the last results (docs/log.md)."""
        return Window(1536, soft=0.9, hard=0.95, reply=384)

    def harness(self) -> Harness:
        return self._harness_on(self.corpus_of, lambda: self.helper)

    def harness_at(self, data: str, progress: Progress) -> Harness | None:
        """On documents that are named, which sub-agents search too. A generated world is nobody's to ask about."""
        if not data:
            return None
        helper: Any = Aside(self.helper)  # which computes beside the event loop of a server
        return self._harness_on(open_corpus(data, MEMBER_ROOM, progress), lambda: helper)

    async def outcome(self, episode: Episode, harness: Harness) -> str:
        """The passages that it cites."""
        return quoted(episode.agent, episode.task)

    def _harness_on(self, corpus: Corpus | Callable[[Task], Corpus], helper: Callable[[], Policy]) -> Harness:
        """The same tools on any corpus. Where there are sub-agents, `helper` gives their policy."""
        search = search_tools(corpus, results=3, pruning=False)[:1]
        limits = Limits(turns=10, calls=CALLS, critical=self.critical)
        if self.alone:
            return Harness(search, self.room, f"{BRIEF}.", limits, specs=False)
        crew = Crew(_member(search, helper()))
        return Harness([*search, *crew.tools], self.room, f"{BRIEF}{TEAM}.", limits, specs=False, place=crew)

    @cached_property
    def helper(self) -> Engine:
        """The sub-agents' policy: frozen, in the same process as the orchestrator's. It forgets between two steps, as the
        orchestrator's engine does with new weights: a run that is gone on with has no memory of the steps before."""
        from trivium.engine import Engine

        model = str(NANO) if self.subagents == "nano" else self.subagents
        engine = Engine(model, name="helper", slots=64, context=MEMBER_ROOM.budget)
        engine.forgets = True
        return engine

    # --- what it is asked

    @cached_property
    def worlds(self) -> list[World]:
        """Those to learn in, and then those to be measured in."""
        seed = 1000 * self.seed
        splits: list[tuple[Split, int]] = [("train", TRAIN_WORLDS), ("heldout", HELDOUT_WORLDS)]
        return [World.make(seed + n, WORLD_SIZE, split) for split, count in splits for n in range(count)]

    def corpus_of(self, task: Task) -> Corpus:
        """The world that a task is about, made ready when it is first searched."""
        name = task.id.partition("/")[0]
        if name not in self._corpora:
            self._corpora[name] = Corpus.build(next(world for world in self.worlds if world.name == name).documents)
        return self._corpora[name]

    @cached_property
    def _corpora(self) -> dict[str, Corpus]:
        return {}

    def tasks(self, split: str) -> list[Task]:
        return self.train_tasks if split == "train" else self.heldout_tasks

    @cached_property
    def train_tasks(self) -> list[Task]:
        """The tables of the warm-up, and then those of RL."""
        return self._tables(self.worlds[:TRAIN_WORLDS], self.warmup + self.groups * self.steps)

    def lesson_tasks(self) -> list[Task]:
        return self.train_tasks[: self.warmup]

    def rl_tasks(self) -> list[Task]:
        """Others than the lessons': those are known by heart after a warm-up, and attempts at them say little of new ones."""
        return self.train_tasks[self.warmup :] or self.train_tasks

    @cached_property
    def heldout_tasks(self) -> list[Task]:
        return self._tables(self.worlds[TRAIN_WORLDS:], self.eval_tasks)

    def _tables(self, worlds: Sequence[World], count: int) -> list[Task]:
        """`count` tables, wide and simple in turn, from all `worlds` in turn."""
        each = -(-count // (2 * len(worlds)))
        wide = [table_tasks(world, "wide", each, WIDE, self.seed) for world in worlds]
        simple = [table_tasks(world, "simple", each, SIMPLE, self.seed) for world in worlds]
        pairs = zip(zip(*wide, strict=True), zip(*simple, strict=True), strict=True)
        return [task for rows in pairs for pair in zip(*rows, strict=True) for task in pair][:count]

    # --- what it is worth

    def scorer(self, step: int) -> Scorer:
        """PARL at a step: both lambdas fall on a line to 0 (the report says that they do, and neither from where nor how)."""
        share = 1e9 if self.without == "anneal" else self.anneal
        parallel = 0.0 if self.without in ("parallel", "swarm") else annealed(self.parallel, step, self.steps, share)
        finish = 0.0 if self.without in ("finish", "swarm") else annealed(self.finish, step, self.steps, share)
        return Parl(SwarmScore(self.critical, self.price), truly_done, parallel, finish, MOST)

    def judge(self) -> Scorer:
        """The outcome alone, whatever was paid besides in training."""
        return Parl(SwarmScore(self.critical, self.price), truly_done, 0.0, 0.0, MOST)

    # --- who teaches it

    def lessons(self) -> Policy:
        """The script that is wrong on purpose."""
        habits = Habits.alone(Habits().stop) if self.alone else Habits()
        return Scripted(Teacher(habits, self.seed).script(self.train_tasks), self.renderer, name="teacher")

    def ceiling(self, tasks: Sequence[Task]) -> Policy:
        """The script that splits what is wide and nothing else."""
        habits = Habits.alone(0.0) if self.alone else Habits.perfect()
        return Scripted(Teacher(habits).script(tasks), self.renderer, name="expert")

    def data(self) -> dict[str, str]:
        return {} if self.alone else {"subagents": self.helper.digest()}


def _member(search: list[Tool], helper: Policy) -> Subagent:
    """A search agent with a window of its own; the passages that it cites come back. It speaks greedily, so that what an
    assignment brings hangs on the assignment."""
    harness = Harness(search, MEMBER_ROOM, MEMBER, Limits(turns=4), specs=False, ending=repetition)
    return Subagent(helper, harness, Sampling(0.0, max_tokens=MEMBER_ROOM.reply), report=cited_passages)


def cited_passages(thread: Thread) -> str | list[Passage]:
    """What a search agent's answer cites: the passages themselves, each once."""
    shown = {piece.ref: Passage(piece.source, piece.shown) for piece in thread.passages}
    return [shown[ref] for ref in cited(thread) if ref in shown] or "Nothing was found."
