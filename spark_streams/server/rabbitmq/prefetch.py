"""Encoding what a subscription will be sent next while its client is busy with what it has: both work at once then."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from spark_streams.errors import LogError
from spark_streams.server.rabbitmq.chunks import Chunks

__all__ = ["Prefetch"]

BLOCKS_AHEAD: Final = 16
"""Some 16 MiB where nothing is encoded yet: a client takes long over what it reads together, and then wants more."""


class Prefetch:
    """What is encoded ahead of one subscription: a block at a time, with what other connections want in between.

    Args:
        chunks: of the stream.
        loop: the server's.
    """

    def __init__(self, chunks: Chunks, loop: asyncio.AbstractEventLoop) -> None:
        self._chunks = chunks
        self._loop = loop
        self._following = 0
        self._ends: deque[int] = deque()
        self._due: asyncio.Handle | None = None

    def from_offset(self, offset: int) -> None:
        """Go on until there is enough ahead of an offset, or all there is."""
        self._following = offset
        while self._ends and self._ends[0] <= offset:
            self._ends.popleft()
        self._queue()

    def _queue(self) -> None:
        if self._due is None and len(self._ends) < BLOCKS_AHEAD:
            self._due = self._loop.call_soon(self._step)

    def _step(self) -> None:
        self._due = None
        try:
            end = self._chunks.prepare(self._ends[-1] if self._ends else self._following)
        except (LogError, OSError):
            return  # the next delivery meets it again, and deals with it
        if end is not None:
            self._ends.append(end)
            self._queue()

    def stop(self) -> None:
        """Encode no more."""
        self._ends.clear()
        if self._due is not None:
            self._due.cancel()
            self._due = None
