"""An agent is one class: a dataclass whose fields are the command line's options, and a few methods that say what it is.

    @dataclass(frozen=True)
    class Staff(tv.Recipe):
        \"\"\"Answers questions about the staff.\"\"\"

        people: int = 400
        \"\"\"how many people there are\"\"\"

        def tasks(self, split: str) -> list[tv.Task]: ...
        def harness(self) -> tv.Harness: ...
        def scorer(self, step: int) -> tv.Scorer: ...
        def lessons(self) -> tv.Policy | list[tv.Episode] | None: ...   # optional

Everything else (warm-up, RL, folders of runs, resuming, workers, curves, tables, comparisons, estimates, export) is this
room's, the same for our agents and for a user's own file: `trivium train staff.py`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_args, get_type_hints

import msgspec

from trivium.assets import NANO
from trivium.errors import CorruptError, InputError
from trivium.harness import Harness
from trivium.loops.run import Run
from trivium.loops.track import require
from trivium.policy import Policy, Renderer
from trivium.recipe.bases import base_folder
from trivium.recipe.find import Home, home_of
from trivium.reward import Scorer
from trivium.reward.baseline import kind_of
from trivium.reward.distill import Distilled, acceptance, distilled, keep_rate
from trivium.trace import Episode, Task
from trivium.viewer import Labels, Panels

if TYPE_CHECKING:
    from trivium.recipe.comparison import Comparison
    from trivium.train import Algorithm

LEAST = {
    "seed": 0, "warmup": 0, "teacher_tokens": 1, "sft_steps": 0, "steps": 0, "groups": 1, "size": 2, "branches": 0,
    "substeps": 0, "lora": 0, "max_lag": 0, "eval_tasks": 1, "workers": 1,
}  # fmt: skip
"""The least value of each number; an agent adds those of its own in `least`."""

GLANCE = 64
"""Held-out tasks of a look while training."""

Progress = Callable[[int, int], None]
"""Told how many of how many are done."""


@dataclass(frozen=True)
class Suite:
    """What a finished run is measured on. An agent whose runs can be measured elsewhere adds fields (`Recipe.suite`)."""

    tasks: int = 0
    """how many held-out tasks; 0: as many as the agent has for it"""

    def check(self) -> None:
        """InputError for options that cannot be meant."""
        if self.tasks < 0:
            raise InputError(f"--tasks must be at least 0, not {self.tasks}")

    def __str__(self) -> str:
        return "each run's own held-out tasks"


@dataclass(frozen=True, slots=True)
class Bench:
    """A suite made ready for one run: its tasks, the harness they are attempted in, and who judges. `key` names
    the data beneath, for a digest, and `data` has the digests (`Recipe.data`) that have to be those of the run."""

    tasks: Sequence[Task]
    harness: Harness
    judge: Scorer
    key: tuple[Any, ...] = ()
    data: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Recipe:
    """What a run is. Subclass it: `tasks`, `harness` and `scorer` make an agent; the other methods have defaults."""

    out: str = ""
    """the run's folder; default: runs/ and the agent's name"""
    model: str = "nano"
    """a model folder, or a name in the local Hugging Face cache; nano: the base in the package; smollm2: SmolLM2-135M-Instruct
    (docs/models.md)"""
    seed: int = 0
    """decides everything that is drawn"""
    warmup: int = 0
    """lessons that the teacher gives for the warm-up; 0: one for each training task"""
    teacher: str = ""
    """base URL and model of an OpenAI-compatible teacher, as URL#MODEL, its key in OPENAI_API_KEY; default: the agent's own
    lessons"""
    teacher_tokens: int = 5_000_000
    """the most tokens that a teacher behind an endpoint may use"""
    warmup_from: str = ""
    """a finished run, whose successful episodes are the lessons of the warm-up, in place of the agent's own"""
    warmup_above: float = 1.0
    """the least reward of such an episode"""
    sft_steps: int = 40
    """steps of the warm-up, of 32 episodes each where the agent says nothing else; 0: none, for an agent without lessons or a
    --model that is warm already, as the model-sft of a run"""
    steps: int = 40
    """steps of RL"""
    groups: int = 16
    """tasks a step; where fewer are there to learn from, all of them"""
    size: int = 8
    """attempts at each task: they share a baseline"""
    branches: int = 0
    """answers drawn besides from the last view of each attempt that finished: they share a baseline of their own. 0: none"""
    algorithm: Literal["cispo", "dr_grpo", "composer2", "grpo", "dapo", "gspo", "kimi", "rft"] = "cispo"
    """a row of docs/algorithms.md"""
    substeps: int = 0
    """optimizer updates a step; 0: 2, or 1 where --max-lag is above 0 (docs/loop.md)"""
    lora: int = 0
    """rank of low-rank adapters to train in place of all weights; 0: all weights"""
    autocast: bool = False
    """the learner's products in bfloat16: on a CPU with AMX twice as fast at 135M, and log-probabilities are then off from the
    engine's by some hundredths"""
    max_lag: int = 0
    """versions that the learner may be ahead of what it learns from: 0 takes turns, above that sampling goes on meanwhile, and
    equal seeds no longer give equal runs"""
    sft_lr: float = 1e-3
    """learning rate of the warm-up"""
    lr: float = 4e-4
    """learning rate of RL"""
    eval_tasks: int = 256
    """the most held-out tasks at the end"""
    workers: int = 2
    """equal processes of one thread each"""
    device: Literal["cpu", "cuda"] = "cpu"
    """where the policy is: on the CPU, or on a CUDA device, which all workers share; there equal seeds give no equal runs"""
    track: bool = False
    """also write TensorBoard event files, which W&B reads with sync_tensorboard"""

    suite: ClassVar[type[Suite]] = Suite
    """The options of `trivium eval`."""
    labels: ClassVar[Labels] = Labels()
    """How the viewer reads an episode of this agent."""
    panels: ClassVar[Panels] = Panels()
    """Which numbers its table and its curves show; default: those that its scorer gives."""
    least: ClassVar[Mapping[str, float]] = {}
    """The least values of fields of its own."""
    live_score: ClassVar[str] = "reward"
    """The score from 0 to 1 that `trivium live` asks a candidate to be better at."""
    sft_size: ClassVar[int] = 32
    """Episodes in each step of the warm-up."""

    def __post_init__(self) -> None:
        """A folder is kept by its whole path, so that a run can be opened from anywhere."""
        object.__setattr__(self, "out", self.out or f"runs/{type(self).__name__.lower()}")
        object.__setattr__(self, "substeps", self.substeps or (1 if self.max_lag else 2))
        for name in ("model", "warmup_from"):
            if Path(folder := getattr(self, name)).is_dir() and folder:
                object.__setattr__(self, name, os.path.abspath(folder))

    # --- what an agent says

    def tasks(self, split: str) -> Sequence[Task]:
        """The tasks of a split: "train", or "heldout", which decide and are never learned from."""
        raise self._lacks("tasks(self, split)")

    def harness(self) -> Harness:
        """The one harness: for the teacher, for RL, for evaluation and for serving."""
        raise self._lacks("harness(self)")

    def scorer(self, step: int) -> Scorer:
        """What an attempt of this step is worth; its `reward` is learned from."""
        raise self._lacks("scorer(self, step)")

    def _lacks(self, method: str) -> InputError:
        return InputError(f"{type(self).__name__} is no whole agent yet: write its method {method}")

    def worth(self) -> Distilled:
        """What people's feedback on a served episode is worth, which `trivium live` learns from; default: whether they took
        the answer, and how much of it they kept."""
        return distilled({acceptance: 1.0, keep_rate: 1.0})

    def kind(self, episode: Episode) -> str:
        """The kind of a served task, whose mean reward is the baseline of `trivium live`; default: the word that the request
        begins with."""
        return kind_of(episode)

    def judge(self) -> Scorer:
        """What held-out episodes are judged by; default: as the last step's."""
        return self.scorer(max(0, self.steps - 1))

    @cached_property
    def tasks_per_step(self) -> int:
        """`groups`, or as many different tasks as there are to learn from: within a step none comes twice."""
        return min(self.groups, len({task.id for task in self.tasks("train")}))

    # --- what it may say

    def lessons(self) -> Policy | Sequence[Episode] | None:
        """Whom the warm-up imitates: a policy that attempts `lesson_tasks` in the harness (a script, an endpoint), or a log of
        episodes, or nobody, and then there is no warm-up."""
        return None

    def lesson_tasks(self) -> Sequence[Task]:
        """The tasks that the teacher attempts, around and around until there are `warmup` lessons; default: those of train."""
        return self.tasks("train")

    def rl_tasks(self) -> Sequence[Task]:
        """The tasks of RL in order; they are taken around and around. Default: those of train."""
        return self.tasks("train")

    def select(self, episodes: Sequence[Episode], scores: Sequence[Mapping[str, float]]) -> list[Episode]:
        """The lessons to imitate, of all that the teacher gave; default: all. InputError where none is fit."""
        return list(episodes)

    def ceiling(self, tasks: Sequence[Task]) -> Policy | None:
        """A policy that is told the truth of `tasks`: the best there can be; default: nobody knows."""
        return None

    def base(self) -> str:
        """The model folder (or cached name) that training begins with."""
        return str(NANO) if self.model == "nano" else base_folder(self.model)

    @cached_property
    def renderer(self) -> Renderer:
        """The base's dialect; a finished run is read in its own model's."""
        return Renderer.load(self.base())

    def loss(self) -> Algorithm:
        """The algorithm of RL: the row of that name."""
        from trivium.train import TABLE

        return next(row for row in TABLE if row.name == self.algorithm)

    def rate(self, step: int) -> float:
        """The factor on RL's learning rate: five steps up, then down on a line to a tenth. At a constant rate a long run was at
        its best half-way, and what it answered swung to the end (docs/log.md)."""
        return min(1.0, (step + 1) / 5) * (1 - 0.9 * step / max(1, self.steps - 1))

    @property
    def momentum(self) -> float:
        """Less where gradients are late already: with 0.9 at lag 4 a policy swung between few calls and many, and found late
        what at lag 0 it finds early (docs/loop.md). Lag 1 was measured with 0.9."""
        return 0.5 if self.max_lag > 1 else 0.9

    def prepare(self, progress: Progress) -> None:
        """Make what takes long and is kept (vectors of a corpus), before any worker waits for it; default: nothing."""

    def data(self) -> dict[str, str]:
        """Digests, by name, of what the fields name and do not hold (documents, say): a run goes on with equal ones alone."""
        return {}

    def harness_at(self, data: str, progress: Progress) -> Harness | None:
        """The harness in which the agent is served: on `data` that a person names, or without any where it was trained. None
        where it can be nothing there; default: its own harness, and no data. InputError for data that it cannot live on."""
        if data:
            raise InputError(f"--data {data!r} would change nothing: {type(self).__name__} works on no data that can be named")
        return self.harness()

    async def outcome(self, episode: Episode, harness: Harness) -> str:
        """What came of an episode that was served in `harness`, beside its answer, for somebody who saw nothing of it: a diff,
        passages; default: nothing."""
        return ""

    def bench(self, suite: Suite) -> Bench:
        """`suite` made ready: default: so many of the held-out tasks, in the agent's own harness."""
        return Bench(list(self.tasks("heldout"))[: suite.tasks or None], self.harness(), self.judge(), data=self.data())

    def comparison(self) -> Comparison:
        """What `eval --compare` says of this agent beside what it says of all."""
        from trivium.recipe.comparison import Comparison

        return Comparison(self)

    def texts(self, task: Task) -> Mapping[str, str]:
        """The text of each document that a task asks for (`Labels.gold`), by its id: the viewer shows those that an episode
        never saw; default: none."""
        return {}

    @classmethod
    def outside(cls, window: int) -> Self:
        """The recipe in whose harness a model lives that no run trained; `window`: its tokens of context, 0 where nobody says.
        Default: the agent as it is, whose window is its own."""
        if window:
            raise InputError(f"--window would change nothing: {cls.__name__} says itself how large its window is")
        return cls()

    def needs(self) -> str:
        """Lines for `--dry-run` on what tasks need; default: none."""
        return ""

    def check(self) -> None:
        """What can be known to be wrong at once: a number out of its range, an option that would change nothing (law 7), a
        folder that is not ours. InputError. An agent that has fields of its own adds to it."""
        self._check_numbers()
        for name, wrong, why in self._vain():
            if wrong:
                raise InputError(f"--{name} would change nothing: {why}")
        for name in ("groups", "eval_tasks"):
            if getattr(self, name) < self.workers:
                raise InputError(f"--{_flag(name)} {getattr(self, name)} cannot be shared by --workers {self.workers}")
        if self.teacher and not all(self.teacher.partition("#")):
            raise InputError(f"--teacher {self.teacher!r} names no model: write URL#MODEL")
        if self.device == "cuda":
            _check_cuda()
        if self.track:
            require()
        Run(self.out).check(self.fields())

    def _check_numbers(self) -> None:
        for name, least in {**LEAST, **self.least}.items():
            if not (value := getattr(self, name)) >= least or value == math.inf:
                raise InputError(f"--{_flag(name)} must be at least {least}, not {value}")
        for name in ("sft_lr", "lr"):
            if not 0 < getattr(self, name) < 1:
                raise InputError(f"--{_flag(name)} must be between 0 and 1, not {getattr(self, name)}")
        if self.branches == 1:
            raise InputError("--branches 1 would have nothing to be compared with: 2 or more, or 0 for none")
        for name, kind in get_type_hints(type(self)).items():  # tyro sees to it on the command line
            if (choices := get_args(kind)) and str in map(type, choices) and getattr(self, name) not in choices:
                raise InputError(f"--{_flag(name)} is one of {', '.join(choices)}, not {getattr(self, name)!r}")

    def _vain(self) -> list[tuple[str, bool, str]]:
        """Options that this recipe could not honour: which, whether it is so, and why."""
        cls = type(self)
        return [
            ("teacher-tokens", self.teacher_tokens != cls.teacher_tokens and not self.teacher, "it is for a --teacher"),
            ("sft-lr", self.sft_lr != cls.sft_lr and not self.sft_steps, "--sft-steps 0 has no warm-up"),
            ("teacher", bool(self.teacher) and not self.sft_steps, "--sft-steps 0 has no warm-up"),
            ("teacher", bool(self.teacher and self.warmup_from), "the lessons are those of --warmup-from"),
            ("warmup-from", bool(self.warmup_from) and not self.sft_steps, "--sft-steps 0 has no warm-up"),
            *((flag, changed and not self.steps, "--steps 0 has no RL") for flag, changed in self._of_rl()),
            ("warmup-above", self.warmup_above != cls.warmup_above and not self.warmup_from, "it is for --warmup-from"),
        ]

    def _of_rl(self) -> list[tuple[str, bool]]:
        """Options of RL alone, and whether they were given."""
        names = ("max_lag", "lr", "algorithm", "branches")
        return [(_flag(name), getattr(self, name) != getattr(type(self), name)) for name in names]

    # --- what a run's folder keeps of it

    def fields(self) -> dict[str, Any]:
        """All fields but where that folder is."""
        return {name: value for name, value in asdict(self).items() if name != "out"}

    @classmethod
    def of(cls, saved: Mapping[str, Any], out: str) -> Self:
        """The recipe that a run's folder keeps. InputError for another Trivium's, CorruptError for one that is none."""
        saved = cls.upgrade(saved)
        if unknown := sorted(saved.keys() - {each.name for each in fields(cls)}):
            raise InputError(f"{out} was made by another Trivium: its recipe has a field {unknown[0]!r}")
        try:
            return msgspec.convert({**saved, "out": out}, cls)
        except msgspec.ValidationError as error:
            raise CorruptError(f"the recipe in {out} is none: {error}") from error

    @classmethod
    def upgrade(cls, saved: Mapping[str, Any]) -> dict[str, Any]:
        """Fields as a run keeps them, with those that it lacks because it was made before they were; default: as they are."""
        return dict(saved)

    def __reduce__(self):
        """To another process goes what it is, and nothing that was made of it."""
        return _again, (home_of(type(self)), asdict(self))


def _again(home: Home, values: dict[str, Any]) -> Recipe:
    return home.load()(**values)


def _check_cuda() -> None:
    import torch

    if not torch.cuda.is_available():
        raise InputError("--device cuda: torch sees no CUDA device here")


def _flag(name: str) -> str:
    return name.replace("_", "-")
