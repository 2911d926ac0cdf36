"""The agent over HTTP: an episode that is begun, heard and gone on from."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from trivium.errors import InputError, TriviumError
from trivium.harness import CallEvent, Crew, CutEvent, Event, Harness, TurnEvent
from trivium.policy import Policy
from trivium.serve.errors import invalid
from trivium.serve.keys import Caller, Key
from trivium.serve.recorder import stored
from trivium.serve.routing import Choice, Route
from trivium.trace import Call, Episode, Prune, Restart, Sampling, Stop, Task
from trivium.trace.people import SERVED, user_of

Told = dict[str, Any]
Outcome = Callable[[Episode], Awaitable[str]]

logger = logging.getLogger("trivium.serve")


@dataclass(slots=True)
class Attempt:
    """An episode under way, or one that just ended. `events` grow; `episode` is there, and stored, when it is over."""

    id: str
    session: str
    account: str
    events: list[Told] = field(default_factory=list)
    episode: Episode | None = None
    error: str = ""
    ended: float = 0.0
    work: asyncio.Task | None = None
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def status(self) -> str:
        """running, finished, or failed: then it was not kept."""
        return "failed" if self.error else "finished" if self.episode else "running"

    def tell(self, event: Told) -> None:
        """Add an event, and wake those who listen."""
        self.events.append(event)
        self._news.set()
        self._news = asyncio.Event()

    def end(self, event: Told) -> None:
        """Add the last event."""
        self.ended = time.time()
        self.tell(event)

    async def heard(self, start: int) -> AsyncGenerator[tuple[int, Told]]:
        """Its events from number `start` on, as they come, up to the last one."""
        while True:
            news = self._news
            for number in range(start, len(self.events)):
                yield number, self.events[number]
                start = number + 1
            if start >= len(self.events) and self.ended:
                return
            if start >= len(self.events):
                await news.wait()


class Agent:
    """Whoever lives in `harness`; `route` says who that is now. `keep` writes an episode, in a thread of its own; `outcome`
    says what came of one beside its answer."""

    def __init__(
        self,
        harness: Harness,
        route: Callable[[], Route],
        sampling: Sampling,
        keep: Callable[[Episode], None],
        outcome: Outcome,
        seconds: float,
    ) -> None:
        self._harness, self._route, self._sampling = harness, route, sampling
        self._keep, self._outcome, self._seconds = keep, outcome, seconds
        self._attempts: dict[str, Attempt] = {}

    @property
    def tools(self) -> list[str]:
        """The names of what it works with."""
        return list(self._harness.tools)

    @property
    def members(self) -> list[Policy]:
        """Who answers its sub-agents."""
        place = self._harness.place
        return [place.member.policy] if isinstance(place, Crew) else []

    def get(self, id: str, key: Key) -> Attempt | None:
        """An attempt that this server had lately, where it is this key's or a user's of it."""
        attempt = self._attempts.get(id)
        return attempt if attempt and attempt.account.partition("/")[0] == key.name else None

    def begin(self, caller: Caller, task: Task, session: str, seed: int, inside: AbstractContextManager[None]) -> Attempt:
        """Begin an episode, which lives `inside` its limit. ApiError for a question that does not fit the window."""
        attempt = Attempt(uuid.uuid4().hex, session or uuid.uuid4().hex, caller.account)
        choice = self._route().drawn(user_of(caller.account, attempt.session))
        try:
            self._harness.open("0", choice.lane.policy, task.prompt, self._sampling, task.messages)
        except InputError as error:
            raise invalid(str(error)) from error
        inside.__enter__()
        attempt.work = asyncio.create_task(self._live(attempt, choice, caller.key.consent, task, seed))
        attempt.work.add_done_callback(lambda _: inside.__exit__(None, None, None))
        self._attempts[attempt.id] = attempt
        return attempt

    async def close(self) -> None:
        """End what is under way."""
        tasks = [attempt.work for attempt in self._attempts.values() if attempt.work and not attempt.work.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def drop(self, before: float) -> None:
        """Forget attempts that ended before a time; those that were kept are in the store."""
        self._attempts = {id: each for id, each in self._attempts.items() if not each.ended or each.ended > before}

    async def _live(self, attempt: Attempt, choice: Choice, consent: bool, task: Task, seed: int) -> None:
        def watch(event: Event) -> None:
            if told := told_of(event):
                attempt.tell(told)

        try:
            episode = await self._harness.run(
                task,
                choice.lane.policy,
                seed=seed,
                id=SERVED + attempt.id,
                sampling=self._sampling,
                seconds=self._seconds,
                watch=watch,
            )
            episode.session, episode.account = attempt.session, attempt.account
            episode.deployment, episode.propensity = choice.lane.deployment or episode.deployment, choice.propensity
            episode.outcome = await self._outcome(episode)
            if consent:
                await stored(lambda: self._keep(episode))
            attempt.episode = episode
            attempt.end(answer_of(episode))
        except asyncio.CancelledError:
            self._fail(attempt, "it was cancelled")
        except TriviumError as error:
            self._fail(attempt, str(error))
        except Exception as error:  # a bug, of a tool perhaps: this episode alone is lost
            logger.exception("an episode failed")
            self._fail(attempt, f"the server failed: {type(error).__name__}")

    def _fail(self, attempt: Attempt, why: str) -> None:
        attempt.error = why
        attempt.end({"type": "failed", "error": why})


def told_of(event: Event) -> Told | None:
    """An event of an episode as a client is told it."""
    if isinstance(event, TurnEvent):
        return {"type": "turn", "thread": event.thread, "turn": event.turn, "used": event.used}
    if isinstance(event, CallEvent):
        return {"type": "call", "thread": event.thread, **call_of(event.call)}
    if isinstance(event, CutEvent):
        cut: Told = {"type": type(event.cut).__name__.lower(), "thread": event.thread}
        cut |= {"chunks": list(event.cut.chunks)} if isinstance(event.cut, Prune) else {}
        return cut | ({"reason": event.cut.reason} if isinstance(event.cut, Restart) else {})
    return None


def call_of(call: Call) -> Told:
    """A call of a tool as a client is told it."""
    result = "".join(piece.text for piece in call.pieces)
    return {"name": call.name, "arguments": call.arguments, "result": result, "error": call.error}


def answer_of(episode: Episode) -> Told:
    """The last event of an episode."""
    thread, stop = episode.agent, episode.agent.stop or Stop("finished")
    return {
        "type": "answer",
        "text": thread.answer,
        "outcome": episode.outcome,
        "stop": stop.reason,
        "detail": stop.detail,
    }
