"""Tasks from a git history that the tests make: which commits become tasks, what proves them, and why others do not."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from trial import in_process

from trivium.errors import InputError
from trivium.policy.base import Reply
from trivium.tasks.commits import mine
from trivium.tasks.commits.history import history
from trivium.tasks.commits.prove import BARE, proposals, prove
from trivium.tasks.commits.report import alike, shingles
from trivium.tasks.commits.request import from_message, leaks

ADD = "def add(a, b):\n    return a + b\n"
HALVE = ADD + "\n\ndef halve(a):\n    return a / 2\n"
MENDED = HALVE.replace("a / 2", "a // 2")
TEST_ADD = "from sums import add\n\n\ndef test_add():\n    assert add(1, 2) == 3\n"
TEST_HALVE = TEST_ADD + "\n\ndef test_halve():\n    from sums import halve\n\n    assert halve(4) == 2\n"
TEST_MENDED = TEST_HALVE + "\n\ndef test_odd():\n    from sums import halve\n\n    assert halve(5) == 2\n"
TWICE = "def twice(a):\n    total_of_both_halves = a + a\n    return total_of_both_halves\n"
TEST_TWICE = "from more import twice\n\n\ndef test_twice():\n    assert twice(2) == 4\n"


class Repository:
    """A git repository in a folder, and how to commit to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.git("init", "-q", "-b", "main")

    def git(self, *arguments: str) -> None:
        who = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", "-C", str(self.folder), *who, *arguments], check=True, capture_output=True)

    def commit(self, message: str, files: Mapping[str, str | bytes]) -> None:
        for path, text in files.items():
            (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / path).write_bytes(text if isinstance(text, bytes) else text.encode())
        self.git("add", "-A")
        self.git("commit", "-q", "-m", message)


@pytest.fixture(scope="module")
def repo(tmp_path_factory) -> Repository:
    repo = Repository(tmp_path_factory.mktemp("sums"))
    repo.commit("Begin", {"sums.py": ADD, "tests/test_sums.py": TEST_ADD, "logo.png": b"\x89PNG\0\xff"})
    repo.commit("sums: add a function that halves a number (#12)", {"sums.py": HALVE, "tests/test_sums.py": TEST_HALVE})
    repo.commit("Write a readme for people who are new", {"README.md": "Sums.\n"})
    repo.commit("Bump version to 1.1", {"sums.py": HALVE + "\nVERSION = 2\n", "tests/test_sums.py": TEST_HALVE + "\n# 1.1\n"})
    repo.commit("Tidy the sums and their tests", {"sums.py": HALVE, "tests/test_sums.py": TEST_HALVE})
    repo.commit("Halves of odd numbers should be whole\n\nFixes #14", {"sums.py": MENDED, "tests/test_sums.py": TEST_MENDED})
    repo.commit("A function twice, with a test", {"more.py": TWICE, "tests/test_more.py": TEST_TWICE})
    for path in ("more.py", "tests/test_more.py"):
        (repo.folder / path).unlink()
    again = {"again.py": TWICE, "tests/test_again.py": TEST_TWICE.replace("more", "again")}
    repo.commit("Move the function twice into another file", again)
    return repo


@pytest.fixture(scope="module")
def mined(repo):
    return asyncio.run(mine(repo.folder, in_process))


def test_a_name_with_odd_letters_is_one_file(tmp_path):
    odd = Repository(tmp_path)
    odd.commit("Begin", {"a.py": ADD})
    odd.commit("A file whose name has a line separator", {"new\u2028sums.py": ADD})
    assert next(history(odd.folder)).changes == (("new\u2028sums.py", 2, 0),)


def test_commits_with_tests_that_only_they_pass_become_tasks(mined):
    assert [task.prompt for task in mined.tasks] == [
        "Move the function twice into another file",
        "Halves of odd numbers should be whole",
        "sums: add a function that halves a number",
    ]
    odd = mined.tasks[1].truth
    assert odd["files"]["sums.py"] == HALVE and odd["change"] == {"sums.py": MENDED}
    assert odd["files"]["tests/test_sums.py"] == TEST_HALVE and odd["tests"] == {"tests/test_sums.py": TEST_MENDED}
    assert odd["fixed"] == ["tests/test_sums.py::test_odd"]
    assert odd["expected"] == [f"tests/test_sums.py::{name}" for name in ("test_add", "test_halve", "test_odd")]
    assert odd["lines"] == 2 and odd["grade"] == 1
    assert "logo.png" not in odd["files"]


def test_every_other_commit_has_a_reason(mined):
    assert dict(mined.report.left_out) == {
        "it does not change both a Python file and a test": 1,
        "its message asks for nothing": 1,
        "no test fails before the change and passes after it": 1,
        "it is nearly the same change as another": 1,
    }
    assert mined.report.tasks == 3 and mined.report.commits == 7
    assert mined.report.sentences()[0] == "3 tasks from 7 commits"


def test_the_true_change_passes_all_and_doing_nothing_passes_none(mined):
    for task in mined.tasks:
        truth = task.truth
        command = "python -m pytest -p no:cacheprovider " + " ".join(truth["tests"])
        done = asyncio.run(in_process({**truth["files"], **truth["change"], **truth["tests"]}, command))
        nothing = asyncio.run(in_process({**truth["files"], **truth["tests"]}, command))
        assert all(f"PASSED {id}" in done for id in truth["expected"])
        assert not all(f"PASSED {id}" in nothing for id in truth["expected"])


def test_a_flaky_test_is_dropped():
    after, runs = {"t.py": "", "test_t.py": ""}, []

    async def flaky(files, command):
        runs.append(files)
        steady = "PASSED test_t.py::test_steady" if files is after else ""
        return f"{steady}\n{'PASSED' if len(runs) == 1 else 'FAILED'} test_t.py::test_flaky"

    proof = asyncio.run(prove(flaky, {"t.py": ""}, after, ["test_t.py"], [""]))
    assert proof.expected == proof.fixed == ("test_t.py::test_steady",)


def test_a_set_up_is_kept_only_where_tests_pass_with_it():
    assert proposals(["a.py"]) == [BARE, ""]
    assert proposals(["src/a.py", "setup.py"])[:3] == [BARE, f"{BARE} export PYTHONPATH=src;", ""]

    async def needs_path(files, command):
        return "PASSED test_t.py::test_a" if "PYTHONPATH=src;" in command and files is after else ""

    after = {"src/a.py": "", "test_t.py": ""}
    proof = asyncio.run(prove(needs_path, {}, after, ["test_t.py"], proposals(after)))
    assert proof.setup == f"{BARE} export PYTHONPATH=src;"
    assert asyncio.run(prove(needs_path, {}, after, ["test_t.py"], [""])) == "no test passes after the change"


@pytest.mark.parametrize(
    ("message", "prompt"),
    [
        ("fix: keep the order of keys (closes #3)", "fix: keep the order of keys"),
        ("Add strip\n\nIt takes what is\nat both ends.\n\nMore.", "Add strip. It takes what is at both ends."),
        (
            "Support several separators at once in split_all\n\nSigned-off-by: A <a@b>",
            "Support several separators at once in split_all",
        ),
        ("Fix the check of lengths in Bits. The guard used > where >= was due.", "Fix the check of lengths in Bits"),
        ("Merge branch x", ""),
        ("typo", ""),
        ("1.2.0", ""),
    ],
)
def test_a_request_is_the_message_without_what_is_no_request(message, prompt):
    assert from_message(message) == prompt


def test_a_long_message_is_cut_between_words():
    text = from_message("word " * 200)
    assert len(text) <= 390 and text.endswith("word")


def test_a_changed_line_in_the_prompt_or_elsewhere_in_the_project_is_a_leak():
    change = {"more.py": TWICE}
    assert not leaks("A function twice", {"sums.py": ADD}, change)
    assert "the prompt holds a changed line" in leaks("use total_of_both_halves = a + a", {}, change)[0]
    copied = {"docs/more.txt": TWICE.replace("def twice", "def doubled")}
    assert "stand elsewhere in the project" in leaks("A function twice", copied, change)[0]


def test_the_request_may_be_in_a_model_s_words(repo):
    class Words:
        def read(self, message):
            return type("Speech", (), {"text": message["content"]})

        def opening(self, messages):
            return [0]

    class Model:
        renderer = Words()

        async def speak(self, view, sampling):
            assert "Message:\n" in view.messages[0]["content"] and "return" in view.messages[0]["content"]
            return Reply(message={"role": "assistant", "content": '"Please make halves whole."\n\nI hope this helps.'})

    mined = asyncio.run(mine(repo.folder, in_process, policy=Model()))
    assert {task.prompt for task in mined.tasks} == {"Please make halves whole."}


def test_near_duplicates_are_measured_by_common_shingles():
    assert alike(shingles(TWICE), shingles(TWICE)) == 1.0
    assert alike(shingles(TWICE), shingles(HALVE)) < 0.5


def test_a_folder_without_a_history_is_an_error(tmp_path):
    with pytest.raises(InputError, match="has no history that git can read"):
        list(history(tmp_path))
