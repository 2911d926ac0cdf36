"""What a run will take, before it is begun: memory and tokens by arithmetic, time from a few seconds of this machine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from trivium.engine import Engine
from trivium.nn import Network
from trivium.policy import View
from trivium.recipe.base import Recipe
from trivium.recipe.line import EVERY, GLANCE, SFT_BATCH
from trivium.recipe.parts import Parts
from trivium.recipe.watcher import embedding
from trivium.trace import Episode, Sampling
from trivium.train import SFT, Batch, Learner

_FILLED = 0.6
"""Share of the window that an episode fills in the end (the demo's three seeds: 0.59 to 0.66, SFT and RL)."""

_BRANCH = 0.15
"""What a branch of its last turn takes of what an attempt does: four of them took 1.6 times the CPU of a step (docs/log.md)."""


def estimate(recipe: Recipe, watch: Callable[[], Any]) -> str:
    """The run's memory, tokens and time, as text. Measures one learner step and one batch of replies here; the vectors of a
    corpus are made, and told to the Watcher that `watch` makes, since the run would make them first of all."""
    torch.set_num_threads(1)
    with watch() as watcher:
        recipe.prepare(embedding(watcher))
        parts = Parts(recipe)
        parts.check()
    network = parts.network()
    episode = int(_FILLED * parts.window.budget)
    attempts = recipe.steps * recipe.groups * recipe.size * (1 + _BRANCH * recipe.branches)
    learned = (recipe.sft_steps * SFT_BATCH * parts.taught + attempts) * episode
    evaluated = 5 * len(parts.heldout_tasks) + GLANCE * (1 + -(-recipe.steps // EVERY))
    sampled = (attempts + evaluated) * episode
    learn, speak = _learn_rate(parts, network), _speak_rate(parts, network)
    minutes = (learned / learn + sampled / speak) / recipe.workers / 60
    parameters, learning = _sizes(network)
    memory = (_weights(network) + _cache(network, parts.slots, parts.window.budget)) / 2**30
    needs = f"\nneed       {lines}" if (lines := recipe.needs()) else ""
    return (
        f"model      {parameters / 1e6:.2f}M parameters ({learning / 1e6:.2f}M learn), window {parts.window.budget} tokens\n"
        f"memory     {recipe.workers} x {memory:.2f} GiB "
        f"(weights, gradients, AdamW, a copy to speak with, {parts.slots} slots of keys and values) + libraries\n"
        f"tokens     {learned / 1e6:.1f}M to learn from, {sampled / 1e6:.1f}M to sample and read\n"
        f"speed      {learn:,.0f} learned and {speak:,.0f} sampled or read tokens/s a worker, measured now\n"
        f"time       about {minutes:.0f} minutes on {recipe.workers} workers{needs}"
    )


def _sizes(network: Network) -> tuple[int, int]:
    """Parameters in all, and those that learn."""
    every = list(network.parameters())
    return sum(p.numel() for p in every), sum(p.numel() for p in every if p.requires_grad)


def _weights(network: Network) -> int:
    """Bytes: the learner's and the engine's copy, and a gradient and two moments of what learns."""
    parameters, learning = _sizes(network)
    return (2 * parameters + 3 * learning) * network.head.weight.element_size()


def _cache(network: Network, slots: int, context: int) -> int:
    config = network.config
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * config.num_hidden_layers * slots * config.num_key_value_heads * (context + 256) * head * 4


def _learn_rate(parts: Parts, network: Network) -> float:
    """Tokens a second of one learner step on a few teacher episodes."""
    episodes = parts.log[:SFT_BATCH] or asyncio.run(_lived(parts))
    learner = Learner(network, SFT(), 0.0, policies={episode.agent.policy for episode in episodes})
    batch = Batch.imitate(episodes)
    learner.learn(batch)
    began = time.perf_counter()
    return learner.learn(batch).metrics["tokens_seen"] / (time.perf_counter() - began)


async def _lived(parts: Parts) -> list[Episode]:
    """A few episodes of the agent's own teacher, or of its model: an endpoint is not asked, for that would cost."""
    policy = parts.recipe.lessons()
    if policy is None or isinstance(policy, Sequence):
        policy = Engine(parts.network().plain(), renderer=parts.renderer, slots=SFT_BATCH, context=parts.window.budget)
    tasks, sampling = parts.train_tasks[:SFT_BATCH], parts.sampling
    return await asyncio.gather(*(parts.harness.run(task, policy, sampling=sampling) for task in tasks))


def _speak_rate(parts: Parts, network: Network) -> float:
    """Tokens a second of the engine, prompts and replies together, with 32 requests at once."""
    engine = Engine(network.plain(), renderer=parts.renderer, slots=32, context=parts.window.budget)
    prompts = [[(7 * n + place) % 256 for place in range(parts.window.budget // 2)] for n in range(32)]

    async def speak():
        views = [View(prompt, (), (), (0, "estimate", n, "0", 0)) for n, prompt in enumerate(prompts)]
        return await asyncio.gather(*(engine.speak(view, Sampling(max_tokens=32)) for view in views))

    began = time.perf_counter()
    replies = asyncio.run(speak())
    tokens = sum(map(len, prompts)) + sum(len(reply.tokens) for reply in replies)
    return tokens / (time.perf_counter() - began)
