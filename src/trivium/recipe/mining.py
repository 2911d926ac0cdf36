"""`trivium tasks git`, `features`, `check`: a repository's commits and a package's features as tasks, and their proof again."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Literal, TypeVar

import tyro
from rich.text import Text

from trivium.assets import CODE
from trivium.errors import InputError
from trivium.policy import Endpoint
from trivium.policy.render import Renderer
from trivium.recipe.verbs import check_files
from trivium.sandbox import LocalUnsafe, Ns, Provider
from trivium.tasks.commits import mine
from trivium.tasks.commits.boxes import Boxes
from trivium.tasks.commits.history import Commit, history
from trivium.tasks.commits.prove import holds
from trivium.tasks.features import features as cut_features
from trivium.tasks.features import package_files
from trivium.tasks.kept import read_tasks, write_tasks
from trivium.trace import Task
from trivium.viewer import screen
from trivium.viewer.episodes import clean

Repository = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="REPO")]
Package = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="FOLDER")]
File = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="FILE")]
T = TypeVar("T")
Where = Literal["ns", "local-unsafe"]


def git(
    repo: Repository,
    out: str,
    count: int = 20,
    commits: int = 400,
    policy: str = "",
    packages: tuple[str, ...] = (),
    sandbox: Where = "ns",
) -> None:
    """Make tasks of a repository's commits: those whose tests fail before them and pass after them.

    Args:
        repo: the folder of a git repository
        out: the .jsonl file to write
        count: tasks to make, from the newest commits on
        commits: the newest commits that are looked at
        policy: a model that words the requests, as URL#MODEL, its key in OPENAI_API_KEY; default: the commits' messages
        packages: what the project's tests import besides pytest; installed here
        sandbox: where its tests run; local-unsafe isolates nothing, what runs there runs as you
    """
    words = _endpoint(policy) if policy else None
    if next(history(repo), None) is None:
        raise InputError(
            f"{repo} has no commit with one before it, so nothing can be told apart: name a repository with a history"
        )

    async def make(boxes: Boxes) -> tuple[list[Task], list[str]]:
        mined = await mine(repo, boxes, count, commits, words, _tell)
        return mined.tasks, mined.report.sentences()

    _make(make, out, packages, sandbox)


def features(
    folder: Package, out: str, count: int = 10, seed: int = 0, packages: tuple[str, ...] = (), sandbox: Where = "ns"
) -> None:
    """Make tasks of a package with tests: a feature is taken out so that all else passes, and its tests say whether it is back.

    Args:
        folder: a package that brings its tests, or a project's folder
        out: the .jsonl file to write
        count: tasks to make
        seed: of the order in which features are tried
        packages: what the tests import besides pytest; installed here
        sandbox: where tests run; local-unsafe isolates nothing, what runs there runs as you
    """
    files = package_files(folder)

    async def make(boxes: Boxes) -> tuple[list[Task], list[str]]:
        tasks = await cut_features(files, boxes, count, seed)
        return tasks, [f"{len(tasks)} tasks, a feature each", *(f"{task.truth['lines']} lines: {task.id}" for task in tasks)]

    _make(make, out, packages, sandbox)


def _tell(commit: Commit, made: Task | str) -> None:
    """A line for each commit that becomes a task, and each whose tests were run in vain."""
    if isinstance(made, Task) or made.startswith("no test"):
        about = clean(made.prompt) if isinstance(made, Task) else made
        screen().print(Text(f"{commit.id[:12]}  {about}", "" if isinstance(made, Task) else "dim"), soft_wrap=True)


def check(file: File, packages: tuple[str, ...] = (), sandbox: Where = "ns") -> None:
    """Prove the tasks of a file again: the true change passes all tests, doing nothing does not.

    Args:
        file: a .jsonl that `trivium tasks` wrote
        packages: what the tests import besides pytest; installed here
        sandbox: where tests run; local-unsafe isolates nothing, what runs there runs as you
    """
    tasks = read_tasks(file)
    for number, task in enumerate(tasks, 1):
        if fault := _unprovable(task):
            raise InputError(f"line {number} of {file}, task {task.id}, cannot be proved: its truth has no {fault}")

    async def prove(boxes: Boxes) -> list[tuple[bool, bool]]:
        return [await holds(boxes, task) for task in tasks]

    proofs = _inside(prove, packages, sandbox)
    wrong = [task.id for task, proof in zip(tasks, proofs, strict=True) if proof != (True, False)]
    done, nothing = (sum(each) for each in zip(*proofs, strict=True)) if proofs else (0, 0)
    screen().print(Text(f"{len(tasks)} tasks: the true change passes {done} of them, doing nothing {nothing}"), soft_wrap=True)
    if wrong:
        raise InputError(f"{len(wrong)} of {len(tasks)} tasks do not hold, the first is {wrong[0]}")


def _unprovable(task: Task) -> str:
    """What a task's truth lacks of what tests need; empty where it has all."""
    kinds = {"files": dict, "tests": dict, "change": dict, "expected": list}
    return next((name for name, kind in kinds.items() if not isinstance(task.truth.get(name), kind)), "")


def _inside(work: Callable[[Boxes], Awaitable[T]], packages: Sequence[str], sandbox: Where) -> T:
    """What `work` makes of sandboxes, which are gone afterwards."""

    async def within() -> T:
        provider = _provider(sandbox, packages)
        try:
            boxes = Boxes(provider)
            await boxes.check()
            return await work(boxes)
        finally:
            await provider.close()

    return asyncio.run(within())


def _make(
    make: Callable[[Boxes], Awaitable[tuple[list[Task], list[str]]]], out: str, packages: Sequence[str], sandbox: Where
) -> None:
    """Run `make` in sandboxes, say what came of it, and write it. Nothing is written where there is no task."""
    check_files(out)
    tasks, sentences = _inside(make, packages, sandbox)
    for sentence in sentences:
        screen().print(Text(sentence), soft_wrap=True)
    if not tasks:
        raise InputError("no task came of it, so nothing was written")
    write_tasks(tasks, out)
    screen().print(Text(f"{out} holds {len(tasks)} tasks"), soft_wrap=True)


def _provider(sandbox: Where, packages: Sequence[str]) -> Provider:
    if sandbox == "ns":
        return Ns(packages=("pytest", *packages))
    if packages:
        raise InputError("--packages would change nothing: local-unsafe imports whatever is installed here")
    screen().print(Text("local-unsafe: nothing is isolated, the project's tests run as you", "bold"))
    return LocalUnsafe(i_know_that_nothing_is_isolated=True)


def _endpoint(policy: str) -> Endpoint:
    url, _, model = policy.partition("#")
    if not url or not model:
        raise InputError(f"--policy {policy!r} names no model: write URL#MODEL")
    return Endpoint(url, model, Renderer.load(CODE), os.environ.get("OPENAI_API_KEY") or "none", name=model)
