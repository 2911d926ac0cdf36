"""The side of whoever speaks: rebuild the newest version from deltas or from the last full one, and check it."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

from trivium.errors import CorruptError, LawError
from trivium.nn.network import digest
from trivium.weights.delta import State, decode
from trivium.weights.publish import Receiver, deliver
from trivium.weights.store import Entry, Objects, Probe, Unreachable

_TRIES = 3


@dataclass(frozen=True, slots=True)
class Weights:
    """A published version, rebuilt and its digest checked. `refused` says why a newer one was not taken, if so."""

    state: State
    version: int
    digest: str
    probe: Probe | None = None
    refused: str = ""


class Subscriber:
    """Follows the versions under a URL. `held` is the last good one, whatever happens.

    A `sync` ends in `seconds`, the version being rebuilt by then aside. One that was cut short is continued by the next.
    """

    def __init__(self, url: str | Path, *, seconds: float = 30.0, options: dict[str, str] | None = None) -> None:
        self.objects = Objects(url, seconds=seconds, options=options)
        self.held: Weights | None = None
        self._given: Weights | None = None
        self._receiver: Receiver | None = None  # who was given it
        self._reached: Weights | None = None

    def sync(self) -> Weights | None:
        """The newest version, or None if nothing was ever published. Held already: no object is read.

        From the held version by deltas; where that does not lead there, from the last full one. A torn or wrong object is
        refused: then the last version before it, if that is news; otherwise CorruptError. Raises Unreachable in time.
        """
        with self.objects.within():
            return self._synced()

    def wait(self, version: int, seconds: float, every: float = 0.2) -> Weights:
        """`sync` until the version is at least this one. Raises Unreachable when `seconds` are over, not before."""
        end, error = time.monotonic() + seconds, None
        while (left := end - time.monotonic()) > 0:
            try:
                with self.objects.within(left):
                    found = self.sync()
                if found is not None and found.version >= version:
                    return found
            except Unreachable as failed:
                error = failed
            time.sleep(min(every, max(0.0, end - time.monotonic())))
        why = f": {error}" if error else ""
        raise Unreachable(f"version {version} did not appear in {self.objects.url} within {seconds:g} s{why}") from error

    def deliver(self, receiver: Receiver, found: Weights | None = None) -> float | None:
        """`sync` (or take what a `wait` has `found`) and hand it over as `publish` does; the probe's largest gap, or None if
        this receiver has it already.

        Raises LawError if the receiver does not hold what it was given; it then gets back what it had from here, or, if that
        is nothing yet, what its `network` held, as it does where its memory gives out on the way. (A server has none: at its
        first version it is left with what it took.)
        """
        given, found = self._given if self._receiver is receiver else None, found or self.sync()
        if found is None or (given is not None and found.digest == given.digest and receiver.version == found.version):
            return None
        before = given or _own(receiver)
        try:
            gap = deliver(found.state, found.version, receiver, found.probe)
        except (LawError, RuntimeError, MemoryError):
            if before is not None:
                receiver.load(before.state, before.version)
            self.held = given
            raise
        self._given, self._receiver = found, receiver
        return gap

    def _synced(self) -> Weights | None:
        entries = self.objects.entries()
        for _ in range(_TRIES):
            if not entries or self._holds(entries[-1]):
                return self.held
            made, error = self._rebuilt(entries)
            self._reached = None
            if error is None:
                self.held = made
                return made
            read, entries = entries, self.objects.entries()
            if read == entries:  # else what was read went out of date meanwhile, and may have been collected
                break
        if made is None or (self.held is not None and made.version <= self.held.version):
            raise error
        self.held = replace(made, refused=str(error))
        return self.held

    def _holds(self, entry: Entry) -> bool:
        return _is(self.held, entry)

    def _rebuilt(self, entries: list[Entry]) -> tuple[Weights | None, CorruptError | None]:
        """The newest version, or the last good one before it and what was wrong with the next."""
        known, deltas = self._nearest(entries)
        if known is not None:
            made, error = self._walk(known, deltas)
            if error is None:
                return made, None
        fulls = [n for n, entry in enumerate(entries) if entry.base is None]
        best, error = None, CorruptError(f"{self.objects.url} lists no full version")
        for n in reversed(fulls):
            made, failed = self._walk(None, entries[n:])
            if failed is None:
                return made, None
            error = failed
            best = max(best, made, key=lambda w: -1 if w is None else w.version)
        return best, error

    def _nearest(self, entries: list[Entry]) -> tuple[Weights | None, list[Entry]]:
        """What we have from which deltas alone lead to the newest version, and these deltas."""
        for n in reversed(range(len(entries))):
            for known in (self._reached, self.held):
                if _is(known, entries[n]):
                    return known, entries[n + 1 :]
            if entries[n].base is None:
                break
        return None, []

    def _walk(self, start: Weights | None, path: list[Entry]) -> tuple[Weights | None, CorruptError | None]:
        """As far along the path as it is good."""
        made = start
        for entry in path:
            try:
                made = self._reached = self._step(made, entry)
            except CorruptError as error:
                return made, error
        return made, None

    def _step(self, before: Weights | None, entry: Entry) -> Weights:
        if entry.base is not None and (before is None or before.version != entry.base):
            raise CorruptError(f"version {entry.version} in {self.objects.url} stands on {entry.base}, which is not there")
        state = decode(self.objects.fetch(entry), None if entry.base is None else before.state)
        if (made := digest(state)) != entry.digest:
            raise CorruptError(f"version {entry.version} in {self.objects.url} gives other weights than were published")
        return Weights(state, entry.version, made, entry.probe)


def _own(receiver: Receiver) -> Weights | None:
    """A copy of what a receiver of this process speaks with."""
    network = getattr(receiver, "network", None)
    if network is None:
        return None
    state = {name: tensor.clone() for name, tensor in network.state().items()}
    return Weights(state, receiver.version, digest(state))


def _is(held: Weights | None, entry: Entry) -> bool:
    return held is not None and (held.version, held.digest) == (entry.version, entry.digest)
