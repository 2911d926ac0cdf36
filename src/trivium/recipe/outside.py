"""A model that no run trained, in an agent's harness: behind any OpenAI-compatible server, or in a folder."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from trivium.errors import InputError, PolicyError
from trivium.harness import Harness
from trivium.policy import Endpoint, Policy, Price, View
from trivium.recipe.base import Recipe
from trivium.trace import Episode, Sampling

PROBE = 1024
"""Tokens of the longest reply to a first request: some models think before they call a tool."""


@dataclass(frozen=True)
class Outside:
    """Which model speaks, how much it may hold, and what it may cost."""

    policy: str = ""
    """a model behind an OpenAI-compatible server, as URL#MODEL, its key in OPENAI_API_KEY"""
    model: str = ""
    """instead: a model folder, or a name in the local Hugging Face cache"""
    window: int = 0
    """tokens of context that it may hold; 0: as many as suit the agent"""
    max_tokens: int = 1_000_000
    """the most tokens that --policy may use, prompts and replies together"""
    price: tuple[float, float] = (0.0, 0.0)
    """what a million tokens of --policy cost: of prompts, and of replies"""
    max_cost: float = 0.0
    """the most that --policy may cost at --price; 0: as much as --max-tokens cost"""

    def check(self) -> None:
        """InputError for options that cannot be meant, or would change nothing (law 7)."""
        if bool(self.policy) == bool(self.model):
            raise InputError("name one model: --policy URL#MODEL for one behind a server, or --model FOLDER")
        if self.policy and not all(self.policy.partition("#")):
            raise InputError(f"--policy {self.policy!r} names no model: write URL#MODEL")
        for name, value, default in (("max-tokens", self.max_tokens, 1_000_000), ("price", self.price, (0.0, 0.0)),
                                     ("max-cost", self.max_cost, 0.0)):  # fmt: skip
            if self.model and value != default:
                raise InputError(f"--{name} would change nothing: a --model of your own is paid by nobody")
        if self.window < 0 or self.max_tokens < 1:
            raise InputError(f"--window {self.window} and --max-tokens {self.max_tokens} must be at least 0 and 1")
        if not all(0 <= each < math.inf for each in (*self.price, self.max_cost)):
            raise InputError(f"--price {self.price[0]} {self.price[1]} and --max-cost {self.max_cost} must be at least 0")
        if self.max_cost and not any(self.price):
            raise InputError("--max-cost needs a --price: what a million tokens of prompts and of replies cost")

    def recipe(self, cls: type[Recipe]) -> Recipe:
        """The agent in whose harness the model lives, its window counted by the model's own tokenizer, or, for one behind a
        server, by that of the agent's base."""
        recipe = cls.outside(self.window)
        return replace(recipe, model=self.model) if self.model else recipe

    def open(self, recipe: Recipe, harness: Harness, slots: int) -> Policy:
        """Who speaks, `slots` episodes at once. An endpoint is asked for one tool call first. Raises as `greet` does, and
        InputError for a folder that holds no model."""
        if self.model:
            from trivium.recipe.memory import fitting_engine  # brings torch

            return fitting_engine(recipe.base(), recipe.renderer, harness.window.budget, slots)
        url, _, model = self.policy.partition("#")
        endpoint = Endpoint(
            url, model, recipe.renderer, os.environ.get("OPENAI_API_KEY") or "none", max_spend=self.max_tokens,
            price=Price(*self.price), max_cost=self.max_cost or math.inf, name=model,
        )  # fmt: skip
        asyncio.run(greet(endpoint, harness))
        return endpoint


async def greet(endpoint: Endpoint, harness: Harness) -> None:
    """One request for a call of the harness' first tool. InputError where the server refuses tools, or its model answers in
    words, which would be no agent; PolicyError where it is dead, or refuses its key or model."""
    name, where = next(iter(harness.tools), ""), f"{endpoint.name} at {endpoint.base_url}"
    request = f"Call the tool {name} once, now, and say nothing." if name else "Say hello."
    messages = [{"role": "user", "content": request}]
    view = View(endpoint.renderer.opening(messages), messages, harness.toolset.specs, ("hello",))
    try:
        reply = await endpoint.speak(view, Sampling(temperature=0.0, max_tokens=PROBE))
    except PolicyError as error:
        if name and await _speaks(endpoint, replace(view, tools=())):
            raise InputError(f"{where} speaks, but refuses tools ({error}): {_ADVICE}") from error
        raise
    if name and not (reply.message or {}).get("tool_calls"):
        said = str((reply.message or {}).get("content"))
        raise InputError(f"{where} was asked to call a tool and said {said[:80]!r} instead: {_ADVICE}")


_ADVICE = "start its server with tool calls (vLLM: --enable-auto-tool-choice --tool-call-parser), or name a model that has them"


async def _speaks(endpoint: Endpoint, view: View) -> bool:
    """Whether it answers where no tool is on offer."""
    try:
        await endpoint.speak(view, Sampling(temperature=0.0, max_tokens=16))
    except PolicyError:
        return False
    return True


def bill(policy: Policy, episodes: Sequence[Episode]) -> str:
    """One line: the tokens that `policy` used, and what they cost where it has a price."""
    if not isinstance(policy, Endpoint):
        segments = [segment for episode in episodes for thread in episode.threads for segment in thread.segments]
        sampled = sum(span.stop - span.start for each in segments for span in each.sampled())
        new = sum(len(each.tokens) - each.carried for each in segments)
        return f"tokens: {new - sampled:,} read, {sampled:,} sampled"
    line = f"tokens: {policy.spent:,} of at most {policy.max_spend:,} ({policy.replied:,} in replies)"
    if not policy.price.prompt and not policy.price.reply:
        return line
    most = f" of at most {policy.max_cost:g}" if policy.max_cost < math.inf else ""
    return f"{line}, cost: {policy.cost:.4g}{most}"
