"""Equal worker processes on one machine (SPMD): each runs the same straight line on its own share of the work.

Two processes of one thread each beat one process of two threads on a small machine. Work goes to
ranks by rule and never by arrival, so a run with one seed and one number of workers repeats bit for bit (law 11).
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar

from trivium.errors import InputError, TriviumError

T = TypeVar("T")
_DEADLINE = timedelta(minutes=30)
"""How long a rank waits for another in a collective before it fails: longer than any step takes."""
_LAST_WORDS = 10.0
"""Seconds for a rank that broke a collective to say why."""


@dataclass(frozen=True, slots=True)
class Rank:
    """Which of `size` equal processes this is. Rank 0 writes files and talks to people."""

    number: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        return self.number == 0

    def share(self, items: Sequence[T]) -> list[T]:
        """This rank's part of `items`. It is contiguous, and the parts of all ranks in order are `items` again."""
        return list(items[self.number * len(items) // self.size : (self.number + 1) * len(items) // self.size])

    def gather(self, value: T) -> list[T]:
        """The `value` of every rank, in the order of ranks."""
        if self.size == 1:
            return [value]
        import torch.distributed as dist

        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.gather(None)


def launch(main: Callable[..., None], workers: int, *arguments: Any) -> None:
    """Run `main(rank, *arguments)` in `workers` processes, of which this one is rank 0.

    What another rank raised on purpose is raised here; if one died otherwise, a TriviumError is. If this process dies the
    others end with it. Raises InputError for less than one worker.
    """
    if workers < 1:
        raise InputError(f"it takes a worker at least, not {workers}")
    if workers == 1:
        _one_thread()
        return main(Rank(), *arguments)
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="trivium-") as folder:
        others = [
            context.Process(target=_work, args=(main, Rank(n, workers), folder, os.getpid(), arguments), daemon=True)
            for n in range(1, workers)
        ]
        for process in others:
            process.start()
        try:
            _wait_for_birth(others, folder)
            _join_group(Rank(0, workers), folder)
            main(Rank(0, workers), *arguments)
            for process in others:
                process.join(_DEADLINE.total_seconds())
            if any(process.exitcode != 0 for process in others):
                raise RuntimeError("they did not end as the first did")
        except TriviumError:
            raise
        except Exception as error:  # a collective broke because another rank did?
            _raise_cause(others, folder, error)
            raise
        finally:
            for process in others:  # before the group is left, so that they do not complain that we are gone
                process.kill()
                process.join()
            _leave_group()


def _wait_for_birth(others: Sequence[BaseProcess], folder: str) -> None:
    """Wait until all have begun: for one that died before it joined the group we would wait until the deadline."""
    deadline = time.monotonic() + _DEADLINE.total_seconds()
    while len(list(Path(folder).glob("born-*"))) < len(others):
        if any(process.exitcode is not None for process in others):
            raise RuntimeError("a worker died before it began")
        if time.monotonic() > deadline:
            raise TriviumError(f"a worker did not begin in {_DEADLINE}: run the same command again to go on")
        time.sleep(0.01)


def _raise_cause(others: Sequence[BaseProcess], folder: str, symptom: Exception) -> None:
    """Raise what another rank ended with, if one did; `symptom` is what this rank noticed of it."""
    deadline = time.monotonic() + _LAST_WORDS
    while time.monotonic() < deadline and all(process.exitcode is None for process in others):
        time.sleep(0.05)
    for file in sorted(Path(folder).glob("error-*")):
        raise pickle.loads(file.read_bytes()) from None
    if dead := [process.name for process in others if process.exitcode]:
        raise TriviumError(f"{', '.join(dead)} died: run the same command again to go on ({symptom})") from symptom


def _work(main: Callable[..., None], rank: Rank, folder: str, parent: int, arguments: tuple) -> None:
    _die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a person's Ctrl-C goes to rank 0, which ends us
    import torch.distributed  # noqa: F401 - long, and hungry: who dies of it has not been born

    Path(folder, f"born-{rank.number}").touch()
    _join_group(rank, folder)
    try:
        main(rank, *arguments)
    except TriviumError as error:  # rank 0 tells people
        file = Path(folder, f".error-{rank.number}")
        file.write_bytes(pickle.dumps(error))
        file.rename(Path(folder, f"error-{rank.number}"))
        os._exit(1)
    _leave_group()


def _join_group(rank: Rank, folder: str) -> None:
    import torch.distributed as dist

    _one_thread()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = dist.FileStore(os.path.join(folder, "group"), rank.size)
    dist.init_process_group("gloo", store=store, rank=rank.number, world_size=rank.size, timeout=_DEADLINE)


def _leave_group() -> None:
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def _die_with(parent: int) -> None:
    """Let Linux kill this process when its parent dies, so that a killed run leaves nobody writing."""
    try:
        import ctypes

        ctypes.CDLL("libc.so.6").prctl(1, signal.SIGKILL)
    except OSError:
        return  # elsewhere the collective's deadline ends us
    if os.getppid() != parent:
        os._exit(1)
