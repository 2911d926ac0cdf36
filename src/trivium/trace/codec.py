"""An episode to bytes and back: MessagePack with a schema version in front, compressed with zstd."""

from __future__ import annotations

from typing import Any

import msgspec
import zstandard

from trivium.errors import CorruptError, InputError
from trivium.trace.episode import Episode

SCHEMA = 1
"""Raised by one whenever a field changes meaning; bytes of another schema are refused by number, not misread."""

DEPTH = 200
"""How many lists and dicts may stand in one another. Bytes are read by recursion, and somebody may read them far down Python's
stack."""

_MAGIC = b"trvm"
_decoder = msgspec.msgpack.Decoder(Episode)
_ROTTEN = (zstandard.ZstdError, msgspec.MsgspecError, UnicodeDecodeError, MemoryError, RecursionError, InputError)
"""What bytes that are no episode may come to on their way to one."""


def encode(episode: Episode) -> bytes:
    """Bytes of one episode, dicts in their own order. InputError for what no bytes are written of: a task holds plain
    text, numbers of 64 bits, lists and dicts to DEPTH, a policy's tokens and logprobs are Python's numbers."""
    calls = [call for thread in episode.threads for call in thread.calls]
    try:
        for free in (episode.task.truth, episode.task.messages, *(call.arguments for call in calls)):
            check_depth(free)
        body = msgspec.msgpack.encode(episode)
    except (TypeError, UnicodeEncodeError, OverflowError, RecursionError) as error:
        why = "its task's prompt and truth, and what its policy replied, are to be JSON-like"
        raise InputError(f"episode {episode.id} cannot be stored ({error}): {why}") from error
    # with a checksum: else a flipped bit may be read as another episode; one a call, for threads cannot share one
    return _MAGIC + bytes([SCHEMA]) + zstandard.ZstdCompressor(level=3, write_checksum=True).compress(body)


def check_depth(value: Any) -> None:
    """RecursionError, which msgspec raises much deeper, for what is nested deeper than DEPTH."""
    rest = [(value, 1)]
    while rest:
        value, depth = rest.pop()
        if isinstance(value, dict | list | tuple):
            if depth > DEPTH:
                raise RecursionError(f"more than {DEPTH} lists and dicts in one another")
            rest += [(each, depth + 1) for each in (value.values() if isinstance(value, dict) else value)]


def decode(data: bytes) -> Episode:
    """The episode in `data`; CorruptError names what is wrong with it."""
    if data[:4] != _MAGIC or len(data) < 5:
        raise CorruptError("these bytes are no Trivium episode (the magic number is missing)")
    if data[4] != SCHEMA:
        raise CorruptError(f"this episode has schema {data[4]}, this Trivium reads schema {SCHEMA}")
    try:
        return _decoder.decode(zstandard.decompress(data[5:]))
    except _ROTTEN as error:
        raise CorruptError(f"a stored episode is torn: {error}") from error
