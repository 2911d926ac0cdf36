"""A policy that computes, in a thread of its own, so that a step of its network holds up nobody's request."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING

from trivium.policy import Reply, View
from trivium.trace import Sampling

if TYPE_CHECKING:
    from trivium.engine import Engine


class Aside:
    """An engine in an event loop of its own. What it does is asked for from any other."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.name, self.renderer, self.context = engine, engine.name, engine.renderer, engine.context
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True, name=f"engine {engine.name}").start()
        # deployments come and go: with the last who asks it, its thread ends
        weakref.finalize(self, self._loop.call_soon_threadsafe, self._loop.stop).atexit = False

    @property
    def version(self) -> int:
        return self.engine.version

    async def speak(self, view: View, sampling: Sampling) -> Reply:
        """As the engine."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self.engine.speak(view, sampling), self._loop))

    async def stream(self, view: View, sampling: Sampling) -> AsyncGenerator[Reply]:
        """As the engine."""
        parts: asyncio.Queue[Reply | Exception | None] = asyncio.Queue()
        here = asyncio.get_running_loop()

        def hand(part: Reply | Exception | None) -> None:
            with suppress(RuntimeError):  # who listened is gone, and its loop closed
                here.call_soon_threadsafe(parts.put_nowait, part)

        speaking = asyncio.run_coroutine_threadsafe(self._speak_to(hand, view, sampling), self._loop)
        try:
            while (part := await parts.get()) is not None:
                if isinstance(part, Exception):
                    raise part
                yield part
        finally:
            speaking.cancel()

    async def _speak_to(self, hand: Callable[[Reply | Exception | None], None], view: View, sampling: Sampling) -> None:
        try:
            async with aclosing(self.engine.stream(view, sampling)) as stream:
                async for part in stream:
                    hand(part)
        except Exception as error:
            hand(error)
        finally:
            hand(None)
