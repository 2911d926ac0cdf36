"""What a change is proven by: tests that fail before it and pass after it, in sandboxes, with flaky ones dropped."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from trivium.trace import Task

_PYTEST = "python -m pytest -q -rpfE --tb=no --color=no -p no:cacheprovider"
_OUTCOME = re.compile(r"^(PASSED|FAILED|ERROR) (\S+\.py::.*?)(?: - .*)?$", re.MULTILINE)
BARE = "export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1;"
"""Tests without the plugins that are installed here: most need none, and they start several times as fast."""

RUNS = 2
"""How often the changed project is tested; a test that does not pass each time is flaky, and dropped."""


class Trial(Protocol):
    """Runs a shell command at the top of a project in a fresh sandbox."""

    async def __call__(self, files: Mapping[str, str], command: str) -> str:
        """What it printed on stdout; as far as it came where its time was used up. Nothing of it is left behind."""
        ...


@dataclass(frozen=True, slots=True)
class Proof:
    """Ids of tests that pass after the change, those of them that fail before it, and the command that set them going."""

    setup: str
    expected: tuple[str, ...]
    fixed: tuple[str, ...]


def proposals(files: Iterable[str]) -> list[str]:
    """Commands that may set a project up so that its tests run, the simplest first; each ends where pytest is to follow."""
    folders = {path.partition("/")[0] for path in files if "/" in path}
    paths = ["", *(f"export PYTHONPATH={folder};" for folder in ("src", "lib") if folder in folders)]
    found = [f"{BARE} {path}".strip() for path in paths] + paths
    if {"setup.py", "pyproject.toml"} & set(files):
        found.append("python -m pip install -q --no-index --no-deps --no-build-isolation . >&2;")
    return found


async def prove(
    trial: Trial, before: Mapping[str, str], after: Mapping[str, str], tests: Sequence[str], setups: Sequence[str]
) -> Proof | str:
    """The proof of a change from one set of files to another by the test files `tests` of `after`, or why there is none.

    The first of `setups` under which some test passes is kept. With it the project is tested `RUNS` times after the change, and
    once before.
    """
    with_tests = {**before, **{path: after[path] for path in tests}}
    for setup in setups:
        if first := await passing(trial, after, tests, setup):
            break
    else:
        return "no test passes after the change"
    steady = set(first)
    for _ in range(RUNS - 1):
        steady &= await passing(trial, after, tests, setup)
    failing = steady - await passing(trial, with_tests, tests, setup)
    if not failing:
        return "no test fails before the change and passes after it"
    return Proof(setup, tuple(sorted(steady)), tuple(sorted(failing)))


async def passing(trial: Trial, files: Mapping[str, str], tests: Sequence[str], setup: str) -> set[str]:
    """The ids of the tests in the files `tests` that pass."""
    printed = await trial(files, f"{setup} {_PYTEST} {shlex.join(tests)}".strip())
    return {id for outcome, id in _OUTCOME.findall(printed) if outcome == "PASSED"}


async def holds(trial: Trial, task: Task) -> tuple[bool, bool]:
    """Whether the true change of a task (of a commit, a feature or a generated project) passes all its tests, and whether doing
    nothing does, which should not."""
    truth = task.truth
    tests = [path for path in truth["tests"] if path.endswith(".py") and any(id.startswith(path) for id in truth["expected"])]
    changed = {path: text for path, text in {**truth["files"], **truth["change"]}.items() if text is not None}
    wanted, setup = set(truth["expected"]), truth.get("setup", BARE)
    done = await passing(trial, {**changed, **truth["tests"]}, tests, setup)
    nothing = await passing(trial, {**truth["files"], **truth["tests"]}, tests, setup)
    return wanted <= done, wanted <= nothing
