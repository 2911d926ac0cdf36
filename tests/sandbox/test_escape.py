"""The escape suite (reference/sandbox.md section 7): what code in a sandbox of namespaces tries, and does not get."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import tempfile
from pathlib import Path

import pytest

from trivium.errors import Unsupported
from trivium.sandbox import Limits, Ns, SandboxError

SMALL = Limits(processes=32, memory=256 << 20, disk=16 << 20, inodes=500, cpu=30)


@contextlib.asynccontextmanager
async def sandbox(limits: Limits = SMALL):
    try:
        provider = Ns()
    except Unsupported as error:
        pytest.skip(str(error))
    with tempfile.TemporaryDirectory() as image:
        Path(image, "a.txt").write_text("a\n")
        try:
            (box,) = await provider.create(image, limits)
            yield box
        finally:
            await provider.close()


def _call(number: int, arguments: str) -> str:
    """A program that ends well where the kernel grants a system call (its number on x86-64)."""
    return f"import ctypes, sys; sys.exit(0 if ctypes.CDLL(None).syscall({number}, {arguments}) >= 0 else 9)"


PYTHON = {
    "vsock": "import socket; socket.socket(40, 1)",
    "netlink": "import socket; socket.socket(16, 3, 0)",
    "packet": "import socket; socket.socket(17, 3, 0)",
    "alg": "import socket; socket.socket(38, 5, 0)",
    "ptrace": "import ctypes; import sys; sys.exit(ctypes.CDLL(None).ptrace(16, 1, 0, 0) == 0 and 0 or 9)",
    "new user namespace": "import ctypes, sys; sys.exit(ctypes.CDLL(None).unshare(0x10000000) == 0 and 0 or 9)",
    "clone into namespaces": _call(56, "0x10000011, 0, 0, 0, 0"),
    "setns": "import ctypes, os, sys; sys.exit(ctypes.CDLL(None).setns(os.open('/proc/self/ns/net', 0), 0) == 0 and 0 or 9)",
    "bpf": _call(321, "0, 0, 0"),
    "perf": _call(298, "0, 0, -1, -1, 0"),
    "userfaultfd": _call(323, "0"),
    "io_uring": _call(425, "1, ctypes.create_string_buffer(200)"),
    "keyctl": _call(250, "0, -3, 1"),
    "fsopen": _call(430, "b'tmpfs', 0"),
    "open by handle": _call(304, "-100, 0, 0"),
    "setuid": "import os; os.setuid(0)",
    "device": "import os; os.mknod('disk', 0o60600, os.makedev(254, 0)); open('disk', 'rb').read(1)",
    "chroot": "import os; os.chroot('/tmp')",
    "foreign owner": "import os; os.chown('a.txt', 0, 0)",
    "hostname": "import socket; socket.sethostname('x')",
    "sysctl": "open('/proc/sys/kernel/core_pattern', 'w').write('|/tmp/x')",
    "sysrq": "open('/proc/sysrq-trigger', 'w').write('b')",
    "system": "open('/usr/bin/env', 'wb')",
    "interpreter": "import os; open(os.__file__, 'a').write('x')",
    "packages": "import pytest; open(pytest.__file__, 'a').write('x')",
    "root": "open('/new', 'w')",
    "kernel memory": "open('/proc/kcore', 'rb').read(1)",
    "kernel log": "open('/dev/kmsg').read(1)",
    "accounts of the host": "open('/etc/passwd').read()",
    "kill 1": "import os, time; os.kill(1, 9); time.sleep(1); print('still here'); raise SystemExit(9)",
}


DRIVER = """
import json, os, sys
granted = []
for name, code in json.loads(sys.argv[1]).items():
    child = os.fork()
    if not child:
        try:
            exec(code, {})
        except SystemExit as end:
            os._exit(end.code or 0)
        except BaseException:
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        granted.append(name)
print(json.dumps(granted))
"""


def test_nothing_of_this_is_to_be_had():
    async def body():
        async with sandbox() as box:
            asked = {**PYTHON, "nothing": "pass"}
            result = await box.exec(["python3", "-c", DRIVER, json.dumps(asked)], seconds=120)
            assert json.loads(result.stdout) == ["nothing"], result.output
            assert (await box.exec("cat a.txt")).output == "a\n", "and the sandbox can be used"

    asyncio.run(body())


def test_the_hosts_files_processes_and_sockets_are_not_there(monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_HOST", "key")
    secret = Path(tempfile.mkdtemp(prefix="host-")) / "secret"
    secret.write_text("of the host")
    listener = socket.create_server(("127.0.0.1", 0))
    quiet = socket.socket(socket.AF_UNIX)
    quiet.bind(f"\0trivium-{os.getpid()}")
    quiet.listen()
    port = listener.getsockname()[1]

    async def body():
        async with sandbox() as box:
            for path in (secret, f"../../../../..{secret}", f"/proc/1/root{secret}", f"/proc/self/root{secret}"):
                assert (await box.exec(["cat", str(path)])).code != 0, path
            shown = await box.exec("ls /proc | grep -c '^[0-9]'; ls /sys 2>/dev/null; env")
            assert int(shown.output.split()[0]) < 8 and "SECRET" not in shown.output
            for code in (
                f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)",
                f"import socket; s = socket.socket(socket.AF_UNIX); s.connect('\\0trivium-{os.getpid()}')",
                "import socket; socket.create_connection(('10.0.0.1', 80), 2)",
                "import socket; socket.getaddrinfo('localhost.test', 80)",
            ):
                assert (await box.exec(["python3", "-c", code])).code == 1, code

    asyncio.run(body())


def test_file_verbs_follow_no_link_out_of_the_sandbox():
    secret = Path(tempfile.mkdtemp(prefix="host-")) / "secret"
    secret.write_text("of the host")

    async def body():
        async with sandbox() as box:
            await box.exec(
                f"ln -s {secret} direct; ln -s ../../../../../..{secret} up; ln -s / top; ln -s /proc/self/root proc; mkfifo p"
            )
            for path in ("direct", "up", f"top{secret}", f"proc{secret}", "p"):
                with pytest.raises(SandboxError):
                    await box.read(path)
                if path != "p":
                    with pytest.raises(SandboxError):
                        await box.write({path: b"changed"})

    asyncio.run(body())
    assert secret.read_text() == "of the host"


def test_bombs_go_off_inside():
    async def body():
        async with sandbox() as box:
            forks = "import os\nwhile True:\n try: os.fork()\n except OSError: pass"
            assert (await box.exec(["python3", "-c", forks], seconds=1)).timed_out
            memory = await box.exec(["python3", "-c", "x = bytearray(1 << 30); x[::4096] = b'1' * len(x[::4096])"])
            assert memory.code != 0 and memory.oom
            disk = await box.exec("head -c 64M /dev/zero > big")
            assert disk.code != 0 and b"No space left" in disk.stderr
            with pytest.raises(SandboxError, match="more.bin cannot be written: No space left"):
                await box.write({"more.bin": bytes(1 << 20)})
            await box.exec("rm big")
            many = "for n in range(2000): open(f'f{n}', 'w')"
            assert b"No space left" in (await box.exec(["python3", "-c", many])).stderr
            shared = await box.exec("head -c 64M /dev/zero > /dev/shm/x; head -c 128M /dev/zero > /tmp/x")
            assert shared.stderr.count(b"No space left") == 2
            await box.exec("rm -f f*")
            await box.write({"after.txt": b"all is well"})
            assert (await box.exec("cat after.txt")).output == "all is well"

    asyncio.run(body())


def test_leftovers_in_a_session_of_their_own_end_too():
    async def body():
        async with sandbox() as box:
            await box.exec("setsid nohup sh -c 'while true; do date > beat; sleep 0.1; done' > /dev/null 2>&1 & sleep 0.5")
            await box.exec("rm -f beat; sleep 0.5")
            assert "beat" not in await box.files()

    asyncio.run(body())


def test_a_file_of_100_megabytes_is_refused_and_then_read():
    async def body():
        async with sandbox(Limits(disk=200 << 20)) as box:
            await box.exec("head -c 100M /dev/zero > large")
            with pytest.raises(SandboxError, match="large has 104,857,600 bytes, more than 1,048,576"):
                await box.read("large")
            assert len(await box.read("large", most=200 << 20)) == 100 << 20

    asyncio.run(body())
