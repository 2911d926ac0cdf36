"""What is asked of Linux beyond the standard library: mounts, files below a folder, children of children."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Set
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)
_OPENAT2 = 437
_BENEATH, _NO_MAGIC = 0x08, 0x02
NO_LINKS = 0x04
_DETACH = 2
_SUBREAPER = 36


def check(status: int, what: str) -> int:
    if status < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return status


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    status = LIBC.mount(source.encode(), target.encode(), kind.encode() or None, ctypes.c_ulong(flags), options.encode())
    check(status, f"mount {kind or source}")


def unmount(target: str) -> None:
    check(LIBC.umount2(target.encode(), _DETACH), f"unmount {target}")


class How(ctypes.Structure):
    """struct open_how."""

    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


def open_below(top: int, path: bytes, flags: int, resolve: int) -> int:
    """Open a path below a folder; the kernel refuses to leave it, whatever links say."""
    how = How(flags | os.O_CLOEXEC, 0o644 if flags & os.O_CREAT else 0, _NO_MAGIC | _BENEATH | resolve)
    return check(LIBC.syscall(_OPENAT2, top, path, ctypes.byref(how), ctypes.sizeof(how)), os.fsdecode(path))


def adopt() -> None:
    """Have children whose parent dies become this process' own, and not the host's."""
    check(LIBC.prctl(_SUBREAPER, 1, 0, 0, 0), "prctl")


def end_strays(known: Set[int]) -> list[int]:
    """Kill the children that are not `known`, which is what a bubblewrap leaves that dies while it sets up: its inner process
    does not hear of that death yet. Returns those that were still there."""
    own = os.getpid()
    strays = [int(pid) for pid in Path(f"/proc/{own}/task/{own}/children").read_text().split() if int(pid) not in known]
    for pid in strays:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return strays
