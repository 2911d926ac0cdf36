"""Pages of the web for a coder, from named hosts alone. There is no such tool unless somebody names some."""

from __future__ import annotations

from urllib.parse import urlsplit

import httpx

from trivium.harness import Scene, Tool, ToolError, tool

SHOWN = 8_000
"""Letters of a page that are shown."""

MOST = 2_000_000
"""Bytes of a page that are read."""

REDIRECTS = 5


def fetch_tool(hosts: tuple[str, ...]) -> Tool:
    """The tool that reads pages of `hosts` (`docs.python.org`; their subdomains are others)."""

    @tool(seconds=30.0)
    async def fetch_url(scene: Scene, url: str) -> str:
        """Read a page of the web, from the hosts that are allowed."""
        async with httpx.AsyncClient(timeout=20.0, follow_redirects=False) as client:
            return await _page(client, url.strip(), hosts)

    return fetch_url


async def _page(client: httpx.AsyncClient, url: str, hosts: tuple[str, ...]) -> str:
    """The text of a page. Each redirect is asked for permission again. Raises ToolError."""
    for _ in range(REDIRECTS):
        _check(url, hosts)
        try:
            async with client.stream("GET", url) as response:
                if response.next_request is not None:
                    url = str(response.next_request.url)
                    continue
                if response.status_code != 200:
                    raise ToolError(f"{url} answers {response.status_code}.", "provider")
                return await _text(response)
        except httpx.HTTPError as error:
            raise ToolError(f"{url} cannot be read: {type(error).__name__}.", "provider") from error
    raise ToolError(f"{url} redirects too often.", "provider")


def _check(url: str, hosts: tuple[str, ...]) -> None:
    try:
        parts = urlsplit(url)
        allowed = parts.scheme in ("http", "https") and parts.netloc in hosts
    except ValueError:
        allowed = False
    if not allowed:
        raise ToolError(f"{url!r} is not allowed; allowed are pages of {', '.join(hosts)}.")


async def _text(response: httpx.Response) -> str:
    body = bytearray()
    async for part in response.aiter_bytes():
        body += part
        if len(body) > MOST:
            break
    text = body[:MOST].decode(response.encoding or "utf-8", errors="replace")
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}\n[{len(text) - SHOWN:,} letters left out]"
