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


def _output(probe: str, **words: str) -> str:
    code = probe.format(path=str(Path(nn.__file__).with_name("heap.py")), **words)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True).stdout.strip()


@pytest.mark.skipif(sys.platform != "linux", reason="arenas are glibc's, and where a block lies is read from /proc")
@pytest.mark.parametrize("first, own", [("", "True"), ("heap['one_arena']()", "False")])
def test_threads_share_one_arena_once_they_are_told_to(first, own):
    assert _output(PROBE, first=first) == own


HOLES = """
import ctypes, runpy

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
blocks = [libc.malloc(100_000) for _ in range(2000)]
for block in blocks:
    ctypes.memset(block, 1, 100_000)
for block in blocks[:-1]:
    libc.free(ctypes.c_void_p(block))


def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096


before = resident()
runpy.run_path({path!r})["give_back"]()
print(before - resident())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="what is resident is read from /proc")
def test_what_was_freed_below_a_block_in_use_goes_back():
    assert int(_output(HOLES)) > 150_000_000
