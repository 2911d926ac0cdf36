"""The fake that ships: files in memory, a function for commands."""

from __future__ import annotations

import asyncio
import gc

import pytest

from trivium.errors import InputError, PlaceError
from trivium.sandbox import Fake, Limits, LocalUnsafe, Result, SandboxError


def test_a_function_answers_commands_and_may_change_files(image):
    def answer(command, files):
        files["log.txt"] = str(command).encode()
        return Result(1, b"no\n")

    async def body():
        provider = Fake(answer)
        (box,) = await provider.create(str(image), Limits(disk=100))
        assert (await box.exec("make")).code == 1 and await box.read("log.txt") == b"make"
        point = await box.snapshot()
        with pytest.raises(SandboxError, match="a.txt cannot be written: the disk is full"):
            await box.write({"a.txt": b"x" * 200})
        await box.close()
        with pytest.raises(PlaceError):
            await box.files()
        (fork,) = await provider.create(point)
        assert "pkg/maths.py" in await fork.files() and (provider.made, provider.alive) == (2, 1)

    asyncio.run(body())


def test_local_unsafe_wants_to_hear_that_one_knows():
    with pytest.raises(InputError, match="isolates nothing"):
        LocalUnsafe()


def test_local_unsafe_leaves_no_folder_that_nobody_gets(image, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    async def body():
        provider = LocalUnsafe(i_know_that_nothing_is_isolated=True)
        making = asyncio.create_task(provider.create(str(image), n=3))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        making.cancel()
        with pytest.raises(asyncio.CancelledError):
            await making
        assert not list(tmp_path.glob("trivium-unsafe-*/*"))
        await provider.close()

    asyncio.run(body())


def test_local_unsafe_leaves_no_folder_whether_closed_or_forgotten(image, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for closed in (True, False):
        provider = LocalUnsafe(i_know_that_nothing_is_isolated=True)
        (box,) = asyncio.run(provider.create(str(image)))
        asyncio.run(box.snapshot())
        assert len(list(tmp_path.glob("trivium-unsafe-*"))) == 1
        if closed:
            asyncio.run(provider.close())
        del provider, box
        gc.collect()
        assert not list(tmp_path.glob("trivium-unsafe-*"))
