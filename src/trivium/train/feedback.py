"""Textual feedback: at a turn that went wrong, the policy learns from itself as it speaks with a hint in its context.

The hint is put at the end of what the policy saw before that turn. The same weights with the hint are the teacher, without
gradient, and the policy as it was is the student (SDPO, arXiv:2601.20802; Composer 2.5 uses it beside RL):

    student   [prompt ................][reply]
    teacher   [prompt ........... hint][reply]
    loss      weight * sum_t KL( student(. | prompt, reply_<t) || teacher(. | prompt, hint, reply_<t) ),  t in the reply alone

divided by the batch's sampled tokens, as a token mean divides RL's own loss beside it. A recipe adds it to any algorithm:

    def loss(self):
        return replace(super().loss(), feedback=Feedback(hint, self.renderer))
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trivium.errors import InputError, Unsupported
from trivium.nn import Network, Packed
from trivium.policy import Renderer
from trivium.trace import Call, Episode, Segment, Task, Thread
from trivium.train import ranks
from trivium.train.batch import Batch, pack


@dataclass(frozen=True, slots=True)
class Turn:
    """One reply of a thread that a hint may be given for: its calls as they ended, none for a reply without. `last`: nothing
    was said after it."""

    task: Task
    thread: Thread
    calls: Sequence[Call]
    last: bool


Hint = Callable[[Turn], str]
"""What a better reply would have heeded, in a sentence; "" for a turn that went well."""


@dataclass(frozen=True, slots=True)
class Feedback:
    """The term: whom hints come from, who writes them as tokens, and how much a hinted token weighs beside one of RL's."""

    hint: Hint
    renderer: Renderer
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not self.weight > 0:
            raise InputError(f"a feedback's weight is above 0, not {self.weight}: leave the term out instead")

    def of(self, episode: Episode, policies: Collection[str]) -> list[Hinted]:
        """The hinted turns of an episode, of the threads that `policies` spoke (law 5)."""
        own = {thread.id: thread.calls for thread in episode.threads if thread.policy in policies}
        if episode.agent.id in own:  # a branch has its parent's before them
            own[episode.agent.id] = [call for call in episode.agent.calls if call.turn >= episode.inherited]
        threads = (thread for thread in episode.threads if thread.id in own)
        return [each for thread in threads for each in self._of(episode.task, thread, own[thread.id])]

    def _of(self, task: Task, thread: Thread, calls: Sequence[Call]) -> Iterator[Hinted]:
        """Calls go to replies from the first on: a thread may end at a reply whose calls nobody heard."""
        replies = list(_replies(thread))
        for reply in replies:
            asked = len(self.renderer.parse(_said(reply)).calls)
            heard, calls = calls[:asked], calls[asked:]
            if len(heard) == asked and (hint := self.hint(Turn(task, thread, heard, reply is replies[-1]))):
                yield from (self._hinted(piece, hint) for piece in reply)

    def _hinted(self, piece: Piece, hint: str) -> Hinted:
        close = _closing(self.renderer)
        prompt, said = piece.segment.tokens[: piece.begun], piece.segment.tokens[piece.begun : piece.stop]
        if prompt[-len(close) :] != close:
            raise Unsupported("feedback: this template does not begin every reply alike, so a hint has no place before it")
        words = self.renderer.encode(f"\n{self.renderer.plain(hint)}")
        return Hinted(
            student=[*prompt, *said],
            teacher=[*prompt[: -len(close)], *words, *close, *said],
            learned=piece.stop - piece.start,
            temperature=piece.segment.sampling_at(piece.start).temperature or 1.0,  # of a teacher's, as imitation has it
        )


@dataclass(frozen=True, slots=True)
class Piece:
    """The part of a reply that stands in one segment: sampled there are [start, stop), and the whole reply began at `begun`."""

    segment: Segment
    begun: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Hinted:
    """A turn as both see it; the last `learned` tokens are the same and are what is learned."""

    student: list[int]
    teacher: list[int]
    learned: int
    temperature: float


def lesson(episode: Episode, hinted: Hinted) -> Episode:
    """One turn of an episode as it is spoken with a hint before it, to be imitated: who has never seen a hint is no better a
    teacher with one."""
    begun, segment = len(hinted.teacher) - hinted.learned, Segment()
    segment.append(hinted.teacher[:begun], "prompt")
    segment.speak(hinted.teacher[begun:], (), [0] * hinted.learned)
    id = f"{episode.id}/hinted"
    return Episode(id, episode.task, threads=[Thread(f"{id}/0", episode.agent.policy, [segment])])


@dataclass(frozen=True, slots=True)
class Share:
    """One rank's hinted turns of one optimizer update. `weight` of each learned token; `learned` counts those of all ranks."""

    turns: Sequence[Hinted]
    weight: float
    learned: int


def deal(feedback: Feedback, turns: Sequence[list[Hinted]], tokens: int, substeps: int) -> list[Share]:
    """`turns`, of each hinted episode, dealt to `substeps` updates by whole episodes; `tokens` were sampled for this rank's
    batch. All ranks call it together."""
    reports, mine = ranks.gather((len(turns), tokens))
    offset, sampled = sum(number for number, _ in reports[:mine]), sum(tokens for _, tokens in reports)
    parts: list[list[Hinted]] = [[] for _ in range(substeps)]
    for number, each in enumerate(turns, offset):
        parts[number % substeps] += each
    counts = ranks.total(torch.tensor([sum(turn.learned for turn in part) for part in parts]))
    weight = feedback.weight * substeps / max(1, sampled)
    return [Share(part, weight, int(count)) for part, count in zip(parts, counts, strict=True)]


def sampled(batch: Batch, policies: Collection[str]) -> int:
    """Tokens that `policies` sampled in the episodes of a batch."""
    threads = (thread for group in batch.groups for episode in group.episodes for thread in episode.threads)
    segments = (segment for thread in threads if thread.policy in policies for segment in thread.segments)
    return sum(span.stop - span.start for segment in segments for span in segment.sampled())


def divergences(network: Network, turns: Sequence[Hinted], budget: int) -> Iterator[Tensor]:
    """KL of each learned token, with gradient to the student alone: run by run of at most `budget` tokens, [M] each."""
    for places in pack([len(turn.student) for turn in turns], budget):
        part = [turns[place] for place in places]
        heat = [torch.full((turn.learned,), turn.temperature, dtype=network.head.weight.dtype) for turn in part]
        with torch.no_grad():
            teacher = _hidden(network, [turn.teacher for turn in part], part)
        student = _hidden(network, [turn.student for turn in part], part)
        yield network.divergence(student, teacher, torch.cat(heat).to(student.device))


def _hidden(network: Network, rows: Sequence[list[int]], turns: Sequence[Hinted]) -> Tensor:
    """The states left of each learned token, [M, d]."""
    view, device = Packed([len(row) for row in rows]), network.head.weight.device
    at = torch.cat([view.places(n)[-1 - turn.learned : -1] for n, turn in enumerate(turns)])
    tokens = torch.tensor([token for row in rows for token in row])
    return network.hidden(tokens.to(device), view.positions.to(device), view, at.to(device))


def _replies(thread: Thread) -> Iterator[list[Piece]]:
    """Every reply of a thread, in the segments that hold its parts: a cut inside a reply makes two of one (law 3)."""
    reply: list[Piece] = []
    for segment in thread.segments:
        for span in segment.sampled():
            piece = Piece(segment, span.start, span.start, span.stop)
            before = reply[-1] if reply else None
            if before and _goes_on(before, piece):
                reply.append(Piece(segment, before.begun, span.start, span.stop))
                continue
            if reply:
                yield reply
            reply = [piece]
    if reply:
        yield reply


def _goes_on(before: Piece, piece: Piece) -> bool:
    """Whether a piece begins where the one before ended, under the same context."""
    whole = before.segment.tokens
    return before.stop == len(whole) == piece.start == piece.segment.carried and piece.segment.tokens[: piece.start] == whole


def _said(reply: Sequence[Piece]) -> list[int]:
    return reply[-1].segment.tokens[reply[0].begun : reply[-1].stop]


def _closing(renderer: Renderer) -> list[int]:
    """What a template puts behind the last message before a reply: the end that the openings of two questions share."""
    one, two = (renderer.opening([{"role": "user", "content": word}])[::-1] for word in ("one", "2"))
    length = next(n for n, (left, right) in enumerate(zip(one, two, strict=False)) if left != right)
    return one[:length][::-1]
