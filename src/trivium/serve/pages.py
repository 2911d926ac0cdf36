"""The page of what was said here, at /view: each key sees its own episodes and those of its users, and without keys all."""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from trivium.serve.errors import ApiError
from trivium.serve.keys import LOCAL, Key
from trivium.serve.recorder import stored

PATH = "/view"
HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})
"""By which a server without keys is asked for its page: a page of another host, whose name was made to point to this machine,
is not to read it."""


class Pages:
    """An application for each key that asks, by `page_of` its account, empty where all is seen."""

    def __init__(self, page_of: Callable[[str], ASGIApp]) -> None:
        self._page_of = page_of
        self._pages: dict[str, ASGIApp] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        key: Key = scope["state"]["key"]
        if key is LOCAL and _host(scope) not in HOSTS:
            raise ApiError(403, "permission_error", f"the page is asked for at {' or '.join(sorted(HOSTS))}")
        account = "" if key is LOCAL else key.name
        if account not in self._pages:
            self._pages[account] = await stored(lambda: self._page_of(account))
        await self._pages[account](scope, receive, send)


def _host(scope: Scope) -> str:
    """The host that a request names."""
    name = next((value.decode("latin-1") for header, value in scope["headers"] if header == b"host"), "")
    return name.rpartition(":")[0].strip("[]") if ":" in name and not name.endswith("]") else name.strip("[]")
