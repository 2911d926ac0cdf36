"""Checkpoints of a learner: numbered folders, whole or not there, each with a manifest of what it holds (law 9).

    root/00000041/  weights.safetensors  optimizer.safetensors  state.json  manifest.json
    root/00000042/  ...
    root/.write-x1  what a killed process left; the next save sweeps it

The number counts saves. No random state is kept: random streams are keyed by seed, task, sample and turn, never by how
far a generator got (law 11).
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import blake3
from safetensors.torch import load_file, save
from torch import Tensor

from trivium import files
from trivium.errors import CorruptError, InputError
from trivium.train import ranks
from trivium.train.learner import Learner

Contents = tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Any]]
"""Weights, optimizer state, and what state.json says."""

_FILES = ("weights.safetensors", "optimizer.safetensors", "state.json")
_PASSING = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES, errno.EINTR}
"""Why a whole file may not be readable now."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What was restored; `skipped` says of each newer checkpoint that was torn what is wrong with it."""

    version: int
    user: dict[str, Any]
    skipped: list[str] = field(default_factory=list)


class Checkpoints:
    """The checkpoints under `root`; the last `keep` stay, without those that `load` found torn. One process writes (rank 0),
    any number read."""

    def __init__(self, root: str | Path, keep: int = 2) -> None:
        if keep < 1:
            raise InputError(f"a checkpoint at least is kept, not {keep}")
        self.root = Path(root)
        self.keep = keep
        self._torn: set[str] = set()  # found by `load`: no more to be kept

    def save(self, learner: Learner, user: dict[str, Any] | None = None) -> Path | None:
        """Write the learner's weights, optimizer and version, and `user` (JSON). A kill loses nothing older.

        Every rank of a sharded network calls it; the first one writes, the others get None at once. A step under way is
        waited for.
        """
        with learner.changing:
            weights, optimizer = learner.network.own_state(), learner.optimizer_state()
            if learner.network.sharded and ranks.number():
                return None
            facts = {"version": learner.version, "algorithm": learner.algorithm.name, "alpha": learner.network.alpha}
            contents = save(_plain(weights)), save(_plain(optimizer)), json.dumps(facts | {"user": user or {}}).encode()
        return self._put(contents)

    def _put(self, contents: tuple[bytes, bytes, bytes]) -> Path:
        """The files of a checkpoint under the next number."""
        self.root.mkdir(parents=True, exist_ok=True)
        self._sweep()
        temporary = Path(tempfile.mkdtemp(prefix=".write-", dir=self.root))
        digests = {}
        for name, data in zip(_FILES, contents, strict=True):
            files.write(temporary / name, data)
            digests[name] = blake3.blake3(data).hexdigest()
        files.write(temporary / "manifest.json", json.dumps(digests).encode())
        files.sync(temporary)
        folder = self.root / f"{max([int(old.name) for old in self.folders()], default=0) + 1:08d}"
        os.replace(temporary, folder)
        files.sync(self.root)
        good = [folder for folder in self.folders() if folder.name not in self._torn]
        for old in set(self.folders()) - set(good[-self.keep :]):
            self._remove(old)
        return folder

    def load(self, learner: Learner) -> Loaded | None:
        """Restore the newest good checkpoint into `learner`, or None if there is none at all.

        Raises CorruptError, naming the newest, if there are checkpoints and none is good; InputError, changing nothing,
        if the good one is of another network; OSError where one cannot be read now (too many open files) and may be good.
        """
        skipped: list[str] = []
        for folder in reversed(self.folders()):
            try:
                contents = _read(folder)
            except CorruptError as error:
                skipped.append(str(error))
                self._torn.add(folder.name)
                continue
            with learner.changing:
                return _restore(learner, contents, skipped)
        if skipped:
            raise CorruptError(skipped[0])
        return None

    def folders(self) -> list[Path]:
        """Numbered folders, oldest first; each was whole when it got its number; `load` sees if it still is."""
        if not self.root.is_dir():
            return []
        return sorted(path for path in self.root.iterdir() if path.name.isdecimal() and path.is_dir())

    def _remove(self, folder: Path) -> None:
        """Out of sight in one move first, so that a half-deleted folder never bears a number."""
        doomed = Path(tempfile.mkdtemp(prefix=".write-", dir=self.root))
        os.replace(folder, doomed)
        shutil.rmtree(doomed)

    def _sweep(self) -> None:
        for path in self.root.glob(".write-*"):
            shutil.rmtree(path)


def _restore(learner: Learner, contents: Contents, skipped: list[str]) -> Loaded:
    weights, optimizer, state = contents
    had, has = state.get("alpha"), learner.network.alpha  # 0 without adapters, which their names tell
    if had and has and had != has:
        raise InputError(f"this checkpoint is of adapters with alpha {had:g}, the network's have {has:g}")
    before = {name: tensor.clone() for name, tensor in learner.network.own_state().items()}
    learner.network.load_state(weights)
    try:
        learner.load_optimizer_state(optimizer)
    except BaseException:
        learner.network.load_state(before)
        raise
    learner.version = state["version"]
    return Loaded(state["version"], state["user"], skipped)


def _read(folder: Path) -> Contents:
    """The three parts of a checkpoint, or CorruptError naming the folder and the part that is torn or foreign."""
    try:
        digests = json.loads((folder / "manifest.json").read_bytes())
        found = {name: blake3.blake3().update_mmap(folder / name).hexdigest() for name in _FILES}
        state = (folder / "state.json").read_bytes()
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in _PASSING:
            raise
        raise CorruptError(f"{folder} is no whole checkpoint: {error}") from error
    for name in _FILES:
        if not isinstance(digests, dict) or digests.get(name) != found[name]:
            raise CorruptError(f"{folder} is torn: {name} is not what its manifest says")
    return load_file(folder / _FILES[0]), load_file(folder / _FILES[1]), json.loads(state)  # files, of which no copy is made


def _plain(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors as a file holds them: on the CPU, dense; copies only of those that are not."""
    return {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
