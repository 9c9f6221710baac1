"""A server with several doors: how it ends when one of them cannot be closed in good order."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from spark_streams.log import ReferenceLog
from spark_streams.server import AmqpConfig, FeedConfig, RabbitConfig, ServerThread
from spark_streams.server.admission import BACKLOG, Sockets
from spark_streams.server.door import DoorShut, TcpDoor
from spark_streams.server.door_config import DoorConfig
from spark_streams.server.log_server import LogServer


class Door:
    """A door that may refuse to open, and ends after some turns of the loop, or fails at once."""

    config: DoorConfig = AmqpConfig()
    descriptors = 1

    def __init__(self, name: str, fault: Exception | None, refusal: OSError | None = None) -> None:
        self.name = name
        self.url = f"toy://{name}"
        self.closed = False
        self._fault = fault
        self._refusal = refusal

    async def open(self, log: ReferenceLog, sockets: Sockets) -> None:
        if self._refusal is not None:
            raise self._refusal

    async def close(self) -> None:
        if self._fault is not None:
            raise self._fault
        for _ in range(10):
            await asyncio.sleep(0)
        self.closed = True


def test_a_door_that_cannot_be_closed_keeps_no_other_one_open(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first, second = OSError("the disk is gone"), RuntimeError("and so is this")
    doors = [Door("one", first), Door("two", None), Door("three", second)]

    async def run() -> tuple[dict[str, str], dict[str, str]]:
        with ReferenceLog(tmp_path) as log:
            server = LogServer(log, doors=doors)
            await server.start()
            opened = dict(server.urls)
            with pytest.raises(OSError) as raised:
                await server.stop()
            assert raised.value is first
            return opened, server.urls

    with caplog.at_level(logging.ERROR):
        opened, left = asyncio.run(run())
    assert list(opened) == ["one", "two", "three"] and left == {}
    assert doors[1].closed
    told = [(record.getMessage(), record.exc_info and record.exc_info[1]) for record in caplog.records]
    assert told == [
        ("the door one could not be closed in good order", first),
        ("the door three could not be closed in good order", second),
    ]


def test_a_connection_that_cannot_be_closed_keeps_no_other_one_open(caplog: pytest.LogCaptureFixture) -> None:
    ended: list[str] = []

    class Connection:
        def __init__(self, name: str, fault: Exception | None) -> None:
            self.name, self.fault = name, fault

        def shut_down(self) -> None:
            if self.fault is not None:
                raise self.fault
            ended.append(f"{self.name} closed")
            connections.remove(self)

        def drop(self) -> None:
            ended.append(f"{self.name} dropped")
            connections.remove(self)

    class OpenDoor(TcpDoor):
        @property
        def connections(self) -> list[Connection]:
            return connections

    connections = [Connection("one", RuntimeError("this connection is broken")), Connection("two", None)]
    asyncio.run(OpenDoor(AmqpConfig()).end_connections())
    assert ended == ["one dropped", "two closed"] and connections == []
    assert "this connection is broken" in caplog.text


def test_why_a_server_does_not_start_is_not_hidden_by_what_fails_then(tmp_path: Path) -> None:
    doors = [Door("one", OSError("the disk is gone")), Door("two", None, OSError(98, "the port is taken"))]

    async def run() -> None:
        with ReferenceLog(tmp_path) as log:
            server = LogServer(log, doors=doors)
            with pytest.raises(DoorShut, match="the door two cannot be opened: the port is taken"):
                await server.start()
            assert server.urls == {}

    asyncio.run(run())


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this system has no socket for both versions of IP")
def test_the_address_of_all_takes_both_versions_of_ip(tmp_path: Path) -> None:
    doors = (
        AmqpConfig(host="::", port=0, users={"someone": "secret"}),
        RabbitConfig(host="::", port=0, users={"someone": "secret"}),
        FeedConfig(host="::", port=0, users={"someone": "secret"}),
    )
    with ReferenceLog(tmp_path) as log, ServerThread(log, *doors) as server:
        assert len(server.urls) == 3
        for url in server.urls.values():
            port = urlsplit(url).port
            for address in ("127.0.0.1", "::1"):
                socket.create_connection((address, port), timeout=60).close()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not say how many connections may wait")
def test_a_burst_of_connections_is_queued_however_few_are_accepted_at_a_time() -> None:
    async def queued() -> int:
        door = TcpDoor(AmqpConfig(port=0))
        await door.listen(Sockets(), lambda admission: asyncio.Protocol())
        assert door._listener is not None
        told = door._listener.sockets[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
        await door.end_connections()
        # tcpi_sacked of a socket that listens (linux/tcp.h)
        return int(struct.unpack_from("I", told, 28)[0])

    assert asyncio.run(queued()) == BACKLOG
