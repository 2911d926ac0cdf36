"""What a run will take, before it is begun: memory and tokens by arithmetic, time from a few seconds of this machine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from trivium.engine import Engine
from trivium.nn import Network
from trivium.policy import View
from trivium.recipe.base import GLANCE, Recipe
from trivium.recipe.line import EVERY
from trivium.recipe.memory import GIB, Fit, Need, Size, need
from trivium.recipe.parts import Parts
from trivium.recipe.watcher import Watcher, embedding
from trivium.trace import Episode, Sampling
from trivium.train import SFT, Batch, Compute, Learner

_FILLED = 0.6
"""Share of the window that an episode fills in the end (the demo's three seeds: 0.59 to 0.66, SFT and RL)."""

_WORK = 4e12
"""Floating-point operations of a learner that are worth to be spent on an estimate: half a minute of one thread."""

_BRANCH = 0.15
"""What a branch of its last turn takes of what an attempt does: four of them took 1.6 times the CPU of a step (docs/log.md)."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a run will take. `parameters` of the model, of which `learning` learn; how a worker computes (`fit`) and what memory
    it takes (`need`); tokens `learned` from and `sampled` or read in all, and a worker's tokens a second of both."""

    parameters: int
    learning: int
    fit: Fit
    need: Need
    learned: float
    sampled: float
    learn_rate: float
    speak_rate: float
    workers: int

    @property
    def minutes(self) -> float:
        return (self.learned / self.learn_rate + self.sampled / self.speak_rate) / self.workers / 60


def estimate(parts: Parts) -> Estimate:
    """By arithmetic, and by one learner step and one batch of replies that are measured here, in a few seconds (a minute for a
    model of 135M). InputError where the run does not fit into memory."""
    torch.set_num_threads(1)
    recipe, network = parts.recipe, parts.network()
    size, fit = Size.of(network), parts.fit(network)
    episode = int(_FILLED * parts.window.budget)
    attempts = recipe.steps * recipe.tasks_per_step * recipe.size * (1 + _BRANCH * recipe.branches)
    evaluated = 5 * len(parts.heldout_tasks) + GLANCE * (1 + -(-recipe.steps // EVERY))
    return Estimate(
        parameters=size.parameters,
        learning=size.learning,
        fit=fit,
        need=need(size, parts.load(), fit),
        learned=(recipe.sft_steps * recipe.sft_size * parts.taught + attempts) * episode,
        sampled=(attempts + evaluated) * episode,
        learn_rate=_learn_rate(parts, network, fit),
        speak_rate=_speak_rate(parts, network),
        workers=recipe.workers,
    )


def dry_run(recipe: Recipe, watch: Callable[[], Any]) -> str:
    """The estimate as text. What the run would make first and keep is made, and told to the Watcher that `watch` makes."""
    with watch() as watcher:
        parts = parts_of(recipe, watcher)
    numbers = estimate(parts)
    needs = f"\nneed       {lines}" if (lines := recipe.needs()) else ""
    tasks = f"{len(parts.train_tasks):,} to learn from, {recipe.tasks_per_step} a step, {len(parts.heldout_tasks):,} held out"
    return (
        f"tasks      {tasks}\n"
        f"model      {numbers.parameters / 1e6:.2f}M parameters ({numbers.learning / 1e6:.2f}M learn), "
        f"window {parts.window.budget} tokens\n"
        f"memory     {numbers.workers} x {numbers.need.total / GIB:.2f} GiB ({numbers.need})\n"
        f"computes   {_way(numbers.fit)}\n"
        f"tokens     {numbers.learned / 1e6:.1f}M to learn from, {numbers.sampled / 1e6:.1f}M to sample and read\n"
        f"speed      {numbers.learn_rate:,.0f} learned and {numbers.speak_rate:,.0f} sampled or read tokens/s a worker, "
        f"measured now\n"
        f"time       about {numbers.minutes:.0f} minutes on {numbers.workers} workers{needs}"
    )


def parts_of(recipe: Recipe, watcher: Watcher) -> Parts:
    """The run's parts, of which those that take long are made, and told to `watcher`. Raises what `Parts.check` raises."""
    recipe.prepare(embedding(watcher))
    parts = Parts(recipe)
    parts.check()
    return parts


def announcement(parts: Parts) -> str:
    """What a run is about to do, in a sentence; nothing is measured for it."""
    recipe = parts.recipe
    warm = f"{recipe.sft_steps} steps of imitation, then " if parts.taught else ""
    return (
        f"{type(recipe).__name__} in {recipe.out}: {warm}{recipe.steps} steps of RL of {recipe.tasks_per_step} tasks x "
        f"{recipe.size} attempts, measured before, between and after on {len(parts.heldout_tasks)} held-out tasks. "
        f"Ctrl-C stops it, and the same command goes on."
    )


def _way(fit: Fit) -> str:
    again = ", layers computed again in backward" if fit.recompute else ""
    return f"{fit.micro_tokens:,} tokens in a learner's pass{again}; {fit.slots} episodes speak at once"


def _learn_rate(parts: Parts, network: Network, fit: Fit) -> float:
    """Tokens a second of one learner step on a few teacher episodes; the first episodes make what is made once."""
    episodes = parts.log[: _few(network, parts)] or asyncio.run(_attempts(parts, network))
    compute = Compute(fit.micro_tokens, parts.recipe.autocast, fit.recompute)
    learner = Learner(network, SFT(), 0.0, policies={episode.agent.policy for episode in episodes}, compute=compute)
    batch = Batch.imitate(episodes)
    learner.learn(batch if len(episodes) == parts.recipe.sft_size else Batch(batch.groups[:1]))
    began = time.perf_counter()
    return learner.learn(batch).metrics["tokens_seen"] / (time.perf_counter() - began)


def _few(network: Network, parts: Parts) -> int:
    """How many episodes to measure with: those of a step of the warm-up, or fewer of a model for which that takes long."""
    each = 6 * sum(p.numel() for p in network.parameters()) * _FILLED * parts.window.budget
    return max(4, min(parts.recipe.sft_size, int(_WORK / each)))


async def _attempts(parts: Parts, network: Network) -> list[Episode]:
    """A few episodes of the agent's own teacher, or of its model: an endpoint is not asked, for that would cost."""
    policy, count, known = parts.recipe.lessons(), _few(network, parts), parts.lesson_tasks
    if policy is None or isinstance(policy, Sequence):
        known = parts.train_tasks
        policy = Engine(parts.network().plain(), renderer=parts.renderer, slots=count, context=parts.window.budget)
    tasks, sampling = known[:count], parts.sampling
    return await asyncio.gather(*(parts.harness.run(task, policy, sampling=sampling) for task in tasks))


def _speak_rate(parts: Parts, network: Network) -> float:
    """Tokens a second of the engine, prompts and replies together, with 32 requests at once (fewer of a large model)."""
    count = min(32, 2 * _few(network, parts))
    engine = Engine(network.plain(), renderer=parts.renderer, slots=count, context=parts.window.budget)
    prompts = [[(7 * n + place) % 256 for place in range(parts.window.budget // 2)] for n in range(count)]

    async def speak():
        views = [View(prompt, (), (), (0, "estimate", n, "0", 0)) for n, prompt in enumerate(prompts)]
        return await asyncio.gather(*(engine.speak(view, Sampling(max_tokens=32)) for view in views))

    began = time.perf_counter()
    replies = asyncio.run(speak())
    tokens = sum(map(len, prompts)) + sum(len(reply.tokens) for reply in replies)
    return tokens / (time.perf_counter() - began)
