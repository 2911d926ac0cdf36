"""A trained coder on a person's own folder: it works on a copy in a sandbox, and what comes of it is a diff."""

from __future__ import annotations

import difflib
import io
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trivium import files
from trivium.agents.coder.desk import SKIPPED, shown
from trivium.errors import InputError

LARGEST = 1_000_000
MOST = 20_000_000
"""Bytes of one file, and of all together, that are copied."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A folder's files as they were read, path -> bytes, and the paths that were left out as too large or no plain file."""

    folder: Path
    held: dict[str, bytes]
    skipped: list[str]


def read_folder(folder: str | Path) -> Copy:
    """Raises InputError for what is no folder, an empty one, and one that is too large."""
    top = Path(folder)
    if not top.is_dir():
        raise InputError(f"{folder} is no folder: name the one of your project")
    held: dict[str, bytes] = {}
    skipped: list[str] = []
    for path in _plain_files(top):
        name = path.relative_to(top).as_posix()
        if path.is_symlink() or not path.is_file() or path.stat().st_size > LARGEST or not _is_plain(name):
            skipped.append(name)
            continue
        held[name] = path.read_bytes()
        if sum(map(len, held.values())) > MOST:
            raise InputError(f"{folder} has more than {MOST:,} bytes of files: name the folder of one project")
    if not held:
        raise InputError(f"{folder} has no files to work on")
    return Copy(top, held, skipped)


def _plain_files(top: Path) -> list[Path]:
    found: list[Path] = []
    for folder, folders, names in os.walk(top):
        folders[:] = sorted(each for each in folders if each not in SKIPPED)
        found += [Path(folder, name) for name in sorted(names)]
    return found


def _is_plain(name: str) -> bool:
    """Whether a file's name is text; one of odd bytes is left where it is."""
    return name.encode(errors="replace").decode() == name


def diff(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> str:
    """A unified diff of two folders, file by file; of what is no text, that it differs."""
    parts = [_one(path, before.get(path), after.get(path)) for path in sorted(before.keys() | after.keys())]
    return "".join(parts)


def _one(path: str, old: bytes | None, new: bytes | None) -> str:
    if old == new:
        return ""
    name = shown(path)
    names = ("/dev/null" if old is None else f"a/{name}", "/dev/null" if new is None else f"b/{name}")
    try:
        before, after = (_lines((each or b"").decode()) for each in (old, new))
    except UnicodeDecodeError:
        return f"Binary files {names[0]} and {names[1]} differ\n"
    lines = difflib.unified_diff(before, after, *names)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _lines(text: str) -> list[str]:
    """Lines as a patch knows them, each with its end: a form feed inside of one is a letter like any other."""
    return io.StringIO(text, newline="\n").readlines()


def apply(copy: Copy, after: Mapping[str, bytes]) -> list[str]:
    """Write what changed into the folder, each file whole or not at all. InputError, and no change, where a file is not any
    more as it was copied, and where something else stands in its place."""
    changed = sorted(path for path in copy.held.keys() | after.keys() if copy.held.get(path) != after.get(path))
    gone = {path for path in changed if path not in after}
    for path in changed:
        place = _inside(copy.folder, path)
        now = place.read_bytes() if place.is_file() else None
        if now != copy.held.get(path):
            raise InputError(f"{place} has changed since it was copied: nothing was applied; ask again")
        if path in after:
            _refuse_taken(copy.folder, place, gone)
    for path in gone:  # first: a file may come where a folder was, and the other way round
        _delete(copy.folder, copy.folder / path)
    for path in changed:
        if path in after:
            _write(copy.folder / path, after[path])
    return changed


def _refuse_taken(folder: Path, place: Path, gone: set[str]) -> None:
    """InputError where a folder stands in a file's place, or a file in a folder's, and does not go by the same change."""
    inside = (each for each in place.rglob("*") if not each.is_dir()) if place.is_dir() else ()
    for each in (*inside, *(parent for parent in place.parents if parent.is_file())):
        if each.relative_to(folder).as_posix() not in gone:
            raise InputError(f"{each} is in the way of {place}: nothing was applied; move it, and ask again")


def _delete(folder: Path, place: Path) -> None:
    """A file, and the folders that only it was in, as git does."""
    place.unlink()
    for parent in place.parents:
        if parent == folder or any(parent.iterdir()):
            return
        parent.rmdir()


def _write(place: Path, data: bytes) -> None:
    if place.is_dir():  # an empty one, or it would be refused
        shutil.rmtree(place)
    mode = place.stat().st_mode if place.exists() else None
    place.parent.mkdir(parents=True, exist_ok=True)
    files.swap(place, data)
    if mode is not None:
        place.chmod(mode)


def _inside(folder: Path, path: str) -> Path:
    """InputError for a place that a link leads out of the folder."""
    place = folder / path
    if not place.resolve().is_relative_to(folder.resolve()):
        raise InputError(f"{place} lies outside of {folder} by a link: nothing was applied")
    return place
