"""What a command printed, however much it was."""

from __future__ import annotations

import asyncio

_PART = 1 << 16


class Ends:
    """The beginning and the end of a stream that may never end; what is between is counted and dropped."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._head, self._tail, self._size = bytearray(), bytearray(), 0

    def add(self, part: bytes) -> None:
        """The stream's next bytes."""
        self._size += len(part)
        room = self._most - len(self._head)
        self._head += part[:room]
        self._tail = (self._tail + part[room:])[-self._most :]

    def text(self) -> tuple[bytes, bool]:
        """What is kept, and whether anything was left out."""
        if self._size <= self._most:
            return bytes(self._head), False
        half = self._most // 2
        note = f"\n[{self._size - 2 * half:,} bytes left out]\n".encode()
        return bytes(self._head[:half]) + note + bytes((self._head + self._tail)[-half:]), True


class Tap(Ends):
    """The ends of what an asyncio stream brings."""

    def __init__(self, stream: asyncio.StreamReader, most: int) -> None:
        super().__init__(most)
        self._stream = stream

    async def read(self) -> None:
        """To the stream's end."""
        while part := await self._stream.read(_PART):
            self.add(part)
