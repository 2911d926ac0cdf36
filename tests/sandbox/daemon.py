"""A Docker daemon that is none: it speaks the HTTP interface that the SDK uses, and its containers are folders in which
commands run unisolated, in a process group each."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import struct
import subprocess
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from urllib.parse import parse_qs, unquote_to_bytes, urlsplit

from trivium.sandbox.docker import SWEEP

BASE = "python:3.11-slim"


@dataclass
class State:
    """What a daemon has: containers (id -> folder), images (name -> folder), executions; and what it refuses."""

    top: Path
    containers: dict[str, Path] = field(default_factory=dict)
    images: dict[str, Path] = field(default_factory=dict)
    execs: dict[str, dict] = field(default_factory=dict)
    asked: list[dict] = field(default_factory=list)
    refused: str = ""

    def remove(self, id: str) -> None:
        self.sweep(id)
        if folder := self.containers.pop(id, None):
            shutil.rmtree(folder, ignore_errors=True)

    def sweep(self, id: str) -> None:
        """What `kill -9 -1` does in a container: never on this machine."""
        for each in self.execs.values():
            if each["container"] == id and each["group"]:
                try:
                    os.killpg(each["group"], signal.SIGKILL)
                except ProcessLookupError:
                    pass


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    state: State

    def log_message(self, *words: object) -> None:
        pass

    def do_GET(self) -> None:
        match self._parts():
            case ["_ping"]:
                self._send(b"OK")
            case ["version"]:
                self._json({"ApiVersion": "1.44", "Version": "fake"})
            case ["images", *name, "json"]:
                self._json({"Id": "sha256:1"} if "/".join(name) in {BASE, *self.state.images} else None)
            case ["exec", id, "json"]:
                self._json({"ExitCode": self.state.execs[id]["code"]})
            case ["containers", id, "archive"]:
                self._archive(self._folder(id))

    def do_POST(self) -> None:
        state, parts = self.state, self._parts()
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if parts[-1] == state.refused:
            return self._json(None)
        match parts:
            case ["containers", "create"]:
                state.asked.append(wanted := json.loads(body))
                id, folder = secrets.token_hex(8), Path(tempfile.mkdtemp(dir=state.top))
                if wanted["Image"] in state.images:
                    shutil.copytree(state.images[wanted["Image"]], folder, symlinks=True, dirs_exist_ok=True)
                state.containers[id] = folder
                self._json({"Id": id})
            case ["containers", id, "start"]:
                self._send(b"")
            case ["containers", id, "attach"]:
                self._hijack()
                while self.connection.recv(1 << 16):
                    pass
                state.remove(id)  # its standard input ended, and so did `cat`
            case ["containers", id, "exec"]:
                self._folder(id)
                name, wanted = secrets.token_hex(8), json.loads(body)
                state.execs[name] = {"container": id, "code": None, "group": 0, **wanted}
                self._json({"Id": name})
            case ["exec", name, "start"]:
                self._hijack()
                self._run(state.execs[name])
            case ["commit"]:
                query = parse_qs(urlsplit(self.path).query)
                copy = Path(tempfile.mkdtemp(dir=state.top))
                shutil.copytree(self._folder(query["container"][0]), copy, symlinks=True, dirs_exist_ok=True)
                state.images[f"{query['repo'][0]}:{query['tag'][0]}"] = copy
                self._json({"Id": "sha256:2"})

    def do_PUT(self) -> None:
        _, id, _ = self._parts()
        top = self._folder(id) / parse_qs(urlsplit(self.path).query)["path"][0].lstrip("/")
        if self.headers.get("Content-Length"):
            data = self.rfile.read(int(self.headers["Content-Length"]))
        else:
            data = b"".join(self._chunks())
        with tarfile.open(fileobj=BytesIO(data)) as tar:
            tar.extractall(top, filter="tar")
        self._json(None) if self.state.refused == "archive" else self._send(b"")

    def do_DELETE(self) -> None:
        match self._parts():
            case ["containers", id]:
                self._folder(id)
                self.state.remove(id)
                self._send(b"", 204)
            case ["images", *name]:
                shutil.rmtree(self.state.images.pop("/".join(name)))
                self._json([])

    def _parts(self) -> list[str]:
        """The path without its version."""
        parts = urlsplit(self.path).path.strip("/").split("/")
        return parts[1:] if parts[0].startswith("v1.") else parts

    def _folder(self, id: str) -> Path:
        if id not in self.state.containers:
            self._json(None)
            raise ConnectionAbortedError
        return self.state.containers[id]

    def _archive(self, folder: Path) -> None:
        given = unquote_to_bytes(urlsplit(self.path).query.partition("path=")[2].replace("+", " "))
        place = folder / os.fsdecode(given).lstrip("/")
        if not place.exists():
            return self._json(None)
        file = BytesIO()
        with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as tar:
            tar.add(place, place.name)
        self._send(file.getvalue(), headers={"X-Docker-Container-Path-Stat": "e30="})

    def _run(self, execution: dict) -> None:
        """Run a command, its output framed as a daemon frames it; the connection ends when all that hold the output have."""
        if execution["Cmd"] == SWEEP:
            self.state.sweep(execution["container"])
            execution["code"] = 137
            return
        assert not any("kill -9 -1" in word for word in execution["Cmd"]), "that would be this machine's"
        folder = self.state.containers[execution["container"]]
        process = subprocess.Popen(
            execution["Cmd"], cwd=folder / "work", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={"PATH": os.environ["PATH"], **dict(each.split("=", 1) for each in execution["Env"])}, start_new_session=True,
        )  # fmt: skip
        execution["group"] = process.pid
        lock = threading.Lock()
        threads = [
            threading.Thread(target=self._frames, args=(number, stream, lock))
            for number, stream in ((1, process.stdout), (2, process.stderr))
        ]
        for thread in threads:
            thread.start()
        code = process.wait()
        execution["code"] = 128 - code if code < 0 else code
        for thread in threads:
            thread.join()

    def _frames(self, number: int, stream, lock: threading.Lock) -> None:
        while part := stream.read1(1 << 15):
            with lock:
                self.wfile.write(struct.pack(">BxxxL", number, len(part)) + part)

    def _hijack(self) -> None:
        self.close_connection = True
        self.send_response(101)
        for name, value in (("Connection", "Upgrade"), ("Upgrade", "tcp")):
            self.send_header(name, value)
        self.end_headers()

    def _chunks(self) -> Iterator[bytes]:
        while size := int(self.rfile.readline(), 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()

    def _json(self, content: object) -> None:
        known = content is not None
        body = json.dumps(content if known else {"message": "No such image or container"}).encode()
        self._send(body, 200 if known else 404, {"Content-Type": "application/json"})

    def _send(self, body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address) -> None:
        """A connection that ended is nothing to tell."""


@contextmanager
def daemon() -> Iterator[tuple[str, State]]:
    """The address of a daemon, and what it has."""
    with tempfile.TemporaryDirectory(prefix="trivium-daemon-", ignore_cleanup_errors=True) as top:
        state = State(Path(top))
        server = Server(("127.0.0.1", 0), type("Bound", (Handler,), {"state": state}))
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"tcp://127.0.0.1:{server.server_port}", state
        finally:
            for id in list(state.containers):
                state.remove(id)
            server.shutdown()
            thread.join(30)
            server.server_close()
