"""Objects in a folder or a bucket, and the manifest that says which of them are published.

An object is written whole under a name of its own and never changed. The manifest, one small object, is replaced last. So a
reader sees the versions before a publication or those after it, whenever somebody is killed (law 9).
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlparse

import blake3
import msgspec

from trivium import files
from trivium.errors import CorruptError, InputError, TriviumError, Unsupported
from trivium.weights.places import Bucket, Conflict, Content, Folder, Storage

T = TypeVar("T")
MANIFEST = "manifest.json"
_MEMORY: dict[str, Any] = {}


class Unreachable(TriviumError):
    """The store did not answer in time, or refused. What was published before is still there, and a new try may help."""


class Probe(msgspec.Struct, frozen=True):
    """Tokens [n] and the logprobs [n - 1] (nats) that the published weights give them."""

    tokens: list[int]
    logprobs: list[float]


class Entry(msgspec.Struct, frozen=True):
    """One published version. `base` is the version that its delta stands on. A full one has None there, and says `why`."""

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

    All requests of one call, or of all calls `within` one deadline, end in `seconds` together. A request that takes longer is
    left to itself, and the next call waits for its end. `options` go to obstore: endpoint, region, keys. It reads the others
    from AWS_* variables. Raises InputError for a URL that cannot be opened, and a time that is none.
    """

    def __init__(self, url: str | Path, *, seconds: float = 30.0, options: dict[str, str] | None = None) -> None:
        if not 0 < seconds < math.inf:
            raise InputError(f"seconds must be above 0 and finite, not {seconds}")
        self.url, self.seconds = str(url), seconds
        self.storage = _open(self.url, seconds, options or {})
        self._turn = threading.RLock()
        self._end = math.inf
        self._request: Future | None = None  # the last one

    @contextmanager
    def within(self, seconds: float | None = None) -> Generator[None]:
        """Set one deadline over all requests inside, for one thread at a time; an outer one counts too. Raises Unreachable."""
        end = time.monotonic() + (self.seconds if seconds is None else seconds)
        if not self._turn.acquire(timeout=max(0.0, end - time.monotonic())):
            raise Unreachable(f"an earlier call for {self.url} is still under way")
        outer, self._end = self._end, min(end, self._end)
        try:
            yield
        finally:
            self._end = outer
            self._turn.release()

    @contextmanager
    def untimed(self) -> Generator[None]:
        """Stop the clock of `within` for work of our own."""
        start = time.monotonic()
        yield
        self._end += time.monotonic() - start

    def put(self, name: str, data: bytes) -> None:
        """Write an object whole, or not at all. Raises Unreachable."""
        self._call("write", name, lambda: self.storage.put(name, data))

    def get(self, name: str) -> bytes | None:
        """An object's bytes; None if there is no such object. Raises Unreachable."""
        return self._content(name).data

    def names(self) -> list[str]:
        """The names of all objects here, those that a killed process left staged too. Raises Unreachable."""
        return self._call("list", "objects", self.storage.names)

    def delete(self, names: list[str]) -> None:
        """Delete objects. One that is gone already is no error. Raises Unreachable."""
        with self.within():
            for name in names:
                with suppress(FileNotFoundError):
                    self._call("delete", name, lambda name=name: self.storage.delete(name))

    def manifest(self) -> Content:
        """The manifest as it is now, for `read` and for `point`. Raises Unreachable."""
        return self._content(MANIFEST)

    def read(self, manifest: Content) -> list[Entry]:
        """The entries of a manifest, oldest first; none where nobody ever published. Raises CorruptError."""
        try:
            return msgspec.json.decode(manifest.data, type=list[Entry]) if manifest.data is not None else []
        except files.TORN as error:
            raise CorruptError(f"{MANIFEST} in {self.url} is torn or foreign: {error}") from error

    def entries(self) -> list[Entry]:
        """The entries of what is published now. Raises Unreachable, CorruptError."""
        return self.read(self.manifest())

    def point(self, data: bytes, old: Content) -> None:
        """Replace the manifest `old` by `data`. Raises InputError if somebody else replaced it since, and Unreachable."""
        try:
            self._call("write", MANIFEST, lambda: self.storage.replace(MANIFEST, data, old))
        except Conflict:
            raise self.conflict() from None

    def conflict(self) -> InputError:
        """The error of two who publish here: the later to notice must stop."""
        return InputError(
            f"{MANIFEST} in {self.url} was replaced by somebody else: another publisher writes there. Nothing of theirs was "
            "changed; stop one of the two, or give this one a URL of its own"
        )

    def fetch(self, entry: Entry) -> bytes:
        """The entry's object, of the size and checksum as published. Raises CorruptError naming it, and Unreachable."""
        data = self.get(entry.name)
        if data is None:
            raise CorruptError(f"{entry.name} (version {entry.version}) is gone from {self.url}")
        if len(data) != entry.size or checksum(data) != entry.checksum:
            raise CorruptError(
                f"{entry.name} (version {entry.version}) in {self.url} is torn or changed: "
                f"{len(data)} bytes of {entry.size}, or another checksum"
            )
        return data

    def _content(self, name: str) -> Content:
        try:
            return self._call("read", name, lambda: self.storage.get(name))
        except FileNotFoundError:
            return Content(None)

    def _call(self, verb: str, name: str, call: Callable[[], T]) -> T:
        """Run one request in a thread, since neither a disk nor a library that hangs can be interrupted; one at a time."""
        with self.within():
            try:
                if self._request is not None:
                    wait([self._request], self._end - time.monotonic())
                    if not self._request.done():
                        raise TimeoutError("an earlier request is still under way")
                if (seconds := self._end - time.monotonic()) <= 0:
                    raise TimeoutError("no time is left")
                self._request = request = _start(call)
                return request.result(seconds)
            except (FileNotFoundError, Conflict):
                raise
            except Exception as error:  # obstore's own tree, one branch a cause
                why = str(error) or "no answer in time"
                raise Unreachable(f"could not {verb} {name} in {self.url}: {why}") from error


def _start(call: Callable[[], T]) -> Future[T]:
    future: Future[T] = Future()

    def work() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, daemon=True, name="weights").start()
    return future


def checksum(data: bytes) -> str:
    """blake3 of the bytes, hex."""
    return blake3.blake3(data).hexdigest()


def _open(url: str, seconds: float, options: dict[str, str]) -> Storage:
    scheme = urlparse(url).scheme
    if options and scheme in ("", "file", "memory"):
        raise Unsupported(
            f"options ({', '.join(sorted(options))}) are a bucket's, and {url} is none: name one, as s3://NAME/PATH"
        )
    if scheme in ("", "file"):
        return Folder(_folder(url) if scheme else Path(url))
    try:
        from obstore.store import MemoryStore, from_url
    except ImportError as error:
        raise InputError("weights in a bucket need obstore: pip install obstore") from error
    if scheme == "memory":
        return Bucket(_MEMORY.setdefault(url, MemoryStore()))
    limit = timedelta(seconds=seconds)
    settings: dict[str, Any] = {  # of any store: obstore's overloads want those of one that is known
        "config": options,
        "client_options": {
            "timeout": limit,
            "connect_timeout": limit,
            "allow_http": options.get("endpoint", "").startswith("http:"),
        },
        "retry_config": {"max_retries": 1000, "retry_timeout": limit},
    }
    try:
        return Bucket(from_url(url, **settings))
    except Exception as error:
        raise InputError(f"{url} is no folder or bucket that can be opened: {error}") from error


def _folder(url: str) -> Path:
    """The folder that a file URL names. InputError for one without a path from the root: `file://a/b` would name a host a."""
    path = unquote(url.removeprefix("file:").removeprefix("//").removeprefix("localhost"))
    if not path.startswith("/"):
        raise InputError(f"{url} names no folder of this machine: write file:///FOLDER, or the path alone")
    return Path(path)
