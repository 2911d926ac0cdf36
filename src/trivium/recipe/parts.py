"""What a recipe is built of, each part made when it is first needed and once."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import msgspec
from blake3 import blake3

from trivium.errors import InputError
from trivium.fleet import Rank
from trivium.harness import Harness, Window
from trivium.loops import Plan
from trivium.loops.source import step_tasks
from trivium.nn import Network, lora
from trivium.policy import Endpoint, Policy, Renderer, View
from trivium.recipe import memory
from trivium.recipe.base import Recipe
from trivium.recipe.harvest import Harvest
from trivium.trace import Episode, Sampling, Task


class Parts:
    """The parts of `recipe`. A finished run is opened with its own `model`, since the one it began with may be gone."""

    def __init__(self, recipe: Recipe, model: str | Path = "") -> None:
        self.recipe = recipe
        self.model = str(model) or recipe.base()
        if model:
            vars(recipe)["renderer"] = Renderer.load(model)

    def check(self) -> None:
        """Raises InputError for what would fail later: no such model, no such tasks, a window that they do not fit."""
        learned, measured, workers = self.recipe.tasks_per_step, len(self.heldout_tasks), self.recipe.workers
        for count, what in ((learned, "to learn from"), (measured, "held out to be measured on")):
            if count < workers:
                raise InputError(f"--workers {workers} needs as many tasks {what}, and there are {count}")
        self._check_warm_up()
        longest = max(self._texts().items(), key=lambda each: len(self.renderer.tokenizer.encode(each[0])))[1]
        opening = self.harness.opening(longest.prompt, self.renderer, longest.messages)
        self.window.check(len(self.renderer.opening(opening, self.harness.specs)))
        for step in range(self.recipe.steps):
            step_tasks(self.rl_tasks, self.recipe.tasks_per_step, Rank(), step)

    def _check_warm_up(self) -> None:
        """Options of a warm-up that there is not would change nothing (law 7)."""
        recipe, cls = self.recipe, type(self.recipe)
        for name in ("sft_steps", "sft_lr", "warmup") if recipe.sft_steps and not self.taught else ():
            if getattr(recipe, name) != getattr(cls, name):
                raise InputError(f"--{name.replace('_', '-')} would change nothing: {cls.__name__} has no lessons")

    def _texts(self) -> dict[str, Task]:
        """What tasks open with, each text with a task of it."""
        tasks = (*self.heldout_tasks, *self.train_tasks, *self.lesson_tasks, *self.rl_tasks)
        return {"\n".join([*(str(each.get("content") or "") for each in task.messages), task.prompt]): task for task in tasks}

    def inputs(self, network: Network) -> dict[str, str]:
        """Digests of what the recipe names or makes and does not hold: the weights of `network`, which training begins with,
        tasks, and whatever else the agent names (`Recipe.data`)."""
        tasks = [
            [each.id, each.prompt, each.truth, *filter(None, (each.messages, each.tools))]
            for each in (*self.train_tasks, *self.heldout_tasks)
        ]
        digest = blake3(msgspec.msgpack.encode(tasks)).hexdigest()
        lessons = {"lessons": self.harvest.digest()} if self.harvest else {}
        return {"weights": network.digest(), "questions": digest, **lessons, **self.recipe.data()}

    # --- who speaks

    def network(self) -> Network:
        """The network that training begins with, made anew."""
        network = Network.load(self.model, device=self.recipe.device)
        return lora(network, self.recipe.lora, seed=self.recipe.seed) if self.recipe.lora else network

    @property
    def renderer(self) -> Renderer:
        return self.recipe.renderer

    @property
    def slots(self) -> int:
        """Episodes that a worker's engine speaks for at once: its share of a step."""
        return max(8, self.recipe.tasks_per_step * self.recipe.size // self.recipe.workers)

    def load(self) -> memory.Load:
        """What a run asks of a worker's memory."""
        return memory.Load(self.window.budget, self.recipe.workers, self.recipe.loss().reference)

    def fit(self, network: Network, known: memory.Fit | None = None) -> memory.Fit:
        """How a worker computes within the memory that is free now: as a run did that is gone on with (`known`), or the fastest
        way that fits. InputError where there is too little, or the window is longer than the network's context."""
        network.check_context(self.window.budget)
        size, free = memory.Size.of(network), memory.free(self.recipe.workers, self.recipe.device)
        if known is None:
            return memory.fitting(size, self.load(), self.slots, free)
        memory.check(size, self.load(), known, free)
        return known

    @cached_property
    def sampling(self) -> Sampling:
        """How attempts are sampled in training."""
        return Sampling(temperature=1.0, max_tokens=self.window.reply)

    @property
    def greedy(self) -> Sampling:
        return Sampling(temperature=0.0, max_tokens=self.window.reply)

    def plan(self, first: int) -> Plan:
        """What RL attempts, from step `first` on."""
        recipe = self.recipe
        return Plan(
            groups=recipe.tasks_per_step, size=recipe.size, steps=recipe.steps, first=first, seed=recipe.seed,
            branches=recipe.branches, sampling=self.sampling,
        )  # fmt: skip

    # --- how it lives, and on what

    @cached_property
    def harness(self) -> Harness:
        return self.recipe.harness()

    @property
    def window(self) -> Window:
        return self.harness.window

    @cached_property
    def train_tasks(self) -> list[Task]:
        return list(self.recipe.tasks("train"))

    @cached_property
    def lesson_tasks(self) -> list[Task]:
        return list(self.recipe.lesson_tasks())

    @cached_property
    def rl_tasks(self) -> list[Task]:
        return list(self.recipe.rl_tasks())

    @cached_property
    def heldout_tasks(self) -> list[Task]:
        return list(self.recipe.tasks("heldout"))[: self.recipe.eval_tasks]

    # --- the warm-up

    @cached_property
    def teacher(self) -> Policy | None:
        """Who gives lessons: an endpoint (--teacher), or the agent's own; nobody where it has a log, or no lessons."""
        if self.recipe.teacher:
            url, _, model = self.recipe.teacher.partition("#")
            key, share = os.environ.get("OPENAI_API_KEY") or "none", self.recipe.teacher_tokens // self.recipe.workers
            return Endpoint(url, model, self.renderer, key, max_spend=share, name="teacher")
        return None if isinstance(self._lessons, Sequence) else self._lessons

    @cached_property
    def log(self) -> list[Episode]:
        """Episodes to imitate that somebody lived before."""
        return list(self._lessons) if isinstance(self._lessons, Sequence) else []

    @cached_property
    def harvest(self) -> Harvest | None:
        """What another run did well, where the recipe warms up on that."""
        return Harvest(self.recipe) if self.recipe.warmup_from else None

    @cached_property
    def _lessons(self) -> Policy | Sequence[Episode] | None:
        return self.harvest.lessons if self.harvest else self.recipe.lessons()

    @property
    def taught(self) -> bool:
        """Whether there is a warm-up."""
        return bool(self.recipe.sft_steps) and (self.teacher is not None or bool(self.log))

    @property
    def lesson_count(self) -> int:
        """How many lessons a teacher gives."""
        return self.recipe.warmup or len(self.lesson_tasks)

    async def greet(self) -> None:
        """A word with a teacher behind an endpoint: a wrong address, key or model is known before anything else is done.
        PolicyError."""
        assert self.teacher is not None
        messages = [{"role": "user", "content": "Say hello."}]
        view = View(self.renderer.opening(messages), messages, (), (self.recipe.seed, "hello", 0, "agent", 0))
        await self.teacher.speak(view, Sampling(max_tokens=16))
