"""The turn loop: show the view, hear the policy, run its calls, place their results, apply its edits."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from blake3 import blake3

from trivium.errors import InputError, PolicyError
from trivium.harness.base import Keep, Limits, Passage, Result, Scene, Subagent, Tool, ToolError, Window
from trivium.harness.context import Context, Ending, Message, Snapshot
from trivium.harness.toolset import Toolset, choice
from trivium.policy import Asked, Policy, Renderer, Reply, View
from trivium.trace import Branch, Call, Episode, Join, Piece, Sampling, Spawn, Stop, Task, Thread
from trivium.trace.episode import Fault

_SHORT = 80
"""Letters to which an error is cut where there is no room for it."""

SUMMARIZE = "Summarize what you know, what is missing and what you will do next. You will go on from this summary alone."


@dataclass(slots=True)
class _Outcome:
    """What came of one call, until the turn barrier puts it into the view in call order."""

    call: Call
    result: Result = ""
    children: list[Thread] = field(default_factory=list)


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
        written += [self.ending.__name__] if self.ending else []
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
        context = self._open("0", policy, task.prompt, sampling or Sampling())
        episode.threads.append(context.thread)
        await _Life(self, episode, policy, context, on_turn).live()
        return episode

    async def branch(self, snapshot: Snapshot, parent: Episode, policy: Policy, *, sample: int, seed: int = 0) -> Episode:
        """Another attempt that begins where `snapshot` of `parent` was taken; the shared prefix stays the parent's."""
        episode = Episode(f"{parent.id}+{snapshot.turn}.{sample}", parent.task, sample, seed)
        context = snapshot.branch(parent.agent.segments[-1].sampling)
        episode.threads.append(context.thread)
        episode.snapshots.append(snapshot.id)
        begun = {"parent": parent.id, "snapshot": snapshot.id, "turn": snapshot.turn}
        episode.ops.append(Branch(author="harness", **begun, at=context.here()))
        await _Life(self, episode, policy, context, None).live(first_turn=snapshot.turn)
        return episode

    def _open(self, id: str, policy: Policy, prompt: str, sampling: Sampling) -> Context:
        """A new thread's context, its prompt in it. Raises InputError as `run` does."""
        if getattr(policy, "context", self.window.budget) < self.window.budget:
            raise InputError(
                f"a window of {self.window.budget} tokens is more than {policy.name}'s context of {policy.context}"
            )
        context = Context(Thread(id, policy.name), policy.renderer, self.window)
        context.open(self.opening(prompt, policy.renderer), self.specs, sampling)
        return context

    def opening(self, prompt: str, renderer: Renderer) -> list[Message]:
        """The messages that a thread begins with."""
        system = [{"role": "system", "content": self.prompt}] if self.prompt else []
        return [*system, {"role": "user", "content": renderer.plain(prompt)}]


@dataclass(slots=True)
class _Life:
    """One thread's life in one episode."""

    harness: Harness
    episode: Episode
    policy: Policy
    context: Context
    on_turn: Callable[[Snapshot], None] | None
    spoken: int = -1  # the version that had the last word

    async def live(self, first_turn: int = 0) -> None:
        for turn in range(first_turn, self.harness.limits.turns):
            if self.on_turn:
                self.on_turn(Snapshot.take(self.episode.id, turn, self.context))
            stop = await self._turn(turn)
            if stop:
                self.context.thread.stop = stop
                return
        self.context.thread.stop = Stop("turns", f"{self.harness.limits.turns} turns")

    async def _turn(self, turn: int) -> Stop | None:
        try:
            said, complete = await self._speak(turn)
        except PolicyError as error:
            return Stop("policy", str(error))
        if said is None:
            return Stop("window", f"{self.context.used} of {self.context.window.budget} tokens used")
        ids = [f"{self.context.thread.id}.{turn}.{index}" for index in range(len(said.calls))]
        in_view = self.context.in_view()
        self.context.remember(said, ids)
        if not said.calls:
            self.context.thread.answer = said.text
            return Stop("finished") if complete else Stop("length", "the answer was cut off")
        outcomes = await self._act(turn, ids, said.calls, in_view)
        return self._place(outcomes, in_view) or await self._summarize(turn)

    async def _speak(self, turn: int, *purpose: str):
        """One reply heard, or (None, False) when the window has no room for any. A second reply of a turn names its
        purpose, and has a random stream of its own."""
        context, sampling = self.context, self.context.segment.sampling
        room = min(sampling.max_tokens, context.window.budget - context.used)
        if room < 1:
            return None, False
        stream = (self.episode.seed, self.episode.task.id, self.episode.sample, context.thread.id, turn, *purpose)
        view = View(context.segment.tokens, context.text(), self.harness.toolset.specs, stream)
        try:
            reply = await self.policy.speak(view, replace(sampling, max_tokens=room))
        except asyncio.CancelledError as error:  # of this attempt, or of what its policy itself waited for?
            if asyncio.current_task().cancelling():
                raise
            raise PolicyError(f"what {self.policy.name} waited for was cancelled") from error
        if not isinstance(reply, Reply):
            raise PolicyError(f"{self.policy.name} gave {type(reply).__name__} and no Reply")
        self.spoken = reply.versions[-1] if reply.versions else self.policy.version
        return context.hear(reply, self.policy.version, None if purpose else self.harness.ending)

    async def _act(self, turn: int, ids: list[str], asked: Sequence[Asked], in_view: dict[str, str]) -> list[_Outcome]:
        """All calls of a turn, at once; each fails alone (law 8)."""
        outcomes = [_Outcome(_new_call(id, turn, a)) for id, a in zip(ids, asked, strict=True)]
        self.context.thread.calls += [outcome.call for outcome in outcomes]
        for outcome in outcomes[self.harness.limits.calls :]:
            outcome.call.error = outcome.call.error or f"at most {self.harness.limits.calls} calls in one turn"
            outcome.call.fault = "arguments"
        try:
            await asyncio.gather(*(self._call(outcome, in_view) for outcome in outcomes if not outcome.call.error))
        finally:  # whoever was assigned something stays on record, also where its assigner's own time is over
            for outcome in outcomes:
                self._record_children(outcome)
        return outcomes

    def _record_children(self, outcome: _Outcome) -> None:
        author, at = self.policy.name, self.context.here()
        for child in outcome.children:
            self.episode.threads.append(child)
            self.episode.ops.append(Spawn(author=author, version=self.spoken, call=outcome.call.id, at=at, child=child.id))

    async def _call(self, outcome: _Outcome, in_view: dict[str, str]) -> None:
        """Run one call. Whatever goes wrong is data on it (law 8), unless the whole turn is cancelled."""
        call, window = outcome.call, self.context.window
        call.began = time.time()
        try:
            tool = self.harness.toolset.find(call.name)
            if self.context.used > window.hard * window.budget and not tool.frees:
                raise ToolError(f"the window is nearly full: {choice(self.harness.toolset.freeing)}")
            seconds = self.harness.limits.tool_seconds if tool.seconds is None else tool.seconds
            async with asyncio.timeout(seconds) as deadline:
                outcome.result = _shown(call.name, await tool(self._scene(outcome, in_view), call.arguments))
        except ToolError as error:
            _fail(call, str(error) or f"{call.name} failed", error.fault)
        except TimeoutError as error:
            late = deadline.expired()
            why = f"took longer than {seconds:g} s" if late else f"failed: TimeoutError: {error}"
            _fail(call, f"{call.name} {why}", "timeout" if late else "environment")
        except asyncio.CancelledError:
            if asyncio.current_task().cancelling():
                _fail(call, f"{call.name} was cancelled with its turn", "aborted")
                raise
            _fail(call, f"{call.name} failed: what it waited for was cancelled", "environment")
        except Exception as error:  # a tool's bug is data on its thread; it must not cancel its siblings
            whose = "provider" if isinstance(error, PolicyError) else "environment"
            _fail(call, f"{call.name} failed: {type(error).__name__}: {error}", whose)
        finally:
            call.ended = time.time()

    def _scene(self, outcome: _Outcome, in_view: dict[str, str]) -> Scene:
        async def spawn(subagent: Subagent, prompt: str) -> str:
            return await self._spawn(outcome, subagent, prompt)

        context = self.context
        room = context.window.budget - context.used - context.window.reply
        return Scene(
            task=self.episode.task,
            seen=frozenset(context.seen),
            handles=in_view,
            room=room,
            count=lambda text: len(context.renderer.encode(text)),
            spawn=spawn,
        )

    async def _spawn(self, outcome: _Outcome, subagent: Subagent, prompt: str) -> str:
        id = f"{outcome.call.id}/{len(outcome.children)}"
        context = subagent.harness._open(id, subagent.policy, prompt, Sampling())
        outcome.children.append(context.thread)
        try:
            async with asyncio.timeout(subagent.seconds) as deadline:
                await _Life(subagent.harness, self.episode, subagent.policy, context, None).live()
        except asyncio.CancelledError:
            context.thread.stop = Stop("timeout", "its assignment was cancelled")
            raise
        except TimeoutError as error:
            if not deadline.expired():
                raise
            context.thread.stop = Stop("timeout", f"its assignment took longer than {subagent.seconds:g} s")
            raise ToolError(f"the sub-agent took longer than {subagent.seconds:g} s", "timeout") from error
        except Exception as error:  # its policy's bug: data on its thread and on the call
            context.thread.stop = Stop("policy", f"{type(error).__name__}: {error}")
            raise
        if context.thread.stop.reason != "finished":
            raise ToolError(f"the sub-agent stopped without an answer ({context.thread.stop.reason})")
        return context.thread.answer

    def _place(self, outcomes: list[_Outcome], in_view: dict[str, str]) -> Stop | None:
        """The turn barrier: results enter in call order, then the first edit applies."""
        context, author, version = self.context, self.policy.name, self.spoken
        edits = [outcome for outcome in outcomes if isinstance(outcome.result, Keep) and not outcome.call.error]
        for outcome in edits[1:]:
            _fail(outcome.call, "the view is edited once a turn, and was", "arguments")
        dropped = {ref for outcome in edits[:1] for ref in in_view if ref not in outcome.result.refs}
        if not self._fill(outcomes, dropped):
            return Stop("window", "the results of a turn do not fit")
        for outcome in outcomes:
            for child in (child for child in outcome.children if not outcome.call.error):
                self.episode.ops.append(
                    Join(author=author, version=version, call=outcome.call.id, at=context.here(), child=child.id)
                )
        if dropped & context.in_view().keys():  # else a restart was told without them
            self.episode.ops.append(context.prune(dropped, author, version))
        return None

    def _fill(self, outcomes: list[_Outcome], dropped: set[str]) -> bool:
        """Append the results with the usage line; leave out passages, last ones first, until they fit."""
        context, window = self.context, self.context.window
        self._show(outcomes)
        freed = context.size(dropped)
        while True:
            results = self._results(outcomes)
            before = context.length(results, self.harness.specs)
            line = _usage_line(context, before - freed, self.harness.advice)
            total = before + len(context.renderer.encode(line))
            fits = total <= window.budget - window.reply + freed
            if fits or not self._leave_out(outcomes):
                break
        if not fits and total - freed >= window.budget:
            return False
        self._extend(results, line, dropped)
        return True

    def _extend(self, results: list[Message], line: str, dropped: set[str]) -> None:
        """Append. Where the template must begin anew, what is pruned goes before: afterwards no chunk could be told apart."""
        last = next(result for result in reversed(results) if "pieces" in result)
        last["pieces"] = [*last["pieces"], Piece(line)]
        if dropped and self.context.continuation(results) is None:
            self.episode.ops.append(self.context.prune(dropped, self.policy.name, self.spoken))
        if restart := self.context.extend(results, self.harness.specs):
            self.episode.ops.append(restart)

    def _results(self, outcomes: list[_Outcome]) -> list[Message]:
        """The turn's results as messages, and behind them the request to summarize where it is time for it."""
        results = [{"role": "tool", "tool_call_id": o.call.id, "pieces": list(o.call.pieces)} for o in outcomes]
        return [*results, {"role": "user", "content": SUMMARIZE}] if self._full() else results

    def _full(self) -> bool:
        """Past the share of the window at which a thread summarizes itself; results of this turn are not yet counted."""
        window = self.context.window
        return window.summarize is not None and self.context.used > window.summarize * window.budget

    def _show(self, outcomes: list[_Outcome]) -> None:
        """Give every passage its handle; one already in view, or twice in a turn, is shown once."""
        shown, plain = set(self.context.in_view().values()), self.context.renderer.plain
        self.context.new.clear()
        for outcome in outcomes:
            call = outcome.call
            if call.error:
                call.pieces = [Piece(plain(f"Error: {call.error}\n"))]
            elif isinstance(outcome.result, Keep):
                call.pieces = [Piece(plain(f"{outcome.result.note}\n"))]
            elif isinstance(outcome.result, str):
                call.pieces = [Piece(plain(f"{outcome.result}\n"))]
            else:
                call.pieces = [self._piece(passage, shown) for passage in outcome.result if passage.source not in shown]
                call.pieces = call.pieces or [Piece("Nothing new.\n")]

    def _piece(self, passage: Passage, shown: set[str]) -> Piece:
        shown.add(passage.source)
        ref = self.context.handle(passage.source)
        return Piece(self.context.renderer.plain(f"{passage.text} {ref}\n"), ref, passage.source)

    def _leave_out(self, outcomes: list[_Outcome]) -> bool:
        """Drop the last passage of the turn, so that a later search may find it again; then say of the last long text how
        long it would be. False when nothing is left."""
        for call in (outcome.call for outcome in reversed(outcomes)):
            if call.pieces and call.pieces[-1].ref:
                self.context.forget(call.pieces[-1].source)
                call.pieces = call.pieces[:-1] or [Piece("No room for results.\n")]
                return True
        for outcome in reversed(outcomes):
            call, encode, plain = outcome.call, self.context.renderer.encode, self.context.renderer.plain
            if len(call.pieces[0].text) > 2 * _SHORT:
                if isinstance(outcome.result, Keep) and not call.error:  # which is done, however long its note
                    call.pieces = [Piece(plain(f"{outcome.result.note[:_SHORT]}\n"))]
                    return True
                length = len(encode(call.pieces[0].text))
                if call.error:
                    call.error = call.error[:_SHORT]
                else:
                    _fail(call, f"the result takes {length} tokens: no room for it", "arguments")
                call.pieces = [Piece(plain(f"Error: {call.error}\n"))]
                return True
        return False

    async def _summarize(self, turn: int) -> Stop | None:
        """Where it was asked to, a thread writes its own summary, which is sampled and learned from, and goes on from it."""
        context = self.context
        if context.messages[-1].get("content") != SUMMARIZE:
            return None
        try:
            said, _ = await self._speak(turn, "summary")
        except PolicyError as error:
            return Stop("policy", str(error))
        if said is None:
            return Stop("window", "no room for a summary")
        self.episode.ops.append(context.summarize(said.text, self.harness.specs, self.policy.name, self.spoken))
        return None


def refuse_silence(episodes: Sequence[Episode]) -> None:
    """Raises PolicyError when the policy spoke in none of `episodes`. One that could not speak is data on its thread (law
    8); where all could not, the engine broke or the server is dead, and nothing would be learned from going on."""
    stops = [episode.agent.stop for episode in episodes]
    if stops and all(stop and stop.reason == "policy" for stop in stops) and not any(e.agent.turns for e in episodes):
        raise PolicyError(stops[0].detail)


def refuse_gaps(episodes: Sequence[Episode]) -> None:
    """Raises PolicyError when the policy could not speak to the end in some of `episodes`: where it is an engine of one's own,
    it broke, and to count those as worth nothing would be no measurement."""
    if broken := [episode.agent.stop.detail for episode in episodes if silent(episode)]:
        raise PolicyError(f"the policy could not speak to the end in {len(broken)} of {len(episodes)} attempts: {broken[0]}")


def silent(episode: Episode) -> bool:
    """Whether its policy could not speak to the end: a dead engine's doing."""
    return episode.agent.stop is not None and episode.agent.stop.reason == "policy"


def _new_call(id: str, turn: int, asked: Asked) -> Call:
    """A call as it was asked for, failed already where it cannot be read."""
    return Call(id, turn, asked.name, asked.arguments, error=asked.error, fault="arguments" if asked.error else "")


def _fail(call: Call, error: str, fault: Fault) -> None:
    call.error, call.fault = error.encode(errors="replace").decode(), fault


def _shown(name: str, result: Any) -> Result:
    """What a tool returned, as a policy can be shown it. Raises ToolError for anything else, which is the tool's own bug."""
    if isinstance(result, str | Keep):
        return result
    passages = list(result) if isinstance(result, Iterable) else [result]
    if wrong := [type(each).__name__ for each in passages if not isinstance(each, Passage)]:
        of = "" if passages == [result] else f"{type(result).__name__} of "
        raise ToolError(f"{name} must return text or a list of Passage, not {of}{wrong[0]}", "environment")
    return passages


def _usage_line(context: Context, before: int, advice: str) -> str:
    """The usage line that counts itself: its number settles after one correction."""
    total = before
    for _ in range(3):
        line = context.window.usage(total, advice)
        total = before + len(context.renderer.encode(line))
    return line
