"""One thread's live context: its growing segment, its messages, its handles, and the cuts that begin a new segment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from trivium.errors import PolicyError
from trivium.harness.base import Window
from trivium.harness.compaction import Summary
from trivium.policy import Renderer, Reply, Speech
from trivium.policy.message import Message
from trivium.policy.render import Placed
from trivium.trace import Point, Prune, Restart, Sampling, Segment, Summarize, Thread
from trivium.trace.episode import Kind

Ending = Callable[[str], int | None]
"""The letters after which an answer is over, None where it comes to its own end."""


@dataclass(slots=True)
class Context:
    """What one policy sees now. `messages` are the same view as text; a tool message holds its `pieces` until asked for.
    `specs` are the tools that the template shows."""

    thread: Thread
    renderer: Renderer
    window: Window
    specs: Sequence[Message] = ()
    opening: list[Message] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    refs: dict[str, str] = field(default_factory=dict)  # source -> handle, of all that was shown in the whole thread
    new: set[str] = field(default_factory=set)  # seen first in this turn
    summaries: int = 0

    @property
    def segment(self) -> Segment:
        return self.thread.segments[-1]

    @property
    def used(self) -> int:
        return len(self.segment.tokens)

    def here(self) -> Point:
        return Point(self.thread.id, len(self.thread.segments) - 1, self.used)

    def text(self) -> list[Message]:
        """The view as chat messages."""
        return [_flat(message) for message in self.messages]

    def open(self, messages: Sequence[Message], sampling: Sampling) -> None:
        """Begin the thread's first context. InputError when the prompt alone does not fit the window."""
        tokens = self.renderer.opening(messages, self.specs)
        self.window.check(len(tokens))
        self.thread.segments.append(Segment(sampling=sampling))
        self.segment.append(tokens, "prompt")
        self.opening, self.messages = list(messages), list(messages)

    def hear(self, reply: Reply, version: int, ending: Ending | None = None) -> tuple[Speech, bool]:
        """Append what the policy said, an answer up to its `ending`. Returns it read, and whether it came to an end.
        PolicyError for a message that cannot be written in its dialect, and for tokens without versions or some logprobs."""
        if reply.message is not None:
            return self._hear_message(reply.message, reply.complete, version, ending)
        if len(reply.versions) != len(reply.tokens):  # else they would be of no age, and fresh for ever
            raise PolicyError(f"the policy gave {len(reply.versions)} versions for {len(reply.tokens)} tokens: each has one")
        if wrong := [len(each) for each in (reply.logprobs, reply.kept) if len(each) not in (0, len(reply.tokens))]:
            raise PolicyError(f"the policy gave {wrong[0]} logprobs for {len(reply.tokens)} tokens: each has one, or none has")
        tokens, parse = list(reply.tokens), self.renderer.parse
        speech = parse(tokens)
        over = reply.complete and bool(tokens) and tokens[-1] in self.renderer.stop_tokens
        letters = _beyond(speech, ending)
        if letters is not None:
            wanted = speech.text[:letters].rstrip()  # which parsing strips, too
            length = next(n for n in range(len(tokens) + 1) if parse(tokens[:n]).text.startswith(wanted))
            tokens, speech, over = tokens[:length], parse(tokens[:length]), True
        length = len(tokens)
        self.segment.speak(tokens, reply.logprobs[:length], reply.versions[:length], reply.kept[:length])
        return speech, over

    def _hear_message(self, message: Message, complete: bool, version: int, ending: Ending | None) -> tuple[Speech, bool]:
        """Of a text policy its message is what it said, and the tokens are how this dialect writes it."""
        try:
            tokens, speech = self.renderer.reply(message), self.renderer.read(message)
            letters = _beyond(speech, ending)
            if letters is not None:
                content = speech.message["content"].rstrip()
                message = {**message, "content": content[: len(content) - len(speech.text) + letters].rstrip()}
                tokens, speech, complete = self.renderer.reply(message), self.renderer.read(message), True
                tokens = [token for token in tokens if token not in self.renderer.stop_tokens]  # it did not say its end there
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise PolicyError(f"the policy said what is no message: {type(error).__name__}: {error}") from error
        self.segment.speak(tokens, (), [version] * len(tokens), ())
        return speech, complete

    def remember(self, speech: Speech, ids: Sequence[str]) -> None:
        """Add what was said to the messages, its calls under their ids."""
        message = speech.message
        if speech.calls:
            calls = [
                {"id": id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for id, call in zip(ids, speech.calls, strict=True)
            ]
            message = {**message, "tool_calls": calls}
        self.messages.append(message)

    def extend(self, results: Sequence[Message]) -> Restart | None:
        """Append the results of a turn. A template that cannot go on renders all again: a recorded Restart."""
        placed = self.continuation(results)
        self.messages.extend(results)
        if placed is None:
            return self._restart("template")
        for tokens, piece in placed:
            kind = "chunk" if piece is not None and piece.ref else "message"
            self.segment.append(tokens, kind, piece.ref if piece is not None else "")
        return None

    def continuation(self, results: Sequence[Message]) -> list[Placed] | None:
        """What stands behind the last reply once `results` have come; None where all must be rendered again."""
        last = self.segment.spans[-1]
        return self.renderer.continuation(self.segment.tokens[: last.start], self.segment.tokens[last.start :], results)

    def length(self, results: Sequence[Message]) -> int:
        """Tokens of the view once `results` have come, rendered again where the template begins anew."""
        placed = self.continuation(results)
        if placed is None:
            return len(self.renderer.opening([*self.text(), *map(_flat, results)], self.specs))
        return self.used + sum(len(tokens) for tokens, _ in placed)

    def in_view(self) -> dict[str, str]:
        """The handles now in view -> their sources."""
        sources = {ref: source for source, ref in self.refs.items()}
        return {span.ref: sources[span.ref] for span in self.segment.spans if span.kind == "chunk"}

    def handle(self, source: str) -> str:
        """The short handle of `source`: #1, #2, ... in order of first appearance in the thread."""
        if source not in self.refs:
            self.new.add(source)
        return self.refs.setdefault(source, f"#{len(self.refs) + 1}")

    def forget(self, source: str) -> None:
        """Take back the handle that was given last, to a new passage that found no room; another was shown and stays."""
        if source in self.new and self.refs[source] == f"#{len(self.refs)}":
            del self.refs[source]

    def size(self, refs: set[str]) -> int:
        """How many tokens these chunks take in the view."""
        return sum(span.stop - span.start for span in self.segment.spans if span.kind == "chunk" and span.ref in refs)

    def prune(self, dropped: set[str], author: str, version: int) -> Prune:
        """Cut: whole chunk spans leave, all else stays as it was, token for token; what stands before the first cut is
        the old prefix, so an engine's cache still serves it."""
        before, old = self.here(), self.segment
        new = Segment(sampling=old.sampling)
        for span in old.spans:
            if span.kind != "chunk" or span.ref not in dropped:
                new.append(old.tokens[span.start : span.stop], span.kind, span.ref)
        new.carried = len(new.tokens)
        self.thread.segments.append(new)
        self.messages = [_without(message, dropped) for message in self.messages]
        return Prune(author=author, version=version, before=before, after=self.here(), chunks=tuple(sorted(dropped)))

    def summarize(self, way: Summary, summary: str, author: str, version: int) -> Summarize:
        """Cut: the thread goes on from its opening and its own `summary`; handles stay, all chunks leave the view."""
        before = self.here()
        self.summaries += 1
        text = self.renderer.plain(way.text(summary, self.thread, self.summaries))
        self._begin([*self.opening, {"role": "user", "content": text}], "summary")
        return Summarize(author=author, version=version, before=before, after=self.here())

    def cut_oldest(self, keep: float) -> Restart:
        """Cut: the thread goes on from its opening and as many of its last turns as the share `keep` of the window takes."""
        messages = self.text()
        starts = [n for n in range(len(self.opening), len(messages)) if messages[n]["role"] == "assistant"]
        for start in starts:
            view = [*self.opening, *messages[start:]]
            if start == starts[-1] or len(self.renderer.opening(view, self.specs)) <= keep * self.window.budget:
                self.messages = view
                break
        return self._restart("the oldest turns were cut")

    def _restart(self, reason: str) -> Restart:
        before = self.here()
        self._begin(self.text(), "prompt")
        return Restart(author="harness", before=before, after=self.here(), reason=reason)

    def _begin(self, messages: Sequence[Message], kind: Kind) -> None:
        segment = Segment(sampling=self.segment.sampling)
        segment.append(self.renderer.opening(messages, self.specs), kind)
        segment.carried = len(segment.tokens)
        self.thread.segments.append(segment)
        self.messages = list(messages)


def _beyond(speech: Speech, ending: Ending | None) -> int | None:
    """The letters of an answer after which it is over, where it went on beyond them."""
    letters = ending(speech.text) if ending and not speech.calls else None
    return letters if letters is not None and letters < len(speech.text) else None


def _flat(message: Message) -> Message:
    if "pieces" not in message:
        return message
    rest = {key: value for key, value in message.items() if key != "pieces"}
    return {**rest, "content": "".join(piece.text for piece in message["pieces"])}


def _without(message: Message, dropped: set[str]) -> Message:
    if "pieces" not in message:
        return message
    return {**message, "pieces": [piece for piece in message["pieces"] if piece.ref not in dropped]}
