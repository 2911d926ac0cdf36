"""Who holds which sandboxes of a service, and for how long: what a client that died leaves is closed.

A client's lease ends when it has not been heard of for some seconds. Its sandboxes are closed then. Its snapshots are kept for
a while, so that a run that was killed can go on from them.
"""

from __future__ import annotations

import asyncio
import secrets
import time
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from trivium.errors import InputError, PlaceError, TriviumError
from trivium.sandbox.base import Limits, Provider, Sandbox


@dataclass(slots=True)
class Lease:
    """One client's: `ends` on the monotonic clock, unless it is heard of before."""

    ends: float
    sandboxes: dict[str, Sandbox] = field(default_factory=dict)
    snapshots: set[str] = field(default_factory=set)


class Leases:
    """The sandboxes of one provider, lent to clients. Images are the folders in `images`, by their names."""

    def __init__(self, provider: Provider, images: Path, seconds: float = 30.0, keep: float = 3600.0) -> None:
        """A lease ends after `seconds` of silence; a snapshot that no lease has is forgotten after `keep` more."""
        self.provider, self.images, self.seconds, self.keep = provider, images, seconds, keep
        self._leases: dict[str, Lease] = {}
        self._kept: dict[str, float] = {}

    def open(self) -> str:
        """A lease of a new client: its id."""
        id = secrets.token_hex(16)
        self._leases[id] = Lease(time.monotonic() + self.seconds)
        return id

    def lease(self, id: str) -> Lease:
        """The lease, prolonged. Raises PlaceError for one that ended."""
        if id not in self._leases:
            raise PlaceError("the lease ended: nothing was heard of its client, and its sandboxes were closed")
        lease = self._leases[id]
        lease.ends = time.monotonic() + self.seconds
        return lease

    def sandbox(self, lease: str, id: str) -> Sandbox:
        """Raises PlaceError for one that was closed."""
        if sandbox := self.lease(lease).sandboxes.get(id):
            return sandbox
        raise PlaceError("this sandbox was closed")

    async def create(self, lease: str, source: str, limits: Limits, n: int) -> list[str]:
        """The ids of new sandboxes. Where the lease ended meanwhile they are closed again."""
        holder = self.lease(lease)
        made = await self.provider.create(self._source(holder, source), limits, n)
        if lease not in self._leases:
            await _close(made)
        holder = self.lease(lease)
        ids = [secrets.token_hex(8) for _ in made]
        holder.sandboxes.update(zip(ids, made, strict=True))
        return ids

    def _source(self, holder: Lease, source: str) -> str:
        """A snapshot, which the lease holds from now on, or an image by its name: no other folder of this machine."""
        if source in self._kept:
            holder.snapshots.add(source)
            return source
        if source not in {entry.name for entry in self.images.iterdir() if entry.is_dir()}:
            raise InputError(
                f"{source} is neither an image's folder nor a snapshot of this service, whose images are in {self.images}"
            )
        return str(self.images / source)

    async def snapshot(self, lease: str, id: str) -> str:
        snapshot = await self.sandbox(lease, id).snapshot()
        self._kept[snapshot] = time.monotonic() + self.keep
        if lease in self._leases:
            self._leases[lease].snapshots.add(snapshot)
        return snapshot

    async def forget(self, lease: str, snapshot: str) -> None:
        self.lease(lease).snapshots.discard(snapshot)
        if self._kept.pop(snapshot, None) is not None:
            await self.provider.forget(snapshot)

    async def close(self, lease: str, id: str) -> None:
        if sandbox := self.lease(lease).sandboxes.pop(id, None):
            await sandbox.close()

    async def end(self, id: str) -> None:
        """End a lease and close its sandboxes. One that ended is no error."""
        if lease := self._leases.pop(id, None):
            for snapshot in lease.snapshots & self._kept.keys():
                self._kept[snapshot] = time.monotonic() + self.keep
            await _close(lease.sandboxes.values())

    async def sweep(self) -> None:
        """End what is over: leases whose clients are silent, snapshots that nobody holds."""
        now = time.monotonic()
        for id in [id for id, lease in self._leases.items() if lease.ends < now]:
            await self.end(id)
        held = set().union(*(lease.snapshots for lease in self._leases.values()))
        for snapshot in [name for name, until in self._kept.items() if until < now and name not in held]:
            del self._kept[snapshot]
            try:
                await self.provider.forget(snapshot)
            except TriviumError as error:  # else nobody would sweep any more
                warnings.warn(f"a snapshot may still be there: {error}", stacklevel=2)

    async def watch(self) -> None:
        """Sweep until cancelled, some times in each lease's length."""
        while True:
            await asyncio.sleep(self.seconds / 4)
            await self.sweep()


async def _close(sandboxes: Iterable[Sandbox]) -> None:
    """Close all of them; what one raises is a warning, so that the others are closed too."""
    for error in await asyncio.gather(*(sandbox.close() for sandbox in sandboxes), return_exceptions=True):
        if error:
            warnings.warn(f"a sandbox may still be open: {error!r}", stacklevel=2)
