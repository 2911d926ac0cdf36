"""One request's life in the engine: what to go on from, how to draw, and what was drawn so far."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import numpy as np
from blake3 import blake3

from trivium.engine.cache import Lease
from trivium.trace import Sampling


@dataclass(slots=True, eq=False)
class Request:
    """`tokens` grow as they are drawn. `draws` float64 [max_tokens] is the request's whole random stream, known at birth, so
    that what it samples does not depend on who shares its batch (law 11)."""

    tokens: list[int]
    prompt: int
    sampling: Sampling
    draws: np.ndarray
    done: asyncio.Future
    lease: Lease | None = None
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    kept: list[float] = field(default_factory=list)

    @classmethod
    def make(cls, tokens, sampling: Sampling, stream: tuple[int | str, ...], done: asyncio.Future) -> Request:
        key = int.from_bytes(blake3(repr(stream).encode()).digest(length=16), "little")
        draws = np.random.Generator(np.random.Philox(key=key)).random(sampling.max_tokens)
        return cls(list(tokens), len(tokens), sampling, draws, done)

    @property
    def drawn(self) -> int:
        return len(self.tokens) - self.prompt

    @property
    def grow(self) -> int:
        """Tokens that it may still draw."""
        return self.sampling.max_tokens - self.drawn

    @property
    def lacks(self) -> int:
        """Tokens whose keys and values are not computed yet: one while it speaks."""
        return len(self.tokens) - self.lease.length

    def follows(self, other: Request, length: int) -> bool:
        """Whether more than the first `length` tokens of both are the same."""
        mine, its = self.tokens, other.tokens
        if len(mine) <= length or len(its) <= length or mine[length] != its[length]:
            return False
        return mine[: length + 1] == its[: length + 1]

    def hear(self, token: int, logprob: float, kept: float, version: int) -> None:
        self.tokens.append(token)
        self.logprobs.append(logprob)
        self.kept.append(kept)
        self.versions.append(version)

    def ended(self, stop_tokens: tuple[int, ...]) -> bool:
        return self.tokens[-1] in stop_tokens or self.drawn == self.sampling.max_tokens
