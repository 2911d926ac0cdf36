"""Equal workers: what one of them ends with, a person hears once, and nobody is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from trivium.errors import InputError, TriviumError
from trivium.fleet import Rank, launch


def _gathers(rank: Rank, path: str) -> None:
    shares = rank.gather(rank.share(list(range(5))))
    if rank.first:
        with open(path, "w") as file:
            file.write(repr(shares))


def _other_refuses(rank: Rank) -> None:
    if not rank.first:
        raise InputError("the second worker's own complaint")
    rank.barrier()


def _other_dies(rank: Rank) -> None:
    if not rank.first:
        os._exit(9)
    rank.barrier()


def _other_dies_last(rank: Rank) -> None:
    rank.barrier()
    if not rank.first:
        os._exit(9)


def _first_refuses(rank: Rank) -> None:
    if rank.first:
        raise InputError("the first worker's own complaint")
    rank.barrier()


def test_shares_in_order_are_the_whole(tmp_path):
    launch(_gathers, 2, str(tmp_path / "told"))
    assert (tmp_path / "told").read_text() == "[[0, 1], [2, 3, 4]]"


@pytest.mark.parametrize(
    "main, kind, why",
    [
        ("_other_refuses", InputError, "the second worker's own complaint"),
        ("_first_refuses", InputError, "the first worker's own complaint"),
        ("_other_dies", TriviumError, "died: run the same command again to go on"),
        ("_other_dies_last", TriviumError, "died: run the same command again to go on"),
    ],
)
@pytest.mark.timeout(120)  # collectives alone would wait for half an hour
def test_one_error_is_told_once_and_soon(main, kind, why, capfd):
    with pytest.raises(kind, match=why):
        launch(globals()[main], 2)
    assert "Traceback" not in capfd.readouterr().err


def test_a_worker_that_never_begins_is_noticed_soon(tmp_path):
    """A script without its __main__ guard: its workers die while they read it."""
    (tmp_path / "main.py").write_text("import os\nfrom trivium.fleet import launch\nlaunch(os.getpid, 2)\n")
    done = subprocess.run([sys.executable, str(tmp_path / "main.py")], capture_output=True, text=True, timeout=60)
    assert done.returncode and "died" in done.stderr


def test_a_worker_that_hangs_before_it_begins_is_not_waited_for_for_ever(tmp_path):
    (tmp_path / "main.py").write_text(
        "import time\nfrom datetime import timedelta\nfrom trivium.fleet import launch, local\n"
        "if __name__ != '__main__': time.sleep(60)\n"
        "local._DEADLINE = timedelta(seconds=0.2)\nlaunch(print, 2)\n"
    )
    done = subprocess.run([sys.executable, str(tmp_path / "main.py")], capture_output=True, text=True, timeout=50)
    assert done.returncode and "did not begin in 0:00:00.2" in done.stderr


def test_no_worker_is_refused():
    with pytest.raises(InputError, match="a worker at least"):
        launch(_other_dies, 0)


def test_the_others_end_with_a_killed_parent(tmp_path):
    """Nobody may go on writing into a run whose first worker is gone."""
    program = (
        "import sys, time; sys.path.insert(0, '.')\n"
        "from trivium.fleet import launch\n"
        "from tests.test_fleet import _waits\n"
        "if __name__ == '__main__': launch(_waits, 2, sys.argv[1])\n"
    )
    (tmp_path / "main.py").write_text(program)
    parent = subprocess.Popen([sys.executable, str(tmp_path / "main.py"), str(tmp_path / "pid")])
    while not (tmp_path / "pid").exists():
        assert parent.poll() is None
        time.sleep(0.05)
    child = int((tmp_path / "pid").read_text())
    parent.kill()
    parent.wait()
    for _ in range(100):
        if not _lives(child):
            return
        time.sleep(0.1)
    raise AssertionError(f"worker {child} outlived its parent")


def _waits(rank: Rank, path: str) -> None:
    rank.barrier()
    if not rank.first:
        with open(f"{path}.new", "w") as file:
            file.write(str(os.getpid()))
        os.rename(f"{path}.new", path)
    time.sleep(120)


def _lives(pid: int) -> bool:
    try:
        return open(f"/proc/{pid}/stat").read().split()[2] != "Z"
    except OSError:
        return False
