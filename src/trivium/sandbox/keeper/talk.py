"""The conversation with a provider, over a socket: JSON of {"verb", "id", ...} with file descriptors beside; each request is
answered by {"id", ...}, with an "error" where it failed."""

from __future__ import annotations

import array
import asyncio
import json
import os
import socket

from trivium.sandbox.keeper import MESSAGE
from trivium.sandbox.keeper.boxes import Boxes

_DESCRIPTORS = 16


async def answer(boxes: Boxes, line: socket.socket, request: dict, descriptors: list[int]) -> None:
    back: list[int] = []
    try:
        result = getattr(boxes, f"do_{request['verb']}")(request, descriptors)
        result = await result if asyncio.iscoroutine(result) else result
        result, back = result if isinstance(result, tuple) else (result, [])
    except KeyError as error:
        result = {"error": "gone", "why": str(error)}
    except OSError as error:
        result = {"error": "os", "number": error.errno, "why": error.strerror or str(error)}
    except Exception as error:  # noqa: BLE001  (whatever it is, who asked hears of it)
        result = {"error": "bug", "why": f"{type(error).__name__}: {error}"}
    payload = json.dumps({"id": request["id"], **result}).encode()
    beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", back))] if back else []
    try:
        while True:
            try:
                line.sendmsg([payload], beside)
                break
            except BlockingIOError:
                await asyncio.sleep(0.001)
    except OSError:
        pass  # the provider is gone, and this process goes with it
    for descriptor in (*descriptors, *back):
        os.close(descriptor)


async def serve(boxes: Boxes, line: socket.socket) -> None:
    """Answer until the provider's end is closed."""
    loop, ended, running = asyncio.get_running_loop(), asyncio.Event(), set()

    def heard() -> None:
        data, descriptors, _, _ = socket.recv_fds(line, MESSAGE, _DESCRIPTORS)
        if not data:
            loop.remove_reader(line)
            ended.set()
            return
        task = loop.create_task(answer(boxes, line, json.loads(data), list(descriptors)))
        running.add(task)
        task.add_done_callback(running.discard)

    loop.add_reader(line, heard)
    await ended.wait()
    for id, box in boxes.boxes.items():
        await boxes.end(id, box)
        boxes.groups.drop(id)
    boxes.groups.close()
