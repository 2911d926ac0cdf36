"""An attempt under way as bytes, so that it goes on after a kill: tokens, view and place as they stood before a turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from trivium import files
from trivium.errors import CorruptError
from trivium.harness.base import Window
from trivium.harness.context import Context
from trivium.harness.snapshot import Snapshot
from trivium.policy import Renderer
from trivium.policy.message import Message
from trivium.trace import Episode, Piece, decode, encode


class Saved(msgspec.Struct, frozen=True):
    """What a snapshot holds, and the episode as it stood. Write it where a `SnapshotEvent` is told, while nothing grows."""

    record: bytes
    turn: int
    place: str
    opening: list[Message]
    messages: list[dict[str, Any]]
    handles: dict[str, str]
    summaries: int

    @classmethod
    def of(cls, snapshot: Snapshot, episode: Episode) -> Saved:
        """Raises InputError where the episode holds what no bytes are written of."""
        context = snapshot.context
        books = (context.opening, context.messages, context.refs, context.summaries)
        return cls(encode(episode), snapshot.turn, snapshot.place, *books)

    @classmethod
    def read(cls, data: bytes) -> Saved:
        """CorruptError for bytes that are none of it."""
        try:
            return msgspec.msgpack.decode(data, type=cls)
        except files.TORN as error:
            raise CorruptError(f"what was saved of an attempt is torn: {error}") from error

    def encoded(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @property
    def episode(self) -> Episode:
        """The episode as it stood, a new one each time."""
        return decode(self.record)

    def context(self, episode: Episode, renderer: Renderer, window: Window, specs: Sequence[Message]) -> Context:
        """The context of the agent of `episode`, as it stood."""
        messages = [_with_pieces(message) for message in self.messages]
        books = (list(self.opening), messages, dict(self.handles))
        return Context(episode.agent, renderer, window, specs, *books, summaries=self.summaries)


def _with_pieces(message: dict[str, Any]) -> Message:
    if "pieces" not in message:
        return message
    return {**message, "pieces": msgspec.convert(message["pieces"], list[Piece])}
