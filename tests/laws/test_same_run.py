"""Law 11 and law 9 for whole runs: one seed gives one run, bit for bit, also across kill -9."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trivium.assets import NANO
from trivium.nn import Network

pytestmark = pytest.mark.timeout(1200)  # whole trainings, on machines that may do something else
TINY = "--warmup 48 --sft-steps 12 --steps 12 --groups 2 --size 4 --eval-tasks 4 --sft-lr 1e-3".split()
AGENT = """from dataclasses import dataclass
from typing import ClassVar

from trivium.agents.search.recipe import Search


@dataclass(frozen=True)
class Small(Search):
    sft_size: ClassVar[int] = 4
"""


def command(out: Path, *extra: str) -> list[str]:
    """The search agent with small steps of its warm-up."""
    file = out.with_suffix(".py")
    file.write_text(AGENT)
    return [sys.executable, "-m", "trivium", "train", str(file), "--out", str(out), *TINY, *extra]


def finished(out: Path, *extra: str) -> dict:
    """The run's end: its weights' digest, and all that it measured."""
    done = subprocess.run(command(out, *extra), capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-2000:]
    return end(out)


def end(out: Path) -> dict:
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    apart = ("seconds", "episodes_stored")  # how long it took, and what was there already
    numbers = lambda e: {k: v for k, v in e["metrics"].items() if not k.endswith(apart)}  # noqa: E731
    events = [(e["kind"], e["step"], numbers(e)) for e in lines]
    return {"weights": Network.load(out / "model").digest(), "events": events, "summary": (out / "summary.json").read_text()}


def killed_at(kind: str, step: int, out: Path, *extra: str) -> None:
    """The run begun, and killed -9 after it told of this step; also when it never does, for it would slow all other tests."""
    process = subprocess.Popen(command(out, *extra), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for(out / "metrics.jsonl", kind, step, process)
    finally:
        process.kill()
        process.wait()


def _wait_for(path: Path, kind: str, step: int, process: subprocess.Popen) -> None:
    for _ in range(6000):
        if path.exists() and f'"kind": "{kind}", "step": {step}' in path.read_text():
            return
        assert process.poll() is None, f"the run ended before {kind} {step}"
        time.sleep(0.1)
    raise AssertionError(f"no {kind} {step} in ten minutes")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> dict:
    return finished(tmp_path_factory.mktemp("a") / "run")


def test_one_seed_gives_one_run_and_a_kill_does_not_change_it(tmp_path, undisturbed):
    """Killed twice, while warming up and while reinforcing, wherever that hits; the third try runs to the end."""
    out = tmp_path / "run"
    for kind, step in (("sft", 11), ("rl", 11)):
        killed_at(kind, step, out)
    assert finished(out) == undisturbed


@pytest.mark.slow
def test_another_seed_gives_another_run(tmp_path, undisturbed):
    assert finished(tmp_path / "run", "--seed", "1")["weights"] != undisturbed["weights"]


@pytest.mark.slow
def test_nor_does_a_kill_change_one_that_trains_adapters(tmp_path):
    pytest.importorskip("peft", reason="LoRA needs peft: pip install peft")
    less = "--lora 4 --warmup 16 --steps 2 --eval-tasks 1 --workers 1".split()
    killed, alone = tmp_path / "killed", tmp_path / "alone"
    killed_at("sft", 11, killed, *less)
    assert finished(killed, *less) == finished(alone, *less)
    assert Network.load(alone / "model").digest() != Network.load(NANO).digest()
