"""Work that the door does beside its loop, held until a test lets it go."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

GUARD_S = 60.0
"""Only against hanging."""


def frame(key: int, body: bytes) -> bytes:
    return struct.pack(">IHH", 4 + len(body), key, 1) + body


class Held:
    """A function that is called beside the loop, and held there until it is let go."""

    def __init__(self, patch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self.begun, self._go = threading.Event(), threading.Event()
        function = getattr(owner, name)

        def held(*given: Any, **named: Any) -> Any:
            self.begun.set()
            assert self._go.wait(GUARD_S), "nobody let it go: the loop itself is held"
            return function(*given, **named)

        patch.setattr(owner, name, held)

    def reached(self) -> None:
        assert self.begun.wait(GUARD_S)

    def let_go(self) -> None:
        self._go.set()


def until(condition: Callable[[], bool]) -> None:
    """Return when something has come true."""
    deadline = time.monotonic() + GUARD_S
    while not condition():
        assert time.monotonic() < deadline, "it does not come true"


def gone(door: Any, connections: int) -> None:
    """Return when the door has only so many connections left."""
    until(lambda: door.server.call(lambda: len(door.server.server.door("rabbitmq-stream").connections)) <= connections)
