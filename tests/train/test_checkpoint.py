"""Checkpoints: a run goes on bit for bit, torn ones are named and passed over, kill -9 leaves a good one (law 9)."""

from __future__ import annotations

import errno
import multiprocessing
import os
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest
import torch

from tests.train.house import groups, learner, network, record
from trivium.errors import CorruptError, InputError
from trivium.nn import Network
from trivium.train import CISPO, Batch, Checkpoints
from trivium.train.learner import Learner


def student(seed: int = 0) -> Learner:
    return learner(network(seed, torch.float32), CISPO(), substeps=2)


def batch() -> Batch:
    made = Batch(groups())
    record(network(dtype=torch.float32), [e for g in made.groups for e in g.episodes], noise=0.1)
    return made


def test_a_resumed_run_is_the_same_run(tmp_path):
    first, second, again = student(), student(seed=5), Checkpoints(tmp_path)
    first.learn(batch())
    again.save(first, {"episodes": 9})
    loaded = again.load(second)
    assert (loaded.version, loaded.user, loaded.skipped) == (1, {"episodes": 9}, [])
    for one in (first, second):
        one.learn(batch())
    assert first.version == second.version == 2
    assert first.network.digest() == second.network.digest()


def test_none_and_two_are_kept(tmp_path):
    kept, one = Checkpoints(tmp_path), student()
    assert kept.load(one) is None and kept.folders() == []
    for _ in range(4):
        kept.save(one)
    assert [folder.name for folder in kept.folders()] == ["00000003", "00000004"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000003", "00000004"]


@pytest.mark.parametrize("name", ["weights.safetensors", "optimizer.safetensors", "state.json", "manifest.json"])
@pytest.mark.parametrize("harm", ["cut", "flip", "gone"])
def test_a_torn_one_is_named_and_the_previous_taken(tmp_path, name, harm):
    kept, one = Checkpoints(tmp_path), student()
    kept.save(one, {"good": True})
    one.learn(batch())
    file = kept.save(one) / name
    data = file.read_bytes()
    file.unlink()
    if harm != "gone":
        file.write_bytes(data[: len(data) // 2] if harm == "cut" else data[:-1] + bytes([data[-1] ^ 1]))
    other = student(seed=5)
    loaded = kept.load(other)
    assert loaded.user == {"good": True} and other.version == 0
    assert "00000002" in loaded.skipped[0]
    assert other.network.digest() == student().network.digest()
    kept.save(other)
    assert kept.load(student()).skipped == []
    assert [folder.name for folder in kept.folders()] == ["00000001", "00000003"], "the torn one is not one of the two kept"


def test_only_torn_ones_are_an_error_that_names_the_newest(tmp_path):
    kept = Checkpoints(tmp_path)
    (kept.save(student()) / "manifest.json").write_text("[]")
    one, before = student(seed=2), student(seed=2).network.digest()
    with pytest.raises(CorruptError, match="00000001"):
        kept.load(one)
    assert one.network.digest() == before


def test_another_network_is_refused_unchanged(tmp_path):
    from tests.train.house import config

    kept = Checkpoints(tmp_path)
    kept.save(student())
    other = learner(Network(config(hidden_size=64)), CISPO())
    before = other.network.digest()
    with pytest.raises(InputError, match="shape"):
        kept.load(other)
    assert other.network.digest() == before and other.version == 0


def save_without_end(root, pipe: int) -> None:
    one, kept = student(), Checkpoints(root)
    loaded = kept.load(one)
    one.version = loaded.version if loaded else 0
    while True:
        one.version += 1
        kept.save(one, {"version": one.version, "padding": "x" * 200000})
        os.write(pipe, f"{one.version}\n".encode())


def test_kill_nine_at_any_moment(tmp_path):
    """A process that saves without end is killed ten times, mid-save as likely as not; what it said is there."""
    for delay in range(10):
        reading, writing = os.pipe()
        process = multiprocessing.get_context("fork").Process(target=save_without_end, args=(tmp_path, writing))
        process.start()
        os.close(writing)
        with open(reading) as pipe:
            said = int(pipe.readline())
            time.sleep(0.0021 * delay)
            os.kill(process.pid, signal.SIGKILL)
            said = max([said, *(int(line) for line in pipe.read().split("\n")[:-1])])
        process.join()
        loaded = Checkpoints(tmp_path).load(student(seed=5))
        assert loaded.skipped == []
        assert loaded.version in (said, said + 1) and loaded.user["version"] == loaded.version
    Checkpoints(tmp_path).save(student())
    assert not list(tmp_path.glob(".write-*"))


@pytest.mark.parametrize("stage", range(1, 12))
def test_a_crash_at_every_system_call_of_a_save(tmp_path, monkeypatch, stage):
    """The same, without chance: the save dies at its n-th sync, rename or removal."""
    kept, one = Checkpoints(tmp_path), student()
    for version in (1, 2):
        one.version = version
        kept.save(one)
    calls = iter(range(1, 100))

    def dying(real):
        def call(*arguments):
            if next(calls) == stage:
                raise KeyboardInterrupt
            return real(*arguments)

        return call

    monkeypatch.setattr(os, "fsync", dying(os.fsync))
    monkeypatch.setattr(os, "replace", dying(os.replace))
    monkeypatch.setattr("shutil.rmtree", dying(shutil.rmtree))
    one.version = 3
    died = False
    try:
        kept.save(one)
    except KeyboardInterrupt:
        died = True
    monkeypatch.undo()
    loaded = kept.load(student(seed=5))
    assert loaded.skipped == [] and loaded.version in ((2, 3) if died else (3,))
    assert died == (stage <= 9)  # four files, their folder, the name, its folder, the old one's name and removal


def test_a_step_under_way_is_waited_for(tmp_path):
    """A cancelled step's thread goes on: half of it saved would be weights that no version had."""
    kept, one = Checkpoints(tmp_path), student()
    saving = threading.Thread(target=kept.save, args=(one,))
    with one.changing:
        saving.start()
        saving.join(0.2)
        assert saving.is_alive() and kept.folders() == []
    saving.join(30)
    assert len(kept.folders()) == 1


def test_one_that_cannot_be_read_now_is_no_torn_one(tmp_path, monkeypatch):
    kept, one = Checkpoints(tmp_path), student()
    kept.save(one)
    kept.save(one)
    newest, read = kept.folders()[-1], Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: _fails(errno.EIO, path) if newest in path.parents else read(path))
    assert kept.load(student()).skipped, "a bad sector is for good"
    monkeypatch.setattr(Path, "read_bytes", lambda path: _fails(errno.EMFILE, path))
    with pytest.raises(OSError, match="Too many open files"):
        kept.load(one)
    monkeypatch.undo()
    assert kept.load(one).skipped == []
    with pytest.raises(InputError, match="not 0"):
        Checkpoints(tmp_path, keep=0)


def _fails(number, path):
    raise OSError(number, os.strerror(number), path)
