"""The receiver's side: it rebuilds the newest version from deltas or from the last full one, and checks it."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

from trivium.errors import CorruptError, LawError
from trivium.nn.network import digest
from trivium.weights.delta import State, decode
from trivium.weights.publish import Receiver, deliver, held
from trivium.weights.store import Entry, Objects, Probe, Unreachable

_TRIES = 3


@dataclass(frozen=True, slots=True)
class Weights:
    """A published version, rebuilt, with its digest checked. `refusal` says why a newer one was not taken, if so."""

    state: State
    version: int
    digest: str
    probe: Probe | None = None
    refusal: str = ""


class Subscriber:
    """Follows the versions under a URL. `current` is the last good one, whatever happens.

    A `sync` ends in `seconds`, but for the version that it is rebuilding by then. The next one continues one that was cut
    short.
    """

    def __init__(self, url: str | Path, *, seconds: float = 30.0, options: dict[str, str] | None = None) -> None:
        self.objects = Objects(url, seconds=seconds, options=options)
        self.current: Weights | None = None
        self._last: tuple[Receiver, Weights] | None = None  # the last receiver, and the weights that it took
        self._progress: Weights | None = None  # how far an unfinished rebuild came

    def sync(self) -> Weights | None:
        """The newest version, or None if nothing was ever published. For one that is `current` no object is read.

        It is rebuilt from the current version by deltas or, where they do not lead there, from the last full one. A torn or
        wrong object is refused: then it is the last version before that, if newer than the current one. Raises CorruptError
        if there is none, and Unreachable in time.
        """
        with self.objects.within():
            return self._sync()

    def wait(self, version: int, seconds: float, every: float = 0.2) -> Weights:
        """`sync` until the version is at least this one. Raises Unreachable when `seconds` are over, not before."""
        end, error = time.monotonic() + seconds, None
        while (left := end - time.monotonic()) > 0:
            try:
                with self.objects.within(left):
                    weights = self.sync()
                if weights is not None and weights.version >= version:
                    return weights
            except Unreachable as latest:
                error = latest
            time.sleep(min(every, max(0.0, end - time.monotonic())))
        why = f": {error}" if error else ""
        raise Unreachable(f"version {version} did not appear in {self.objects.url} within {seconds:g} s{why}") from error

    def deliver(self, receiver: Receiver, weights: Weights | None = None) -> float | None:
        """`sync` (or take the `weights` that a `wait` returned) and hand them over as `publish` does. Returns the probe's
        largest gap, or None if this receiver has them already.

        Raises LawError if the receiver does not hold what it was handed. It then gets back what it had from here or, if that
        is nothing yet, what its `network` held; so it does where memory gives out on the way. (A server has no network: at
        its first version it is left with what it took.)
        """
        before = self._last[1] if self._last is not None and self._last[0] is receiver else None
        weights = weights or self.sync()
        if weights is None or (before is not None and weights.digest == before.digest and receiver.version == weights.version):
            return None
        backup = before or _copy(receiver)
        with held(receiver):  # until it has what was checked, or what it had before
            try:
                gap = deliver(weights.state, weights.version, receiver, weights.probe)
            except (LawError, RuntimeError, MemoryError):
                if backup is not None:
                    receiver.load(backup.state, backup.version)
                self.current = before
                raise
        self._last = (receiver, weights)
        return gap

    def _sync(self) -> Weights | None:
        entries, tries = self.objects.entries(), 0
        while entries and not _is(self.current, entries[-1]):
            weights, error = self._rebuild(entries)
            self._progress = None
            if error is None:
                self.current = weights
                break
            latest, tries = self.objects.entries(), tries + 1
            if latest == entries or tries == _TRIES:  # else the entries went out of date, and objects may have been collected
                if weights is None or (self.current is not None and weights.version <= self.current.version):
                    raise error
                self.current = replace(weights, refusal=str(error))
                break
            entries = latest
        return self.current

    def _rebuild(self, entries: list[Entry]) -> tuple[Weights | None, CorruptError | None]:
        """The newest version, or the last good one before it and what was wrong with the next."""
        start, deltas = self._nearest(entries)
        if start is not None:
            weights, error = self._walk(start, deltas)
            if error is None:
                return weights, None
        fulls = [n for n, entry in enumerate(entries) if entry.base is None]
        best, error = None, CorruptError(f"{self.objects.url} lists no full version")
        for n in reversed(fulls):
            weights, fault = self._walk(None, entries[n:])
            if fault is None:
                return weights, None
            error = fault
            best = max(best, weights, key=lambda w: -1 if w is None else w.version)
        return best, error

    def _nearest(self, entries: list[Entry]) -> tuple[Weights | None, list[Entry]]:
        """Weights that we have, from which deltas alone lead to the newest version, and these deltas."""
        for n in reversed(range(len(entries))):
            for weights in (self._progress, self.current):
                if _is(weights, entries[n]):
                    return weights, entries[n + 1 :]
            if entries[n].base is None:
                break
        return None, []

    def _walk(self, start: Weights | None, path: list[Entry]) -> tuple[Weights | None, CorruptError | None]:
        """The weights at the end of the path, or as far along it as its objects are good, and what is wrong with the next."""
        weights = start
        for entry in path:
            try:
                weights = self._progress = self._step(weights, entry)
            except CorruptError as error:
                return weights, error
        return weights, None

    def _step(self, before: Weights | None, entry: Entry) -> Weights:
        """The weights of an entry, from those of the entry before it."""
        base = None if entry.base is None else before
        if entry.base is not None and (base is None or base.version != entry.base):
            raise CorruptError(f"version {entry.version} in {self.objects.url} stands on {entry.base}, which is not there")
        state = decode(self.objects.fetch(entry), None if base is None else base.state)
        if (actual := digest(state)) != entry.digest:
            raise CorruptError(f"version {entry.version} in {self.objects.url} gives other weights than were published")
        return Weights(state, entry.version, actual, entry.probe)


def _copy(receiver: Receiver) -> Weights | None:
    """A copy of the weights of a receiver in this process."""
    network = getattr(receiver, "network", None)
    if network is None:
        return None
    state = {name: tensor.clone() for name, tensor in network.state().items()}
    return Weights(state, receiver.version, digest(state))


def _is(weights: Weights | None, entry: Entry) -> bool:
    return weights is not None and (weights.version, weights.digest) == (entry.version, entry.digest)
