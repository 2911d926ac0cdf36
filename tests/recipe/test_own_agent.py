"""A user's own agent, one file, walks the whole line on `recipe/` alone: every verb that ours have (law 13)."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

FILE = Path(__file__).parents[2] / "examples" / "agent.py"
TINY = "--people 90 --sft-steps 3 --steps 2 --groups 2 --size 3 --eval-tasks 6 --workers 1".split()
LONG = [*TINY, "--sft-steps", "12", "--steps", "12"]  # beyond a checkpoint, which is every ten steps


def command(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "trivium", *map(str, words)]


def trivium(*words: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess:
    env = {**os.environ, "COLUMNS": "100"}
    return subprocess.run(command(*words), capture_output=True, text=True, timeout=280, env=env, cwd=cwd)


def digest(run: Path) -> str:
    return hashlib.sha256((run / "model" / "model.safetensors").read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """A folder of a user's own, with the file in it."""
    folder = tmp_path_factory.mktemp("home")
    shutil.copy(FILE, folder / "my_agent.py")
    return folder


@pytest.fixture(scope="module")
def trained(home) -> Path:
    done = trivium("train", "my_agent.py", "--out", "runs/a", *TINY, cwd=home)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "In which city does" in done.stdout and "reward" in done.stdout and "RL − SFT" in done.stdout
    return home / "runs" / "a"


def test_it_is_a_page_long():
    assert len(FILE.read_text().splitlines()) <= 60


def test_help_prints_its_own_fields_and_what_it_is(home):
    done = trivium("train", "my_agent.py", "--help", cwd=home)
    assert done.returncode == 0
    for words in ("--people INT", "how many people there are", "--steps INT", "Answers in which city", "--workers INT"):
        assert words in " ".join(done.stdout.split()), words


def test_a_dry_run_says_what_it_takes_and_writes_nothing(home):
    done = trivium("train", "my_agent.py", "--dry-run", "--out", "runs/dry", *TINY, cwd=home)
    assert done.returncode == 0 and "GiB" in done.stdout and "minutes" in done.stdout, done.stderr
    assert not (home / "runs" / "dry").exists()


def test_a_run_holds_what_ours_do_and_a_copy_of_the_file(trained):
    there = {path.name for path in trained.iterdir()}
    assert {
        "agent.json",
        "agent.py",
        "curve.png",
        "episodes.db",
        "metrics.jsonl",
        "model",
        "model-sft",
        "summary.json",
    } <= there
    assert json.loads((trained / "recipe.json").read_text())["people"] == 90
    assert json.loads((trained / "summary.json").read_text())["paired"]["rl_minus_sft"]["reward"]


def test_it_is_measured_shown_and_exported_from_anywhere(trained, tmp_path):
    measured = trivium("eval", trained, "--greedy", "--tasks", "5", cwd=tmp_path)
    assert measured.returncode == 0 and "5 questions" in measured.stdout and "reward" in measured.stdout, measured.stderr
    shown = trivium("show", trained, "--count", "1", cwd=tmp_path)
    assert shown.returncode == 0 and "turn 1" in shown.stdout and "RL − SFT" in shown.stdout, shown.stderr
    exported = trivium("export", trained, "folder", cwd=tmp_path)
    assert exported.returncode == 0 and (tmp_path / "folder" / "config.json").is_file(), exported.stderr


def test_a_run_is_not_measured_as_another_agents(trained, tmp_path):
    done = trivium("eval", "search", trained, cwd=tmp_path)
    assert done.returncode == 2 and "is a run of Staff, and not of Search" in done.stderr, done.stderr


def test_two_seeds_are_compared(trained, home):
    assert trivium("train", "my_agent.py", "--out", "runs/b", "--seed", "1", *TINY, cwd=home).returncode == 0
    files = ["--json", "claim.json", "--out", "claim.md", "--plot", "claim.png"]
    done = trivium("eval", "--compare", "runs/a", "runs/b", "--workers", "1", *files, cwd=home)
    assert done.returncode == 0, done.stderr[-3000:]
    page, numbers = (home / "claim.md").read_text(), json.loads((home / "claim.json").read_text())
    assert "A: every policy" in page and "| reward |" in page and (home / "claim.png").is_file()
    assert numbers["recipes"][0]["seeds"] == [0, 1] and numbers["recipes"][0]["policies"]["rl"]["reward"]


def test_a_run_whose_file_is_gone_is_read_by_its_copy(trained, tmp_path):
    run = shutil.copytree(trained, tmp_path / "run")
    home = json.loads((run / "agent.json").read_text())
    (run / "agent.json").write_text(json.dumps(home | {"file": str(tmp_path / "gone.py")}))
    done = trivium("eval", run, "--tasks", "2", cwd=tmp_path)
    assert done.returncode == 0 and "2 questions" in done.stdout, done.stderr


@pytest.mark.slow
def test_killed_and_gone_on_with_it_ends_where_it_would_have(home):
    """kill -9 in the middle of RL; the same command ends with the same weights, bit for bit (laws 9 and 11)."""
    assert trivium("train", "my_agent.py", "--out", "runs/long", *LONG, cwd=home).returncode == 0
    words = ["train", "my_agent.py", "--out", "runs/killed", *LONG]
    process = subprocess.Popen(command(*words), cwd=home, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    metrics, deadline = home / "runs" / "killed" / "metrics.jsonl", time.monotonic() + 200
    while not (metrics.exists() and '"kind": "rl", "step": 10' in metrics.read_text()):
        assert process.poll() is None and time.monotonic() < deadline, "it ended, or hung, before it could be killed"
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (home / "runs" / "killed" / "summary.json").exists()
    assert trivium(*words, cwd=home).returncode == 0
    assert digest(home / "runs" / "killed") == digest(home / "runs" / "long")


@pytest.mark.parametrize(
    "text, why",
    [
        ("x = 1\n", "has no agent: write a class of it"),
        ("import trivium as tv\nraise ValueError('boo')\n", "cannot be run: line 2: ValueError: boo"),
        ("def f(:\n", "cannot be run: line 1: SyntaxError"),
        (
            "import trivium as tv\nfrom dataclasses import dataclass\n@dataclass(frozen=True)\nclass A(tv.Recipe):\n"
            "    def tasks(self, split): return [tv.Task(f'{split}/{n}', 'Why?') for n in range(64)]\n",
            "A is no whole agent yet: write its method harness(self)",
        ),
        ("import trivium as tv\nclass A(tv.Recipe): ...\nclass B(tv.Recipe): ...\n", "has several agents: write"),
    ],
)
def test_a_file_that_holds_no_agent_is_one_line(tmp_path, text, why):
    (tmp_path / "mine.py").write_text(text)
    done = trivium("train", "mine.py", cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.splitlines()[-1].startswith("trivium: ") and why in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    assert {path.name for path in tmp_path.iterdir()} <= {"mine.py", "__pycache__"}
