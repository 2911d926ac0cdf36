"""Files: how to write them so that a power cut cannot tear them (law 9), and which of a model's files make its tokenizer."""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from blake3 import blake3

from trivium.errors import InputError

TORN = (msgspec.MsgspecError, UnicodeDecodeError)
"""What msgspec raises for bytes that are no record of ours: where they are no text either, Python's own error."""


def write(path: Path, data: bytes) -> None:
    """Write `data` and wait until the disk has it."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def swap(path: Path, data: bytes) -> None:
    """Replace the content of `path` by `data`. The file is the old one or the new one, whatever kills us between."""
    temporary = _temporary(path)
    try:
        write(temporary, data)
        os.replace(temporary, path)
    except OSError as error:  # a full disk has no room for a part of a file either
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error  # nobody asked for the temporary one


def _temporary(path: Path) -> Path:
    """The file that this process writes first. A killed process leaves it."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def is_temporary(name: str, of: str) -> bool:
    """Whether `name` is the temporary file that a killed process left of a file called `of`."""
    return bool(re.fullmatch(rf"\.{re.escape(of)}\.\d+\.tmp", name))


@contextmanager
def locked(lock: Path) -> Generator[None]:
    """One process at a time, by a file of its own, which stays. A killed one's turn ends with it."""
    handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def vocabulary(folder: Path) -> list[Path]:
    """The files of a model's tokenizer: tokenizer.json, or else those that it can be made from.

    Of a folder without any, transformers makes a tokenizer that knows no word, and says nothing.
    """
    if (file := folder / "tokenizer.json").exists():
        return [file]
    parts = ("vocab*", "merges.txt", "*.model", "*.tiktoken", "tekken.json")
    return sorted({path for pattern in parts for path in folder.glob(pattern)})


def model_inside(folder: Path) -> str:
    """A hint to end an error with, where somebody named a run's folder in place of its model's; else nothing."""
    return f" (its model is {folder / 'model'})" if (folder / "model" / "config.json").is_file() else ""


def fingerprint(path: Path) -> str:
    """blake3 (hex) of a file's bytes; of a folder, of the names and bytes of all files in it, in the order of their names."""
    if not path.is_dir():
        return blake3().update_mmap(path).hexdigest()
    hasher = blake3()
    for file in sorted(file for file in path.rglob("*") if file.is_file()):
        hasher.update(f"{file.relative_to(path).as_posix()}\0{fingerprint(file)}\0".encode())
    return hasher.hexdigest()


@contextmanager
def new_folder(folder: Path) -> Generator[Path]:
    """A folder to fill, which becomes `folder` when all went well, and vanishes otherwise.

    Raises InputError if `folder` is not empty, or is a link, a mount or the present folder.
    """
    folder = Path(os.path.abspath(folder))
    if folder.is_symlink() or folder.is_mount() or folder == Path.cwd():
        raise InputError(f"{folder} is a link, a mount or the folder you are in: name one that is not there yet")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} is not empty: name a new folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as temporary:
        new = Path(temporary) / folder.name
        new.mkdir()
        yield new
        for path in (*new.rglob("*"), new):
            sync(path)
        os.replace(new, folder)
        sync(folder.parent)


def sync(path: Path) -> None:
    """Wait until the disk has the content of a file, or the names in a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def full_disk() -> Generator[None]:
    """Raise an OSError where safetensors cannot write a file, as for any other file."""
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        raise OSError(str(error)) from error
