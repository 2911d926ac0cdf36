"""Every regular expression of ours takes time in proportion to what it reads, whatever that is."""

from __future__ import annotations

import ast
import importlib
import re
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import pytest

SOURCES = sorted(Path("src/trivium").rglob("*.py"))
METHODS = ("finditer", "findall", "fullmatch", "match", "search", "split", "sub")
BOUNDED = {"cloze._WORD": "sees a sentence of 400 letters at most", "search._SPACES": "sees a pattern of 1,000 letters at most"}
BEGINNINGS = ("", "# ", "# x", "```", "---\n", "[", "[[", "](", "<think>", "<|", "[Token usage: 9", "https://", ".", "x#", "g-")
ENDS = ("", "x", "\n", "]")


def patterns() -> Iterator[tuple[str, re.Pattern[str], str]]:
    """Name, pattern and how it is applied: those that modules hold, and those that stand where they are used."""
    for source in SOURCES:
        text = source.read_text()
        if "re." in text and re.search(r"^import re$", text, re.MULTILINE):
            yield from _held(source, text)
            yield from _inline(source, text)


def _held(source: Path, text: str) -> Iterator[tuple[str, re.Pattern[str], str]]:
    module = importlib.import_module(".".join(source.with_suffix("").parts[1:]))
    for name, value in vars(module).items():
        for number, each in enumerate(value if isinstance(value, tuple) else (value,)):
            if isinstance(each, re.Pattern) and isinstance(each.pattern, str):
                used = {method for method in METHODS if re.search(rf"\b{name}\.{method}\(", text)} or {"finditer"}
                for method in sorted(used):  # in one order for all workers of a test run
                    yield f"{source.stem}.{name}{f'[{number}]' if value is not each else ''}", each, method


def _inline(source: Path, text: str) -> Iterator[tuple[str, re.Pattern[str], str]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
            if isinstance(node.func.value, ast.Name) and node.func.value.id == "re" and isinstance(node.args[0], ast.Constant):
                yield f"{source.stem}:{node.lineno}", re.compile(node.args[0].value), node.func.attr


def texts(pattern: re.Pattern[str]) -> Iterator[Callable[[int], str]]:
    """Runs of the letters that a pattern knows, and of pairs of them, with something before and behind."""
    letters = sorted({*re.findall(r"[^\w\s]", pattern.pattern), " ", "\n", "x", "9"} - set("^$+"))
    for first, second in product(letters, letters):
        yield lambda n, pair=first + second: pair * (n // 2)
    for begin, letter, end in product(BEGINNINGS, letters, ENDS):
        yield lambda n, parts=(begin, letter, end): parts[0] + parts[1] * n + parts[2]


def seconds(pattern: re.Pattern[str], method: str, text: str) -> float:
    """Of this thread alone; the shortest of two."""
    apply = getattr(pattern, method)
    spent = []
    for _ in range(2):
        began = time.thread_time()
        if method == "sub":
            apply("", text)
        else:
            matches = apply(text)
            if method == "finditer":
                all(True for _ in matches)
        spent.append(time.thread_time() - began)
    return min(spent)


PATTERNS = [(name, pattern, method) for name, pattern, method in patterns() if name not in BOUNDED]


def test_all_are_looked_at():
    names = {name for name, _, _ in PATTERNS}
    assert len(PATTERNS) > 25 and {"documents._HEADING", "base._USAGE", "chunks._BORDERS[2]", "proof._LINK"} <= names


@pytest.mark.parametrize("name, pattern, method", PATTERNS, ids=[f"{name} {method}" for name, _, method in PATTERNS])
def test_no_text_takes_more_than_its_share(name, pattern, method):
    for size in (500, 5_000):
        for text in texts(pattern):
            short, long = (seconds(pattern, method, text(n)) for n in (size, 4 * size))
            assert long < 8 * short + 0.01, f"{text(20)!r}: {short:.4f} s, and {long:.4f} s for a text four times as long"
