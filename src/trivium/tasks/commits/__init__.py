"""Tasks from the commits of a git repository, as CursorBench was made: a request, and tests that only the change passes.

    mined = await mine("~/code/boltons", trial, count=20)
    mined.tasks[0].prompt           "iterutils: add a strip function"
    mined.report.sentences()        how large the changes are, how long the requests, what was left out and why

A commit becomes a task when it changes a Python file and a test file, and tests that fail before it pass after it. The agent
gets the project as it was before, without the new tests. Source: Cursor's Composer 2 report, section 5 (arXiv:2603.24477).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from trivium.policy.base import Policy
from trivium.tasks.commits.history import Commit, files, history, in_tests
from trivium.tasks.commits.prove import Proof, Trial, proposals, prove
from trivium.tasks.commits.report import ALIKE, Report, alike, report, shingles
from trivium.tasks.commits.request import added_lines, from_message, in_words_of, leaks
from trivium.trace import Task

__all__ = ["Mined", "Report", "Trial", "mine"]

MOST_LINES = 600
"""Changed lines of the largest change that becomes a task."""

GRADES = (10, 40, 120, 300)
"""Changed lines below which a task is of grade 1, 2, 3, 4; others are of 5."""


@dataclass(frozen=True, slots=True)
class Mined:
    tasks: list[Task]
    report: Report


async def mine(
    repo: str | Path,
    trial: Trial,
    count: int = 20,
    commits: int = 400,
    policy: Policy | None = None,
    watch: Callable[[Commit, Task | str], None] | None = None,
) -> Mined:
    """Up to `count` tasks from the newest `commits` commits of a repository, newest first. `policy` words the requests; without
    one they are the commits' messages. `watch` hears of each commit what became of it: a task, or why there is none. Raises
    InputError for a folder without a history."""
    miner = _Miner(str(repo), trial, policy)
    for commit in islice(history(repo), commits):
        if len(miner.tasks) == count:
            break
        made = await miner.consider(commit)
        if watch:
            watch(commit, made)
    return Mined(miner.tasks, report(miner.tasks, miner.left_out))


class _Miner:
    """What was found so far in one repository."""

    def __init__(self, repo: str, trial: Trial, policy: Policy | None) -> None:
        self.repo, self.trial, self.policy = repo, trial, policy
        self.tasks: list[Task] = []
        self.left_out: Counter[str] = Counter()
        self.seen: list[frozenset] = []
        self.setup: str | None = None
        """the set-up under which tests of this repository have passed, which is kept for the commits before"""

    async def consider(self, commit: Commit) -> Task | str:
        """Make a task of `commit`, or count why there is none."""
        made = await self._task(commit)
        if isinstance(made, Task):
            self.tasks.append(made)
        else:
            self.left_out[made] += 1
        return made

    async def _task(self, commit: Commit) -> Task | str:
        if not commit.sources or not commit.tests:
            return "it does not change both a Python file and a test"
        if commit.lines > MOST_LINES:
            return f"it changes more than {MOST_LINES} lines"
        if not (prompt := from_message(commit.message)):
            return "its message asks for nothing"
        before, after = files(self.repo, f"{commit.id}^"), files(self.repo, commit.id)
        tests = [path for path, *_ in commit.changes if in_tests(path) and path in after]
        change = {path: after.get(path) for path, *_ in commit.changes if not in_tests(path)}
        new = "\n".join(added_lines(before, change))
        if any(alike(shingles(new), other) > ALIKE for other in self.seen):
            return "it is nearly the same change as another"
        if found := leaks(prompt, before, change):
            return found[0].partition(":")[0].lstrip("0123456789 of")
        proof = await self._prove(before, after, [path for path in commit.tests if path in after])
        if isinstance(proof, str):
            return proof
        self.seen.append(shingles(new))
        if self.policy is not None:
            prompt = await in_words_of(self.policy, commit.message, new) or prompt
        return self._made(commit, prompt, before, {path: after[path] for path in tests}, change, proof)

    async def _prove(self, before: Mapping[str, str], after: Mapping[str, str], tests: list[str]) -> Proof | str:
        if not tests:
            return "its tests are gone after it"
        setups = proposals(after) if self.setup is None else [self.setup]
        proof = await prove(self.trial, before, after, tests, setups)
        self.setup = proof.setup if isinstance(proof, Proof) else self.setup
        return proof

    def _made(self, commit: Commit, prompt: str, before: Mapping, tests: Mapping, change: Mapping, proof: Proof) -> Task:
        truth = {
            "grade": 1 + sum(commit.lines >= lines for lines in GRADES),
            "kind": "commit",
            "files": dict(before),
            "tests": dict(tests),
            "expected": list(proof.expected),
            "fixed": list(proof.fixed),
            "change": dict(change),
            "edits": [],
            "clues": [],
            "setup": proof.setup,
            "lines": commit.lines,
        }
        return Task(f"{Path(self.repo).resolve().name}/{commit.id[:12]}", prompt, truth)
