"""The nouns of a trace: Episode, Thread, Segment, Span, Call, Score.

A small episode, as five parallel arrays of its only segment (P prompt, A sampled, R a tool result of two chunks):

    tokens    P P P A A A R R R R A A
    logprobs  . . . x x x . . . . x x        NaN where nothing was sampled
    spans     (0,3,prompt) (3,6,sampled) (6,8,chunk,"#1") (8,10,chunk,"#2") (10,12,sampled)
    versions  (3,6,v7) (10,12,v8)            an update arrived between the turns
    carried   0

When those last sampled tokens asked to prune "#1", their result R still ends this segment; then a second one begins
with what is left of it, and the policy goes on:

    tokens    P P P A A A R R A A R | A A
    carried   11                        the bar: to its left context, to its right new; sampled tokens left of it
                                        belong to the first segment and are trained there, once
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from trivium.errors import InputError, LawError
from trivium.trace.ops import AnyOp, Branch
from trivium.trace.task import Task

Kind = Literal["prompt", "sampled", "message", "chunk", "summary"]
NAN = math.nan


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens were drawn. `temperature` 0 is greedy; `top_p` 1 and `top_k` 0 truncate nothing."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 256

    def __post_init__(self) -> None:
        """Raises InputError for what nobody could draw by."""
        warm = self.temperature == 0 or 1e-6 <= self.temperature < math.inf  # below, logits over it are infinite
        if not warm or not 0 < self.top_p <= 1 or self.top_k < 0 or self.max_tokens < 1:
            raise InputError(
                f"nobody can draw by {self}: temperature 0 or from 1e-6, top_p above 0 up to 1, top_k from 0, max_tokens from 1"
            )


@dataclass(frozen=True, slots=True)
class Span:
    """`tokens[start:stop]` of a segment are of one `kind`; `ref` names the chunk or call they came from."""

    start: int
    stop: int
    kind: Kind
    ref: str = ""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Sampled tokens `[start, stop)` spoken by one version of the policy."""

    start: int
    stop: int
    version: int


@dataclass(frozen=True, slots=True)
class Override:
    """Sampled tokens `[start, stop)` of a request with other parameters than its segment's `sampling`."""

    start: int
    stop: int
    sampling: Sampling


@dataclass(slots=True)
class Segment:
    """An append-only run of tokens under one context; only a recorded op begins the next one.

    `tokens` int, `logprobs` float at the sampling temperature (NaN where nothing was sampled, or a text-only policy
    spoke), `kept` the probability mass that truncation left (1.0 where none acted) beside each logprob. `sampling` says how
    tokens were drawn, except for those of `overrides`.
    """

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    kept: list[float] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    versions: list[Stretch] = field(default_factory=list)
    sampling: Sampling = field(default_factory=Sampling)
    carried: int = 0
    overrides: list[Override] = field(default_factory=list)

    def append(self, tokens: Sequence[int], kind: Kind, ref: str = "") -> Span:
        """Add tokens that nobody sampled."""
        return self._extend(tokens, [NAN] * len(tokens), [1.0] * len(tokens), kind, ref)

    def speak(
        self,
        tokens: Sequence[int],
        logprobs: Sequence[float],
        versions: Sequence[int],
        kept: Sequence[float] = (),
        sampling: Sampling | None = None,
    ) -> Span:
        """Add tokens a policy sampled, one logprob and one version each (empty `logprobs`: a text-only policy). `sampling` is
        their request's, where it may differ from the segment's."""
        start = len(self.tokens)
        if len(versions) != len(tokens):
            raise LawError(f"a segment got {len(tokens)} tokens of {len(versions)} versions")
        for offset, version in enumerate(versions):
            self._version(start + offset, version)
        if tokens and sampling not in (None, self.sampling):
            self.overrides.append(Override(start, start + len(tokens), sampling))
        return self._extend(tokens, list(logprobs) or [NAN] * len(tokens), list(kept) or [1.0] * len(tokens), "sampled", "")

    def _extend(self, tokens, logprobs, kept, kind: Kind, ref: str) -> Span:
        if not len(tokens) == len(logprobs) == len(kept):
            raise LawError(f"a segment got {len(tokens)} tokens with {len(logprobs)} logprobs and {len(kept)} kept masses")
        span = Span(len(self.tokens), len(self.tokens) + len(tokens), kind, ref)
        self.tokens.extend(tokens)
        self.logprobs.extend(logprobs)
        self.kept.extend(kept)
        if tokens:
            self.spans.append(span)
        return span

    def _version(self, position: int, version: int) -> None:
        last = self.versions[-1] if self.versions else None
        if last and last.version == version and last.stop == position:
            self.versions[-1] = Stretch(last.start, position + 1, version)
        else:
            self.versions.append(Stretch(position, position + 1, version))

    def sampled(self) -> list[Span]:
        """The spans sampled in this segment: those right of `carried`."""
        return [span for span in self.spans if span.kind == "sampled" and span.start >= self.carried]

    def sampling_at(self, position: int) -> Sampling:
        """How the sampled token at `position` was drawn."""
        return next((each.sampling for each in self.overrides if each.start <= position < each.stop), self.sampling)


@dataclass(frozen=True, slots=True)
class Piece:
    """One piece of a tool result. `ref` is the handle by which a policy may prune or cite it ("" if it cannot);
    `source` is the id of the document or chunk it shows."""

    text: str
    ref: str = ""
    source: str = ""

    @property
    def shown(self) -> str:
        """The text without the handle behind it, which is the harness'."""
        return self.text.strip().removesuffix(self.ref).rstrip()


Fault = Literal["", "arguments", "environment", "provider", "aborted", "timeout"]
"""Whose doing it was that a call failed.

    arguments      the policy's own: an unreadable call, an unknown tool, wrong types, a refusal, a ToolError
    environment    the tool's or the sandbox' own bug
    provider       a server behind the tool, such as a sub-agent's policy or an endpoint
    aborted        the call was cancelled with its turn
    timeout        the call's own deadline passed
    ""             the call did not fail; or it has an `error`, and nobody recorded whose (stores from before 2026-11-28)
"""


@dataclass(slots=True)
class Call:
    """One tool call of a thread: what was asked in which turn, what came back, and when (seconds since 1970).

    Where it failed, `error` says so in words (the policy was shown them) and `fault` by kind."""

    id: str
    turn: int
    name: str
    arguments: dict[str, Any]
    pieces: list[Piece] = field(default_factory=list)
    error: str = ""
    began: float = 0.0
    ended: float = 0.0
    fault: Fault = ""


@dataclass(frozen=True, slots=True)
class Stop:
    """Why a thread ended. `finished` is the only good end; all others say what stopped it."""

    reason: Literal["finished", "turns", "window", "length", "summary", "policy", "place", "timeout", "steps"]
    detail: str = ""


@dataclass(slots=True)
class Thread:
    """One policy's life in an episode. `answer` is its text-only reply, as far as it came where it was cut off, empty where it
    gave none."""

    id: str
    policy: str
    segments: list[Segment] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    answer: str = ""
    stop: Stop | None = None

    @property
    def passages(self) -> list[Piece]:
        """What it was shown under a handle, in order."""
        return [piece for call in self.calls for piece in call.pieces if piece.ref]

    @property
    def turns(self) -> int:
        """How often the policy spoke."""
        return sum(len(segment.sampled()) for segment in self.segments)


@dataclass(slots=True)
class Episode:
    """One Task attempted. `sample` numbers the attempts of a group; the first thread is the agent's.

    `began` and `ended` are seconds since 1970, 0.0 where unknown; two runs of one seed differ in times alone (law 11).
    `deployment` names the harness or the deployment that served it, by its digest or version; `session` the conversation that
    it is part of, and `account` whose data it is, a user's or an API key's. They are empty where unknown, or where nobody was
    served. `propensity` is the chance with which this deployment, of those that serve, was to serve it; 0.0 where unknown.
    `outcome` is what came of it beside its answer, for somebody who saw nothing of it: a diff, the passages that it cites.
    """

    id: str
    task: Task
    sample: int = 0
    seed: int = 0
    threads: list[Thread] = field(default_factory=list)
    ops: list[AnyOp] = field(default_factory=list)
    snapshots: list[str] = field(default_factory=list)
    began: float = 0.0
    ended: float = 0.0
    deployment: str = ""
    session: str = ""
    account: str = ""
    propensity: float = 0.0
    outcome: str = ""

    @property
    def agent(self) -> Thread:
        return self.threads[0]

    @property
    def parent(self) -> str:
        """The id of the episode that this one branched off; empty for one that began at its question."""
        return next((op.parent for op in self.ops if isinstance(op, Branch)), "")

    @property
    def inherited(self) -> int:
        """How many turns of its parent it went on from: a reward prices them as its own, for its calls are among them."""
        return next((op.turn for op in self.ops if isinstance(op, Branch)), 0)

    def thread(self, id: str) -> Thread:
        return next(thread for thread in self.threads if thread.id == id)


@dataclass(frozen=True, slots=True)
class Score:
    """An opinion: a named number about an episode (or one thread of it), by a scorer of a version. Appended, never changed.

    `time` is when it was given, in seconds since 1970; where it is 0.0 the store writes down when it came."""

    episode: str
    name: str
    value: float
    scorer: str
    version: str = "1"
    thread: str = ""
    time: float = 0.0
