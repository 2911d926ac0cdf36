"""A run's folder belongs to one process at a time."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trivium.errors import CorruptError, InputError
from trivium.files import new_folder, swap
from trivium.loops import Run, run

HOLD = """
import sys
from trivium.loops import Run, run
run = Run.begin(sys.argv[1], {"seed": 0})
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_process_is_refused_until_the_first_ends(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "run")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as first:
        assert first.stdout.readline() == "held\n"
        with pytest.raises(InputError, match="trained by another process"):
            Run.begin(tmp_path / "run", {"seed": 0})
        first.kill()
    Run.begin(tmp_path / "run", {"seed": 0})


def test_of_two_that_begin_at_once_one_is_refused(tmp_path, monkeypatch):
    """The second comes between the first's look at the folder and its first file."""
    write, refused = run.write_json, []

    def slow(path, value):
        monkeypatch.undo()
        with pytest.raises(InputError, match="trained by another process") as caught:
            Run.begin(tmp_path / "run", {"seed": 0})
        refused.append(caught)
        write(path, value)

    monkeypatch.setattr(run, "write_json", slow)
    Run.begin(tmp_path / "run", {"seed": 0}).close()
    assert refused and Run.open(tmp_path / "run").recipe() == {"seed": 0}


def test_a_run_from_before_a_field_existed_is_told_so(tmp_path):
    """Not to give a value that no option takes."""
    Run.begin(tmp_path / "run", {"seed": 0}).close()
    with pytest.raises(InputError, match="an older Trivium, which knew no skew: give another folder"):
        Run(tmp_path / "run").check({"seed": 0, "skew": 0.5})


def test_a_run_whose_data_changed_is_not_gone_on_with(tmp_path):
    begun = Run.begin(tmp_path / "run", {"seed": 0})
    begun.pin({"weights": "a", "questions": "b"})
    begun.pin({"weights": "a", "questions": "b"})
    with pytest.raises(InputError, match="begun with other questions than there are now"):
        begun.pin({"weights": "a", "questions": "c"})
    (tmp_path / "run" / "inputs.json").write_text("{torn")
    with pytest.raises(CorruptError, match="inputs.json"):
        begun.pin({"weights": "a", "questions": "b"})


WRITE = """
import sys
from pathlib import Path
from trivium.files import swap
for n in range(2000):
    swap(Path(sys.argv[1]), sys.argv[2].encode() * 4096)
"""


def test_a_full_disk_keeps_the_old_file_and_nothing_half_written(tmp_path, monkeypatch):
    swap(tmp_path / "file", b"old")

    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        swap(tmp_path / "file", b"new")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file", b"old")]


def test_the_disk_has_a_new_folder_before_it_has_its_name(tmp_path, monkeypatch):
    real, synced = os.fsync, []
    monkeypatch.setattr(os, "fsync", lambda handle: (synced.append(os.fstat(handle).st_ino), real(handle)))
    with new_folder(tmp_path / "model") as made:
        (made / "sub").mkdir()
        (made / "sub" / "weights").write_bytes(b"w")
        (made / "config").write_bytes(b"c")
    model = tmp_path / "model"
    inodes = [path.stat().st_ino for path in (model / "sub" / "weights", model / "config", model / "sub", model, tmp_path)]
    assert set(inodes) <= set(synced) and synced[-1] == inodes[-1]


def test_a_new_folder_takes_the_place_of_an_empty_one_but_of_no_link_and_not_of_where_one_is(tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    monkeypatch.chdir(tmp_path / "empty")
    for name in (".", tmp_path / "link"):
        with pytest.raises(InputError, match="is a link, a mount or the folder you are in"), new_folder(Path(name)):
            raise AssertionError("nothing is made first")
    monkeypatch.chdir(tmp_path)
    with new_folder(Path("empty")) as made:
        (made / "file").write_bytes(b"x")
    assert (tmp_path / "empty" / "file").read_bytes() == b"x"


def test_two_that_write_one_file_leave_it_whole(tmp_path):
    file = tmp_path / "both.json"
    writers = [subprocess.Popen([sys.executable, "-c", WRITE, str(file), letter]) for letter in "ab"]
    while any(writer.poll() is None for writer in writers):
        if file.exists():
            assert file.read_bytes() in (b"a" * 4096, b"b" * 4096)
    assert [writer.returncode for writer in writers] == [0, 0] and [path.name for path in tmp_path.iterdir()] == ["both.json"]
