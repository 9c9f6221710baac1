"""A log process with small limits for each module of this folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest
import requests

from tests.door_urls import plain_url

MAX_CONNECTIONS = 24
MAX_HANDSHAKES = 12
MAX_LINKS = 50
BIG_ROWS = 384
BIG_ROW_BYTES = 64 << 10
COMMON = f"""
handshake_timeout_ms = 4_000
write_timeout_ms = 4_000
max_connections = {MAX_CONNECTIONS}
max_user_connections = {MAX_CONNECTIONS}
max_handshakes = {MAX_HANDSHAKES}
"""
SETTINGS = f"""
[log]
max_partitions = 30
[amqp]
{COMMON}
max_links = {MAX_LINKS}
max_sessions = 8
max_message_bytes = 1_000_000
session_bytes = 4_000_000
[rabbitmq-stream]
{COMMON}
max_outgoing_bytes = 1_000_000
max_super_stream_partitions = 10
max_publishers = 10
authentication_delay_ms = 0
[feedapi]
{COMMON}
body_timeout_ms = 4_000
max_body_bytes = 8_000_000
cache_bytes = 4_000_000
[event-hubs]
{COMMON}
max_links = {MAX_LINKS}
session_bytes = 4_000_000
max_tokens = 20
"""
DOORS = ("amqp", "rabbitmq-stream", "feedapi", "event-hubs")


class Served:
    """A log process, what the system says of it, and clients that go on beside whatever else is done to it."""

    def __init__(self, process: Any) -> None:
        from tests.server.hostile.doors import comes_in

        self.urls = {door: plain_url(url) for door, url in process.urls.items()}
        self.system = psutil.Process(process.pid)
        self.beside = {door: comes_in(door, self.urls[door], f"calm-{door}") for door in DOORS}

    @property
    def descriptors(self) -> int:
        return self.system.num_fds()

    @property
    def memory_bytes(self) -> int:
        return int(self.system.memory_info().rss)

    def step(self) -> None:
        """Everybody who means well writes a row and reads it."""
        for beside in self.beside.values():
            beside.step()

    def until(self, condition: Callable[[], Any], what: str) -> None:
        """Return when a condition holds; those who mean well go on meanwhile."""
        from tests.server.hostile.doors import DEADLINE_S

        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, f"{what}: not within {DEADLINE_S} s"
            self.step()
            time.sleep(0.02)
        self.step()

    def newcomer(self, door: str) -> None:
        """Somebody new comes in, and is served."""
        from tests.server.hostile.doors import comes_in

        fresh = comes_in(door, self.urls[door], f"new-{door}")
        fresh.step()
        fresh.close()

    def close(self) -> None:
        for beside in self.beside.values():
            beside.close()


@pytest.fixture(scope="module")  # its clients fall silent, and are dropped, where other modules run in between
def hostile_log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    from spark_streams.testing import LogProcess
    from tests.server.hostile.doors import NDJSON

    folder = tmp_path_factory.mktemp("hostile")
    (folder / "log.toml").write_text(SETTINGS)
    names = ["calm", "big", *(f"{kind}-{door}" for kind in ("calm", "new") for door in DOORS)]
    streams = [word for name in names for word in ("--stream", name)]
    with LogProcess(arguments=["--config", str(folder / "log.toml"), *streams]) as process:
        line = b'{"event":"' + b"x" * BIG_ROW_BYTES + b'"}\n'
        for _ in range(BIG_ROWS // 96):
            answer = requests.post(f"{process.urls['feedapi']}/big", line * 96, headers=NDJSON, timeout=120)
            assert answer.status_code == 200
        served = Served(process)
        served.step()
        yield served
        served.close()


@pytest.fixture
def served(hostile_log: Served) -> Iterator[Served]:
    """The process; after the test everybody is served as before, and its descriptors have been given back."""
    from tests.server.hostile.doors import Raw

    before = hostile_log.descriptors
    yield hostile_log
    Raw.close_all()
    for door in DOORS:
        hostile_log.newcomer(door)
    hostile_log.until(lambda: hostile_log.descriptors <= before + 6, "descriptors are given back")
