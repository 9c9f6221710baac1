"""The body of an answer, as it comes: decompressed, in pieces of a good size, or whole."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import TracebackType
from typing import Final

import requests

from spark_streams.client.feed.errors import mapped
from spark_streams.errors import RemoteProtocolError, SparkStreamsError

__all__ = ["Answer"]

PIECE_BYTES: Final = 1 << 20
"""Bytes that are taken from a connection at a time, and handed on together while more comes in bulk."""
BULK_BYTES: Final = 16 << 10
"""A piece of as many bytes is part of a page that is sent as fast as it can be; smaller ones are handed on at once."""
MAX_BODY_BYTES: Final = 16 << 20
"""Of an answer that is read whole: a discovery document."""


class Answer:
    """The successful answer to a request, whose body is still to be read; a context manager.

    Args:
        response: of ``requests``.
        what: the request, for messages.
        waits: whether it may stay open until something new comes.
    """

    def __init__(self, response: requests.Response, what: str, *, waits: bool = False) -> None:
        self._response = response
        self._waits = waits
        self.what = what

    def __enter__(self) -> Answer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the connection back to the pool, if the body was read; else close it."""
        self._response.close()

    def abort(self) -> None:
        """Let the thread that reads the body come back at once, as if the connection had broken; from any thread."""
        shutdown = getattr(self._response.raw, "shutdown", None)  # urllib3 2.3 and later; before, it waits
        if shutdown is not None:
            with contextlib.suppress(Exception):  # it has been read meanwhile
                shutdown()

    @property
    def media_type(self) -> str:
        """The type of the body, such as ``application/json``; empty when it is not said."""
        return str(self._response.headers.get("Content-Type", "")).partition(";")[0].strip().lower()

    @property
    def tells_end(self) -> bool:
        """Whether a body that was cut is told from a whole one: by its length, or its last chunk (RFC 9112 §8).

        One that ends with its connection tells nothing, nor does a packed one, which may have been cut before its
        length was counted.
        """
        headers = self._response.headers
        framed = self._response.raw.chunked or "Content-Length" in headers
        return bool(framed and headers.get("Content-Encoding", "identity").strip().lower() == "identity")

    def pieces(self) -> Iterator[bytes]:
        """Yield the body as it comes, decompressed; what comes in bulk in pieces of about ``PIECE_BYTES``.

        Parsing 1 MiB takes half the time of parsing eight times an eighth of it. A response that waits for what is new
        is handed on without delay.

        Raises:
            ConnectionLost: the connection ended before the body did; all that came was handed on.
            DeadlineExceeded: nothing came in time; likewise.
        """
        if self._waits:
            yield from self._arriving()
            return
        held: list[bytes] = []
        size = 0
        fault: SparkStreamsError | None = None
        arriving = self._arriving()
        while True:
            try:
                piece = next(arriving, None)
            except SparkStreamsError as caught:
                piece, fault = None, caught
            if piece is not None:
                held.append(piece)
                size += len(piece)
            if held and (piece is None or len(piece) < BULK_BYTES or size >= PIECE_BYTES):
                yield held[0] if len(held) == 1 else b"".join(held)
                held, size = [], 0
            if fault is not None:
                raise fault
            if piece is None:
                return

    def _arriving(self) -> Iterator[bytes]:
        with mapped(self.what):
            raw = self._response.raw
            if raw.chunked or not hasattr(raw, "read1"):
                yield from filter(None, raw.stream(PIECE_BYTES, decode_content=True))
                return
            # Not ``stream``, which waits until so many bytes are there: events of a long response come one by one.
            while piece := raw.read1(PIECE_BYTES, decode_content=True):
                yield piece

    def body(self) -> bytes:
        """Return the whole body.

        Raises:
            RemoteProtocolError: it is longer than any discovery document.
            ConnectionLost, DeadlineExceeded: as ``pieces``.
        """
        out = bytearray()
        for piece in self.pieces():
            out += piece
            if len(out) > MAX_BODY_BYTES:
                raise RemoteProtocolError(f"{self.what}: the answer is longer than {MAX_BODY_BYTES} bytes")
        return bytes(out)
