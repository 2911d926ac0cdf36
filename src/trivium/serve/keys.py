"""API keys: who may ask, how often, and whether what is said may be learned from. A file keeps their digests alone."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from pathlib import Path

import msgspec
from blake3 import blake3

from trivium import files
from trivium.errors import InputError

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True, slots=True)
class Key:
    """`digest` is the key's, in hex. `consent`: what is said under it becomes episodes, from which may be learned.
    `per_minute` requests and `concurrent` ones at most, 0 for no limit of its own."""

    name: str
    digest: str
    consent: bool = False
    per_minute: int = 0
    concurrent: int = 0

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InputError(f"a key's name is up to 64 letters, digits, dots, dashes and underscores, not {self.name!r:.80}")
        if min(self.per_minute, self.concurrent) < 0:
            raise InputError(f"limits of key {self.name} are at least 0")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: a key and, where the request names one, a user of its. All that is kept is the account's alone."""

    key: Key
    user: str = ""

    @property
    def account(self) -> str:
        return f"{self.key.name}/{self.user}" if self.user else self.key.name


LOCAL = Key("local", "", consent=True)
"""Who asks a server without keys: whoever sits at this machine."""


class Keyring:
    """The keys of a server; without any, everybody who reaches it is LOCAL."""

    def __init__(self, keys: list[Key]) -> None:
        if twice := {key.name for key in keys if [other.name for other in keys].count(key.name) > 1}:
            raise InputError(f"two keys are called {min(twice)}: give each a name of its own")
        self._keys = {key.digest: key for key in keys}

    @classmethod
    def load(cls, path: str) -> Keyring:
        """The keys in a file, none for an empty path. InputError for a file that is none of keys, and for one that holds none:
        without keys everybody would be let in."""
        if not path:
            return cls([])
        if not (keys := _read(Path(path))):
            raise InputError(f"{path} holds no key, so nobody could come in: make one with `trivium keys NAME --file {path}`")
        return cls(keys)

    def find(self, token: str) -> Key | None:
        """Whose `token` it is. Only digests are compared, so that the time taken says nothing of a key."""
        return self._keys.get(_digest(token)) if self._keys else LOCAL


def add(path: Path, name: str, *, consent: bool, per_minute: int, concurrent: int) -> str:
    """A new key in the file at `path`, which is made where there is none. Returns the key, which is written nowhere."""
    if path.is_dir():
        raise InputError(f"{path} is a folder: name a file for the keys, such as keys.json")
    token = f"tv-{secrets.token_urlsafe(32)}"
    new = Key(name, _digest(token), consent, per_minute, concurrent)
    try:
        with files.locked(path.with_name(f".{path.name}.lock")):
            keys = [*(_read(path) if path.exists() else []), new]
            Keyring(keys)
            files.swap(path, msgspec.json.format(msgspec.json.encode(keys), indent=1) + b"\n")
            path.chmod(0o600)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error  # nobody asked for the lock
    return token


def _read(path: Path) -> list[Key]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Key])
    except (OSError, *files.TORN) as error:
        raise InputError(f"{path} is no file of keys ({error}): make one with `trivium keys NAME --file {path}`") from error


def _digest(token: str) -> str:
    return blake3(token.encode(errors="replace")).hexdigest()
