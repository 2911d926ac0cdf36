"""What sandboxes of namespaces leave behind: nothing, also where their provider is killed; and where there is no root."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from trivium.errors import InputError, PlaceError, Unsupported
from trivium.sandbox import Limits, Ns, SandboxError
from trivium.sandbox.packages import folders_of


@pytest.fixture
def provider():
    try:
        return Ns()
    except Unsupported as error:
        pytest.skip(str(error))


def traces(keeper: int) -> list[str]:
    """What is left of a keeper, by its process' number: itself, its groups."""
    groups = [str(path) for path in Path("/sys/fs/cgroup").rglob(f"trivium-{keeper}-*") if path.is_dir()]
    return groups + [str(keeper)] * Path("/proc", str(keeper), "exe").exists()


def settled(keeper: int) -> list[str]:
    """The same, once it had time to go."""
    deadline = time.monotonic() + 60
    while (left := traces(keeper)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def test_many_cycles_leave_nothing(provider, image):
    assert settled(cycle(provider, image, 1000)) == []


@pytest.mark.slow
def test_ten_thousand_cycles_leave_nothing(provider, image):
    assert settled(cycle(provider, image, 10_000)) == []


def cycle(provider: Ns, image: Path, times: int) -> int:
    """Create and destroy so often; the number of the keeper's process."""

    async def body() -> int:
        descriptors = 0
        for number in range(times):
            (box,) = await provider.create(str(image))
            if number % 100 == 0:
                assert (await box.exec("cat readme.txt")).output == "hello\n"
            await box.close()
            descriptors = descriptors or len(os.listdir("/proc/self/fd"))
        assert len(os.listdir("/proc/self/fd")) <= descriptors + 2
        keeper = provider._line.process.pid
        assert os.path.exists(f"/proc/{keeper}/exe") and Path("/proc", str(keeper), "mounts").read_text().count("overlay") <= 1
        await provider.close()
        return keeper

    return asyncio.run(body())


def test_a_create_that_nobody_gets_leaves_no_mount(provider, image):
    async def body():
        (box,) = await provider.create(str(image))
        keeper = provider._line.process.pid
        before = mounts(keeper)
        for _ in range(20):
            making = asyncio.create_task(provider.create(str(image), n=2))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            making.cancel()
            with pytest.raises(asyncio.CancelledError):
                await making
        assert mounts(keeper) == before
        with pytest.raises(PlaceError, match="a sandbox cannot be made"):
            await provider.create(str(image), Limits(inodes=2), n=2)
        assert mounts(keeper) == before
        await provider.close()

    asyncio.run(body())


def test_a_keeper_that_begins_while_its_caller_is_cancelled_ends_with_its_provider(provider, image):
    async def body():
        before = children()
        making = asyncio.create_task(provider.create(str(image)))
        await asyncio.sleep(0.01)
        making.cancel()
        with pytest.raises(asyncio.CancelledError):
            await making
        await provider.close()
        assert children() == before

    asyncio.run(body())


def test_a_keeper_that_cannot_be_used_is_ended(provider, image):
    async def body():
        before = children()
        for _ in range(3):
            with pytest.raises(InputError, match="the package nosuchthing, which is not here"):
                await poor.create(str(image))
        assert children() == before
        await poor.close()

    poor = Ns(packages=("nosuchthing",))
    asyncio.run(body())


def mounts(keeper: int) -> int:
    """How many a keeper holds."""
    return len(Path("/proc", str(keeper), "mounts").read_text().splitlines())


def children() -> str:
    """This process' own that have not ended."""
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text()


def test_a_request_that_is_too_long_is_refused_alone(provider, image):
    async def body():
        box, other = await provider.create(str(image), n=2)
        waiting = asyncio.create_task(other.exec("sleep 1; echo fine"))
        for words in (20, 50):
            with pytest.raises(SandboxError, match="at most 1,048,576 bytes at once, and not"):
                await asyncio.wait_for(box.exec(["true", *["x" * 100_000] * words], seconds=1), 20)
        line = provider._line.socket
        line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 15)  # a machine that gives less
        with pytest.raises(SandboxError, match="at most 65,472 bytes at once, and not"):
            await asyncio.wait_for(box.exec("echo ".ljust(66_000, "x"), seconds=1), 20)
        assert (await box.exec("echo ".ljust(60_000, "x"))).code == 0 and (await waiting).output == "fine\n"
        await provider.close()

    asyncio.run(body())


KILLED = """
import asyncio, sys
from trivium.sandbox import Ns
async def main():
    provider = Ns()
    boxes = await provider.create(sys.argv[1], n=3)
    print(provider._line.process.pid, flush=True)
    await asyncio.gather(*(box.exec(["sleep", "98765"], seconds=2000) for box in boxes))
asyncio.run(main())
"""


def test_a_provider_that_is_killed_leaves_nothing(provider, image):
    killed = subprocess.Popen([sys.executable, "-c", KILLED, str(image)], stdout=subprocess.PIPE)
    assert killed.stdout
    keeper = int(killed.stdout.readline())
    while len([path for path in sleeping() if _bytes(path) == b"sleep\x0098765\x00"]) < 3:  # each in its sandbox
        time.sleep(0.05)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert settled(keeper) == [] and not sleeping()


def sleeping() -> list[Path]:
    """The commands of the test above, wherever they run."""
    return [path for path in Path("/proc").glob("[0-9]*/cmdline") if _bytes(path).endswith(b"sleep\x0098765\x00")]


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_a_keeper_that_is_killed_is_begun_anew_and_says_what_was_lost(provider, image):
    async def body():
        (box,) = await provider.create(str(image))
        waiting = asyncio.create_task(box.exec("sleep 1000", seconds=2000))
        await asyncio.sleep(0.3)
        provider._line.process.kill()
        with pytest.raises(PlaceError, match="keeper of the sandboxes is gone"):
            await waiting
        with pytest.raises(PlaceError):
            await box.read("readme.txt")
        (fresh,) = await provider.create(str(image))
        assert (await fresh.exec("cat readme.txt")).output == "hello\n"
        await provider.close()

    asyncio.run(body())


def test_one_that_dies_touches_no_other(provider, image):
    async def body():
        one, two = await provider.create(str(image), Limits(memory=64 << 20), n=2)
        bomb = one.exec(["python3", "-c", "x = bytearray(1 << 30); x[::4096] = b'1' * len(x[::4096])"])
        result, other = await asyncio.gather(bomb, two.exec("sleep 0.5; echo fine"))
        assert result.oom and other.output == "fine\n" and not other.oom
        await provider.close()

    asyncio.run(body())


def test_a_hundred_snapshots_deep(provider, image):
    async def body():
        (box,) = await provider.create(str(image))
        for number in range(100):
            await box.write({"n.txt": str(number).encode()})
            (fork,) = await provider.create(await box.snapshot())
            await box.close()
            box = fork
        assert await box.read("n.txt") == b"99" and await box.read("readme.txt") == b"hello\n"
        await provider.close()

    asyncio.run(body())


def test_a_sandbox_sees_the_packages_it_was_given_and_no_other(provider, image):
    async def body():
        (box,) = await provider.create(str(image))
        for name, there in (("pytest", True), ("pip", False), ("torch", False)):
            assert ((await box.exec(["python3", "-c", f"import {name}"])).code == 0) is there, name
        await provider.close()

    asyncio.run(body())
    names = {folder.name for folder in folders_of(["pytest"])}
    assert {"pytest", "_pytest", "pluggy", "iniconfig", "packaging"} <= names and "torch" not in names
    with pytest.raises(InputError, match="nosuchthing, which is not here: pip install nosuchthing"):
        folders_of(["nosuchthing"])


WITHOUT_ROOT = """
    import asyncio, os, sys
    from trivium.sandbox import Limits, Ns
    async def main():
        assert os.geteuid()
        provider = Ns(packages=())
        box, twin = await provider.create(sys.argv[1], Limits(disk=8 << 20), n=2)
        assert (await box.exec("echo more >> readme.txt; cat readme.txt")).output == "hello\\nmore\\n"
        assert (await box.exec("head -c 16M /dev/zero > big")).code != 0
        (fork,) = await provider.create(await box.snapshot())
        assert (await fork.exec("cat readme.txt")).output == "hello\\nmore\\n"
        assert await twin.read("readme.txt") == b"hello\\n"
        assert (await box.exec(["python3", "-c", "import socket; socket.socket(40, 1)"])).code == 1
        assert (await box.exec("sleep 100", seconds=0.3)).timed_out
        assert any("user" in line for line in provider.capabilities().missing)
        await provider.close()
        print("fine")
    asyncio.run(main())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="all other tests are without root already")
def test_without_root(provider, image):
    python = "/usr/bin/python3"
    probe = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", python]
    if (
        not Path(python).exists()
        or subprocess.run([*probe, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]).returncode
    ):
        pytest.skip(f"no {python} of 3.11 that somebody else than root may run")
    place = Path("/tmp") / f"trivium-everyone-{os.getpid()}"
    shutil.copytree(Path(__file__).parents[2] / "src", place / "src", ignore=shutil.ignore_patterns("assets", "__pycache__"))
    shutil.copytree(image, place / "image")
    for folder in folders_of(["packaging", "httpx", "msgspec"]):
        (shutil.copytree if folder.is_dir() else shutil.copy)(folder, place / "src" / folder.name)
    try:
        environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(place / "src"), "HOME": "/tmp"}
        code = textwrap.dedent(WITHOUT_ROOT)
        ran = subprocess.run(
            [*probe, "-c", code, str(place / "image")], env=environment, capture_output=True, text=True, timeout=250
        )
        if "namespaces cannot be had here" in ran.stderr:
            pytest.skip(ran.stderr.splitlines()[-1])
        assert ran.stdout == "fine\n", ran.stderr
    finally:
        shutil.rmtree(place)
