"""A server of the test's own: in this process, on a free port, with a script or a tiny engine as its model."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from trivium.policy import View
from trivium.policy.message import Message
from trivium.policy.scripted import call, say
from trivium.serve.options import Options
from trivium.serve.server import listen, server_of
from trivium.serve.service import Service
from trivium.trace import Episode

PATIENCE = 60.0


def until(condition: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Wait for it."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "what was waited for did not come"
        time.sleep(0.01)


def options(folder: Path, **changes) -> Options:
    return Options(**{"port": 0, "store": str(folder / "served.db"), **changes})


@contextmanager
def serving(service: Service) -> Generator[str]:
    """The URL of a service that runs."""
    server, sock = server_of(service), listen(service.options)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    until(lambda: server.started)
    try:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        sock.close()
        assert not thread.is_alive()


def connect(url: str) -> socket.socket:
    """A bare connection to a server."""
    host, _, port = url.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE)


ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}


def adding(view: View) -> Message:
    """Asked with tools it calls two at once, and then says what they returned; without any it says hello."""
    results = [message["content"] for message in view.messages if message["role"] == "tool"]
    if results:
        return say(f"They are {' and '.join(results)}.")
    return call(("add", {"a": 1, "b": 2}), ("add", {"a": 3, "b": 4}), text="Let me add.") if view.tools else say("Hello.")


def sealed(service: Service) -> list[Episode]:
    """Every episode in the store, once all sessions are ended."""
    service.keeper.tidy(now=time.time() + service.options.idle + 1)
    return list(service.store.select("served/"))
