"""A sandbox service in a thread of the test, on a port that is free."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from trivium.sandbox import Provider
from trivium.sandbox.leases import Leases
from trivium.sandbox.service import service

TOKEN = "the token of the tests"


@contextmanager
def served(provider: Provider, images: Path, lease: float = 30.0) -> Iterator[str]:
    """The address of a service that lends `provider`'s sandboxes, until the end of the block."""
    server = uvicorn.Server(uvicorn.Config(service(Leases(provider, images, lease), TOKEN), log_level="error"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(30)
