"""Control groups of sandboxes, of version 1 or 2."""

from __future__ import annotations

import contextlib
import errno
from pathlib import Path


class Groups:
    """A control group for each sandbox, of version 1 or 2, below the one that this process is in. `memory` and `pids` say which
    limits could be had."""

    def __init__(self, name: str) -> None:
        self._name, self._tops = name, {}
        for controller in ("memory", "pids"):
            with contextlib.suppress(OSError):
                self._tops[controller] = self._top(controller)

    @property
    def had(self) -> list[str]:
        return sorted(self._tops)

    def _top(self, controller: str) -> Path:
        own = dict(line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines())
        if controller in own:
            top = Path("/sys/fs/cgroup", controller) / own[controller].lstrip("/") / self._name
        else:
            root = Path("/sys/fs/cgroup/unified" if Path("/sys/fs/cgroup/unified").is_dir() else "/sys/fs/cgroup")
            parent = root / own[""].lstrip("/")
            if controller not in (parent / "cgroup.controllers").read_text().split():
                raise OSError(errno.ENOENT, controller)
            (parent / "cgroup.subtree_control").write_text(f"+{controller}")
            top = parent / self._name
        _sweep(top.parent)
        top.mkdir(exist_ok=True)
        if (top / "cgroup.subtree_control").exists():
            (top / "cgroup.subtree_control").write_text(f"+{controller}")
        probe = top / "probe"
        probe.mkdir()
        probe.rmdir()
        return top

    def make(self, box: str, memory: int, processes: int) -> None:
        for controller, top in self._tops.items():
            group = top / box
            group.mkdir(exist_ok=True)
            for file, value in _limits(controller, group, memory, processes):
                (group / file).write_text(str(value))

    def enter(self, box: str) -> None:
        """Move this process into the groups of a sandbox."""
        for top in self._tops.values():
            (top / box / "cgroup.procs").write_text("0")

    def oom_kills(self, box: str) -> int:
        """How often the kernel killed one of its processes for memory."""
        top = self._tops.get("memory")
        for file in ("memory.events", "memory.oom_control"):
            if top and (top / box / file).exists():
                words = dict(line.split() for line in (top / box / file).read_text().splitlines())
                return int(words.get("oom_kill", 0))
        return 0

    def alive(self, box: str) -> list[int]:
        """The processes in it."""
        return [int(pid) for top in self._tops.values() for pid in (top / box / "cgroup.procs").read_text().split()]

    def drop(self, box: str) -> bool:
        """Remove a sandbox' groups; whether they are gone."""
        return all(_remove(top / box) for top in self._tops.values())

    def close(self) -> None:
        for top in self._tops.values():
            for group in [*top.glob("*/"), top]:
                _remove(group)


def _limits(controller: str, group: Path, memory: int, processes: int) -> list[tuple[str, int]]:
    if controller == "pids":
        return [("pids.max", processes)]
    if (group / "memory.max").exists():
        return [("memory.max", memory), *([("memory.swap.max", 0)] if (group / "memory.swap.max").exists() else [])]
    return [("memory.limit_in_bytes", memory)]


def _remove(group: Path) -> bool:
    try:
        group.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _sweep(parent: Path) -> None:
    """Groups of a keeper that was killed before it could remove them. Their names begin with its process' number."""
    for top in parent.glob("trivium-*"):
        pid = top.name.split("-")[1]
        if pid.isdecimal() and not Path("/proc", pid).exists():
            for group in [*top.glob("*/"), top]:
                _remove(group)
