"""Batch tasks: many files to download from a site, and of each its digest, which nobody knows who has not fetched it.

Fill the table. Answer each cell by its number.
1. What is the digest of http://127.0.0.1:8000/annual-report.txt? ...
"""

from __future__ import annotations

import asyncio
import hashlib
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Annotated
from urllib.parse import urljoin

from msgspec import Meta

from trivium.harness import FunctionTool, Scene, ToolError, tool
from trivium.tasks.tables import table
from trivium.trace.episode import Task

DIGITS = 8


def batch_task(id: str, site: str, files: Mapping[str, bytes]) -> Task:
    """The task to fetch all `files` (path -> content) of the site at that address."""
    cells = []
    for path, content in files.items():
        address = urljoin(site, path)
        asked = f"What is the digest of {address}?"
        cells.append(
            {"subject": address, "relation": "digest", "keyword": "", "object": digest(content), "doc": "", "question": asked}
        )
    return table(id, "batch", [[cell] for cell in cells])


def digest(content: bytes) -> str:
    """The first digits of a file's SHA-256."""
    return hashlib.sha256(content).hexdigest()[:DIGITS]


def download_tool(site: str, seconds: float = 30.0) -> FunctionTool:
    """The tool that fetches a file of `site`, and of no other place."""

    @tool(seconds=seconds)
    async def download(scene: Scene, address: Annotated[str, Meta(description="the whole address of a file")]) -> str:
        """Download a file. Returns how long it is, and its digest."""
        address = address.strip()
        if not address.startswith(site):
            raise ToolError(f"{address} is not of the site {site}")
        try:
            content = await asyncio.to_thread(_fetch, address, seconds)
        except (urllib.error.URLError, OSError, ValueError) as error:
            raise ToolError(f"{address} cannot be downloaded: {error}", "environment") from error
        return f"{address}: {len(content)} bytes, digest {digest(content)}"

    return download


def _fetch(address: str, seconds: float) -> bytes:
    with urllib.request.urlopen(address, timeout=seconds) as response:
        return response.read()
