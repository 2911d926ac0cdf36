"""`kill -9` of `trivium sandbox serve` leaves no process, no mount, no folder and no control group."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sandbox.service import TOKEN
from tests.sandbox.test_service import until
from trivium.errors import PlaceError, Unsupported
from trivium.sandbox import Ns, Remote
from trivium.sandbox.verbs import TOKEN as VARIABLE


def processes(mark: str) -> list[str]:
    """The command lines that hold a mark, but for the dead."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if mark in line:
            found.append(line)
    return found


def groups(keeper: int) -> list[Path]:
    """The control groups that a keeper made."""
    return [path for path in Path("/sys/fs/cgroup").rglob(f"trivium-{keeper}-*") if path.is_dir()]


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_killed_service_leaves_nothing(tmp_path):
    try:
        Ns()
    except Unsupported as error:
        pytest.skip(str(error))
    (tmp_path / "images" / "project").mkdir(parents=True)
    words = ["sandbox", "serve", "--images", str(tmp_path / "images"), "--backend", "ns", "--port", "0"]
    service = subprocess.Popen(
        [sys.executable, "-m", "trivium", *words], stdout=subprocess.PIPE, text=True, env={**os.environ, VARIABLE: TOKEN}
    )
    assert service.stdout is not None
    url = next(line.split()[-1] for line in service.stdout if line.startswith("sandboxes at"))
    mark = f"86400.{secrets.randbelow(10**9):09}"
    asyncio.run(_kill_while_it_sleeps(url, mark, service))
    service.wait(30)
    assert not processes(mark)


async def _kill_while_it_sleeps(url: str, mark: str, service: subprocess.Popen[str]) -> None:
    remote = Remote(url, TOKEN)
    box, idle = await remote.create("project", n=2)
    await idle.write({"a.txt": b"a"})
    running = asyncio.create_task(box.exec(f"setsid sleep {mark} & sleep {mark}", seconds=1000))
    for _ in range(600):
        if len(asleep := [line for line in processes(mark) if line.startswith("sleep")]) == 2:
            break
        await asyncio.sleep(0.05)
    keepers = children(service.pid)
    assert len(asleep) == 2 and keepers, "the commands run"
    mounts = [re.findall(r"\S*trivium-ns-\S*", Path(f"/proc/{keeper}/mounts").read_text()) for keeper in keepers]
    assert any(mounts) and (os.geteuid() or any(groups(keeper) for keeper in keepers)), "there is something to leave"
    os.kill(service.pid, signal.SIGKILL)
    with pytest.raises(PlaceError, match="does not answer"):
        await running
    until(lambda: not processes(mark))
    until(lambda: not any(Path(f"/proc/{keeper}").exists() for keeper in keepers))
    until(lambda: not any(groups(keeper) for keeper in keepers))
    assert "trivium-ns-" not in Path("/proc/mounts").read_text()
    folders = {found for each in mounts for mount in each for found in re.findall(r"/\S*trivium-ns-[^/\s]*", mount)}
    until(lambda: not any(Path(folder).exists() for folder in folders))
    assert folders
    await remote.close()
