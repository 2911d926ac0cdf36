"""Sandboxes over HTTP: what a service promises beside the verbs, which test_conformance.py tries on `Remote` too."""

from __future__ import annotations

import asyncio
import os
import time

import httpx
import msgspec
import pytest

from tests.sandbox.service import TOKEN, served
from trivium.errors import InputError, PlaceError
from trivium.sandbox import Fake, Limits, LocalUnsafe, Remote
from trivium.sandbox.leases import Leases
from trivium.sandbox.wire import MEDIA


@pytest.fixture
def images(tmp_path):
    (tmp_path / "images" / "project").mkdir(parents=True)
    (tmp_path / "images" / "project" / "readme.txt").write_text("hello\n")
    (tmp_path / "secret.txt").write_text("the host's own")
    return tmp_path / "images"


def unsafe() -> LocalUnsafe:
    return LocalUnsafe(i_know_that_nothing_is_isolated=True)


def test_nothing_answers_without_the_token(images):
    with served(unsafe(), images) as url:
        assert httpx.get(f"{url}/health").json() == {"status": "ok"}
        for method, path in (("GET", "/capabilities"), ("POST", "/leases"), ("POST", "/leases/x/sandboxes/y/exec")):
            assert httpx.request(method, url + path, headers={"authorization": "Bearer guess"}).status_code == 401
        with pytest.raises(InputError, match="refused the token"):
            Remote(url, "guess").capabilities()


@pytest.mark.parametrize("source", ["..", "/etc", "project/../..", "nowhere", "", "."])
def test_a_client_names_images_and_no_other_folder(images, source):
    async def body(url):
        remote = Remote(url, TOKEN)
        with pytest.raises(InputError, match="neither an image's folder nor a snapshot of this service"):
            await remote.create(source)
        await remote.close()

    with served(unsafe(), images) as url:
        asyncio.run(body(url))


def test_a_client_that_dies_leaks_no_sandbox(images):
    fake = Fake()

    async def dies(url) -> str:
        remote = Remote(url, TOKEN)
        box, _, _ = await remote.create("project", n=3)
        assert fake.alive == 3
        return await box.snapshot()

    async def goes_on(url, snapshot):
        remote = Remote(url, TOKEN)
        (box,) = await remote.create(snapshot)
        assert await box.read("readme.txt") == b"hello\n"
        await remote.close()

    with served(fake, images, lease=3) as url:
        snapshot = asyncio.run(dies(url))  # its loop is gone, and with it whoever renewed the lease
        until(lambda: fake.alive == 0)
        asyncio.run(goes_on(url, snapshot))
        assert fake.alive == 0


def test_a_client_that_lives_renews_its_lease(images, monkeypatch):
    async def body(url):
        remote = Remote(url, TOKEN)
        (box,) = await remote.create("project")
        renewed.clear()
        for _ in range(300):
            if renewed:
                break
            await asyncio.sleep(0.1)
        assert renewed, "nobody asked for anything, and the lease was renewed"
        assert await box.read("readme.txt") == b"hello\n"
        await remote.close()

    renewed: list[str] = []
    lease = Leases.lease
    monkeypatch.setattr(Leases, "lease", lambda self, id: renewed.append(id) or lease(self, id))
    with served(unsafe(), images, lease=6) as url:
        asyncio.run(body(url))


def test_snapshots_that_nobody_holds_are_forgotten(images):
    async def body():
        fake = Fake()
        leases = Leases(fake, images, seconds=1000, keep=0)
        lease = leases.open()
        (box,) = await leases.create(lease, "project", Limits(), 1)
        snapshot = await leases.snapshot(lease, box)
        await leases.sweep()
        assert await leases.create(lease, snapshot, Limits(), 1), "it is held"
        await leases.end(lease)
        await leases.sweep()
        with pytest.raises(InputError):
            await leases.create(leases.open(), snapshot, Limits(), 1)
        with pytest.raises(PlaceError, match="the lease ended"):
            leases.sandbox(lease, box)

    asyncio.run(body())


@pytest.mark.filterwarnings("ignore:a snapshot may still be there")
def test_a_provider_that_forgets_nothing_does_not_end_the_sweeping(images):
    class Stubborn(Fake):
        async def forget(self, snapshot):
            raise PlaceError("it is in use")

    async def body():
        leases = Leases(fake := Stubborn(), images, seconds=0.04, keep=0)
        watch = asyncio.create_task(leases.watch())
        lease = leases.open()
        (box,) = await leases.create(lease, "project", Limits(), 1)
        await leases.snapshot(lease, box)
        await asyncio.sleep(0.2)
        await leases.create(leases.open(), "project", Limits(), 2)
        await asyncio.sleep(0.2)
        assert fake.alive == 0 and not watch.done()
        watch.cancel()

    asyncio.run(body())


def test_a_sandbox_made_for_a_lease_that_ended_meanwhile_is_closed(images):
    class Slow(Fake):
        async def create(self, source, limits=Limits(), n=1):
            await leases.end(lease)
            return await super().create(source, limits, n)

    async def body():
        with pytest.raises(PlaceError, match="the lease ended"):
            await leases.create(lease, "project", Limits(), 2)
        assert slow.made == 2 and slow.alive == 0

    slow = Slow()
    leases = Leases(slow, images)
    lease = leases.open()
    asyncio.run(body())


def test_odd_requests_cost_one_line(images):
    headers = {"authorization": f"Bearer {TOKEN}", "content-type": MEDIA}
    with served(unsafe(), images) as url:
        lease, _ = msgspec.msgpack.decode(httpx.post(f"{url}/leases", headers=headers).content)
        for content in (b"", b"\xff\xff", msgspec.msgpack.encode({"source": 3}), b'{"source": "project"}'):
            answer = httpx.post(f"{url}/leases/{lease}/sandboxes", headers=headers, content=content)
            assert answer.status_code == 400 and "no request that the sandbox service knows" in answer.text
        unknown = httpx.put(f"{url}/leases/unknown", headers=headers)
        assert unknown.status_code == 410 and "\n" not in unknown.text


def test_a_service_that_began_anew_lends_again(images):
    def lease(box) -> str:
        return box.path.split("/sandboxes/")[0]

    async def body(url):
        remote = Remote(url, TOKEN)
        (box,) = await remote.create("project")
        httpx.delete(url + lease(box), headers={"authorization": f"Bearer {TOKEN}"})  # as one that is started again has none
        with pytest.raises(PlaceError, match="the lease ended"):
            await box.exec("true")
        boxes = [box for made in await asyncio.gather(*(remote.create("project") for _ in range(3))) for box in made]
        assert [await box.read("readme.txt") for box in boxes] == [b"hello\n"] * 3
        assert len({lease(box) for box in boxes}) == 1
        await remote.close()

    with served(unsafe(), images) as url:
        asyncio.run(body(url))


def test_a_service_that_is_gone_is_one_error_and_closing_is_none(images):
    async def body():
        with served(unsafe(), images) as url:
            remote = Remote(url, TOKEN)
            (box,) = await remote.create("project")
        with pytest.raises(PlaceError, match="does not answer"):
            await box.exec("true")
        await box.close()
        await remote.close()

    asyncio.run(body())


def test_a_file_of_a_hundred_megabytes_goes_and_comes(images):
    async def body(url):
        remote = Remote(url, TOKEN)
        (box,) = await remote.create("project")
        data = os.urandom(1 << 20) * 100
        await box.write({"big.bin": data})
        assert await box.read("big.bin", most=len(data)) == data
        await remote.close()

    with served(unsafe(), images) as url:
        asyncio.run(body(url))


def until(holds, seconds: float = 30.0) -> None:
    """Wait until it holds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not come to hold"
        time.sleep(0.02)
