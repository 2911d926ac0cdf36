"""Feature deletion: a function or class taken out of a real package so that all else passes; the task is to put it back.

    tasks = await features(package_files("boltons/"), trial, count=10)

What is taken out is one public definition that nothing else in the package uses, with its exports and the tests that speak of
it. Those tests are hidden, and are the reward. Source: Composer 2.5 (Cursor's blog, May 2026), which names the method and two
leaks: an answer in a type checker's cache, and compiled copies. So only text files are taken along, and a sandbox in which
another copy of the package can be imported is refused.
"""

from __future__ import annotations

import ast
import io
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath

from trivium.errors import InputError
from trivium.tasks.commits.history import LARGEST, LEFTOVERS, in_tests, is_test
from trivium.tasks.commits.prove import Proof, Trial, passing, proposals, prove
from trivium.trace import Task

LINES = (4, 80)
"""How many lines a definition may have to be taken out."""

_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True, slots=True)
class Feature:
    """A definition: where it stands, its name, its lines, and the first sentence of its docstring."""

    path: str
    name: str
    lines: int
    says: str


def package_files(folder: str | Path) -> dict[str, str]:
    """The text files of a package or a project, path -> text; caches, compiled files and what is too large are left out.

    Of a folder that is itself a package (it has an `__init__.py`) the paths begin with its name. InputError for no folder.
    """
    top = Path(folder)
    if not top.is_dir():
        raise InputError(f"there is no folder {folder}: name a package, or a project with tests")
    root = top.parent if (top / "__init__.py").exists() else top
    found = {}
    for file in sorted(top.rglob("*")):
        path = file.relative_to(root)
        if not file.is_file() or file.is_symlink() or file.stat().st_size > LARGEST or set(path.parts) & set(LEFTOVERS):
            continue
        try:
            found[path.as_posix()] = file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
    return found


async def features(files: Mapping[str, str], trial: Trial, count: int = 10, seed: int = 0) -> list[Task]:
    """Up to `count` tasks, each without one feature, proven by its tests: they fail without it and pass with it, and all other
    tests of their files pass without it. InputError where another copy of the package can be imported in the sandbox."""
    candidates = [feature for feature in _candidates(files) if _is_tested(files, feature)]
    random.Random(seed).shuffle(candidates)
    for package in sorted({PurePosixPath(feature.path).parts[0].removesuffix(".py") for feature in candidates}):
        if not await _kept_out(trial, package):
            raise InputError(
                f"another copy of {package} can be imported in the sandbox, and would hold the answers: keep it out"
            )
    tasks: list[Task] = []
    for feature in candidates:
        if len(tasks) == count:
            break
        if task := await _task(files, feature, trial):
            tasks.append(task)
    return tasks


async def _task(files: Mapping[str, str], feature: Feature, trial: Trial) -> Task | None:
    before = without(files, feature)
    hidden = [path for path in before if is_test(path) and before[path] != files[path]]
    if not hidden:
        return None
    proof = await prove(trial, before, files, hidden, proposals(files))
    if isinstance(proof, str) or not await _all_else_passes(trial, before, hidden, proof):
        return None
    truth = {
        "grade": 1 + (feature.lines > 10) + (feature.lines > 25),
        "kind": "feature",
        "files": before,
        "tests": {path: files[path] for path in hidden},
        "expected": list(proof.expected),
        "fixed": list(proof.fixed),
        "change": {path: text for path, text in files.items() if before[path] != text and not in_tests(path)},
        "edits": [],
        "clues": [],
        "setup": proof.setup,
        "lines": feature.lines,
    }
    prompt = f"{feature.name} is missing from {feature.path}. {feature.says}".strip()
    return Task(f"{feature.path}:{feature.name}", prompt, truth)


async def _kept_out(trial: Trial, package: str) -> bool:
    """Whether a package cannot be imported in the sandbox but from the project itself."""
    asked = f"cd / && python -c 'import importlib.util as u; print(u.find_spec(\"{package}\") is None)'"
    return (await trial({}, asked)).strip() == "True"


async def _all_else_passes(trial: Trial, before: Mapping[str, str], hidden: list[str], proof: Proof) -> bool:
    """Whether the tests that were left in the hidden tests' files pass without the feature."""
    left = {id for id in proof.expected if _names(before[id.partition("::")[0]]) >= set(_plain(id).split("::"))}
    return left <= await passing(trial, before, hidden, proof.setup)


def _plain(id: str) -> str:
    """The test's own part of an id, without parameters."""
    return id.partition("::")[2].partition("[")[0]


def _names(source: str) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(source)) if isinstance(node, _Definition)}


# --- what can be taken out --------------------------------------------------------------------------------------------


def _candidates(files: Mapping[str, str]) -> Iterator[Feature]:
    """The public top-level definitions that nothing else in the package uses."""
    sources = {path: text for path, text in files.items() if path.endswith(".py") and not in_tests(path)}
    used = {path: _uses(text) for path, text in sources.items()}
    for path, text in sources.items():
        for node in _tree(text).body:
            if not isinstance(node, _Definition) or node.name.startswith("_"):
                continue
            first, last = _range(node)
            if LINES[0] <= last - first + 1 <= LINES[1] and not any(node.name in uses for uses in used.values()):
                says = (ast.get_docstring(node) or "").partition("\n\n")[0].partition(". ")[0]
                yield Feature(path, node.name, last - first + 1, " ".join(says.split())[:200])


def _tree(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):
        return ast.Module([], [])


@lru_cache(maxsize=4096)
def _uses(text: str) -> frozenset[str]:
    """The names that code reads or takes as attributes; imports and `__all__` alone are no use."""
    found: set[str] = set()
    for node in ast.walk(_tree(text)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
    return frozenset(found)


def _is_tested(files: Mapping[str, str], feature: Feature) -> bool:
    return any(is_test(path) and feature.name in _uses(text) for path, text in files.items())


def without(files: Mapping[str, str], feature: Feature) -> dict[str, str]:
    """The files without a feature: its definition, its imports and exports, and the tests that speak of it."""
    changed = {}
    for path, text in files.items():
        changed[path] = text
        if path.endswith(".py") and re.search(rf"\b{re.escape(feature.name)}\b", text):
            changed[path] = _cut(text, feature.name, tests=is_test(path), own=path == feature.path)
    return changed


def _cut(text: str, name: str, tests: bool, own: bool) -> str:
    """A file's text without the definition `name` (where it is its `own`), without imports and exports of it, and without the
    `tests` that use it."""
    lines = io.StringIO(text, newline="").readlines()  # as `ast` counts them; splitlines ends one at a form feed too
    edits: list[tuple[int, int, str]] = []
    for node in ast.walk(_tree(text)):
        if isinstance(node, ast.ImportFrom) and any(alias.name == name for alias in node.names):
            kept = [alias for alias in node.names if alias.name != name]
            indent = lines[node.lineno - 1][: node.col_offset]
            imported = ast.unparse(ast.ImportFrom(node.module, kept, node.level)) if kept else "pass" if indent else ""
            edits.append((node.lineno, node.end_lineno or node.lineno, f"{indent}{imported}\n"))
        elif isinstance(node, _Definition) and (own and node.name == name or tests and _is_test_of(node, name)):
            edits.append((*_range(node), ""))
    for first, last, new in sorted(_outermost(edits), reverse=True):
        lines[first - 1 : last] = [new]
    quoted = rf"""["']{re.escape(name)}["'],"""
    return re.sub(rf"^\s*{quoted}\s*\n|{quoted}\s*", "", "".join(lines), flags=re.MULTILINE)


def _is_test_of(node: _Definition, name: str) -> bool:
    """Whether a definition is a test function that uses `name`."""
    return not isinstance(node, ast.ClassDef) and node.name.startswith("test") and name in _uses(ast.unparse(node))


def _range(node: _Definition) -> tuple[int, int]:
    """First and last line, decorators with it."""
    return min([node.lineno, *(each.lineno for each in node.decorator_list)]), node.end_lineno or node.lineno


def _outermost(edits: list[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """The edits that stand inside of no other."""
    return [one for one in edits if not any(other[0] <= one[0] and one[1] <= other[1] and other != one for other in edits)]
