"""What goes over HTTP between a service and `Remote`: msgpack, so that bytes stay bytes, names with odd bytes among them."""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

from trivium.errors import InputError, PlaceError, TriviumError
from trivium.sandbox.base import Command, Limits, SandboxError

MEDIA = "application/msgpack"
STATUS: dict[type[TriviumError], int] = {InputError: 400, SandboxError: 409, PlaceError: 410}
"""How an error travels: its status says which it was, the body is its text."""


class Create(msgspec.Struct):
    source: str
    limits: Limits
    n: int


class Exec(msgspec.Struct):
    command: bytes | list[bytes]
    seconds: float
    env: dict[bytes, bytes]


class Read(msgspec.Struct):
    path: bytes
    most: int


class Write(msgspec.Struct):
    files: dict[bytes, bytes]


def exec_body(command: Command, seconds: float, env: Mapping[str, str] | None) -> Exec:
    """What to run, in bytes."""
    words = os.fsencode(command) if isinstance(command, str) else [os.fsencode(word) for word in command]
    return Exec(words, seconds, {os.fsencode(name): os.fsencode(value) for name, value in (env or {}).items()})


def command_of(body: Exec) -> Command:
    """What to run, in text again."""
    return os.fsdecode(body.command) if isinstance(body.command, bytes) else [os.fsdecode(word) for word in body.command]


def error_of(status: int, text: str) -> TriviumError:
    """The error that a service answered with; one of no known kind means that the sandbox is of no use any more."""
    kind = next((kind for kind, number in STATUS.items() if number == status), PlaceError)
    return kind(text)
