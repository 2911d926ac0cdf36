"""The backends that every conformance test runs on, and the image that they all begin with."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from tests.sandbox.daemon import daemon
from tests.sandbox.service import TOKEN, served
from trivium.errors import Unsupported
from trivium.sandbox import Docker, Limits, LocalUnsafe, Ns, Provider, Remote, Sandbox

T = TypeVar("T")
BACKENDS: dict[str, Callable[[], Provider]] = {
    "local-unsafe": lambda: LocalUnsafe(i_know_that_nothing_is_isolated=True),
    "ns": Ns,
    "docker": Docker,
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


class Named(Remote):
    """A remote whose images are named by the path that they have here."""

    async def create(self, source: str, limits: Limits = Limits(), n: int = 1) -> list[Sandbox]:
        path = Path(source)
        return await super().create(path.name if path.exists() else source, limits, n)


@contextmanager
def opened(backend: str, image: Path) -> Iterator[Provider]:
    """A provider; "remote" is a service that lends sandboxes that isolate nothing."""
    if backend in BACKENDS:
        yield BACKENDS[backend]()
        return
    if backend == "docker, faked":
        import docker

        with daemon() as (url, _):
            yield Docker(client=docker.DockerClient(url))
        return
    with served(BACKENDS["local-unsafe"](), image.parent) as url:
        yield Named(url, TOKEN)


@pytest.fixture(params=[*BACKENDS, "docker, faked", "remote"])
def backend(request) -> str:
    return request.param


@pytest.fixture
def within(backend, image) -> Iterator[Callable[[Callable[[Provider, Sandbox], Awaitable[T]]], T]]:
    """Runs an async function of a provider and a sandbox from the image; nothing is alive afterwards."""

    def run(body: Callable[[Provider, Sandbox], Awaitable[T]]) -> T:
        async def whole(provider: Provider) -> T:
            try:
                (box,) = await provider.create(str(image))
                return await body(provider, box)
            finally:
                await provider.close()

        try:
            with opened(backend, image) as provider:
                return asyncio.run(whole(provider))
        except Unsupported as error:
            pytest.skip(str(error))

    yield run
