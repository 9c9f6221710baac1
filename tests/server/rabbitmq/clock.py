"""Time as a test says it passes, for heartbeats: nobody waits for seconds, and no pause of the machine is a silence."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from spark_streams.client.rabbitmq import connection as of_the_client
from spark_streams.server.rabbitmq import session as of_the_door
from spark_streams.server.rabbitmq.session import HeartbeatTimer


class Clock:
    """In place of the server's loop, what its connections' signs of life are timed by."""

    def __init__(self) -> None:
        self.now = 0.0
        self._timers: list[Timer] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay_s: float, callback: Callable[..., None], *arguments: Any) -> Timer:
        timer = Timer(self.now + delay_s, partial(callback, *arguments))
        self._timers.append(timer)
        return timer

    def advance(self, seconds: float) -> None:
        """Let time pass, in the server's loop."""
        until = self.now + seconds
        while due := sorted((t for t in self._timers if t.at <= until), key=lambda timer: timer.at):
            self._timers.remove(due[0])
            self.now = due[0].at
            due[0].run()
        self.now = until


class Timer:
    def __init__(self, at: float, run: Callable[[], None]) -> None:
        self.at, self.run = at, run

    def cancel(self) -> None:
        self.run = lambda: None


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the heartbeats of all doors that the test starts."""
    clock = Clock()
    monkeypatch.setattr(of_the_door, "HeartbeatTimer", lambda _: HeartbeatTimer(clock))  # type: ignore[arg-type]
    return clock


@pytest.fixture
def clients_clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The clock of the client's connections: an object whose ``now`` the test sets."""
    clock = SimpleNamespace(now=time.monotonic())
    monkeypatch.setattr(of_the_client, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock
