"""Arrays in a folder that is never half-written: every build is a generation of its own, and one rename makes it the
current one.

    index/
      CURRENT              the name of the generation to read
      g-3f9a.../           its arrays, and meta.json with the size and digest of each
      LOCK                 held by whoever builds

A killed build leaves a generation that CURRENT does not name, or half a CURRENT; the next build removes them. A reader that
has the old generation open keeps it: its memory maps outlive the removal.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trivium import files
from trivium.errors import CorruptError, InputError

SCHEMA = 1
_GENERATION = re.compile(r"g-[0-9a-f]{32}")


def save(path: str | Path, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
    """Make `arrays` and `meta` what `path` holds, all or nothing (law 9). Raises InputError where `path` holds
    something else."""
    path = Path(path)
    _refuse_foreign(path)
    path.mkdir(parents=True, exist_ok=True)
    with files.locked(path / "LOCK"):
        generation = path / f"g-{uuid.uuid4().hex}"
        generation.mkdir()
        digests = {name: _write_array(generation / f"{name}.npy", array) for name, array in arrays.items()}
        files.write(generation / "meta.json", json.dumps({"schema": SCHEMA, "files": digests, **meta}, indent=1).encode())
        files.sync(generation)
        files.swap(path / "CURRENT", generation.name.encode())
        files.sync(path)
        for old in path.iterdir():
            if old != generation and _GENERATION.fullmatch(old.name):
                shutil.rmtree(old, ignore_errors=True)
            elif files.is_temporary(old.name, "CURRENT"):
                old.unlink(missing_ok=True)


def load(path: str | Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays, memory-mapped and read-only, and the meta data. Raises InputError where there is no index,
    CorruptError where it is torn or of another schema."""
    path = Path(path)
    for _ in range(100):
        name = _current(path)
        try:
            return _load(path / name)
        except FileNotFoundError as error:
            # A build may have replaced the generation between our two looks; then CURRENT names another one now.
            if _current(path) == name:
                raise CorruptError(
                    f"the index {path} is torn ({Path(error.filename).name} is missing): build it again"
                ) from error
    raise CorruptError(f"the index {path} is replaced faster than it can be opened")


def _load(generation: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    try:
        meta = json.loads((generation / "meta.json").read_bytes())
        schema, digests = meta["schema"], dict(meta["files"])
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptError(f"the index {generation.parent} is torn (meta.json is no meta data): build it again") from error
    if schema != SCHEMA:
        raise CorruptError(f"the index {generation.parent} is of schema {schema}, not {SCHEMA}: build it again")
    for name, expected in digests.items():
        if _digest(generation / f"{name}.npy") != expected:
            raise CorruptError(f"the index {generation.parent} is torn ({name}.npy has changed): build it again")
    return {name: np.asarray(np.load(generation / f"{name}.npy", mmap_mode="r")) for name in digests}, meta


def _current(path: Path) -> str:
    try:
        return (path / "CURRENT").read_text()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(f"{path} holds no index: build one there first with Corpus.build(documents, path)") from error
    except UnicodeDecodeError as error:
        raise CorruptError(f"the index {path} is torn (CURRENT names nothing): build it again") from error


def _refuse_foreign(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} is a file: give a folder for the index")
    if path.exists() and (other := [p.name for p in path.iterdir() if not _ours(p.name)]):
        raise InputError(f"{path} already holds something else ({sorted(other)[0]}): give the index a folder of its own")


def _ours(name: str) -> bool:
    return name in ("CURRENT", "LOCK") or files.is_temporary(name, "CURRENT") or bool(_GENERATION.fullmatch(name))


def _write_array(path: Path, array: np.ndarray) -> str:
    with open(path, "wb") as file:
        np.save(file, array, allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())
    return _digest(path)


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
