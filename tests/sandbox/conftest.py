"""The backends that every conformance test runs on, and the image that they all begin with."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from trivium.errors import Unsupported
from trivium.sandbox import LocalUnsafe, Ns, Provider, Sandbox

T = TypeVar("T")
BACKENDS: dict[str, Callable[[], Provider]] = {
    "local-unsafe": lambda: LocalUnsafe(i_know_that_nothing_is_isolated=True),
    "ns": Ns,
}
"""Those that really run commands."""


@pytest.fixture
def image(tmp_path) -> Path:
    """A project of two files."""
    top = tmp_path / "image"
    (top / "pkg").mkdir(parents=True)
    (top / "pkg" / "maths.py").write_text("def add(a, b):\n    return a + b\n")
    (top / "readme.txt").write_text("hello\n")
    return top


@pytest.fixture(params=list(BACKENDS))
def backend(request) -> str:
    return request.param


@pytest.fixture
def within(backend, image) -> Iterator[Callable[[Callable[[Provider, Sandbox], Awaitable[T]]], T]]:
    """Runs an async function of a provider and a sandbox from the image; nothing is alive afterwards."""

    def run(body: Callable[[Provider, Sandbox], Awaitable[T]]) -> T:
        async def whole() -> T:
            try:
                provider = BACKENDS[backend]()
            except Unsupported as error:
                pytest.skip(str(error))
            try:
                (box,) = await provider.create(str(image))
                return await body(provider, box)
            finally:
                await provider.close()

        return asyncio.run(whole())

    yield run
