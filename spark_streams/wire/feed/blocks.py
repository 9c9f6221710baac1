"""A response cut into blocks of whole lines, as its bytes arrive."""

from __future__ import annotations

from typing import Final

import numpy as np

from spark_streams.errors import RemoteProtocolError

__all__ = ["MAX_LINE_BYTES", "LineBlocks"]

MAX_LINE_BYTES: Final = 64 << 20
"""The longest line that is taken unless told otherwise; the Go library stops at 64 KiB, in silence."""
_MARK: Final = b"\xef\xbb\xbf"
_NEWLINE: Final = 0x0A


class LineBlocks:
    """Cuts a response into blocks of whole lines, as its bytes arrive.

    Args:
        max_line_bytes: the longest line that is taken, its newline not counted.
    """

    def __init__(self, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self.max_line_bytes = max_line_bytes
        self._pieces: list[bytes] = []
        self._pending = 0
        self._started = False

    def feed(self, received: bytes) -> list[bytes]:
        """Take the next bytes; return the whole lines that are there now, in no block or one, never cut.

        A byte order mark at the very start of the response is passed over (F-24).

        Raises:
            RemoteProtocolError: a line is longer than ``max_line_bytes``.
        """
        cut = received.rfind(b"\n") + 1
        if not cut:
            self._keep(received)
            return []
        block = b"".join((*self._pieces, received[:cut]))
        self._pieces, self._pending = [], 0
        if not self._started:
            self._started = True
            block = block.removeprefix(_MARK)
        self._measure(block)
        self._keep(received[cut:])
        return [block] if block else []

    @property
    def tail(self) -> bytes:
        """The bytes after the last newline: an unfinished line, when the response is over."""
        tail = b"".join(self._pieces)
        return tail if self._started else tail.removeprefix(_MARK)

    def _keep(self, piece: bytes) -> None:
        if piece:
            self._pieces.append(piece)
            self._pending += len(piece)
            if self._pending > self.max_line_bytes:
                self._too_long(self._pending)

    def _measure(self, block: bytes) -> None:
        if len(block) - 1 <= self.max_line_bytes:
            return
        newlines = np.flatnonzero(np.frombuffer(block, np.uint8) == _NEWLINE)
        longest = int(np.diff(newlines, prepend=-1).max()) - 1
        if longest > self.max_line_bytes:
            self._too_long(longest)

    def _too_long(self, length: int) -> None:
        raise RemoteProtocolError(
            f"a line of {length} bytes or more: expected at most {self.max_line_bytes} (option 'maxLineBytes')"
        )
