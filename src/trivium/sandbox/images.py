"""Images: folders, made by a short recipe of a base and files, without what history, caches and builds would tell."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from trivium.errors import InputError
from trivium.files import new_folder
from trivium.sandbox.base import inside

LEFTOVERS = (
    "__pycache__", "*.pyc", "*.pyo", ".git", ".hg", ".svn", ".mypy_cache", ".pytype", ".pyre", ".ruff_cache", ".pytest_cache",
    ".hypothesis", ".tox", ".nox", ".venv", "venv", "site-packages", "node_modules", "build", "dist", "*.egg-info",
    "*.dist-info", ".coverage", "htmlcov", ".ipynb_checkpoints", "*.orig", "*.rej", "*.bak", "*~", ".*.sw?",
)  # fmt: skip
"""Where the text of a removed function is found again: compiled, typed, committed, built, installed or edited copies."""


def build(folder: str | Path, base: str | Path | None = None, files: Mapping[str, bytes] | None = None) -> Path:
    """Make an image at `folder`: the files of `base` without their leftovers, then `files` (path -> bytes) over them. The
    packages that its code may import are named where sandboxes are made (`Ns(packages=...)`), and are no part of it. Raises
    InputError where `folder` is taken or `base` is none."""
    if base is not None and not Path(base).is_dir():
        raise InputError(f"{base} is no folder to make an image from")
    with new_folder(Path(folder)) as made:
        if base is not None:
            leave = shutil.ignore_patterns(*LEFTOVERS)
            shutil.copytree(base, made, symlinks=True, ignore=leave, dirs_exist_ok=True)
        for path, data in (files or {}).items():
            place = made / inside(path)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
    return Path(folder)
