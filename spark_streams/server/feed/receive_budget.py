"""Bodies of requests while they are received and wait to be stored: how many bytes they may have together.

Who sends little is not counted, and always served: the number of connections bounds what that comes to. When there are
too many, the largest of those that are still being received goes: who sends slowly, or to no good purpose, does not
keep the room from others.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from starlette.requests import ClientDisconnect, Request

from spark_streams.server.feed.http_requests import HttpError
from spark_streams.server.feed.request_bodies import LITTLE_BYTES

__all__ = ["ReceiveBudget"]


class _Body:
    """One of them."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.size = 0
        self.given_up = False

    @property
    def counted(self) -> int:
        """How many of its bytes count."""
        return self.size if self.size > LITTLE_BYTES else 0


class ReceiveBudget:
    """All bodies of a door.

    Args:
        most: bytes that one of them may have.
        most_together: bytes that all of them may have.

    Attributes:
        held: bytes that they have.
    """

    def __init__(self, most: int, most_together: int) -> None:
        self._most = most
        self._most_together = most_together
        self._coming: set[_Body] = set()
        self.held = 0

    @contextmanager
    def place(self) -> Iterator[_Body]:
        """Have a place for a body while it is received and used."""
        body = _Body()
        try:
            yield body
        finally:
            self._let_go(body)

    async def receive(self, request: Request, body: _Body) -> list[bytes]:
        """Return a request's body, in the parts that it came in.

        Raises:
            Refusal: 413, as soon as it is known; 503 when there is no room for it.
        """
        too_large = HttpError(413, f"the body has more than {self._most} bytes: publish less at a time")
        said = request.headers.get("content-length", "0")
        if said.isdecimal() and int(said) > self._most:
            raise too_large
        self._coming.add(body)
        try:
            async for part in request.stream():
                if body.size + len(part) > self._most:
                    raise too_large
                self._take(body, part)
        except ClientDisconnect:
            raise HttpError(400, "the body ended early") from None
        finally:
            self._coming.discard(body)
        self._check(body)
        return body.parts

    def _take(self, body: _Body, part: bytes) -> None:
        self._check(body)
        before = body.counted
        body.parts.append(part)
        body.size += len(part)
        self.held += body.counted - before
        while self.held > self._most_together:
            # Itself, where another is as large.
            largest = max(self._coming, key=lambda each: (each.counted, each is body))
            self._let_go(largest)
            largest.given_up = True
        self._check(body)

    def _check(self, body: _Body) -> None:
        if body.given_up:
            raise HttpError(
                503,
                f"bodies of more than {self._most_together} bytes are being received and stored, and this was the "
                "largest of those that were not all there. Send the request again as it is",
            )

    def _let_go(self, body: _Body) -> None:
        self.held -= body.counted
        body.parts = []
        body.size = 0
