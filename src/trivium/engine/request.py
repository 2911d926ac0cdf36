"""One request in the engine: the tokens to go on from, how to draw the next ones, and what was drawn so far."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from blake3 import blake3

from trivium.engine.cache import Lease
from trivium.trace import Sampling


@dataclass(slots=True, eq=False)
class Request:
    """`tokens` are the `prompt` first tokens of its view and what was drawn since.

    `draws` float64 [max_tokens] is the request's whole random stream, known from the beginning, so that what it samples does
    not depend on who shares its batch (law 11). `reply` is awaited by whoever asked. `grant` is its lease while it runs.
    `news` is set at each token, for who listens while it speaks.
    """

    tokens: list[int]
    prompt: int
    sampling: Sampling
    draws: np.ndarray
    reply: asyncio.Future
    news: asyncio.Event = field(default_factory=asyncio.Event)
    grant: Lease | None = None
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    kept: list[float] = field(default_factory=list)

    @classmethod
    def make(cls, tokens: Sequence[int], sampling: Sampling, stream: tuple[int | str, ...], reply: asyncio.Future) -> Request:
        key = int.from_bytes(blake3(repr(stream).encode()).digest(length=16), "little")
        draws = np.random.Generator(np.random.Philox(key=key)).random(sampling.max_tokens)
        return cls(list(tokens), len(tokens), sampling, draws, reply)

    @property
    def lease(self) -> Lease:
        """The lease of a request that runs."""
        assert self.grant is not None, "a request that waits has no lease"
        return self.grant

    @property
    def length(self) -> int:
        """Tokens of its reply so far."""
        return len(self.tokens) - self.prompt

    @property
    def rest(self) -> int:
        """Tokens that it may still draw."""
        return self.sampling.max_tokens - self.length

    @property
    def lacks(self) -> int:
        """Tokens whose keys and values are not computed yet: one while it speaks."""
        return len(self.tokens) - self.lease.length

    def follows(self, other: Request, length: int) -> bool:
        """Whether more than the first `length` tokens of both are the same."""
        a, b = self.tokens, other.tokens
        if len(a) <= length or len(b) <= length or a[length] != b[length]:
            return False
        return a[: length + 1] == b[: length + 1]

    def append(self, token: int, logprob: float, kept: float, version: int) -> None:
        self.tokens.append(token)
        self.logprobs.append(logprob)
        self.kept.append(kept)
        self.versions.append(version)
        self.news.set()

    def ended(self, stop_tokens: tuple[int, ...]) -> bool:
        return self.tokens[-1] in stop_tokens or self.length == self.sampling.max_tokens
