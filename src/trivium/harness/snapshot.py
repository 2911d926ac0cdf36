"""A context as it stood before a turn, to branch from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice

from trivium.harness.context import Context
from trivium.policy.message import Message
from trivium.trace import Sampling, Segment, Thread


@dataclass(slots=True)
class Snapshot:
    """Where a context stood before turn `turn` of `episode`. Taking one copies nothing: a segment, its messages, handles and
    calls only ever grow at their ends, so their lengths are enough to find again what was there. `place` is the id of the
    episode's place as it stood, where it has one."""

    id: str
    episode: str
    turn: int
    context: Context
    segment: Segment
    messages: list[Message]
    tokens: int
    length: int
    handles: int
    calls: int
    place: str = ""
    summaries: int = 0

    @classmethod
    def take(cls, episode: str, turn: int, context: Context) -> Snapshot:
        segment, messages = context.segment, context.messages
        lengths = (len(segment.tokens), len(messages), len(context.refs), len(context.thread.calls))
        return cls(f"{episode}@{turn}", episode, turn, context, segment, messages, *lengths, summaries=context.summaries)

    def branch(self, sampling: Sampling) -> Context:
        """A context that goes on from here: what stood is context that the first episode owns. It shares nothing that grows
        or changes with the one that it branches off, and keeps copies of its calls."""
        whole = self.context
        calls = [replace(call, pieces=list(call.pieces)) for call in whole.thread.calls[: self.calls]]
        thread = Thread(whole.thread.id, whole.thread.policy, [self._segment(sampling)], calls)
        opening, messages = list(whole.opening), self.messages[: self.length]
        refs = dict(islice(whole.refs.items(), self.handles))
        own = (opening, messages, refs)
        return Context(thread, whole.renderer, whole.window, whole.specs, *own, summaries=self.summaries)

    def _segment(self, sampling: Sampling) -> Segment:
        whole, end = self.segment, self.tokens
        spans = [span for span in whole.spans if span.stop <= end]
        versions = [replace(each, stop=min(each.stop, end)) for each in whole.versions if each.start < end]
        overrides = [each for each in whole.overrides if each.stop <= end]
        parts = (whole.tokens[:end], whole.logprobs[:end], whole.kept[:end])
        return Segment(*parts, spans, versions, sampling, carried=end, overrides=overrides)
