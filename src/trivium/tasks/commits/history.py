"""What the git history of a repository holds: its commits, what each changed, and the files before and after it."""

from __future__ import annotations

import io
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from trivium.errors import InputError

LARGEST = 1_000_000
"""Bytes of a file that is taken along."""

LEFTOVERS = ("__pycache__", ".git", ".mypy_cache", ".pytest_cache", ".ruff_cache", "build", "dist", ".eggs")
"""Folders in which an answer may lie about: caches, built copies."""

_FIELD, _RECORD = "\x1f", "\x1e"


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit with one parent: its message, and (path, lines added, lines removed) of each text file that it changed."""

    id: str
    message: str
    changes: tuple[tuple[str, int, int], ...]

    @property
    def tests(self) -> list[str]:
        """The changed files that are tests."""
        return [path for path, *_ in self.changes if is_test(path)]

    @property
    def sources(self) -> list[str]:
        """The changed Python files that are no tests."""
        return [path for path, *_ in self.changes if path.endswith(".py") and not in_tests(path)]

    @property
    def lines(self) -> int:
        """Lines added and removed in files that are no tests."""
        return sum(added + removed for path, added, removed in self.changes if not in_tests(path))


def is_test(path: str) -> bool:
    """Whether pytest would collect a file by its name."""
    name = PurePosixPath(path).name
    return name.endswith(".py") and (name.startswith("test_") or name.endswith("_test.py"))


def in_tests(path: str) -> bool:
    return is_test(path) or any(part in ("test", "tests", "testing") for part in PurePosixPath(path).parts[:-1])


def history(repo: str | Path) -> Iterator[Commit]:
    """The commits of a repository's current branch, newest first, without merges and without the first. InputError for a folder
    without a history."""
    form = f"--format={_RECORD}%H{_FIELD}%P{_FIELD}%B{_FIELD}"
    log = _git(repo, "-c", "core.quotePath=false", "log", "--no-merges", "--no-renames", "--numstat", form)
    for record in log.decode(errors="replace").split(_RECORD)[1:]:
        id, parents, message, numbers = record.split(_FIELD, 3)
        if len(parents.split()) == 1:
            yield Commit(id, message.strip(), tuple(_numbers(numbers)))


def _numbers(text: str) -> Iterator[tuple[str, int, int]]:
    for line in text.split("\n"):  # a name may hold the other letters at which splitlines splits
        added, _, rest = line.partition("\t")
        removed, _, path = rest.partition("\t")
        if added.isdigit():  # of a binary file git says "-"
            yield path, int(added), int(removed)


def files(repo: str | Path, commit: str) -> dict[str, str]:
    """The text files of a commit, path -> text. What is no UTF-8, too large, a link or in a folder of leftovers is left out."""
    found = {}
    with tarfile.open(fileobj=io.BytesIO(_git(repo, "archive", "--format=tar", commit))) as archive:
        for member in archive:
            if not member.isfile() or member.size > LARGEST or set(PurePosixPath(member.name).parts) & set(LEFTOVERS):
                continue
            data = archive.extractfile(member)
            if data and (text := _text(data.read())) is not None:
                found[member.name] = text
    return found


def _text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _git(repo: str | Path, *arguments: str) -> bytes:
    """What git prints. InputError with its own words where it fails."""
    try:
        done = subprocess.run(["git", "-C", str(repo), *arguments], capture_output=True, check=False, stdin=subprocess.DEVNULL)
    except FileNotFoundError as error:
        raise InputError("there is no git on this machine, which reads a repository's history: install it") from error
    if done.returncode:
        said = " ".join(done.stderr.decode(errors="replace").split())
        raise InputError(f"{repo} has no history that git can read ({said[:200]}): name the folder of a git repository")
    return done.stdout
