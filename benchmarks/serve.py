"""A server under load: sessions at once, weights that are swapped, one kill -9, and what became of what was acknowledged.

    python benchmarks/serve.py --quick

200 clients hold conversations of four turns, nine in ten with a scripted model and the rest with the nano base, half of the
requests as streams. New weights of the nano base are published all the while. In the middle the server is killed with SIGKILL
and started again. At the end it is asked to end, its sessions become episodes, and its store is compared with what clients were
told. A client thinks for a second between two turns. Before that, the same clients ask without a pause: the scripted model, and
a plain FastAPI application that echoes its body.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from trivium.assets import NANO

SESSIONS, TURNS, THINKS = 200, 4, 1.0


@dataclass(slots=True)
class Tally:
    """What clients saw: ids of replies that they were told whole, answers by status, and streams that were none."""

    acknowledged: set[str] = field(default_factory=set)
    statuses: Counter[str] = field(default_factory=Counter)
    malformed: list[str] = field(default_factory=list)
    killed: bool = False  # while it is, a broken answer is what was asked for


class Torn(Exception):
    """A connection that ended in an answer."""


class Client:
    """One connection, kept open: HTTP as far as it is needed here, for a client library would take most of the machine."""

    def __init__(self, port: int) -> None:
        self.port, self._reader, self._writer = port, None, None

    async def post(self, path: str, body: dict) -> tuple[int, str]:
        """Status and whole body of an answer. Torn, or OSError, where there is none."""
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self.port)
        content = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        try:
            self._writer.write(head.encode() + content)
            return await self._answer()
        except (asyncio.IncompleteReadError, OSError) as error:
            self.close()
            raise Torn(str(error)) from error

    async def _answer(self) -> tuple[int, str]:
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower()
        if length := re.search(r"content-length: (\d+)", head):
            return int(head.split()[1]), (await self._reader.readexactly(int(length[1]))).decode()
        parts = []
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            parts.append((await self._reader.readexactly(size + 2))[:-2])
        await self._reader.readexactly(2)
        return int(head.split()[1]), b"".join(parts).decode()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None


async def converse(number: int, port: int, tally: Tally, until: float) -> None:
    """Conversations, one after the other."""
    client, model, count = Client(port), "nano" if number % 10 == 0 else "script", 0
    while time.monotonic() < until:
        messages = [{"role": "user", "content": f"client {number}, conversation {count}"}]
        count += 1
        for turn in range(TURNS):
            body = {"model": model, "messages": messages, "max_tokens": 24, "stream": bool((number + turn) % 2)}
            text = await said(client, body, tally)
            if text is None or time.monotonic() >= until:
                break
            messages = [*messages, {"role": "assistant", "content": text}, {"role": "user", "content": f"turn {turn}"}]
            await asyncio.sleep(THINKS * (0.5 + random.random()))
    client.close()


async def said(client: Client, body: dict, tally: Tally) -> str | None:
    """What the model said; None where it was not told whole."""
    try:
        status, answer = await client.post("/v1/chat/completions", body)
    except Torn as error:
        if not tally.killed:
            tally.malformed.append(f"torn: {error}")
        await asyncio.sleep(0.2)
        return None
    except OSError:
        await asyncio.sleep(0.2)
        return None
    tally.statuses[str(status)] += 1
    if status != 200:
        await asyncio.sleep(0.2)
        return None
    try:
        id, text = streamed(answer) if body["stream"] else whole(answer)
    except (ValueError, LookupError, AssertionError) as error:
        tally.malformed.append(f"{type(error).__name__} {error}: {answer[-200:]}")
        return None
    tally.acknowledged.add(id.removeprefix("chatcmpl-"))
    return text


def whole(answer: str) -> tuple[str, str]:
    told = json.loads(answer)
    return told["id"], told["choices"][0]["message"]["content"]


def streamed(answer: str) -> tuple[str, str]:
    """The id and the text of a stream, each of whose events is looked at."""
    *events, last = [part.removeprefix("data: ") for part in answer.split("\n\n") if part]
    assert last == "[DONE]", last
    chunks = [json.loads(event) for event in events]
    assert len({chunk["id"] for chunk in chunks}) == 1 and chunks[-1]["choices"][0]["finish_reason"]
    return chunks[0]["id"], "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)


async def rate(port: int, path: str, seconds: float) -> float:
    """Requests a second that clients get answered who ask without a pause."""
    until, count = time.monotonic() + seconds, 0
    body = {"model": "script", "messages": [{"role": "user", "content": "a conversation"}], "max_tokens": 24, "stream": False}

    async def one() -> None:
        nonlocal count
        client = Client(port)
        while time.monotonic() < until:
            status, _ = await client.post(path, body)
            assert status == 200
            count += 1
        client.close()

    await asyncio.gather(*(one() for _ in range(SESSIONS)))
    return count / seconds


# --- processes


def start(*words: str) -> tuple[subprocess.Popen, int]:
    """A process of this file, and the port that it says."""
    process = subprocess.Popen([sys.executable, __file__, *words], stdout=subprocess.PIPE, text=True, env={**os.environ})
    line = process.stdout.readline()
    return process, int(re.search(r":(\d+)", line)[1])


def serve(store: str, weights: str, port: str) -> None:
    """The server, in a process of its own."""
    from trivium.engine import Engine
    from trivium.policy import Renderer, Scripted
    from trivium.policy.scripted import say
    from trivium.serve.aside import Aside
    from trivium.serve.options import Options
    from trivium.serve.server import run
    from trivium.serve.service import Service

    renderer = Renderer.load(NANO)
    script = Scripted(lambda view: say(f"This is what I say to your {len(view.messages)} messages."), renderer, name="script")
    nano = Aside(Engine(NANO, renderer=renderer, slots=8, context=1024, name="nano"))
    run(Service({"script": script, "nano": nano}, Options(port=int(port), store=store, follow=weights, concurrent=400)))


def echo() -> None:
    """A plain FastAPI application that says what it was told."""
    import socket

    import uvicorn
    from fastapi import FastAPI

    app = FastAPI()

    @app.post("/echo")
    async def answer(body: dict) -> dict:
        return body

    with socket.create_server(("127.0.0.1", 0)) as sock:
        print(f"echo at :{sock.getsockname()[1]}", flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).run(sockets=[sock])


def publishing(weights: str, every: float, over: threading.Event) -> threading.Thread:
    """Publish moved weights of the nano base, again and again."""
    import torch

    from trivium.nn import Network
    from trivium.policy import Renderer
    from trivium.weights import Publisher

    network, publisher = Network.load(NANO), Publisher(weights)
    probe = list(Renderer.load(NANO).encode("a probe of the weights"))

    def publish() -> None:
        version = 0
        while not over.wait(every):
            version += 1
            state = {name: t + 1e-4 * torch.randn(t.shape) for name, t in network.state().items()}
            network.load_state(state)
            publisher.publish(network, version, probe)

    thread = threading.Thread(target=publish, daemon=True)
    thread.start()
    return thread


# --- what became of it


def quantile(text: str, share: float) -> float:
    """Milliseconds under which this share of captures stayed, by the buckets of the histogram, on a line within one."""
    buckets = [(float(m[1]), float(m[2])) for m in re.finditer(r'capture_seconds_bucket\{le="([\d.]+|\+Inf)"\} ([\d.]+)', text)]
    wanted, below, before = share * buckets[-1][1], 0.0, 0.0
    for edge, count in buckets:
        if count >= wanted:
            return 1000 * (before + (edge - before) * (wanted - below) / max(1.0, count - below))
        below, before = count, edge
    return float("inf")


def kept(store: str) -> tuple[set[str], int]:
    """The ids of all exchanges in the store, and how many replies its episodes have beyond these, once each is one."""
    from trivium.policy import Renderer
    from trivium.serve.exchange import EXCHANGES, Exchanges
    from trivium.serve.keeping import Keeper
    from trivium.serve.redact import Rules
    from trivium.trace import Store

    renderer = Renderer.load(NANO)
    keeper = Keeper(Exchanges(Store(store)), Rules(), lambda name: renderer, 1.0, 1e9, 0.0)
    keeper.tidy(time.time() + 10)
    with keeper.exchanges.store.reading() as connection:
        ids = set(connection.execute(EXCHANGES.select().with_only_columns(EXCHANGES.c.id)).scalars())
    turns = sum(thread.turns for episode in keeper.exchanges.store.select("served/") for thread in episode.threads)
    return ids, turns - len(ids)


async def load(folder: Path, seconds: float, every: float) -> dict:
    """The whole of it; the numbers."""
    import httpx

    plain, port = start("--echo")
    echoed = await rate(port, "/echo", min(10.0, seconds / 3))
    plain.terminate()
    plain, port = start("--serve", str(folder / "rate.db"), "", "0")
    served = await rate(port, "/v1/chat/completions", min(10.0, seconds / 3))
    plain.terminate()
    store, weights, over = str(folder / "served.db"), str(folder / "weights"), threading.Event()
    server, port = start("--serve", store, weights, "0")
    publisher, tally, began = publishing(weights, every, over), Tally(), time.monotonic()
    clients = asyncio.gather(*(converse(number, port, tally, began + seconds) for number in range(SESSIONS)))
    await asyncio.sleep(seconds / 2)
    first = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=60).text
    tally.killed = True
    server.send_signal(signal.SIGKILL)
    server.wait()
    server, _ = await asyncio.to_thread(start, "--serve", store, weights, str(port))
    tally.killed = False
    await clients
    last = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=60).text
    over.set()
    publisher.join()
    server.terminate()
    server.wait(60)
    ids, twice = kept(store)
    swaps = sum(float(m[1]) for text in (first, last) for m in re.finditer(r'swaps_total\{outcome="taken"\} ([\d.]+)', text))
    return {
        "seconds": seconds, "sessions": SESSIONS, "acknowledged": len(tally.acknowledged), "statuses": dict(tally.statuses),
        "lost": len(tally.acknowledged - ids), "duplicated": twice, "malformed": len(tally.malformed), "swaps": int(swaps),
        "capture_ms_p50": round(max(quantile(first, 0.5), quantile(last, 0.5)), 2),
        "capture_ms_p99": round(max(quantile(first, 0.99), quantile(last, 0.99)), 2),
        "requests_per_second": round(served, 1), "echo_per_second": round(echoed, 1),
        "share_of_echo": round(served / echoed, 3), "examples": tally.malformed[:3],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="30 seconds instead of five minutes")
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--echo", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return serve(*options.serve)
    if options.echo:
        return echo()
    with tempfile.TemporaryDirectory() as folder:
        seconds, every = (30.0, 5.0) if options.quick else (300.0, 20.0)
        print(json.dumps(asyncio.run(load(Path(folder), seconds, every)), indent=1))


if __name__ == "__main__":
    main()
