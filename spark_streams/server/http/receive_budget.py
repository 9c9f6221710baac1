"""The memory budget of bodies: how many bytes they may have together while they are received and stored, or sent whole.

Small bodies do not count and are always served: the number of connections bounds their sum. Above the budget the
largest of the bodies that have not come whole is given up, so that a slow or hostile sender does not use up the budget.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from starlette.requests import ClientDisconnect, Request

from spark_streams.server.http.config import HttpConfig
from spark_streams.server.http.requests import HttpError

LITTLE_BYTES: Final = 32 << 10
"""The most bytes of a body that do not count."""
_PART_BYTES: Final = 64 << 10


class _Body:
    """The body of one request.

    Attributes:
        parts: the parts received so far.
        size: their bytes.
        given_up: whether its bytes were released for others.
    """

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.size = 0
        self.given_up = False

    @property
    def counted(self) -> int:
        """How many of its bytes count for the budget."""
        return self.size if self.size > LITTLE_BYTES else 0


class BodyBudget:
    """All bodies of a door.

    Args:
        config: the door's settings.

    Attributes:
        held: how many bytes all bodies have.
    """

    def __init__(self, config: HttpConfig) -> None:
        self._config = config
        self._receiving: set[_Body] = set()
        self.held = 0

    @asynccontextmanager
    async def received(self, request: Request, most: int | None = None) -> AsyncIterator[list[bytes]]:
        """Return a request's body, in the parts in which it came; it counts until the context ends.

        Args:
            request: the request.
            most: how many bytes the body may have; None: ``max_body_bytes``, which is the most in any case.

        Raises:
            HttpError: 413, as soon as the size is known; 503 when the body was given up; 400 when it ends early.
        """
        most = min(most or self._config.max_body_bytes, self._config.max_body_bytes)
        too_large = HttpError(413, f"the body has more than {most} bytes: publish less at a time")
        length = request.headers.get("content-length", "0")
        if length.isdecimal() and int(length) > most:
            raise too_large
        body = _Body()
        self._receiving.add(body)
        try:
            async for part in request.stream():
                if body.size + len(part) > most:
                    raise too_large
                self._take(body, part)
            self._check(body)
            self._receiving.discard(body)  # it is whole, and given up no more
            yield body.parts
        except ClientDisconnect:
            raise HttpError(400, "the body ended early") from None
        finally:
            self._receiving.discard(body)
            self._release(body)

    def sent(self, content: bytes) -> AsyncIterator[bytes]:
        """Return an answer's body in parts, to be sent; it counts until the last one is on its way.

        Raises:
            HttpError: 503, there is no room for it beside the others.
        """
        if self.held and self.held + len(content) > self._config.bodies_bytes:
            raise HttpError(503, f"bodies of {self.held} bytes are under way: ask again when some of them have ended")
        return self._parts(content)

    async def _parts(self, content: bytes) -> AsyncIterator[bytes]:
        self.held += len(content)
        try:
            for start in range(0, len(content), _PART_BYTES):
                yield content[start : start + _PART_BYTES]
        finally:
            self.held -= len(content)

    def _take(self, body: _Body, part: bytes) -> None:
        self._check(body)
        before = body.counted
        body.parts.append(part)
        body.size += len(part)
        self.held += body.counted - before
        while self.held > self._config.bodies_bytes:
            # Of two bodies of the same size, the present one is given up.
            largest = max(self._receiving, key=lambda each: (each.counted, each is body))
            if not largest.counted:  # the room is that of one long answer
                break
            self._release(largest)
            largest.given_up = True
        self._check(body)

    def _check(self, body: _Body) -> None:
        if body.given_up:
            raise HttpError(
                503,
                f"bodies of more than {self._config.bodies_bytes} bytes are being received and stored, and this was "
                "the largest of those that were not all there. Send the request again as it is",
            )

    def _release(self, body: _Body) -> None:
        self.held -= body.counted
        body.parts = []
        body.size = 0
