"""The memory budget of bodies: how many bytes they may have together while they are received and stored, or sent whole.

Small bodies do not count and are always served: the number of connections bounds their sum. Above the budget a body
that has not come whole is given up, the largest of the user with the most, so that no sender uses up the budget. Bodies
that have come whole stay, so one user has at most ``USER_SHARE`` of the budget, and the rest is for others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from starlette.requests import ClientDisconnect, Request

from spark_streams.server.http.config import LITTLE_BYTES, HttpConfig
from spark_streams.server.http.requests import HttpError

USER_SHARE: Final = 7 / 8
_PART_BYTES: Final = 128 << 10
"""The most bytes of a body that are kept, or sent, in one part."""


class _Body:
    """The body of one request.

    Args:
        user: the user that the body counts for.

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


class BodyBudget:
    """All bodies of a door.

    Args:
        config: the door's settings.

    Attributes:
        held: how many bytes the bodies of each user have.
    """

    def __init__(self, config: HttpConfig) -> None:
        self._config = config
        self._receiving: set[_Body] = set()
        self.held: Counter[str] = Counter()

    @asynccontextmanager
    async def received(self, request: Request, most: int | None = None) -> AsyncIterator[list[bytes]]:
        """Return a request's body, in the parts in which it came; it counts until the context ends.

        Args:
            request: the request.
            most: how many bytes the body may have; None: ``max_body_bytes``, which is the most in any case.

        Raises:
            HttpError: 413 once the body is known to be too large; 503 when it was given up; 400 when it ends early.
        """
        most = min(most or self._config.max_body_bytes, self._config.max_body_bytes)
        too_large = HttpError(413, f"the body has more than {most} bytes: publish less at a time")
        length = request.headers.get("content-length", "0")
        if length.isdecimal() and int(length) > most:
            raise too_large
        body = _Body(request.scope["state"]["connection"].user)
        self._receiving.add(body)
        try:
            async for part in request.stream():
                if body.size + len(part) > most:
                    raise too_large
                self._take(body, part)
            self._check(body)
            self._receiving.discard(body)  # it is whole, and is not given up any more
            yield body.parts
        except ClientDisconnect:
            raise HttpError(400, "the body ended early") from None
        finally:
            self._receiving.discard(body)
            self._release(body)

    def sent(self, user: str, content: bytes) -> AsyncIterator[bytes]:
        """Return an answer's body in parts, to be sent; it counts until the last one is on its way.

        Raises:
            HttpError: 503, there is no room for it beside the others.
        """
        held = self.held.total()
        if held and self._is_over(user, len(content)):
            raise HttpError(503, f"bodies of {held} bytes are under way: ask again when some of them have ended")
        return self._parts(user, content)

    async def _parts(self, user: str, content: bytes) -> AsyncIterator[bytes]:
        self.held[user] += len(content)
        try:
            for start in range(0, len(content), _PART_BYTES):
                yield content[start : start + _PART_BYTES]
        finally:
            self.held[user] -= len(content)

    def _take(self, body: _Body, part: bytes) -> None:
        self._check(body)
        before = body.counted
        if body.parts and len(body.parts[-1]) + len(part) <= _PART_BYTES:
            body.parts[-1] += part  # reading the body costs time for each part, too
        else:
            body.parts.append(part)
        body.size += len(part)
        self.held[body.user] += body.counted - before
        while self._is_over(body.user):
            counted = [each for each in self._receiving if each.counted]
            if not counted:  # a long answer that is being sent has the room
                break
            # Of two bodies of the same size, the present one is given up.
            largest = max(counted, key=lambda each: (self.held[each.user], each.counted, each is body))
            self._release(largest)
            largest.given_up = True
        self._check(body)

    def _is_over(self, user: str, more: int = 0) -> bool:
        most = self._config.bodies_bytes
        return self.held.total() + more > most or self.held[user] + more > most * USER_SHARE

    def _check(self, body: _Body) -> None:
        if body.given_up:
            raise HttpError(
                503,
                f"bodies of more than {self._config.bodies_bytes} bytes, or 7/8 of that of one user, are being "
                "received or stored, and this was the largest of the user with most. Send the request again as it is",
            )

    def _release(self, body: _Body) -> None:
        self.held[body.user] -= body.counted
        body.parts = []
        body.size = 0
