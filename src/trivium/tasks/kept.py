"""Tasks in a file, one a line of JSON: how those that took long to make are kept."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from trivium import files
from trivium.errors import InputError
from trivium.files import swap
from trivium.trace import Task


def write_tasks(tasks: Iterable[Task], path: str | Path) -> None:
    """Write tasks to a .jsonl file, which is the old one or the new one whatever kills us meanwhile."""
    swap(Path(path), b"".join(msgspec.json.encode(task) + b"\n" for task in tasks))


def read_tasks(path: str | Path) -> list[Task]:
    """The tasks of such a file. InputError where there is none, and for a line that is no task."""
    try:
        lines = Path(path).read_bytes().splitlines()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}): name the .jsonl that `trivium tasks` wrote") from error
    tasks = []
    for number, line in enumerate(lines, 1):
        try:
            tasks.append(msgspec.json.decode(line, type=Task))
        except files.TORN as error:
            raise InputError(f"line {number} of {path} is no task ({error})") from error
    return tasks
