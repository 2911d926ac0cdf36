"""Reads an episode turn by turn: plain facts off the trace, for whoever wants to show them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from trivium.harness import read_usage
from trivium.trace import Branch, Call, Cut, Episode, Segment, Span, Spawn, Summarize, Thread

Decode = Callable[[list[int]], str]


@dataclass(slots=True)
class Turn:
    """One turn of a thread: its calls and cuts, and how full its view was, in tokens.

    The policy began to speak in `segment` with `start` tokens in view. `peak` is the longest context during the turn, and
    `used` its length at the end. All are 0 in a turn that a branch took over. `reply` and `summary` are sampled tokens.
    """

    number: int
    calls: list[Call]
    cuts: list[Cut] = field(default_factory=list)
    segment: int = 0
    start: int = 0
    used: int = 0
    peak: int = 0
    reply: list[int] = field(default_factory=list)
    summary: list[int] = field(default_factory=list)


def turns(episode: Episode, thread: Thread) -> list[Turn]:
    """The turns of a thread in order, those first that a branch took over."""
    first = _first_turn(episode, thread)
    inherited = sorted({call.turn for call in thread.calls if call.turn < first})
    turns = _turns(episode, thread, first)
    _measure(thread, turns)
    for op in episode.ops:
        if isinstance(op, Cut) and op.before.thread == thread.id:
            earlier = [turn for turn in turns if turn.segment <= op.before.segment]
            if earlier:
                earlier[-1].cuts.append(op)
    return [*(Turn(number, _calls(thread, number)) for number in inherited), *turns]


def _turns(episode: Episode, thread: Thread, first: int) -> list[Turn]:
    """A turn for each time the policy spoke in this episode. A summary belongs to the end of the turn before it."""
    summaries = {
        (op.before.segment, op.before.position)
        for op in episode.ops
        if isinstance(op, Summarize) and op.before.thread == thread.id
    }
    turns: list[Turn] = []
    for index, span, segment in _sampled(thread):
        tokens = segment.tokens[span.start : span.stop]
        if turns and (index, span.stop) in summaries:
            turns[-1].summary = tokens
        else:
            number = first + len(turns)
            turns.append(Turn(number, _calls(thread, number), segment=index, start=span.start, reply=tokens))
    return turns


def _measure(thread: Thread, turns: list[Turn]) -> None:
    """Set `used` and `peak`. A turn ends where the next one begins, and each segment between was once the whole view."""
    lengths = [len(segment.tokens) for segment in thread.segments]
    for turn, after in zip(turns, [*turns, None][1:], strict=True):
        turn.used = after.start if after else lengths[-1]
        last = after.segment if after else len(lengths) - 1
        turn.peak = max([turn.used, *lengths[turn.segment : last]])


def _sampled(thread: Thread) -> list[tuple[int, Span, Segment]]:
    return [(index, span, segment) for index, segment in enumerate(thread.segments) for span in segment.sampled()]


def _calls(thread: Thread, turn: int) -> list[Call]:
    return [call for call in thread.calls if call.turn == turn]


def _first_turn(episode: Episode, thread: Thread) -> int:
    """The turn at which a thread begins here: in a branch the one that its snapshot, `episode@turn`, names."""
    op = branch(episode)
    number = op.snapshot.rpartition("@")[2] if op and op.at.thread == thread.id else ""
    return int(number) if number.isdecimal() else 0


def branch(episode: Episode) -> Branch | None:
    """The branch at which this episode began, if not at its question."""
    return next((op for op in episode.ops if isinstance(op, Branch)), None)


def children(episode: Episode, call: Call) -> list[Thread]:
    """The threads that a call spawned."""
    return [episode.thread(op.child) for op in episode.ops if isinstance(op, Spawn) and op.call == call.id]


def budget(thread: Thread, decode: Decode | None) -> int | None:
    """How many tokens the window holds, by the usage line in a context; None without such a line or without `decode`."""
    if decode is None:
        return None
    lines = (line for segment in thread.segments for line in read_usage(decode(segment.tokens)))
    return next((size for _, size in lines), None)


def texts(thread: Thread) -> dict[str, str]:
    """Every handle shown to a thread -> what it showed, without the handle."""
    return {piece.ref: piece.shown for piece in thread.passages}
