"""What `Docker` asks of a daemon, beside the verbs, which test_conformance.py tries. A real daemon is met there, or not."""

from __future__ import annotations

import asyncio

import docker
import pytest

from tests.sandbox.daemon import daemon
from tests.sandbox.test_service import until
from trivium.errors import PlaceError, Unsupported
from trivium.sandbox import Docker, Limits
from trivium.sandbox.docker import hang_up


def test_without_a_daemon_or_an_image_it_says_so(monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:9")
    with pytest.raises(Unsupported, match="Docker needs a daemon that answers"):
        Docker()
    with daemon() as (url, _), pytest.raises(Unsupported, match="docker pull nothing:1"):
        Docker("nothing:1", docker.DockerClient(url))


def test_a_container_has_every_limit_and_no_network(image):
    async def body(provider):
        await provider.create(str(image), Limits(processes=7, memory=1 << 28, cpu=5, files=99))
        await provider.close()

    with daemon() as (url, state):
        asyncio.run(body(Docker(client=docker.DockerClient(url))))
    (asked,) = state.asked
    host = asked["HostConfig"]
    assert host["NetworkMode"] == "none" and host["CapDrop"] == ["ALL"] and host["SecurityOpt"] == ["no-new-privileges"]
    assert (host["PidsLimit"], host["Memory"], host["MemorySwap"]) == (7, 1 << 28, 1 << 28)
    assert {limit["Name"]: limit["Hard"] for limit in host["Ulimits"]} == {"cpu": 5, "nofile": 99}
    assert asked["OpenStdin"] and asked["StdinOnce"] and host["AutoRemove"], "it ends with who holds its input"


def test_a_container_ends_with_the_connection_that_holds_it(image):
    async def body(provider):
        (box,) = await provider.create(str(image))
        assert len(state.containers) == 1
        hang_up(box.held)  # as the kernel does for a process that dies
        until(lambda: not state.containers)
        with pytest.raises(PlaceError):
            await box.exec("true")
        await provider.close()

    with daemon() as (url, state):
        asyncio.run(body(Docker(client=docker.DockerClient(url))))


def test_a_provider_that_is_closed_leaves_neither_container_nor_image(image):
    async def body(provider):
        one, _ = await provider.create(str(image), n=2)
        await provider.create(await one.snapshot())
        assert len(state.containers) == 3 and len(state.images) == 1
        await provider.close()

    with daemon() as (url, state):
        asyncio.run(body(Docker(client=docker.DockerClient(url))))
        assert not state.containers and not state.images


def test_a_container_that_nobody_gets_is_removed(image):
    async def body(provider):
        making = asyncio.create_task(provider.create(str(image), n=3))
        while not state.containers:
            await asyncio.sleep(0.001)
        making.cancel()
        with pytest.raises(asyncio.CancelledError):
            await making
        assert not state.containers
        for state.refused in ("attach", "start", "archive"):
            with pytest.raises(PlaceError, match="a container cannot be made"):
                await provider.create(str(image))
            until(lambda: not state.containers)
        state.refused = ""
        assert not provider._open
        await provider.close()

    with daemon() as (url, state):
        asyncio.run(body(Docker(client=docker.DockerClient(url))))
