"""Redaction by rule: what matches a pattern does not reach an episode, neither as text nor as tokens."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trivium.errors import InputError
from trivium.policy import Renderer
from trivium.trace import Call, Episode, Segment, Span, Task, Thread
from trivium.trace.episode import Stretch

MARK = "[redacted]"


@dataclass(frozen=True, slots=True)
class Rules:
    """Patterns in RE2's language, whose time is linear in the text."""

    patterns: tuple[Any, ...] = ()

    @classmethod
    def load(cls, path: str) -> Rules:
        """The patterns of a file, one a line; none for an empty path. InputError that names the line that is none."""
        if not path:
            return cls()
        try:
            lines = Path(path).read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"the rules in {path} cannot be read: {error}") from error
        return cls(tuple(_compiled(line, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line.strip()))

    def text(self, text: str) -> str:
        """`text` with a mark in the place of whatever matches."""
        for pattern in self.patterns:
            text = pattern.sub(MARK, text)
        return text

    def places(self, text: str) -> list[tuple[int, int]]:
        """Where something matches: [start, stop) in letters."""
        return [
            match.span() for pattern in self.patterns for match in pattern.finditer(text) if match.span()[0] < match.span()[1]
        ]


def _compiled(line: str, where: str) -> Any:
    import re2

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(line, options)
    except re2.error as error:
        raise InputError(f"{where}: {line!r} is no pattern: {error}") from error


def redacted(episode: Episode, rules: Rules, renderers: Callable[[str], Renderer]) -> Episode:
    """`episode` without what matches. Letters are covered by as many tokens as they had. A reply that was said behind such a
    place was said to something that is not there any more, so it is context, and nothing is learned from it."""
    if not rules.patterns:
        return episode
    for thread in episode.threads:
        _redact_thread(thread, rules, renderers(thread.policy))
    episode.outcome = rules.text(episode.outcome)
    task = episode.task
    episode.task = Task(task.id, rules.text(task.prompt), task.truth, _clean(task.messages, rules), task.tools)
    return episode


def _redact_thread(thread: Thread, rules: Rules, renderer: Renderer) -> None:
    thread.answer = rules.text(thread.answer)
    thread.calls = [_redacted_call(call, rules) for call in thread.calls]
    for segment in thread.segments:
        _redact_segment(segment, rules, renderer)


def _redacted_call(call: Call, rules: Rules) -> Call:
    pieces = [replace(piece, text=rules.text(piece.text)) for piece in call.pieces]
    return replace(call, arguments=_clean(call.arguments, rules), pieces=pieces, error=rules.text(call.error))


def _redact_segment(segment: Segment, rules: Rules, renderer: Renderer) -> None:
    places = sorted(_token_places(segment.tokens, rules, renderer))
    if not places:
        return
    filler = renderer.encode("x")[0]
    for start, stop in places:
        segment.tokens[start:stop] = [filler] * (stop - start)
    _forget_from(segment, places[0][0])


def _token_places(tokens: Sequence[int], rules: Rules, renderer: Renderer) -> Iterator[tuple[int, int]]:
    """The tokens that hold a letter of what matches: [start, stop)."""
    whole = list(tokens)

    def letters(count: int) -> int:
        return len(renderer.decode(whole[:count]).rstrip("\ufffd"))

    for start, stop in rules.places(renderer.decode(whole)):
        first = bisect_right(range(len(whole) + 1), start, key=letters) - 1
        yield first, bisect_left(range(len(whole) + 1), stop, key=letters)


def _forget_from(segment: Segment, place: int) -> None:
    """What was sampled in a span that reaches beyond `place` is no sample any more."""
    segment.spans = [
        Span(span.start, span.stop, "message", span.ref) if span.kind == "sampled" and span.stop > place else span
        for span in segment.spans
    ]
    kept = [span for span in segment.spans if span.kind == "sampled"]
    end = max((span.stop for span in kept), default=0)
    size = len(segment.tokens)
    segment.logprobs[end:] = [float("nan")] * (size - end)
    segment.kept[end:] = [1.0] * (size - end)
    segment.versions = [Stretch(each.start, min(each.stop, end), each.version) for each in segment.versions if each.start < end]
    segment.overrides = [each for each in segment.overrides if each.start < end]


def _clean(value: Any, rules: Rules) -> Any:
    """JSON with its texts redacted."""
    if isinstance(value, dict):
        return {rules.text(key): _clean(each, rules) for key, each in value.items()}
    if isinstance(value, list):
        return [_clean(each, rules) for each in value]
    return rules.text(value) if isinstance(value, str) else value
