"""The deployment record: which weights people are served by, which ones some of them try, and how to go back.

It is one file of a run's folder, `deployment.json`, replaced whole by each change: who is killed in the middle of one leaves
the record as it was before or as it is after (law 9). Writers take turns; readers never wait.

A change says which version it is about, so that it may come late and come twice. **An alarm wins**: a version that was
withdrawn is never served again, whether the alarm came before, in the middle of, or after its promotion.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from trivium import files
from trivium.errors import CorruptError, InputError


class Withdrawn(InputError):
    """A version cannot be served since an alarm, or a person, took it back."""


@dataclass(frozen=True, slots=True)
class Release:
    """Weights that may be served: their version, their folder (below the run's, or an absolute path), and its fingerprint."""

    version: int
    model: str
    digest: str


@dataclass(frozen=True, slots=True)
class Change:
    """One change of the record: when (seconds since 1970), what, of which version, and why."""

    time: float
    verb: str
    version: int
    reason: str


@dataclass(frozen=True, slots=True)
class Deployment:
    """What is served now. `share` of the people, from 0 to 1, is answered by `candidate`, the others by `incumbent`; `previous`
    were incumbents before it, the last one first to go back to; `withdrawn` are versions that are never served again."""

    incumbent: Release
    candidate: Release | None = None
    share: float = 0.0
    previous: tuple[Release, ...] = ()
    withdrawn: tuple[int, ...] = ()
    changes: tuple[Change, ...] = ()

    @property
    def reason(self) -> str:
        """Why the last change was made."""
        return self.changes[-1].reason if self.changes else ""


Edit = Callable[[Deployment], Deployment]


class Deployments:
    """The record in a run's folder, and the only way to change it. Every change is one transaction, and returns the record."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.path = self.folder / "deployment.json"

    def read(self) -> Deployment:
        """The record. InputError where nothing was deployed, CorruptError for a file that is no record."""
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=Deployment)
        except (FileNotFoundError, NotADirectoryError):
            if not self.folder.is_dir():
                raise InputError(f"there is no folder {self.folder}: name that of a run") from None
            raise InputError(f"{self.folder} has no deployment: `trivium live` begins one") from None
        except files.TORN as error:
            raise CorruptError(f"{self.path} is no deployment record: {error}") from error

    def release(self, version: int, model: str | Path) -> Release:
        """The weights in the folder `model` as a version that can be served. InputError where there are none."""
        path = Path(model)
        if not path.is_dir():
            raise InputError(f"version {version} has no weights: {path} is no folder")
        inside = path.absolute().is_relative_to(self.folder.absolute())
        name = path.absolute().relative_to(self.folder.absolute()) if inside else path.absolute()
        return Release(version, str(name), files.fingerprint(path))

    def model(self, release: Release) -> Path:
        """The folder of a release's weights. InputError where it is gone."""
        path = self.folder / release.model  # an absolute one stays what it is
        if not path.is_dir():
            raise InputError(
                f"version {release.version} of {self.folder} is gone: no folder {path}; `trivium rollback` goes back"
            )
        return path

    def check(self, release: Release) -> None:
        """InputError where a release's weights are gone, CorruptError where they are no longer those that were deployed."""
        if files.fingerprint(self.model(release)) != release.digest:
            raise CorruptError(f"version {release.version} of {self.folder} has other weights than when it was released")

    # --- changes

    def begin(self, release: Release, reason: str = "the first version") -> Deployment:
        """Serve a first version; where there is a record already it stays as it is."""
        self.check(release)
        with self._turn():
            if self.path.exists():
                return self.read()
            return self._write(_told(Deployment(release), "begin", release.version, reason))

    def canary(self, candidate: Release, share: float, reason: str) -> Deployment:
        """Let `share` of the people be answered by `candidate`. Said again, with another share too, it is the same canary.

        Raises InputError where another candidate is on, or the incumbent is gone; Withdrawn; and as `check`.
        """
        if not 0 < share < 1:
            raise InputError(f"a canary's share is between 0 and 1, not {share}")
        self.check(candidate)

        def edit(now: Deployment) -> Deployment:
            self.model(now.incumbent)
            _refuse(now, candidate, self.folder)
            if (now.candidate, now.share) == (candidate, share):
                return now
            return _told(replace(now, candidate=candidate, share=share), "canary", candidate.version, reason)

        return self._change(edit)

    def promote(self, candidate: Release, reason: str) -> Deployment:
        """Make `candidate` the incumbent, from a canary or at once. Of an incumbent it changes nothing.

        Raises InputError where another candidate is on; Withdrawn, also when the alarm came while the weights were checked; and
        as `check`.
        """
        self.check(candidate)

        def edit(now: Deployment) -> Deployment:
            if now.incumbent == candidate:
                return now
            _refuse(now, candidate, self.folder)
            previous = (*now.previous, now.incumbent)
            new = replace(now, incumbent=candidate, candidate=None, share=0.0, previous=previous)
            return _told(new, "promote", candidate.version, reason)

        return self._change(edit)

    def withdraw(self, version: int, reason: str) -> Deployment:
        """An alarm about `version`: nobody is served by it any more, and nobody ever will be. Said again it changes nothing.

        A candidate's canary ends. An incumbent gives way to the last one before it whose weights are still there, as they were,
        and a candidate made from it goes as well. InputError for an incumbent that has none before it: it goes on serving.
        """

        def edit(now: Deployment) -> Deployment:
            if version in now.withdrawn:
                return now
            previous = tuple(each for each in now.previous if each.version != version)
            new = replace(now, previous=previous, withdrawn=(*now.withdrawn, version))
            candidate = now.candidate and now.candidate.version
            if now.incumbent.version == version:
                new = self._back(new)
                if candidate is not None:
                    new = replace(new, withdrawn=(*new.withdrawn, candidate))
            elif candidate == version:
                new = replace(new, candidate=None, share=0.0)
            return _told(new, "withdraw", version, reason)

        return self._change(edit)

    def rollback(self, reason: str) -> Deployment:
        """What a person asks for: withdraw the candidate, or where there is none the incumbent. Raises as `withdraw`."""
        now = self.read()
        return self.withdraw((now.candidate or now.incumbent).version, reason)

    def _back(self, now: Deployment) -> Deployment:
        """The record with the last incumbent before this one whose weights are still there. InputError where there is none."""
        for place in range(len(now.previous) - 1, -1, -1):
            earlier = now.previous[place]
            try:
                self.check(earlier)
            except (InputError, CorruptError):
                continue
            return replace(now, incumbent=earlier, candidate=None, share=0.0, previous=now.previous[:place])
        version = now.incumbent.version
        raise InputError(
            f"version {version} of {self.folder} has no earlier one to go back to: stop serving, or promote another"
        )

    # --- transactions

    def _change(self, edit: Edit) -> Deployment:
        """What `edit` makes of the record as it is when it is our turn; nothing is written where it leaves it so."""
        with self._turn():
            now = self.read()
            new = edit(now)
            return now if new is now else self._write(new)

    def _write(self, new: Deployment) -> Deployment:
        files.swap(self.path, msgspec.json.format(msgspec.json.encode(new), indent=1) + b"\n")
        return new

    @contextmanager
    def _turn(self) -> Generator[None]:
        """One writer at a time."""
        if not self.folder.is_dir():
            raise InputError(f"there is no folder {self.folder}: name that of a run")
        with files.locked(self.folder / "deployment.lock"):
            yield


def _refuse(now: Deployment, candidate: Release, folder: Path) -> None:
    """Raise Withdrawn for a version that was taken back, InputError while another one is tried out."""
    if candidate.version in now.withdrawn:
        why = next((each.reason for each in reversed(now.changes) if each.version == candidate.version), "")
        raise Withdrawn(f"version {candidate.version} of {folder} was withdrawn ({why}): train another candidate")
    if now.candidate not in (None, candidate):
        raise InputError(f"version {now.candidate.version} is tried out already: promote it or withdraw it first")


def _told(now: Deployment, verb: str, version: int, reason: str) -> Deployment:
    return replace(now, changes=(*now.changes, Change(time.time(), verb, version, reason)))
