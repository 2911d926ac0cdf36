"""A harness: the tools, the window and the limits that a policy lives in."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence

from blake3 import blake3

from trivium.errors import InputError
from trivium.harness.base import Limits, Tool, Window
from trivium.harness.context import Context, Ending
from trivium.harness.life import Life
from trivium.harness.place import Place
from trivium.harness.saved import Saved
from trivium.harness.snapshot import Snapshot
from trivium.harness.toolset import Toolset
from trivium.harness.watch import Watch
from trivium.policy import Policy, Renderer
from trivium.policy.message import Message
from trivium.trace import Branch, Episode, Sampling, Task, Thread


class Harness:
    """How a policy lives: `tools` it may call, a `window` it manages, `limits` that end it.

    `prompt` is the system message. With `specs` the tools' schemas are given to the template; a nano model, whose window
    they would fill, learns them from its warm-up instead. An endpoint is always given them: its context is its own.
    `ending`, a function with a name, says of an answer how many letters of it are kept, None for all of them: what a policy
    says beyond is neither in the episode nor learned from. `place` is where its tools act: each episode has one of its own.
    """

    def __init__(
        self,
        tools: Iterable[Tool],
        window: Window,
        prompt: str = "",
        limits: Limits | None = None,
        specs: bool = True,
        ending: Ending | None = None,
        place: Place | None = None,
    ) -> None:
        self.toolset = Toolset.of(tools)
        if ending and not getattr(ending, "__name__", "").isidentifier():
            raise InputError(f"write the ending with def, so that its name tells it from others: {ending!r} has none")
        self.window, self.prompt, self.limits, self.ending = window, prompt, limits or Limits(), ending
        self.place, self._shows_specs = place, specs

    @property
    def tools(self) -> dict[str, Tool]:
        """Its tools by their names."""
        return self.toolset.tools

    @property
    def specs(self) -> list[Message]:
        """The tools' schemas as far as the template shows them."""
        return self.toolset.specs if self._shows_specs else []

    def with_tools(self, tools: Iterable[Tool]) -> Harness:
        """The same harness with other tools."""
        return Harness(tools, self.window, self.prompt, self.limits, self._shows_specs, self.ending, self.place)

    def with_prompt(self, prompt: str) -> Harness:
        """The same harness with another prompt."""
        tools = self.tools.values()
        return Harness(tools, self.window, prompt, self.limits, self._shows_specs, self.ending, self.place)

    def with_window(self, window: Window) -> Harness:
        """The same harness with another window."""
        return Harness(self.tools.values(), window, self.prompt, self.limits, self._shows_specs, self.ending, self.place)

    @property
    def digest(self) -> str:
        """What tells how episodes live here from any other way, as far as it can be written down: prompt, tools' names and
        types, window, limits, the name of what ends an answer, what is advised past `soft`. Not what tools do, nor where."""
        parts = [self.prompt, self.toolset.specs, self.specs, repr(self.window), repr(self.limits)]
        parts += [getattr(self.ending, "__name__", "")] if self.ending else []
        deep = (self.limits.depth, self.limits.critical)  # older stores know no such limits
        parts += [repr(deep)] if deep != (Limits().depth, Limits().critical) else []
        parts += [self.advice] if self.advice != "Prune or answer." else []  # older stores know no other advice
        return blake3(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    @property
    def advice(self) -> str:
        """What the usage line says past `soft`. A window that summarizes itself makes its own room, so without a tool that
        frees room there is nothing to advise."""
        return self.toolset.advice if self.toolset.freeing or self.window.compaction is None else ""

    async def run(
        self,
        task: Task,
        policy: Policy,
        *,
        sample: int = 0,
        seed: int = 0,
        id: str = "",
        sampling: Sampling | None = None,
        seconds: float | None = None,
        watch: Watch | None = None,
    ) -> Episode:
        """One attempt at `task`; after `seconds` it ends with what there is of it. What tools, sub-agents, a place that broke
        and a policy that says PolicyError do wrong is data on the episode; a bad set-up raises, and so does a bug of the
        policy itself, or of `watch`, which is told what happens.

        Raises InputError when the prompt does not fit, the window is larger than the context of a policy that says what it
        has, or the task offers a tool that is not here.
        """
        harness = self._for(task)
        context = harness.open("0", policy, task.prompt, sampling or Sampling(), task.messages)
        episode = self._episode(id or f"{task.id}/{sample}", task, sample, seed)
        return await _lived(Life.of_agent(harness, episode, policy, context, watch, seconds))

    async def branch(
        self,
        snapshot: Snapshot,
        parent: Episode,
        policy: Policy,
        *,
        sample: int,
        seed: int = 0,
        seconds: float | None = None,
        watch: Watch | None = None,
    ) -> Episode:
        """Another attempt that begins where `snapshot` of `parent` was taken; the shared prefix stays the parent's. Raises
        InputError where the harness has a place and the snapshot none of it."""
        if self.place is not None and not snapshot.place:
            raise InputError(f"{snapshot.id} is no snapshot of a place: ask a TurnEvent for it while it is handed out")
        context = snapshot.branch(parent.agent.segments[-1].sampling)
        episode = self._episode(f"{parent.id}+{snapshot.turn}.{sample}", parent.task, sample, seed)
        episode.snapshots.append(snapshot.id)
        at = context.here()
        episode.ops.append(Branch(author="harness", parent=parent.id, snapshot=snapshot.id, turn=snapshot.turn, at=at))
        life = Life.of_agent(self._for(parent.task), episode, policy, context, watch, seconds)
        return await _lived(life, snapshot)

    async def resume(
        self, saved: Saved, policy: Policy, *, seconds: float | None = None, watch: Watch | None = None
    ) -> Episode:
        """Go on with an attempt that a kill ended, from the snapshot that was saved of it: the same episode, which ends as it
        would have ended, with the same random streams. Raises InputError for one of another harness, and where the harness
        has a place and the snapshot none of it."""
        episode, harness = saved.episode, self._for(saved.episode.task)
        if episode.deployment != self.digest:
            raise InputError(f"episode {episode.id} was begun in another harness: resume it in its own")
        if self.place is not None and not saved.place:
            raise InputError(f"what was saved of episode {episode.id} has no snapshot of its place: begin it anew")
        if saved.place and watch:  # which may ask for a snapshot of the same turn again
            episode.snapshots.remove(saved.place)
        context = saved.context(episode, policy.renderer, self.window, harness.specs)
        return await _lived(Life.of_agent(harness, episode, policy, context, watch, seconds), saved)

    def _for(self, task: Task) -> Harness:
        """This harness with as many of its tools as the task offers."""
        return self.with_tools(self.toolset.only(task.tools)) if task.tools else self

    def _episode(self, id: str, task: Task, sample: int, seed: int) -> Episode:
        return Episode(id, task, sample, seed, began=time.time(), deployment=self.digest)

    def open(self, id: str, policy: Policy, prompt: str, sampling: Sampling, conversation: Sequence[Message] = ()) -> Context:
        """A new thread's context, its opening in it. Raises InputError as `run` does."""
        room = getattr(policy, "context", self.window.budget)
        if room < self.window.budget:
            raise InputError(f"a window of {self.window.budget} tokens is more than {policy.name}'s context of {room}")
        context = Context(Thread(id, policy.name), policy.renderer, self.window, self.specs)
        context.open(self.opening(prompt, policy.renderer, conversation), sampling)
        return context

    def opening(self, prompt: str, renderer: Renderer, conversation: Sequence[Message] = ()) -> list[Message]:
        """The messages that a thread begins with: one system message, which is the harness' prompt and behind it that of the
        `conversation`, the rest of the conversation, and `prompt` as the next question."""
        messages = [{**message, "content": renderer.plain(message.get("content") or "")} for message in conversation]
        first = messages.pop(0)["content"] if messages and messages[0]["role"] == "system" else ""
        system = "\n\n".join(filter(None, [self.prompt, first]))
        opening: list[Message] = [{"role": "system", "content": system}] if system else []
        question = [{"role": "user", "content": renderer.plain(prompt)}] if prompt or not conversation else []
        return [*opening, *messages, *question]


async def _lived(life: Life, start: Snapshot | Saved | None = None) -> Episode:
    """The episode of an agent that has lived to its end. Raises what its watch raised."""
    await life.live(start)
    life.teller.check()
    life.episode.ended = time.time()
    return life.episode
