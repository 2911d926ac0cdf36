"""Objects in a folder or a bucket, and the manifest that says which of them are published.

An object is written whole under a name of its own and never changed; the manifest, one small object, is replaced last. So a
reader sees the versions before a publication or those after it, whenever somebody is killed (law 9).
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import blake3
import msgspec

from trivium.errors import CorruptError, InputError, TriviumError

MANIFEST = "manifest.json"
_MEMORY: dict[str, Any] = {}


class Unreachable(TriviumError):
    """The store did not answer in time, or refused; nothing was changed, and asking again may help."""


class Probe(msgspec.Struct, frozen=True):
    """Tokens [n] and the logprobs [n - 1] (nats) that the published weights give them."""

    tokens: list[int]
    logprobs: list[float]


class Entry(msgspec.Struct, frozen=True):
    """One published version. `base` is the version its delta stands on; None: a full one, `why` it is one."""

    version: int
    base: int | None
    why: str
    name: str
    size: int
    checksum: str
    digest: str
    probe: Probe | None = None


class Objects:
    """The objects under a URL: `s3://bucket/folder`, `file:///folder`, `memory://name` (this process only), or a path.

    A request that gets no answer in `seconds` is given up, one that fails in passing is repeated for as long; so any call
    ends within twice that time (a local folder answers as its disk does). `options` go to obstore: endpoint, region, keys;
    what is not given is read from AWS_* variables.
    """

    def __init__(self, url: str | Path, *, seconds: float = 30.0, options: dict[str, str] | None = None) -> None:
        if seconds <= 0:
            raise InputError(f"seconds must be above 0, not {seconds}")
        self.url = str(url)
        self.store = _open(self.url, seconds, options or {})

    def put(self, name: str, data: bytes) -> None:
        """Write it whole, or not at all. Raises Unreachable."""
        import obstore

        self._call("write", name, lambda: obstore.put(self.store, name, data))

    def get(self, name: str) -> bytes | None:
        """Its bytes; None if there is no such object. Raises Unreachable."""
        import obstore

        try:
            return self._call("read", name, lambda: bytes(obstore.get(self.store, name).bytes()))
        except FileNotFoundError:
            return None

    def names(self) -> list[str]:
        """Of all objects here. Raises Unreachable."""
        import obstore

        return self._call("list", "objects", lambda: [m["path"] for part in obstore.list(self.store) for m in part])

    def delete(self, names: list[str]) -> None:
        """Raises Unreachable; one that is gone already is no error."""
        import obstore

        for name in names:
            try:
                self._call("delete", name, lambda name=name: obstore.delete(self.store, name))
            except FileNotFoundError:
                pass

    def entries(self) -> list[Entry]:
        """What is published, oldest first; none where nobody ever published. Raises Unreachable, CorruptError."""
        data = self.get(MANIFEST)
        try:
            return msgspec.json.decode(data, type=list[Entry]) if data is not None else []
        except msgspec.DecodeError as error:
            raise CorruptError(f"{MANIFEST} in {self.url} is torn or foreign: {error}") from error

    def point(self, entries: list[Entry]) -> None:
        """Publish these, at once."""
        self.put(MANIFEST, msgspec.json.encode(entries))

    def fetch(self, entry: Entry) -> bytes:
        """The entry's object, its size and checksum as published. Raises CorruptError naming it, Unreachable."""
        data = self.get(entry.name)
        if data is None:
            raise CorruptError(f"{entry.name} (version {entry.version}) is gone from {self.url}")
        if len(data) != entry.size or checksum(data) != entry.checksum:
            raise CorruptError(
                f"{entry.name} (version {entry.version}) in {self.url} is torn or changed: "
                f"{len(data)} bytes of {entry.size}, or another checksum"
            )
        return data

    def _call(self, verb: str, name: str, call):
        try:
            return call()
        except FileNotFoundError:
            raise
        except Exception as error:  # obstore's own tree, one branch a cause
            raise Unreachable(f"could not {verb} {name} in {self.url}: {error}") from error


def checksum(data: bytes) -> str:
    """blake3, hex."""
    return blake3.blake3(data).hexdigest()


def _open(url: str, seconds: float, options: dict[str, str]):
    try:
        from obstore.store import LocalStore, MemoryStore, from_url
    except ImportError as error:
        raise InputError("weights in a folder or bucket need obstore: pip install 'trivium[store]'") from error
    scheme = urlparse(url).scheme
    if scheme == "memory":
        return _MEMORY.setdefault(url, MemoryStore())
    if scheme in ("", "file"):
        return LocalStore(unquote(urlparse(url).path) if scheme else url, mkdir=True)
    wait = timedelta(seconds=seconds)
    client = {"timeout": wait, "connect_timeout": wait, "allow_http": options.get("endpoint", "").startswith("http:")}
    try:
        return from_url(url, config=options, client_options=client, retry_config={"max_retries": 5, "retry_timeout": wait})
    except Exception as error:
        raise InputError(f"{url} is no folder or bucket that can be opened: {error}") from error
