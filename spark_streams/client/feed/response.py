"""Reads the body of an answer: whole, in decompressed pieces as they come, or in lines of events and checkpoints."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import Final

import pyarrow.compute as pc
import requests

from spark_streams.client.feed.errors import first_line, mapped
from spark_streams.client.timed import TimedResponse
from spark_streams.errors import ConnectionLost, RemoteProtocolError, SparkStreamsError
from spark_streams.wire.columnar.arrays import strings
from spark_streams.wire.feed.line import ZEH, ZEH_V1, Dialect, read_line
from spark_streams.wire.feed.lines import LineBlocks, Lines, parse_lines

PIECE_BYTES: Final = 1 << 20
"""Bytes that are read from a connection at a time, and yielded together while more comes in bulk."""
BULK_BYTES: Final = 16 << 10
"""A piece of this many bytes is part of a page that comes at full speed; smaller ones are yielded at once."""
MAX_BODY_BYTES: Final = 16 << 20
"""Bytes of an answer that is read whole: a discovery document."""


class Response(contextlib.AbstractContextManager["Response"]):
    """The successful answer to a request, with a body that is not read yet; a context manager.

    Args:
        response: the response of ``requests``.
        what: the request, for messages.
        silence_s: how many seconds the feed may be silent within ``pieces``.
        waits: whether it may stay open until new events come.
    """

    def __init__(self, response: requests.Response, what: str, *, silence_s: float, waits: bool = False) -> None:
        self._response = response
        self._silence_s = silence_s
        self._waits = waits
        self.what = what

    def __exit__(self, *fault: object) -> None:
        self.close()

    def close(self) -> None:
        """Return the connection to the pool, if the body was read; else close it."""
        self._response.close()

    def abort(self) -> None:
        """Make the thread that reads the body return, as if the connection had broken; any thread may call this."""
        shutdown = getattr(self._response.raw, "shutdown", None)  # urllib3 2.3 and later; with others, the thread waits
        if shutdown is not None:
            with contextlib.suppress(Exception):  # the body has been read meanwhile
                shutdown()

    @property
    def status(self) -> int:
        """The status of HTTP."""
        return self._response.status_code

    @property
    def media_type(self) -> str:
        """The type of the body, such as ``application/json``; empty when the response does not name it."""
        return str(self._response.headers.get("Content-Type", "")).partition(";")[0].strip().lower()

    @property
    def tells_end(self) -> bool:
        """Whether a cut body differs from a whole one: by its length, or by the end of chunked coding (RFC 9112 §8).

        A body that ends with its connection does not, nor does a compressed one, which may have been cut before its
        length was counted.
        """
        headers = self._response.headers
        framed = self._response.raw.chunked or "Content-Length" in headers
        return bool(framed and headers.get("Content-Encoding", "identity").strip().lower() == "identity")

    def pieces(self) -> Iterator[bytes]:
        """Yield the body as it comes, decompressed; bulk data comes in pieces of about ``PIECE_BYTES``.

        Parsing 1 MiB at once takes half the time of parsing it in eight parts. The bytes of a response that waits for
        new events are yielded without delay. The body as a whole has no time limit: a page has any size.

        Raises:
            ConnectionLost: the connection ended before the body did; all received bytes were yielded before.
            DeadlineExceeded: no bytes came in time; all received bytes were yielded before.
        """
        timed = getattr(self._response.raw, "_original_response", None)
        if isinstance(timed, TimedResponse):
            timed.steady(self._silence_s)
        held: list[bytes] = []
        fault: SparkStreamsError | None = None
        try:
            for piece in self._arriving():
                held.append(piece)
                if self._waits or len(piece) < BULK_BYTES or sum(map(len, held)) >= PIECE_BYTES:
                    together, held = b"".join(held), []
                    yield together
        except SparkStreamsError as caught:
            fault = caught
        if held:
            yield b"".join(held)
        if fault is not None:
            raise fault

    def _arriving(self) -> Iterator[bytes]:
        with mapped(self.what):
            raw = self._response.raw
            if raw.chunked or not hasattr(raw, "read1"):
                yield from filter(None, raw.stream(PIECE_BYTES, decode_content=True))
                return
            # Not ``stream``, which waits for that many bytes: events of a long response come one by one.
            while piece := raw.read1(PIECE_BYTES, decode_content=True):
                yield piece

    def body(self) -> bytes:
        """Return the whole body, which has to come within the time of the request.

        Raises:
            RemoteProtocolError: the body is longer than any discovery document.
            ConnectionLost, DeadlineExceeded: it broke off, or did not come in time.
        """
        out = bytearray()
        for piece in self._arriving():
            out += piece
            if len(out) > MAX_BODY_BYTES:
                raise RemoteProtocolError(f"{self.what}: the answer is longer than {MAX_BODY_BYTES} bytes")
        return bytes(out)


def line_blocks(answer: Response, dialect: Dialect, partition: int, max_line_bytes: int) -> Iterator[bytes]:
    """Yield the body in blocks of whole lines, as they come; the last line gets a newline where it has none.

    Args:
        answer: the answer to a fetch.
        dialect: the dialect of the lines.
        partition: the partition of the lines.
        max_line_bytes: bytes of a line, at most.

    Raises:
        RemoteProtocolError: HTML, a version of ZeroEventHub other than 1, or a line that is longer than allowed.
        ConnectionLost: the response ended inside a line (C-18), or the connection broke.
    """
    if answer.media_type == "text/html":
        begins = first_line(answer.body())
        raise RemoteProtocolError(f"{answer.what}: answered HTML, '{begins}', where NDJSON was expected")
    if answer.media_type.startswith(ZEH) and answer.media_type != ZEH_V1:
        raise RemoteProtocolError(
            f"{answer.what}: answered {answer.media_type}, a version of ZeroEventHub that this release does not know, "
            f"where {ZEH_V1} was expected"
        )
    lines = LineBlocks(max_line_bytes)
    for piece in answer.pieces():
        try:
            blocks = lines.feed(piece)
        except RemoteProtocolError as fault:
            raise RemoteProtocolError(f"{answer.what}: {fault}") from None
        yield from blocks
    if tail := lines.tail:
        try:
            read_line(tail, 1, dialect, partition)
        except RemoteProtocolError:
            begins = first_line(tail)
            raise ConnectionLost(f"{answer.what}: the answer ended inside a line, '{begins}'") from None
        yield tail + b"\n"


def parsed_blocks(answer: Response, dialect: Dialect, partition: int, max_line_bytes: int) -> Iterator[Lines]:
    """Yield the events and cursors of the blocks of ``line_blocks``.

    Every response has a cursor (P-22), but for one of version 1 without events, which may be empty (P-53).

    Args:
        answer: the answer to a fetch.
        dialect: the dialect of the lines; each has its events in other members of a line.
        partition: the partition of the lines.
        max_line_bytes: bytes of a line, at most.

    Raises:
        ConnectionLost: the last line is not a line of a feed: a feed that fails in the middle of a response may add the
            text of its error. Or no cursor came, and the body may have been cut.
        RemoteProtocolError: another line is not a line of a feed, or no cursor came; also as for ``line_blocks``.
    """
    cursors = events = 0
    for block in line_blocks(answer, dialect, partition, max_line_bytes):
        broken: RemoteProtocolError | None = None
        try:
            lines = parse_lines(block, dialect, partition)
        except RemoteProtocolError as fault:
            broken = RemoteProtocolError(f"{answer.what}: {fault}")
            block = block[: block.rfind(b"\n", 0, len(block) - 1) + 1]  # without the last line
            try:
                lines = parse_lines(block, dialect, partition)
            except RemoteProtocolError:
                raise broken from None
        cursors += len(lines.cursors)
        events += lines.count
        if block:
            yield lines
        if broken is not None:
            raise ConnectionLost(f"{broken}; the answer broke off")
    if not cursors:
        fault_text = f"{answer.what}: the response has no cursor"
        if not answer.tells_end:
            raise ConnectionLost(f"{fault_text}; it may have been cut, which a body without a length does not tell")
        if dialect is not Dialect.V1:
            raise RemoteProtocolError(f"{fault_text}, and every response must have one (FeedAPI, 'checkpoint command')")
        if events:
            raise RemoteProtocolError(f"{fault_text}, and nothing can be read after its {events} events without one")


def until(lines: Lines, stops: Collection[str]) -> Lines | None:
    """Return the events up to the first checkpoint whose cursor is one of ``stops``; None when none is."""
    if not stops or not len(lines.cursors):
        return None
    found = pc.indices_nonzero(pc.is_in(lines.cursors, strings(list(stops))))
    if not len(found):
        return None
    index = int(found[0].as_py())
    values, keys = lines.events(0, int(lines.covered[index]))
    last = index + 1
    return Lines(values, lines.cursors[:last], lines.covered[:last], lines.ends[:last], keys)
