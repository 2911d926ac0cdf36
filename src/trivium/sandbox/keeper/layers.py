"""Layers of files, and overlays of them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Set
from dataclasses import dataclass, field
from pathlib import Path

from trivium.sandbox.keeper.kernel import mount, unmount

DEEPEST = 64
"""Layers of a snapshot, above which they are made one: an overlay finds a file in time proportional to them."""


@dataclass(slots=True)
class Layers:
    """What lies below `base`, the tmpfs of one keeper; `user` owns all files."""

    base: Path
    user: int
    images: dict[str, str] = field(default_factory=dict)

    def path(self, *parts: str) -> str:
        return str(self.base.joinpath(*parts))

    def layer(self, limits: dict) -> str:
        """A new one, empty."""
        id = os.urandom(6).hex()
        os.mkdir(self.path("layers", id), 0o711)
        size = f"size={limits['disk']},nr_inodes={limits['inodes']},mode=0711"
        mount("tmpfs", self.path("layers", id), "tmpfs", options=size)
        for name in ("up", "work"):
            os.mkdir(self.path("layers", id, name))
        os.chown(self.path("layers", id, "up"), self.user, self.user)
        return id

    def image(self, folder: str) -> str:
        """The layer of an image: a copy that belongs to the user of all sandboxes, made once for each state of the folder."""
        key = f"{folder}:{_state(folder)}"
        if key not in self.images:
            id = self.layer({"disk": 4 << 30, "inodes": 1_000_000})
            top = self.path("layers", id, "up")
            shutil.copytree(folder, top, symlinks=True, dirs_exist_ok=True)
            for place, folders, files in os.walk(top):
                for name in (*folders, *files):
                    os.chown(os.path.join(place, name), self.user, self.user, follow_symlinks=False)
            os.chown(top, self.user, self.user)
            self.images[key] = id
        return self.images[key]

    def open(self, id: str, lowers: tuple[str, ...], upper: str) -> None:
        """Mount the overlay of a box."""
        os.makedirs(self.path("boxes", id), exist_ok=True)
        os.chdir(self.path("layers"))  # so that the names of many layers fit into the options, which are one page
        options = f"lowerdir={':'.join(f'{each}/up' for each in reversed(lowers))},upperdir={upper}/up,workdir={upper}/work"
        mount(
            "overlay", self.path("boxes", id), "overlay", options=options + (",userxattr" if os.environ.get("USERNS") else "")
        )

    def shut(self, id: str) -> None:
        """Unmount it."""
        unmount(self.path("boxes", id))
        os.rmdir(self.path("boxes", id))

    def flat(self, lowers: tuple[str, ...], limits: dict) -> tuple[str, ...]:
        """The same files in one layer, where there are too many."""
        if len(lowers) < DEEPEST:
            return lowers
        whole = self.layer({"disk": limits["disk"] * 2, "inodes": limits["inodes"] * 2})
        seen, scratch = os.urandom(6).hex(), self.layer(limits)
        self.open(seen, lowers, scratch)
        subprocess.run(["cp", "-a", f"{self.path('boxes', seen)}/.", self.path("layers", whole, "up")], check=True)
        self.shut(seen)
        self.discard(scratch)
        return (whole,)

    def discard(self, layer: str) -> None:
        unmount(self.path("layers", layer))
        os.rmdir(self.path("layers", layer))

    def sweep(self, used: Set[str]) -> None:
        """Discard the layers that are not `used` and are no image."""
        for layer in set(os.listdir(self.path("layers"))) - used - set(self.images.values()):
            self.discard(layer)


def _state(folder: str) -> int:
    """A number that changes with a folder's files."""
    rows = []
    for place, _, names in os.walk(folder):
        for name in sorted(names):
            status = os.lstat(os.path.join(place, name))
            rows.append((place, name, status.st_size, status.st_mtime_ns, status.st_ino))
    return hash(tuple(sorted(rows)))
