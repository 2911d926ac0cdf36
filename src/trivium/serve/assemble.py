"""Exchanges -> an episode. A pure function of what was written, so that every server makes the same of it.

A request that extends the last one continues its segment. Any other begins a segment of its own, with a recorded `Restart`:
the client pruned, summarized or began something else. So each sampled token stands right of `carried` in one segment, once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from trivium.errors import CorruptError
from trivium.policy.message import Message
from trivium.serve.exchange import Exchange
from trivium.trace import Call, Episode, Piece, Point, Restart, Segment, Stop, Task, Thread
from trivium.trace.people import SERVED

_STOPS = {
    "stop": Stop("finished"),
    "tool_calls": Stop("finished", "the client took the calls and came back no more"),
    "length": Stop("length"),
    "cancelled": Stop("policy", "the client left"),
    "timeout": Stop("timeout"),
    "failed": Stop("policy"),
}


def episode_of(exchanges: Sequence[Exchange], before: Sequence[Exchange] = ()) -> Episode:
    """The episode of a session's `exchanges`, in the order in which they were written. `before` are those of it that are part
    of an earlier episode: what goes on from them begins with their tokens as its prompt. A thread is one model's.

    CorruptError that names an exchange whose parent is not among them: its reply was said to more than is there (law 2)."""
    first, last = exchanges[0], exchanges[-1]
    contexts: dict[str, list[int]] = {}
    for exchange in before:
        with suppress(CorruptError):  # who goes on from it is told
            contexts[exchange.id] = _context(exchange, contexts)
    episode = Episode(
        SERVED + first.id, _task(first), began=first.began, ended=last.ended, session=first.session, account=first.account
    )
    if len({exchange.deployment for exchange in exchanges}) == 1:  # else nobody's: its tokens know their versions
        episode.deployment, episode.propensity = first.deployment, first.propensity
    lives: dict[str, _Life] = {}
    for exchange in exchanges:
        if exchange.model not in lives:
            lives[exchange.model] = _Life(episode, Thread(str(len(lives)), exchange.model))
            episode.threads.append(lives[exchange.model].thread)
        lives[exchange.model].hear(exchange, contexts)
        contexts[exchange.id] = _context(exchange, contexts)
    return episode


def _prompt(exchange: Exchange, contexts: dict[str, list[int]]) -> list[int]:
    """The tokens up to an exchange's reply."""
    if exchange.parent and exchange.parent not in contexts:
        raise CorruptError(f"exchange {exchange.id} goes on from {exchange.parent}, which its session has no more")
    return [*contexts.get(exchange.parent, ()), *exchange.fresh]


def _context(exchange: Exchange, contexts: dict[str, list[int]]) -> list[int]:
    """The tokens up to the end of an exchange's reply."""
    return [*_prompt(exchange, contexts), *exchange.tokens]


@dataclass(slots=True)
class _Life:
    """A thread as it grows."""

    episode: Episode
    thread: Thread
    last: str = ""
    calls: dict[str, Call] = field(default_factory=dict)

    def hear(self, exchange: Exchange, contexts: dict[str, list[int]]) -> None:
        if self.last and exchange.parent == self.last:
            self.thread.segments[-1].append(exchange.fresh, "message")
        else:
            self._begin(exchange, _prompt(exchange, contexts))
        segment, sampling = self.thread.segments[-1], exchange.sampling
        segment.speak(exchange.tokens, exchange.logprobs, exchange.versions, exchange.kept, sampling)
        self._answer_calls(exchange)
        for call in _calls(exchange, self.thread.turns - 1):
            self.calls[call.id] = call
            self.thread.calls.append(call)
        self.thread.answer = "" if exchange.message.get("tool_calls") else exchange.message["content"]
        self.thread.stop, self.last = _STOPS[exchange.finish], exchange.id

    def _begin(self, exchange: Exchange, prompt: list[int]) -> None:
        """A new segment, and the cut before it where there was another."""
        segments = self.thread.segments
        segments.append(Segment(sampling=exchange.sampling))
        segments[-1].append(prompt, "prompt")
        if len(segments) == 1:
            return
        segments[-1].carried = len(prompt)
        old = len(segments) - 2
        before, after = Point(self.thread.id, old, len(segments[old].tokens)), Point(self.thread.id, old + 1, len(prompt))
        reason = exchange.reason or "an earlier exchange was extended again"
        self.episode.ops.append(Restart(author="client", before=before, after=after, reason=reason))

    def _answer_calls(self, exchange: Exchange) -> None:
        """Put the results that an exchange shows behind their calls."""
        for message in exchange.messages:
            call = self.calls.get(message.get("tool_call_id", ""))
            if call is not None and not call.pieces:
                call.pieces, call.ended = [Piece(message["content"])], exchange.began


def _calls(exchange: Exchange, turn: int) -> Iterator[Call]:
    for each in exchange.message.get("tool_calls") or ():
        function = each["function"]
        yield Call(each["id"], turn, function["name"], json.loads(function["arguments"]), began=exchange.ended)


def _task(first: Exchange) -> Task:
    """What the session was asked at first: the user's last message, and the conversation before it."""
    places = [number for number, message in enumerate(first.messages) if message["role"] == "user"]
    place = places[-1] if places else 0
    messages: list[Message] = first.messages[:place]
    prompt = first.messages[place]["content"] if places else ""
    return Task(f"session {first.session}", prompt, messages=messages if prompt else [])
