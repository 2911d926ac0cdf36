"""A harness: the tools, the window and the limits that a policy lives in."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from blake3 import blake3

from trivium.errors import InputError
from trivium.harness.base import Limits, Tool, Window
from trivium.harness.context import Context, Ending
from trivium.harness.life import Life
from trivium.harness.snapshot import Snapshot
from trivium.harness.toolset import Toolset
from trivium.policy import Policy, Renderer
from trivium.policy.message import Message
from trivium.trace import Branch, Episode, Sampling, Task, Thread


class Harness:
    """How a policy lives: `tools` it may call, a `window` it manages, `limits` that end it.

    `prompt` is the system message. With `specs` the tools' schemas are given to the template; a nano model, whose window
    they would fill, learns them from its warm-up instead. An endpoint is always given them: its context is its own.
    `ending`, a function with a name, says of an answer how many letters of it are kept, None for all of them: what a policy
    says beyond is neither in the episode nor learned from.
    """

    def __init__(
        self,
        tools: Sequence[Tool],
        window: Window,
        prompt: str = "",
        limits: Limits | None = None,
        specs: bool = True,
        ending: Ending | None = None,
    ) -> None:
        self.toolset = Toolset.of(tools)
        if ending and not getattr(ending, "__name__", "").isidentifier():
            raise InputError(f"write the ending with def, so that its name tells it from others: {ending!r} has none")
        self.window, self.prompt, self.limits, self.ending = window, prompt, limits or Limits(), ending
        self.specs = self.toolset.specs if specs else []

    @property
    def tools(self) -> dict[str, Tool]:
        """Its tools by their names."""
        return self.toolset.tools

    @property
    def digest(self) -> str:
        """What tells how episodes live here from any other way, as far as it can be written down: prompt, tools' names and
        types, window, limits, the name of what ends an answer, what is advised past `soft`. Not what tools do."""
        written = [self.prompt, self.toolset.specs, self.specs, repr(self.window), repr(self.limits)]
        written += [getattr(self.ending, "__name__", "")] if self.ending else []
        written += [self.advice] if self.advice != "Prune or answer." else []  # older stores know no other advice
        return blake3(json.dumps(written, sort_keys=True).encode()).hexdigest()

    @property
    def advice(self) -> str:
        """What the usage line says past `soft`. A window that summarizes itself makes its own room, so without a tool that
        frees room there is nothing to advise."""
        return self.toolset.advice if self.toolset.freeing or self.window.summarize is None else ""

    async def run(
        self,
        task: Task,
        policy: Policy,
        *,
        sample: int = 0,
        seed: int = 0,
        id: str = "",
        sampling: Sampling | None = None,
        on_turn: Callable[[Snapshot], None] | None = None,
    ) -> Episode:
        """One attempt at `task`. What tools, sub-agents and a policy that says PolicyError do wrong is data on the episode; a
        bad set-up raises, and so does a bug of the policy itself.

        `on_turn` is handed a snapshot before each turn, to branch from. Raises InputError when the prompt does not fit, or the
        window is larger than the context of a policy that says what it has.
        """
        episode = Episode(id or f"{task.id}/{sample}", task, sample, seed)
        context = self.open("0", policy, task.prompt, sampling or Sampling())
        await Life(self, episode, policy, context, episode.threads, episode.ops, on_turn).live()
        return episode

    async def branch(self, snapshot: Snapshot, parent: Episode, policy: Policy, *, sample: int, seed: int = 0) -> Episode:
        """Another attempt that begins where `snapshot` of `parent` was taken; the shared prefix stays the parent's."""
        episode = Episode(f"{parent.id}+{snapshot.turn}.{sample}", parent.task, sample, seed)
        context = snapshot.branch(parent.agent.segments[-1].sampling)
        episode.snapshots.append(snapshot.id)
        at = context.here()
        episode.ops.append(Branch(author="harness", parent=parent.id, snapshot=snapshot.id, turn=snapshot.turn, at=at))
        await Life(self, episode, policy, context, episode.threads, episode.ops).live(first_turn=snapshot.turn)
        return episode

    def open(self, id: str, policy: Policy, prompt: str, sampling: Sampling) -> Context:
        """A new thread's context, its prompt in it. Raises InputError as `run` does."""
        room = getattr(policy, "context", self.window.budget)
        if room < self.window.budget:
            raise InputError(f"a window of {self.window.budget} tokens is more than {policy.name}'s context of {room}")
        context = Context(Thread(id, policy.name), policy.renderer, self.window, self.specs)
        context.open(self.opening(prompt, policy.renderer), sampling)
        return context

    def opening(self, prompt: str, renderer: Renderer) -> list[Message]:
        """The messages that a thread begins with."""
        system = [{"role": "system", "content": self.prompt}] if self.prompt else []
        return [*system, {"role": "user", "content": renderer.plain(prompt)}]
