"""What a thread frees is there for the next one. A probe runs the file by itself: torch would take its time to import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trivium import nn

PROBE = """
import ctypes, runpy, threading

def own_arena():
    '''Whether a block of a new thread lies outside of the process's heap, in an arena of the thread's own.'''
    found = []

    def allocate():
        libc.malloc.restype = ctypes.c_void_p
        found.append(libc.malloc(50_000))

    thread = threading.Thread(target=allocate)
    thread.start()
    thread.join()
    line = next(line for line in open("/proc/self/maps") if line.rstrip().endswith("[heap]"))
    first, last = (int(end, 16) for end in line.split()[0].split("-"))
    return not first <= found[0] < last

libc = ctypes.CDLL(None)
heap = runpy.run_path({path!r})
{first}
print(own_arena())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="arenas are glibc's, and where a block lies is read from /proc")
@pytest.mark.parametrize("first, own", [("", "True"), ("heap['one_arena']()", "False")])
def test_threads_share_one_arena_once_they_are_told_to(first, own):
    run = subprocess.run(
        [sys.executable, "-c", PROBE.format(first=first, path=str(Path(nn.__file__).with_name("heap.py")))],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.stdout.strip() == own, run.stderr
