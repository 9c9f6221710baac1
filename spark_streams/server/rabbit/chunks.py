"""Stored batches as chunks: encoded once, sent to every subscription that stands there."""

from __future__ import annotations

import asyncio

__all__ = ["ChunkFeeds"]


class ChunkFeeds:
    """The partitions that subscriptions read, each with its recently encoded chunks.

    Args:
        loop: the server's.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
