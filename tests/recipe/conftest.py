"""What the tests of the verbs share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from trivium import cli

Verb = Callable[..., tuple[int, str, str]]


@pytest.fixture
def trivium(capsys, monkeypatch) -> Verb:
    """The command in this process, on a terminal of so many columns: status, output, error."""

    def command(*words: str | Path, width: int = 120) -> tuple[int, str, str]:
        capsys.readouterr()
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setattr(sys, "argv", ["trivium", *map(str, words)])
        try:
            cli.main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return command
