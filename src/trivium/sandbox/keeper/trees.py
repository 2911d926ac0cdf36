"""What lies below a folder, whatever a command made of it: no depth is too much, and what no path reaches is left out."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


def entries(top: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """All that is below a folder with its path there, each folder before what it holds. Links are not followed."""
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        with contextlib.suppress(OSError), os.scandir(os.path.join(top, folder)) as found:
            for entry in found:
                path = os.path.join(folder, entry.name)
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(path)
                yield path, entry


def regular_files(top: str) -> dict[str, int]:
    """Every regular file below a folder, path -> bytes."""
    sizes = {}
    for path, entry in entries(top):
        with contextlib.suppress(OSError):  # its path is too long for the kernel, or it is gone
            if entry.is_file(follow_symlinks=False):
                sizes[path] = entry.stat(follow_symlinks=False).st_size
    return sizes
