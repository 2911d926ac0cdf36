"""Every command that a page shows is one that the command line takes: its verb, its options, their types."""

from __future__ import annotations

import functools
import re
import shlex
from pathlib import Path

import pytest
import tyro

from trivium import cli
from trivium.recipe import find

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
VERBS = "train|eval|show|view|export|tasks|serve|keys|live|rollback|sandbox|ask|fix"
_SHOWN = re.compile(rf"^    (?:\$ )?(?:\.venv/bin/)?trivium ((?:{VERBS})\b(?:.*\\\n)*.*)$", re.MULTILINE)

_COMMENT = re.compile(r"\s#.*")


def shown(page: Path) -> list[list[str]]:
    """The words of each command, without its comment and without dots that leave something out."""
    commands = (shlex.split(_COMMENT.sub("", each.replace("\\\n", " "))) for each in _SHOWN.findall(page.read_text()))
    return [[word for word in words if word != "..."] for words in commands if "[options]" not in words]


@pytest.fixture
def parse(monkeypatch):
    """The command line up to the verb itself, which does nothing. Runs are there, of the agent that their folder is called."""

    def only_parse(verb, words, taken):
        nothing = functools.wraps(verb)(lambda *_, **__: None)
        tyro.cli(nothing, args=words[taken:], config=(tyro.conf.FlagCreatePairsOff,))

    def agent(words):
        named = bool(words) and words[0] in find.shipped()
        return find.find(words[0] if named else "search"), named

    own = find.find(str(ROOT / "examples" / "agent.py"))
    known = find.find
    monkeypatch.setattr(find, "find", lambda name: own if name.endswith(".py") else known(name))
    monkeypatch.setattr(cli, "_agent", agent)
    monkeypatch.setattr(cli, "_run", only_parse)
    return cli._dispatch


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_that_are_shown_are_taken(page, parse, capsys):
    for words in shown(page):
        try:
            parse(words)
        except SystemExit as end:
            assert not end.code, f"{page.name}: trivium {shlex.join(words)}\n{capsys.readouterr().err}"


def test_the_pages_show_many_commands():
    """The check above would pass if its pattern found nothing."""
    assert sum(len(shown(page)) for page in PAGES) > 50
