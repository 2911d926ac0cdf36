"""One thread's life, turn by turn: show the view, hear the policy, run its calls, place their results, apply its edits."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from trivium.errors import InputError, PlaceError, PolicyError
from trivium.harness.base import Keep, Passage, Scene, Subagent, ToolError
from trivium.harness.calls import Outcome, answer, cancelled, refuse_beyond
from trivium.harness.compaction import Oldest, Summary, summary_in
from trivium.harness.context import Context
from trivium.harness.place import OpenPlace, close, whole
from trivium.harness.results import Results, no_summary
from trivium.harness.saved import Saved
from trivium.harness.snapshot import Snapshot
from trivium.harness.watch import CallEvent, CutEvent, SnapshotEvent, Teller, TurnEvent, Watch
from trivium.policy import Policy, Reply, Speech, View
from trivium.policy.message import Message
from trivium.trace import Episode, Fault, Join, Piece, Prune, Restart, Spawn, Stop, Summarize, Thread, stages
from trivium.trace.ops import AnyOp

if TYPE_CHECKING:
    from trivium.harness.loop import Harness

LATE = {"timeout": "its {:g} s were used up", "place": "it took longer than {:g} s"}


@dataclass(slots=True)
class Life:
    """One thread's life in one episode. `threads`, `ops` and `snapshots` (of places) are the record of it and of the sub-agents
    that it called, each behind its own `Spawn` in call order; the agent's are the episode's own. After `seconds` it is over."""

    harness: Harness
    episode: Episode
    policy: Policy
    context: Context
    teller: Teller
    place: OpenPlace | None = None
    threads: list[Thread] = field(default_factory=list)
    ops: list[AnyOp] = field(default_factory=list)
    snapshots: list[str] = field(default_factory=list)
    seconds: float | None = None
    depth: int = 0  # assignments above it
    deepest: int = 0  # assignments above anybody
    steps: int | None = None  # critical steps that it has; None for any number
    left: float = math.inf  # of them, as this turn began
    version: int = -1  # the policy's, as it was when it spoke last
    task: asyncio.Task | None = None  # of a sub-agent: what runs it

    def __post_init__(self) -> None:
        if not any(thread is self.thread for thread in self.threads):  # that of a resumed episode is on record
            self.threads.append(self.thread)

    @classmethod
    def of_agent(
        cls,
        harness: Harness,
        episode: Episode,
        policy: Policy,
        context: Context,
        watch: Watch | None = None,
        seconds: float | None = None,
    ) -> Life:
        record = (episode.threads, episode.ops, episode.snapshots)
        steps = harness.limits.critical
        return cls(
            harness,
            episode,
            policy,
            context,
            Teller(watch),
            None,
            *record,
            seconds=seconds,
            deepest=harness.limits.depth,
            steps=steps,
        )

    @property
    def thread(self) -> Thread:
        return self.context.thread

    @property
    def is_agent(self) -> bool:
        return self.thread is self.episode.agent

    async def live(self, start: Snapshot | Saved | None = None) -> None:
        """Live from `start` until something ends the thread, in a place of its own where its harness has one. The policy's time
        is its own doing; a place that takes as long to open, or to be looked at in the end, is broken."""
        turn, snapshot = (start.turn, start.place) if start else (0, "")
        if self.harness.place is None:
            self.thread.stop = await self._in_time(self._turns(turn), "timeout")
            return
        if stop := await self._in_time(self._enter(snapshot), "place"):
            self.thread.stop = stop
            return
        try:
            self.thread.stop = stop = await self._in_time(self._turns(turn), "timeout")
            if stop and stop.reason != "place":
                self.thread.stop = await self._in_time(self._leave(), "place") or stop
        finally:
            if self.place:
                await close(self.place, self.episode.id)

    async def _in_time(self, work: Coroutine[Any, Any, Stop | None], late: Literal["timeout", "place"]) -> Stop | None:
        """What `work` ends with, or that it came too `late` where it was cut off. What was on record stays there."""
        try:
            async with asyncio.timeout(self.seconds) as deadline:
                return await work
        except TimeoutError:
            if not deadline.expired():
                raise
            return Stop(late, LATE[late].format(self.seconds))

    async def _enter(self, snapshot: str) -> Stop | None:
        assert self.harness.place is not None
        try:
            self.place = await whole(self.harness.place.open(self.episode.task, snapshot))
        except PlaceError as error:
            return Stop("place", str(error))
        return None

    async def _leave(self) -> Stop | None:
        """What is in the place at the end goes on record: it is what can be judged. Without it the thread came to no end."""
        try:
            await self._snapshot_place()
        except PlaceError as error:
            return Stop("place", str(error))
        return None

    async def _turns(self, first: int) -> Stop:
        try:
            for turn in range(first, self.harness.limits.turns):
                self.left = math.inf if self.steps is None else self.steps - self._spent()
                if self.left < 1:
                    return Stop("steps", f"{self.steps} critical steps")
                await self._announce(turn)
                if stop := await self._turn(turn):
                    return stop
        except PolicyError as error:
            return Stop("policy", str(error))
        except PlaceError as error:
            return Stop("place", str(error))
        return Stop("turns", f"{self.harness.limits.turns} turns")

    def _spent(self) -> int:
        inherited = self.episode.inherited if self.is_agent else 0
        return sum(stage.steps for stage in stages(self.thread, self.threads, self.ops, inherited))

    async def _announce(self, turn: int) -> None:
        snapshot = Snapshot.take(self.episode.id, turn, self.context) if self.is_agent else None
        event = TurnEvent(self.thread.id, turn, self.context.used, snapshot)
        self.teller.tell(event)
        if self.is_agent:
            self.teller.check()
        if event.wanted and snapshot:
            snapshot.place = await self._snapshot_place() if self.place else ""
            self.teller.tell(SnapshotEvent(snapshot, self.episode))
            self.teller.check()

    async def _snapshot_place(self) -> str:
        assert self.place is not None
        self.snapshots.append(await whole(self.place.snapshot()))
        return self.snapshots[-1]

    async def _turn(self, turn: int) -> Stop | None:
        reply = await self._speak(turn)
        if reply is None:
            return Stop("window", f"{self.context.used} of {self.context.window.budget} tokens used")
        speech, complete = reply
        in_view = self.context.in_view()
        outcomes = self._remember(turn, speech)
        if not outcomes:
            self.thread.answer = speech.text
            return Stop("finished") if complete else Stop("length", "the answer was cut off")
        await self._act(outcomes, in_view)
        results = self._place_results(outcomes, in_view)
        self._tell(outcomes)
        if broken := next((each.broken for each in outcomes if each.broken), None):
            raise broken
        if results is None:
            return Stop("window", "the results of a turn do not fit")
        return await self._compact(turn) if results.full else None

    async def _speak(self, turn: int, *purpose: str) -> tuple[Speech, bool] | None:
        """One reply heard, and whether it came to its end; None where the window has no room for any. A further reply of a
        turn names its purpose, and has a random stream of its own."""
        context, sampling = self.context, self.context.segment.sampling
        room = min(sampling.max_tokens, context.window.budget - context.used)
        if room < 1:
            return None
        stream = (self.episode.seed, self.episode.task.id, self.episode.sample, self.thread.id, turn, *purpose)
        view = View(context.segment.tokens, context.text(), self.harness.toolset.specs, stream)
        try:
            reply = await self.policy.speak(view, replace(sampling, max_tokens=room))
        except asyncio.CancelledError as error:  # of this attempt, or of what its policy itself waited for?
            if cancelled():
                raise
            raise PolicyError(f"what {self.policy.name} waited for was cancelled") from error
        if not isinstance(reply, Reply):
            raise PolicyError(f"{self.policy.name} gave {type(reply).__name__} and no Reply")
        self.version = reply.versions[-1] if reply.versions else self.policy.version
        return context.hear(reply, self.policy.version, None if purpose else self.harness.ending)

    def _remember(self, turn: int, speech: Speech, first: int = 0) -> list[Outcome]:
        """Put a reply and its calls on record; `first` is the number of the turn's first call among them."""
        ids = [f"{self.thread.id}.{turn}.{first + index}" for index in range(len(speech.calls))]
        outcomes = [Outcome.of(id, turn, each) for id, each in zip(ids, speech.calls, strict=True)]
        self.context.remember(speech, ids)
        self.thread.calls += [each.call for each in outcomes]
        return outcomes

    async def _act(self, outcomes: list[Outcome], in_view: dict[str, str]) -> None:
        """All calls of a turn, at once."""
        limits, window, toolset = self.harness.limits, self.context.window, self.harness.toolset
        refuse_beyond(outcomes, limits)
        full = self.context.used > window.hard * window.budget

        async def run(each: Outcome) -> None:
            try:
                await answer(each, toolset, self._scene(each, in_view), limits, full)
            finally:
                await _end(each.children)

        try:
            await asyncio.gather(*(run(each) for each in outcomes if not each.call.error))
        finally:  # whoever was assigned something stays on record, also where its assigner's own time is over
            self._record_children(outcomes)

    def _scene(self, outcome: Outcome, in_view: dict[str, str]) -> Scene:
        async def spawn(subagent: Subagent, prompt: str) -> str | list[Passage]:
            return await self._spawn(outcome, subagent, prompt)

        context = self.context
        return Scene(
            task=self.episode.task,
            seen=frozenset(context.refs),
            handles=in_view,
            room=context.window.budget - context.used - context.window.reply,
            count=lambda text: len(context.renderer.encode(text)),
            spawn=spawn,
            place=self.place,
            calls=context.thread.calls[: context.thread.calls.index(outcome.call)],
        )

    async def _spawn(self, outcome: Outcome, subagent: Subagent, prompt: str) -> str | list[Passage]:
        """What comes back of a sub-agent's whole life. Raises ToolError where it gave no answer, or cannot begin."""
        child = self._child(f"{outcome.call.id}/{len(outcome.children)}", subagent, prompt)
        child.task = asyncio.current_task()
        outcome.children.append(child)
        try:
            await child.live()
        except asyncio.CancelledError:
            child.thread.stop = Stop("timeout", "its assignment was cancelled")
            raise
        except Exception as error:  # a bug of its policy
            child.thread.stop = Stop("policy", f"{type(error).__name__}: {error}")
        return child.outcome(subagent.report)

    def _child(self, id: str, subagent: Subagent, prompt: str) -> Life:
        """The life of a sub-agent, about to begin. Raises ToolError where it may not, or where its prompt does not fit."""
        if self.depth >= self.deepest:
            raise ToolError(f"assignments go {self.deepest} deep at most: do it yourself")
        left = self.left - 2  # one for the assignment, one for the answer after it
        if left < 1:
            raise ToolError("no critical steps are left for an assignment: answer")
        harness = subagent.harness
        sampling = subagent.sampling or self.context.segment.sampling
        try:
            context = harness.open(id, subagent.policy, prompt, sampling)
        except InputError as error:
            raise ToolError(f"the assignment cannot begin: {error}") from error
        steps = min(left, math.inf if harness.limits.critical is None else harness.limits.critical)
        return Life(
            harness, self.episode, subagent.policy, context, self.teller, self.place, seconds=subagent.seconds,
            depth=self.depth + 1, deepest=self.deepest, steps=None if steps == math.inf else int(steps),
        )  # fmt: skip

    def outcome(self, report: Callable[[Thread], str | list[Passage]] | None = None) -> str | list[Passage]:
        """The answer of this thread, or the `report` of it. Raises ToolError where it came to another end, PlaceError where its
        place broke."""
        stop = self.thread.stop
        if stop is None or stop.reason == "finished":
            return report(self.thread) if report else self.thread.answer
        if stop.reason == "place":
            raise PlaceError(stop.detail)
        faults: dict[str, Fault] = {"policy": "provider", "timeout": "timeout"}
        fault = faults.get(stop.reason, "environment")
        raise ToolError(f"the sub-agent stopped without an answer ({stop.reason}: {stop.detail})", fault)

    def _record_children(self, outcomes: Sequence[Outcome]) -> None:
        """In call order and not as they came to their ends (law 11), each behind its own Spawn."""
        author, version, at = self.policy.name, self.version, self.context.here()
        for outcome in outcomes:
            for child in outcome.children:
                self.threads += child.threads
                spawn = Spawn(author=author, version=version, call=outcome.call.id, at=at, child=child.thread.id)
                self.ops += [spawn, *child.ops]
                self.snapshots += child.snapshots

    def _place_results(self, outcomes: list[Outcome], in_view: dict[str, str]) -> Results | None:
        """The turn barrier: results enter in call order, then the first edit applies. None where there is no room for them."""
        context, dropped = self.context, self._dropped(outcomes, in_view)
        spent = "" if self.steps is None else f"[Steps: {self._spent()}/{self.steps}]"
        results = Results(context, outcomes, self.harness.advice, spent, freed=context.size(dropped))
        if not results.fit():
            return None
        if dropped and context.continuation(results.messages) is None:
            self._prune(dropped)  # before all is rendered anew: afterwards no chunk could be told apart
        self._extend(results.messages)
        for outcome in outcomes:
            if not outcome.call.error:
                self._join(outcome)
        if dropped & context.in_view().keys():
            self._prune(dropped)
        return results

    def _dropped(self, outcomes: list[Outcome], in_view: dict[str, str]) -> set[str]:
        """The chunks that the turn's first edit takes out of the view; a further one fails."""
        edits = [(each, each.result) for each in outcomes if isinstance(each.result, Keep) and not each.call.error]
        for each, _ in edits[1:]:
            each.fail("the view is edited once a turn, and was", "arguments")
        return {ref for _, keep in edits[:1] for ref in in_view if ref not in keep.refs}

    def _tell(self, outcomes: Sequence[Outcome]) -> None:
        for each in outcomes:
            self.teller.tell(CallEvent(self.thread.id, each.call))

    def _cut(self, cut: Prune | Summarize | Restart) -> None:
        self.ops.append(cut)
        self.teller.tell(CutEvent(self.thread.id, cut))

    def _prune(self, dropped: set[str]) -> None:
        self._cut(self.context.prune(dropped, self.policy.name, self.version))

    def _extend(self, results: Sequence[Message]) -> None:
        if restart := self.context.extend(results):
            self._cut(restart)

    def _join(self, outcome: Outcome) -> None:
        author, version, at = self.policy.name, self.version, self.context.here()
        for thread in (child.thread for child in outcome.children):
            if thread.stop and thread.stop.reason == "finished":
                self.ops.append(Join(author=author, version=version, call=outcome.call.id, at=at, child=thread.id))

    async def _compact(self, turn: int) -> Stop | None:
        """Go on from less than the whole view, in the window's own way."""
        match self.context.window.compaction:
            case Summary() as way:
                return await self._summarize(turn, way)
            case Oldest(keep=keep):
                self._cut(self.context.cut_oldest(keep))
        full = self.context.used + self.context.window.reply > self.context.window.budget
        return Stop("window", "the last turn alone does not fit") if full else None

    async def _summarize(self, turn: int, way: Summary) -> Stop | None:
        """The thread writes its own summary, which is sampled and learned from, and goes on from it. A reply that is none is
        asked for once more."""
        fault = ""
        for purpose in (("summary",), ("summary", "again")):
            reply = await self._speak(turn, *purpose)
            if reply is None:
                return Stop("window", "no room for a summary")
            speech, complete = reply
            summary = summary_in(speech.text)
            fault = no_summary(speech, summary, complete)
            if not fault:
                self._cut(self.context.summarize(way, summary, self.policy.name, self.version))
                return None
            if len(purpose) == 1 and not self._ask_again(turn, speech, f"That was no summary: {fault}. {way.request}"):
                return Stop("window", "no room to ask for a summary again")
        return Stop("summary", f"asked twice for a summary: {fault}")

    def _ask_again(self, turn: int, speech: Speech, request: str) -> bool:
        """Put a reply that is no summary on record, with the `request` behind it; False where there is no room for that."""
        number = sum(call.turn == turn for call in self.thread.calls)
        outcomes = self._remember(turn, speech, first=number)
        for each in outcomes:
            each.fail(each.call.error or "no tool can be called in place of a summary", "arguments")
            each.call.pieces = [Piece(self.context.renderer.plain(f"Error: {each.call.error}\n"))]
        results = [{"role": "tool", "tool_call_id": o.call.id, "pieces": o.call.pieces} for o in outcomes]
        results.append({"role": "user", "content": request})
        if self.context.length(results) >= self.context.window.budget:
            return False
        self._extend(results)
        self._tell(outcomes)
        return True


async def _end(children: Sequence[Life]) -> None:
    """End the sub-agents that a call left behind, which began them at once and waited for some alone."""
    tasks = {child.task for child in children if child.task and not child.task.done()} - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
