"""The memory budget of request bodies: how many bytes they may have together while they are received and stored.

Small bodies do not count and are always served: the number of connections bounds their sum. Above the budget a body
that has not come whole is given up, the largest of the user that has most, so that no sender uses up the budget.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import ClientDisconnect, Request

from spark_streams.server.feed.request_bodies import LITTLE_BYTES
from spark_streams.server.http.requests import HttpError


class _Body:
    """The body of one request.

    Args:
        user: whose it is.

    Attributes:
        parts: the parts received so far.
        size: their bytes.
        given_up: whether its bytes were released for others.
    """

    def __init__(self, user: str) -> None:
        self.user = user
        self.parts: list[bytes] = []
        self.size = 0
        self.given_up = False

    @property
    def counted(self) -> int:
        """How many of its bytes count for the budget."""
        return self.size if self.size > LITTLE_BYTES else 0


class ReceiveBudget:
    """All request bodies of a door.

    Args:
        most: how many bytes one body may have.
        most_together: how many bytes all bodies may have.

    Attributes:
        held: how many bytes the bodies of each user have.
    """

    def __init__(self, most: int, most_together: int) -> None:
        self._most = most
        self._most_together = most_together
        self._receiving: set[_Body] = set()
        self.held: Counter[str] = Counter()

    @asynccontextmanager
    async def received(self, request: Request) -> AsyncIterator[list[bytes]]:
        """Return a request's body, in the parts in which it came; it counts until the context ends.

        Raises:
            HttpError: 413, as soon as the size is known; 503 when the body was given up; 400 when it ends early.
        """
        too_large = HttpError(413, f"the body has more than {self._most} bytes: publish less at a time")
        length = request.headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self._most:
            raise too_large
        body = _Body(request.scope["state"]["connection"].user)
        self._receiving.add(body)
        try:
            async for part in request.stream():
                if body.size + len(part) > self._most:
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

    def _take(self, body: _Body, part: bytes) -> None:
        self._check(body)
        before = body.counted
        body.parts.append(part)
        body.size += len(part)
        self.held[body.user] += body.counted - before
        while self.held.total() > self._most_together:
            # Of two bodies of the same size, the present one is given up.
            largest = max(self._receiving, key=lambda each: (self.held[each.user], each.counted, each is body))
            self._release(largest)
            largest.given_up = True
        self._check(body)

    def _check(self, body: _Body) -> None:
        if body.given_up:
            raise HttpError(
                503,
                f"bodies of more than {self._most_together} bytes are being received and stored, and this was the "
                "largest, of the user with most, of those that were not all there. Send the request again as it is",
            )

    def _release(self, body: _Body) -> None:
        self.held[body.user] -= body.counted
        body.parts = []
        body.size = 0
