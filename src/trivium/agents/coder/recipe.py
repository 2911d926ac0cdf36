"""Composer 2 as a recipe: what its runs are, the projects it changes, its desk, teacher and reward."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from trivium.agents.coder.comparison import CoderComparison
from trivium.agents.coder.desk import Backend, Desks, open_provider
from trivium.agents.coder.fix import diff, read_folder
from trivium.agents.coder.hidden import HiddenTests
from trivium.agents.coder.hints import hint, told
from trivium.agents.coder.labels import LABELS, PANELS
from trivium.agents.coder.reward import CoderReward
from trivium.agents.coder.summary import REPLIES, SMALL, Way, compaction
from trivium.agents.coder.teacher import Faults, Teacher
from trivium.agents.coder.tools import BRIEF, PROMPT, SECONDS, coder_tools
from trivium.assets import CODE
from trivium.errors import InputError
from trivium.harness import Harness, Limits, Place, Window
from trivium.policy import Policy, Scripted
from trivium.recipe.base import Progress, Recipe
from trivium.tasks.projects import GRADES, projects
from trivium.trace import Episode, Task
from trivium.viewer import Labels, Panels

if TYPE_CHECKING:
    from trivium.train import Algorithm

EPSILON = 0.5
"""Added to the std of a group's rewards, as in the search recipe: attempts that differ by their effort alone teach little."""

TURNS = (8, 8, 12, 20, 40, 80, 16)
"""The most turns of an attempt, by the grade of the hardest task: about twice what an expert takes. With more, attempts that
repeat a failing edit to the end hold most of a step's tokens, and what is unlearned from them is to edit at all."""


@dataclass(frozen=True)
class Coder(Recipe):
    """Train an agent to change code, as Composer 2 was: a warm-up on a teacher's episodes, then RL in the same harness.

    It learns on generated projects whose hidden tests say whether the change is right. Run the same command again to go on
    with a run that was stopped.
    """

    out: str = "runs/coder"
    """the run's folder"""
    model: str = "nano"
    """a model folder, or a name in the local Hugging Face cache; nano: the base for code in the package"""
    grades: tuple[int, ...] = (2,)
    """how hard its tasks are: 0 one edit that is told, 1 one that has to be found, 2 a function or a parameter more, 3 several
    edits, 4 and 5 many, 6 one that needs what many files tell"""
    sandbox: Backend = "ns"
    """where commands and hidden tests run: ns (Linux namespaces), docker, or local-unsafe, which isolates
    nothing: what runs there runs as you"""
    window: int = 1536
    """tokens of context the agent may hold"""
    summary: Way = "own"
    """how it goes on from a full window: its own summary, a long prompted one in twelve sections, or the oldest turns cut"""
    feedback: float = 0.0
    """weight of textual feedback at turns that went wrong, beside RL, and hints in some lessons; 0: none"""
    effort: float = 0.06
    """weight of Composer 2's concave penalty on effort"""
    warmup: int = 2400
    """tasks that the scripted teacher solves for the warm-up"""
    sft_steps: int = 240
    """steps of the warm-up, 32 episodes each"""
    steps: int = 24
    """steps of RL"""
    groups: int = 16
    """tasks a step"""
    lr: float = 1.5e-4
    """learning rate of RL"""
    eval_tasks: int = 128
    """held-out tasks at the end"""

    labels: ClassVar[Labels] = LABELS
    panels: ClassVar[Panels] = PANELS
    live_score: ClassVar[str] = "solved"
    least: ClassVar[Mapping[str, float]] = {"window": 512, "feedback": 0, "effort": 0, "warmup": 1}

    def check(self) -> None:
        super().check()
        if not self.grades or not set(self.grades) <= set(GRADES):
            raise InputError(f"--grades are of {min(GRADES)} to {max(GRADES)}, not {' '.join(map(str, self.grades)) or 'none'}")
        open_provider(self.sandbox)

    def base(self) -> str:
        return str(CODE) if self.model == "nano" else super().base()

    # --- how it lives

    @cached_property
    def desks(self) -> Desks:
        """Where attempts are made, one for each process of a run."""
        return Desks(open_provider(self.sandbox))

    def harness(self) -> Harness:
        return self.harness_in(self.desks)

    def harness_in(self, place: Place) -> Harness:
        """The same at other desks: the tools and the prompt that the policy was trained with."""
        small = self.window < SMALL
        reply = REPLIES[self.summary] if small else 4096
        going_on = compaction(self.summary, self.window)
        room = Window(self.window, soft=0.9, hard=1.0, reply=reply, summarize=going_on)
        limits = Limits(turns=max(TURNS[grade] for grade in self.grades), tool_seconds=SECONDS)
        prompt = BRIEF if small else PROMPT
        return Harness(coder_tools(), room, prompt, limits, specs=not small, place=place)

    def harness_at(self, data: str, progress: Progress) -> Harness | None:
        """On a copy of a person's folder, from which each episode begins. A generated project is nobody's to change."""
        return self.harness_in(Desks(open_provider(self.sandbox), files=read_folder(data).held)) if data else None

    async def outcome(self, episode: Episode, harness: Harness) -> str:
        """The diff to the folder as it was copied."""
        desks = harness.place
        if not isinstance(desks, Desks) or desks.files is None or not episode.snapshots:
            return ""
        try:
            return diff(desks.files, await desks.held(episode.snapshots[-1]))
        finally:
            for snapshot in episode.snapshots:
                await desks.provider.forget(snapshot)

    # --- what it is asked

    def tasks(self, split: str) -> list[Task]:
        return self.train_tasks if split == "train" else self.heldout_tasks

    @cached_property
    def train_tasks(self) -> list[Task]:
        return projects(self.warmup + self.groups * self.steps, self.grades, self.seed, "train")

    def lesson_tasks(self) -> list[Task]:
        return self.train_tasks[: self.warmup]

    def rl_tasks(self) -> list[Task]:
        """Others than the lessons': those are known by heart after a warm-up, and attempts at them say little of new ones."""
        return self.train_tasks[self.warmup :] or self.train_tasks

    @cached_property
    def heldout_tasks(self) -> list[Task]:
        """Projects of other words than those of training."""
        return projects(self.eval_tasks, self.grades, self.seed, "heldout")

    # --- what it is worth, and how it learns

    def scorer(self, step: int) -> CoderReward:
        return replace(self.judge(), effort=self.effort)

    def judge(self) -> CoderReward:
        """The whole reward, whatever training left out."""
        return CoderReward(self._grader, self.renderer)

    @cached_property
    def _grader(self) -> HiddenTests:
        return HiddenTests(self.desks)

    def comparison(self) -> CoderComparison:
        return CoderComparison(self)

    def loss(self) -> Algorithm:
        from trivium.train import CISPO, Feedback

        row = CISPO(high=1.0, eps=EPSILON) if self.algorithm == "cispo" else super().loss()
        return replace(row, feedback=Feedback(hint, self.renderer, self.feedback)) if self.feedback else row

    # --- who teaches it

    def lessons(self) -> Policy:
        """The scripted coder, which errs on purpose."""
        return self._teacher(self.lesson_tasks(), Faults(), "teacher")

    def select(self, episodes: Sequence[Episode], scores: Sequence[Mapping[str, float]]) -> list[Episode]:
        """Where hints will teach, also a turn of each second lesson with a hint before it."""
        if not self.feedback:
            return list(episodes)
        from trivium.train import Feedback, lesson

        term, rng = Feedback(told, self.renderer), random.Random(f"hinted {self.seed}")
        turns = ((each, term.of(each, {each.agent.policy})) for each in episodes[::2])
        return [*episodes, *(lesson(each, rng.choice(hinted)) for each, hinted in turns if hinted)]

    def ceiling(self, tasks: Sequence[Task]) -> Policy:
        """The same without faults."""
        return self._teacher(tasks, Faults(0.0, 0.0), "expert")

    def _teacher(self, tasks: Sequence[Task], faults: Faults, name: str) -> Policy:
        return Scripted(Teacher(tasks, faults, self.seed).speak, self.renderer, name=name)
