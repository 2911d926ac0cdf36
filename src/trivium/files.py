"""Files: how they are written so that a power cut cannot tear them (law 9), and what is looked for in a folder."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from trivium.errors import InputError


def write(path: Path, data: bytes) -> None:
    """Write `data` and wait until the disk has it."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def swap(path: Path, data: bytes) -> None:
    """Make `data` what `path` holds: the whole of it or the old file, whatever kills us between."""
    try:
        write(_staged(path), data)
        os.replace(_staged(path), path)
    except OSError:  # a full disk has no room for what was begun
        _staged(path).unlink(missing_ok=True)
        raise


def _staged(path: Path) -> Path:
    """Where this process writes first; a killed one leaves it."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def is_staged(name: str, of: str) -> bool:
    """Whether `name` is what a killed process left of a file called `of`."""
    return bool(re.fullmatch(rf"\.{re.escape(of)}\.\d+\.tmp", name))


def vocabulary(folder: Path) -> list[Path]:
    """The files in a model's folder from which its tokenizer is made, tokenizer.json before what it is made of; of a folder
    without any, transformers makes a tokenizer that knows no word, and says nothing."""
    if (whole := folder / "tokenizer.json").exists():
        return [whole]
    parts = ("vocab*", "merges.txt", "*.model", "*.tiktoken", "tekken.json")
    return sorted({path for pattern in parts for path in folder.glob(pattern)})


@contextmanager
def new_folder(folder: Path) -> Generator[Path]:
    """A folder to fill, which becomes `folder` when all went well; else nothing does. InputError where that is not empty, or
    nothing that a folder can take the place of."""
    folder = Path(os.path.abspath(folder))
    if folder.is_symlink() or folder.is_mount() or folder == Path.cwd():
        raise InputError(f"{folder} is a link, a mount or the folder you are in: name one that is not there yet")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} is not empty: name a new folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as temporary:
        filling = Path(temporary) / folder.name
        filling.mkdir()
        yield filling
        for path in (*filling.rglob("*"), filling):
            sync(path)
        os.replace(filling, folder)
        sync(folder.parent)


def sync(path: Path) -> None:
    """Wait until the disk has what is in a file, or the names in a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def full_disk() -> Generator[None]:
    """What safetensors says of a file that it cannot write is an OSError, as it is of any other file."""
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        raise OSError(str(error)) from error
