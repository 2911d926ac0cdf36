"""How much effort an episode took, as Composer 2's report counts it: four kinds of tokens, calls and turns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from trivium.errors import InputError
from trivium.policy import Renderer
from trivium.trace import Episode, Segment, Thread


@dataclass(frozen=True, slots=True)
class Effort:
    """Counts of one episode, of its agent and of whoever it assigned something to.

    thinking   tokens of thoughts, and of replies that neither call nor end a thread (a summary with its scratch)
    calling    tokens of replies that call tools, without their thoughts
    output     tokens of what came back
    final      tokens of answers
    """

    thinking: float = 0.0
    calling: float = 0.0
    output: float = 0.0
    final: float = 0.0
    calls: float = 0.0
    turns: float = 0.0

    def weighted(self, weights: Mapping[str, float]) -> float:
        """The sum of the counts, each times its weight; a count without one weighs nothing. InputError for a strange name."""
        counts = asdict(self)
        if strange := sorted(weights.keys() - counts.keys()):
            raise InputError(f"there is no effort called {strange[0]!r}; there are {', '.join(counts)}")
        return sum(weight * counts[name] for name, weight in weights.items())


def effort(episode: Episode, renderer: Renderer) -> Effort:
    """What an episode took, its `renderer` telling thoughts, calls and answers apart. The turns of a branch are its parent's
    and then its own, as its calls are."""
    total = dict.fromkeys(asdict(Effort()), 0.0)
    for thread in episode.threads:
        total["calls"] += len(thread.calls)
        total["turns"] += thread.turns
        for segment in thread.segments:
            total["output"] += _shown(segment)
        for kind, tokens in _said(thread, renderer):
            total[kind] += tokens
    return Effort(**{**total, "turns": total["turns"] + episode.inherited})


def _shown(segment: Segment) -> int:
    """Tokens that came back in this segment, with what the template puts around them."""
    spans = [span for span in segment.spans if span.kind in ("message", "chunk") and span.start >= segment.carried]
    return sum(span.stop - span.start for span in spans)


def _said(thread: Thread, renderer: Renderer) -> list[tuple[str, int]]:
    """Each reply's tokens by their kind."""
    replies = [segment.tokens[span.start : span.stop] for segment in thread.segments for span in segment.sampled()]
    parts: list[tuple[str, int]] = []
    for number, tokens in enumerate(replies):
        speech = renderer.parse(tokens)
        thoughts = len(renderer.encode(speech.message.get("reasoning_content", "")))
        last = number == len(replies) - 1
        kind = "calling" if speech.calls else "final" if last else "thinking"
        parts += [("thinking", thoughts), (kind, len(tokens) - thoughts)]
    return parts
