"""Law 13: the core knows no leaf. No folder below `agents/` says a word of an agent: not its tools, its scores, its labels."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import trivium

ROOT = Path(trivium.__file__).parent
WORDS = {
    "search_corpus", "grep_corpus", "read_document", "f1", "output_recall", "trajectory_recall", "answer_found", "prune_rate",
    "prune_accuracy", "format_valid", "citation", "SearchReward", "searches", "prune_streak", "f_beta", "Search",
}  # fmt: skip
"""What only the search agent has a use for."""
TOP = {"agents", "cli.py"}
FILES = sorted(file for file in ROOT.rglob("*.py") if file.relative_to(ROOT).parts[0] not in TOP)


def words(file: Path) -> Iterator[str]:
    """The names, the attributes and the texts that a file's code is made of, docstrings and comments left out."""
    tree = ast.parse(file.read_text())
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.alias):
            yield from node.name.split(".")
        elif isinstance(node, ast.ImportFrom):
            yield from (node.module or "").split(".")[2:]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.value


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_no_file_below_the_agents_says_a_word_of_one(file):
    assert not WORDS & set(words(file))


def test_the_agents_do_say_these_words():
    """The check above would pass if it read nothing."""
    said = {word for file in (ROOT / "agents").rglob("*.py") for word in words(file)}
    assert not WORDS - said
