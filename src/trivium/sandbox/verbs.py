"""`trivium sandbox serve`: sandboxes for other processes and other machines."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from trivium.errors import InputError
from trivium.sandbox.base import Capabilities, Provider
from trivium.sandbox.docker import Docker
from trivium.sandbox.local_unsafe import LocalUnsafe
from trivium.sandbox.ns import Ns

TOKEN = "TRIVIUM_SANDBOX_TOKEN"
"""The environment variable that holds a service's token, for the service and for who uses it."""

BACKENDS: dict[str, Callable[[], Provider]] = {
    "ns": Ns,
    "docker": Docker,
    "local-unsafe": lambda: LocalUnsafe(i_know_that_nothing_is_isolated=True),
}


def serve(
    images: str,
    backend: Literal["ns", "docker", "local-unsafe"],
    host: str = "127.0.0.1",
    port: int = 8070,
    lease: float = 30.0,
    keep: float = 3600.0,
) -> None:
    """Lend sandboxes over HTTP. A client is `trivium.sandbox.Remote(URL, TOKEN)`.

    Args:
        images: the folder whose folders are the images that clients may name
        backend: what isolates; none is taken in place of another
        host: where it listens; put TLS before it where that is not this machine alone
        port: 0 takes a free one
        lease: seconds after which a client that says nothing is taken for dead, and its sandboxes are closed
        keep: seconds for which a dead client's snapshots are kept
    """
    try:
        import uvicorn

        from trivium.sandbox.service import service
    except ImportError as error:
        raise InputError(f"serving needs {error.name}: pip install 'trivium[serve]'") from error
    from trivium.sandbox.leases import Leases

    if not Path(images).is_dir():
        raise InputError(f"{images} is no folder: name the one that holds the images")
    provider = BACKENDS[backend]()
    token = os.environ.get(TOKEN) or secrets.token_urlsafe(24)
    with socket.create_server((host, port)) as listener:
        _greet(provider.capabilities(), listener, "" if TOKEN in os.environ else token)
        app = service(Leases(provider, Path(images), lease, keep), token)
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])


def _greet(capabilities: Capabilities, listener: socket.socket, token: str) -> None:
    """Say what isolates and what does not, where it listens, and a token that nobody knows yet."""
    print(f"{capabilities.name}: {capabilities.isolation}")
    for line in capabilities.missing:
        print(f"  not held: {line}")
    if token:
        print(f"token: {token}  (set {TOKEN} to have one of your own)")
    host, port = listener.getsockname()[:2]
    print(f"sandboxes at http://{host}:{port}", flush=True)
