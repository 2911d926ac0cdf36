"""Sandboxes that are being made: one that its caller does not get, who was cancelled or heard an error, is closed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

from trivium.sandbox.base import Sandbox


async def held(work: Coroutine[Any, Any, list[Sandbox]]) -> list[Sandbox]:
    """What `work` makes. It goes on where the caller is cancelled, since what a keeper or a daemon began cannot be called back;
    what it brings is closed then."""
    making = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:
        await asyncio.shield(asyncio.ensure_future(_unmake(making)))
        raise


async def several(make: Callable[[], Awaitable[Sandbox]], n: int) -> list[Sandbox]:
    """`n` of them, one after the other; where one cannot be made, none is left."""
    boxes: list[Sandbox] = []
    try:
        for _ in range(n):
            boxes.append(await make())
    except BaseException:
        await _close(boxes)
        raise
    return boxes


async def _unmake(making: asyncio.Future[list[Sandbox]]) -> None:
    await asyncio.wait([making])
    if not making.cancelled() and not making.exception():
        await _close(making.result())


async def _close(boxes: Iterable[Sandbox]) -> None:
    await asyncio.gather(*(box.close() for box in boxes), return_exceptions=True)
