"""The packages of this Python that code in a sandbox may import, and nothing else that is installed here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

from trivium.errors import InputError


def folders_of(names: Sequence[str]) -> list[Path]:
    """The top folders and files of packages and of all that they require, each once. InputError for one that is not there."""
    found: dict[str, Distribution] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name.lower() in found:
            continue
        try:
            found[name.lower()] = distribution(name)
        except PackageNotFoundError:
            raise InputError(f"no sandbox can show the package {name}, which is not here: pip install {name}") from None
        waiting += _required(found[name.lower()])
    return sorted({top for each in found.values() for top in _tops(each)})


def _required(package: Distribution) -> Iterator[str]:
    for text in package.requires or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield requirement.name


def _tops(package: Distribution) -> Iterator[Path]:
    """Its folders and modules, and its own record, by which plugins are found."""
    for file in package.files or ():
        if file.parts[0] not in ("..", "__pycache__"):
            yield Path(str(package.locate_file(file.parts[0]))).resolve()
