"""What every backend promises, on each that this machine has."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from tests.sandbox.conftest import opened
from trivium.errors import InputError, PlaceError, Unsupported
from trivium.sandbox import Limits, SandboxError


def test_a_command_has_its_status_and_both_streams(within):
    async def body(provider, box):
        result = await box.exec("cat readme.txt; echo wrong >&2; exit 3")
        assert (result.code, result.stdout, result.stderr) == (3, b"hello\n", b"wrong\n")
        assert not result.timed_out and not result.cut and result.seconds > 0
        assert (await box.exec(["printf", "%s", "a b"])).stdout == b"a b"
        assert (await box.exec("echo $X", env={"X": "told"})).output == "told\n"

    within(body)


def test_python_runs_and_imports_the_project(within):
    async def body(provider, box):
        result = await box.exec(["python3", "-c", "from pkg.maths import add; print(add(2, 3))"])
        assert result.output == "5\n", result

    within(body)


def test_what_is_written_is_read_and_listed(within):
    async def body(provider, box):
        await box.write({"new/deep/a.bin": bytes(range(256)), "readme.txt": b"changed"})
        assert await box.read("new/deep/a.bin") == bytes(range(256))
        assert (await box.exec("cat readme.txt")).stdout == b"changed"
        assert await box.files() == {"new/deep/a.bin": 256, "pkg/maths.py": 32, "readme.txt": 7}
        assert await box.read("/work/readme.txt") == b"changed"

    within(body)


def test_a_full_disk_is_said_and_never_a_success(within, image):
    async def body(provider, box):
        if "disk" not in provider.capabilities().enforced:
            pytest.skip("no disk is full here")
        (small,) = await provider.create(str(image), Limits(disk=600 << 10))
        with pytest.raises(SandboxError, match="big cannot be written: No space left"):
            await small.write({"big": bytes(900 << 10)})

    within(body)


def test_a_command_that_no_program_can_be_given_is_refused_and_the_sandbox_lives(within, backend):
    async def body(provider, box):
        for command, why in (("echo \0", "has no zero byte"), (["echo", "\0"], "has no zero byte")):
            with pytest.raises(SandboxError, match=why):
                await box.exec(command)
        with pytest.raises(SandboxError, match="at most 131,071 bytes, and not 131,072"):
            await box.exec("echo ".ljust(1 << 17, "x"))
        assert len((await box.exec("printf %s ".ljust((1 << 17) - 1, "x"))).stdout) > 60_000
        if "docker" not in backend:
            with pytest.raises(SandboxError, match="a command cannot be begun: Argument list too long"):
                await box.exec("true", env={"X": "x" * (1 << 17)})
        assert (await box.exec("echo still")).output == "still\n"

    within(body)


DEEP = "import os\nfor _ in range({}): os.mkdir('{}'); os.chdir('{}')\nopen('{}', 'w').write('x')"


@pytest.mark.parametrize(
    "command",
    [
        "mkfifo pipe",
        ["python3", "-c", "import socket; socket.socket(socket.AF_UNIX).bind('socket')"],
        "mkdir shut; chmod 000 shut",
        ["python3", "-c", DEEP.format(1010, "a", "a", "b")],
        ["python3", "-c", DEEP.format(40, *["a" * 200] * 3)],
    ],
    ids=["pipe", "socket", "shut folder", "deep folders", "long path"],
)
def test_no_file_that_a_command_makes_takes_away_the_listing_or_the_snapshot(within, backend, command):
    if backend == "docker, faked":
        pytest.skip("a real daemon's to hold")

    async def body(provider, box):
        assert (await box.exec(command)).code == 0
        await box.files()
        (fork,) = await provider.create(await box.snapshot())
        assert await fork.read("readme.txt") == b"hello\n" and (await fork.exec("cat readme.txt")).output == "hello\n"

    within(body)


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../../x", "a\0b", "."])
def test_a_path_that_leads_out_is_refused(within, path):
    async def body(provider, box):
        for verb in (box.read(path), box.write({path: b"x"})):
            with pytest.raises(SandboxError, match="is no path inside of the sandbox"):
                await verb

    within(body)


@pytest.mark.parametrize(
    ("path", "why"),
    [("x" * 256, "a name has at most 255 bytes"), ("x/" * 3000, "a path has at most 4,095")],
    ids=["name", "path"],
)
def test_a_path_that_no_file_can_have_is_refused(within, path, why):
    async def body(provider, box):
        for verb in (box.read(path), box.write({path: b"x"})):
            with pytest.raises(SandboxError, match=why) as error:
                await verb
            assert len(str(error.value)) < 200

    within(body)


def test_what_cannot_be_read_is_said_and_never_hangs(within):
    async def body(provider, box):
        await box.exec("mkfifo pipe; mkdir folder; head -c 3000 /dev/zero > big")
        for path, why in (("none", "there is no file none"), ("pipe", "no regular file"), ("folder", "no regular file")):
            with pytest.raises(SandboxError, match=why):
                await box.read(path)
        with pytest.raises(SandboxError, match="big has 3,000 bytes, more than 2,000"):
            await box.read("big", most=2000)

    within(body)


def test_names_of_odd_bytes_are_listed_and_read(within):
    async def body(provider, box):
        name = b"odd \xff\n'name"
        await box.exec(["python3", "-c", f"open({name!r}, 'wb').write(b'odd')"])
        (path,) = [path for path in await box.files() if os.fsencode(path) == name]
        assert await box.read(path) == b"odd"

    within(body)


def test_a_command_that_never_ends_is_ended(within):
    async def body(provider, box):
        result = await box.exec("echo begun; sleep 1000", seconds=0.5)
        assert result.timed_out and result.code != 0 and result.stdout == b"begun\n"
        assert (await box.exec("echo still")).stdout == b"still\n"

    within(body)


def test_a_command_whose_caller_is_cancelled_ends_at_once(within):
    async def body(provider, box):
        for seconds in (0.0, 0.3):
            running = asyncio.create_task(box.exec("sleep 2; touch after"))
            await asyncio.sleep(seconds)
            running.cancel()
            began = time.monotonic()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert time.monotonic() - began < 1.5
        assert (await box.exec("echo next")).output == "next\n"
        await asyncio.sleep(2)
        assert "after" not in await box.files()

    within(body)


def test_output_without_end_is_cut_in_the_middle(within):
    async def body(provider, box):
        result = await box.exec("seq 1 100000; echo last", seconds=60)
        assert result.cut and len(result.stdout) < 70_000
        assert result.stdout.startswith(b"1\n2\n") and result.stdout.endswith(b"last\n") and b"bytes left out]" in result.stdout

    within(body)


def test_what_a_command_leaves_running_ends_with_it(within):
    async def body(provider, box):
        await box.exec("(sleep 1; echo late > late.txt) > /dev/null 2>&1 & echo left")
        await box.exec("sleep 1.5")
        assert "late.txt" not in await box.files()

    within(body)


def test_a_fork_has_the_snapshots_files_and_changes_nobody_elses(within):
    async def body(provider, box):
        await box.write({"a.txt": b"1"})
        point = await box.snapshot()
        await box.write({"a.txt": b"2"})
        one, two = await provider.create(point, n=2)
        await one.exec("echo 3 > a.txt; rm readme.txt")
        assert await two.read("a.txt") == b"1" and await two.read("readme.txt") == b"hello\n"
        assert await box.read("a.txt") == b"2" and await one.read("a.txt") == b"3\n"
        await box.close()
        (later,) = await provider.create(point)
        assert await later.read("a.txt") == b"1", "a snapshot outlives its sandbox"
        await provider.forget(point)
        with pytest.raises(InputError, match="neither an image's folder nor a snapshot"):
            await provider.create(point)

    within(body)


def test_a_snapshot_of_a_snapshot_of_a_snapshot(within):
    async def body(provider, box):
        for number in range(5):
            await box.write({f"{number}.txt": str(number).encode()})
            (box,) = await provider.create(await box.snapshot())
        assert (await box.exec("cat ?.txt")).stdout == b"01234"

    within(body)


def test_a_closed_sandbox_says_so_and_closes_twice(within):
    async def body(provider, box):
        await box.close()
        await box.close()
        with pytest.raises(PlaceError):
            await box.exec("true")

    within(body)


def test_a_sandbox_whose_provider_was_closed_says_so_and_closes(within):
    async def body(provider, box):
        await provider.close()
        for verb in (box.exec("true"), box.files(), box.read("a"), box.write({"a": b""}), box.snapshot()):
            with pytest.raises(PlaceError):
                await verb
        await box.close()

    within(body)


def test_no_image_is_one_clear_error(within):
    async def body(provider, box):
        with pytest.raises(InputError, match="/nowhere is neither an image's folder nor a snapshot"):
            await provider.create("/nowhere")
        with pytest.raises(InputError, match="memory=0"):
            Limits(memory=0)

    within(body)


def test_the_image_is_never_changed(within, image):
    async def body(provider, box):
        await box.exec("echo gone > readme.txt; rm -r pkg; touch more")

    within(body)
    assert (image / "readme.txt").read_text() == "hello\n" and (image / "pkg" / "maths.py").exists()
    assert not (image / "more").exists()


def test_capabilities_say_what_holds_and_what_does_not(within):
    async def body(provider, box):
        capabilities = provider.capabilities()
        assert capabilities.name and capabilities.isolation
        missing = " ".join(capabilities.missing)
        for limit in Limits.__slots__:
            assert limit in capabilities.enforced or limit in missing, f"nothing is said of {limit}"

    within(body)


def test_it_goes_on_in_another_event_loop(backend, image):
    """A program that measures first and trains then runs two, one after the other."""

    async def first(provider):
        boxes = await asyncio.gather(*(provider.create(str(image)) for _ in range(3)))
        await boxes[0][0].write({"mine": b"kept"})
        return boxes, await boxes[0][0].snapshot()

    async def second(provider, boxes, snapshot):
        made = await asyncio.gather(*(provider.create(snapshot) for _ in range(3)))
        assert [await box.read("mine") for box in (boxes[0][0], made[0][0])] == [b"kept", b"kept"]
        assert (await boxes[1][0].exec("cat readme.txt")).output == "hello\n"

    try:
        with opened(backend, image) as provider:
            begun = asyncio.run(first(provider))
            asyncio.run(asyncio.wait_for(second(provider, *begun), 60))
            asyncio.run(asyncio.wait_for(provider.close(), 60))
    except Unsupported as error:
        pytest.skip(str(error))
