"""What the page of an episode shows, read off the trace: each segment as a strip of the window, each new span as a block of
text, each sampled token with its logprob and version. What the policy saw is shown as it was, the template's tokens too."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from trivium.trace import Call, Cut, Episode, Prune, Restart, Segment, Span, Thread
from trivium.viewer import reading
from trivium.viewer.lanes import Lane, lanes
from trivium.viewer.panels import Labels
from trivium.viewer.reading import Decode

_UNREADABLE = "�"
_DARKEST = 5.0
"""Nats below certainty at which a token's colour is full."""


@dataclass(frozen=True, slots=True)
class Token:
    """A sampled token: its text, its logprob (NaN of a text-only policy), the version that spoke it."""

    text: str
    logprob: float
    version: int

    @property
    def surprise(self) -> float:
        """From 0, certain, to 1, five nats or more below; 0 where no logprob is known."""
        return 0.0 if math.isnan(self.logprob) else round(min(1.0, -self.logprob / _DARKEST), 3)


@dataclass(frozen=True, slots=True)
class Block:
    """A span that is new in its segment. `fate` says when it left the view: "" for one that stayed to the end."""

    anchor: str
    kind: str
    ref: str
    size: int
    text: str
    tokens: tuple[Token, ...]
    gold: bool
    fate: str


@dataclass(frozen=True, slots=True)
class Part:
    """A span of a strip: where it stands there, in percent of the window, and the block that holds its text."""

    left: float
    width: float
    kind: str
    title: str
    anchor: str
    gone: bool


@dataclass(frozen=True, slots=True)
class Strip:
    """A segment: how it began (`cut`, "" for a thread's first), how long it became, and what stood in it."""

    number: int
    cut: str
    size: int
    parts: tuple[Part, ...]
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Life:
    """A thread: its strips, its calls as they are recorded, its end. `window` is its size in tokens, 0 where unknown."""

    id: str
    policy: str
    window: int
    strips: tuple[Strip, ...]
    calls: tuple[tuple[str, str, str, float], ...]
    answer: str
    end: str
    versions: str


@dataclass(frozen=True, slots=True)
class Sheet:
    """All that the page of one episode shows. `scores` are (name, value, largest value or NaN), the reward first; `advantage`
    is what its group gave it, None where it has none."""

    id: str
    task: str
    question: str
    truth: str
    sample: int
    lives: tuple[Life, ...]
    lanes: tuple[Lane, ...]
    scores: tuple[tuple[str, float, float], ...]
    gold: tuple[str, ...]
    parent: str
    advantage: float | None


def sheet(
    episode: Episode,
    scores: Mapping[str, float],
    decode: Decode | None = None,
    labels: Labels = Labels(),
    advantage: float | None = None,
) -> Sheet:
    """What the page shows of an episode. Without `decode` (tokens -> text) spans are sizes alone, beside the calls' texts."""
    named = sorted(scores.items(), key=lambda score: score[0] != "reward")
    op = reading.branch(episode)
    return Sheet(
        id=episode.id,
        task=episode.task.id,
        question=episode.task.prompt,
        truth=labels.answer(episode.task),
        sample=episode.sample,
        lives=tuple(_Reader(episode, thread, decode, labels).life() for thread in episode.threads),
        lanes=tuple(lanes(episode)) if len(episode.threads) > 1 else (),
        scores=tuple((name, value, labels.maxima.get(name, math.nan)) for name, value in named),
        gold=tuple(labels.gold(episode.task)),
        parent=f"{op.parent}, at {op.snapshot}" if op else "",
        advantage=advantage,
    )


@dataclass(slots=True)
class _Reader:
    """Reads one thread of an episode."""

    episode: Episode
    thread: Thread
    decode: Decode | None
    labels: Labels

    def life(self) -> Life:
        thread = self.thread
        window = reading.budget(thread, self.decode) or 0
        scale = max([window, *(len(segment.tokens) for segment in thread.segments), 1])
        versions = sorted({run.version for segment in thread.segments for run in segment.versions})
        stop = thread.stop
        return Life(
            id=thread.id,
            policy=thread.policy,
            window=window,
            strips=tuple(self._strip(number, scale) for number in range(len(thread.segments))),
            calls=tuple(map(_call, thread.calls)),
            answer=thread.answer,
            end=", ".join(filter(None, (stop.reason, stop.detail))) if stop else "not ended",
            versions="–".join(dict.fromkeys(map(str, (*versions[:1], *versions[-1:])))),
        )

    def _strip(self, number: int, scale: int) -> Strip:
        segment, ending = self.thread.segments[number], self._cut(number + 1)
        begin = self._cut(number)
        dropped = set(ending.chunks) if isinstance(ending, Prune) else set()
        parts = tuple(self._part(number, span, scale, dropped) for span in segment.spans)
        blocks = tuple(self._block(number, span) for span in segment.spans if span.start >= segment.carried)
        return Strip(number, self._told(begin, number) if begin else "", len(segment.tokens), parts, blocks)

    def _cut(self, number: int) -> Cut | None:
        """The op that began a segment."""
        cuts = (op for op in self.episode.ops if isinstance(op, Cut) and op.after.thread == self.thread.id)
        return next((op for op in cuts if op.after.segment == number), None)

    def _told(self, cut: Cut, number: int) -> str:
        before, after = len(self.thread.segments[number - 1].tokens), cut.after.position
        if isinstance(cut, Prune):
            return f"pruned {' '.join(cut.chunks)}: {before:,} tokens became {after:,}"
        if isinstance(cut, Restart):
            return f"began again ({cut.reason}): {before:,} tokens became {after:,}"
        return f"summarized: {before:,} tokens became {after:,}"

    def _part(self, number: int, span: Span, scale: int, dropped: set[str]) -> Part:
        size = span.stop - span.start
        title = f"{span.kind} {span.ref}, {size:,} tokens".replace(" ,", ",")
        left, width = (round(100 * tokens / scale, 3) for tokens in (span.start, size))
        return Part(left, width, span.kind, title, self._anchor(number, span), span.kind == "chunk" and span.ref in dropped)

    def _anchor(self, number: int, span: Span) -> str:
        """The block where the span's text stands: where a chunk that was carried over first came in."""
        if span.start < self.thread.segments[number].carried and span.ref:
            for earlier, segment in enumerate(self.thread.segments[:number]):
                if any((each.kind, each.ref) == (span.kind, span.ref) for each in segment.spans):
                    first = next(each for each in segment.spans if (each.kind, each.ref) == (span.kind, span.ref))
                    return f"{self.thread.id}-{earlier}-{first.start}"
        return f"{self.thread.id}-{number}-{span.start}"

    def _block(self, number: int, span: Span) -> Block:
        segment = self.thread.segments[number]
        tokens = segment.tokens[span.start : span.stop]
        sampled = span.kind == "sampled"
        source = next((piece.source for piece in self.thread.passages if piece.ref == span.ref), "") if span.ref else ""
        gold = bool(source) and self.labels.document(source, self.episode.task) in self.labels.gold(self.episode.task)
        return Block(
            anchor=self._anchor(number, span),
            kind=span.kind,
            ref=span.ref,
            size=len(tokens),
            text=self.decode(tokens) if self.decode and not sampled else "",
            tokens=tuple(_tokens(segment, span, self.decode)) if self.decode and sampled else (),
            gold=gold,
            fate=self._fate(number, span),
        )

    def _fate(self, number: int, span: Span) -> str:
        """When a chunk was pruned, or a summary or a restart took its place."""
        for later in range(number + 1, len(self.thread.segments)):
            cut = self._cut(later)
            if isinstance(cut, Prune) and span.ref in cut.chunks and span.kind == "chunk":
                return f"pruned before segment {later + 1}"
            if cut is not None and not isinstance(cut, Prune):
                return f"left the view at segment {later + 1}" if span.kind != "prompt" else ""
        return ""


def _tokens(segment: Segment, span: Span, decode: Decode) -> Iterator[Token]:
    """The sampled tokens of a span. Tokens that are parts of one letter stand together, under the last one's numbers."""
    versions = {at: run.version for run in segment.versions for at in range(run.start, run.stop)}
    waiting: list[int] = []
    for at in range(span.start, span.stop):
        waiting.append(segment.tokens[at])
        text = decode(waiting)
        if not text.endswith(_UNREADABLE) or len(waiting) == 4 or at == span.stop - 1:  # UTF-8 has four bytes at most
            yield Token(text, segment.logprobs[at], versions.get(at, -1))
            waiting = []


def _call(call: Call) -> tuple[str, str, str, float]:
    """Its name, its arguments, what came of it, and how many seconds it took."""
    result = call.error or "\n".join(piece.text for piece in call.pieces)
    return (
        call.name or "(unreadable)",
        json.dumps(call.arguments, ensure_ascii=False),
        result,
        max(0.0, call.ended - call.began),
    )
