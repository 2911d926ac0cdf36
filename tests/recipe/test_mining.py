"""`trivium tasks git` and `trivium tasks features`, as a person meets them."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from trivium.cli import main
from trivium.tasks.kept import read_tasks, write_tasks

ADD = "def add(a, b):\n    '''Add two numbers.'''\n    total = a + b\n    return total\n"
LESS = "\n\ndef less(a, b):\n    '''Take one number from another.'''\n    rest = a - b\n    return rest\n"
TEST = "import sums\n\n\ndef test_add():\n    assert sums.add(1, 2) == 3\n"
TEST_LESS = "\n\ndef test_less():\n    assert sums.less(3, 2) == 1\n"
UNSAFE = ("--sandbox", "local-unsafe")


@pytest.fixture
def told(monkeypatch, capsys):
    """Runs `trivium tasks ...`: (status, stdout, stderr)."""

    def run(*words: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["trivium", "tasks", *map(str, words)])
        code = 0
        try:
            main()
        except SystemExit as error:
            code = int(error.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def repo(tmp_path) -> Path:
    """Two commits: a function with its test, and another."""
    folder = tmp_path / "sums"
    (folder / "tests").mkdir(parents=True)
    git = ["git", "-C", str(folder), "-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run([*git, "init", "-q"], check=True)
    for message, source, test in (("Begin", ADD, TEST), ("Add a function that subtracts (#2)", ADD + LESS, TEST + TEST_LESS)):
        (folder / "sums.py").write_text(source)
        (folder / "tests" / "test_sums.py").write_text(test)
        subprocess.run([*git, "add", "-A"], check=True)
        subprocess.run([*git, "commit", "-q", "-m", message], check=True)
    return folder


def test_a_history_becomes_a_file_of_tasks_with_an_account(told, repo, tmp_path):
    code, out, err = told("git", repo, "--out", tmp_path / "tasks.jsonl", *UNSAFE)
    assert code == 0, err
    assert (
        "nothing is isolated" in out
        and "Add a function that subtracts" in out
        and "1 tasks from 1 commits" in out
        and "1 tests that fail before" in out
    )
    (task,) = read_tasks(tmp_path / "tasks.jsonl")
    assert task.prompt == "Add a function that subtracts" and task.truth["change"] == {"sums.py": ADD + LESS}
    assert task.truth["fixed"] == ["tests/test_sums.py::test_less"]
    code, out, err = told("check", tmp_path / "tasks.jsonl", *UNSAFE)
    assert code == 0 and "1 tasks: the true change passes 1 of them, doing nothing 0" in out, err
    write_tasks([replace(task, truth=task.truth | {"change": {}})], tmp_path / "tasks.jsonl")
    code, _, err = told("check", tmp_path / "tasks.jsonl", *UNSAFE)
    assert code == 2 and "1 of 1 tasks do not hold" in err


def test_features_of_a_project_become_tasks(told, repo, tmp_path):
    code, out, err = told("features", repo, "--out", tmp_path / "tasks.jsonl", "--count", "1", *UNSAFE)
    assert code == 0, err
    (task,) = read_tasks(tmp_path / "tasks.jsonl")
    assert "1 tasks, a feature each" in out and task.prompt in (
        "add is missing from sums.py. Add two numbers.",
        "less is missing from sums.py. Take one number from another.",
    )


def test_what_cannot_be_done_is_one_line_and_writes_nothing(told, repo, tmp_path):
    def refused(why: str, *words: str | Path) -> None:
        code, _, err = told(*words)
        assert code == 2 and why in err and err.count("\n") == 1, err

    out = tmp_path / "tasks.jsonl"
    refused("has no history that git can read", "git", tmp_path, "--out", out, *UNSAFE)
    refused("its folder does not exist", "git", repo, "--out", tmp_path / "none" / "tasks.jsonl", *UNSAFE)
    refused("it is a folder", "git", repo, "--out", tmp_path, *UNSAFE)
    refused("names no model", "git", repo, "--out", out, "--policy", "http://x", *UNSAFE)
    refused("--packages would change nothing", "git", repo, "--out", out, "--packages", "attrs", *UNSAFE)
    refused("there is no folder", "features", tmp_path / "none", "--out", out, *UNSAFE)
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "a.py").write_text("A = 1\n")
    refused("no task came of it", "features", tmp_path / "bare", "--out", out, *UNSAFE)
    assert not out.exists()
    (tmp_path / "told.jsonl").write_text('{"id": "a", "prompt": "b", "truth": {"files": {}, "tests": 3}}\n')
    refused("line 1 of", "check", tmp_path / "told.jsonl", *UNSAFE)


def test_tasks_come_back_from_their_file_and_a_broken_line_is_named(tmp_path):
    from trivium.errors import InputError
    from trivium.tasks import projects

    tasks = projects(3, (0, 3), seed=1)
    write_tasks(tasks, tmp_path / "tasks.jsonl")
    assert read_tasks(tmp_path / "tasks.jsonl") == tasks
    (tmp_path / "tasks.jsonl").write_bytes(b"{}\n")
    with pytest.raises(InputError, match="line 1 of"):
        read_tasks(tmp_path / "tasks.jsonl")
    with pytest.raises(InputError, match="cannot be read"):
        read_tasks(tmp_path / "none.jsonl")
