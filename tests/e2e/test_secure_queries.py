"""Queries of all formats, in and out, over TLS with client certificates, whose secrets change while they run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from spark_streams.log import ReferenceLog
from spark_streams.server import AmqpConfig, BearerToken, FeedConfig, Permissions, RabbitConfig, ServerThread
from tests.certificate_authority import Authority

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

DOORS = {"amqp-events": "amqp", "rabbitmq-stream": "rabbitmq-stream", "feedapi": "feedapi"}
READS = Permissions("", "", "source")
WRITES = Permissions("", "target", "")
WRITES_ONCE = Permissions("", "target", "target")
NOTHING = Permissions("", "", "")


class Doors:
    """Three doors that want a certificate, and the secret of the moment; reader and writer may do what they have to."""

    def __init__(self, log: ReferenceLog, authority: Authority) -> None:
        self._log = log
        certificate, key = authority.issue("server")
        client_ca = {"tls_client_ca": str(authority.file), "tls_client_required": True}
        self._tls: dict[str, Any] = {"tls_cert": certificate, "tls_key": key, **client_ca}
        self._ports = dict.fromkeys(DOORS.values(), 0)
        self._server: ServerThread | None = None
        self.urls: dict[str, str] = {}

    def open(self, reading: str, writing: str) -> None:
        """Serve with these secrets, on the same ports as before."""
        users = {"reader": reading, "writer": writing}
        rules = {"reader": READS, "*": NOTHING}
        self._server = ServerThread(
            self._log,
            AmqpConfig(port=self._ports["amqp"], users=users, permissions={**rules, "writer": WRITES}, **self._tls),
            rabbit=RabbitConfig(
                port=self._ports["rabbitmq-stream"],
                users=users,
                permissions={**rules, "writer": WRITES_ONCE},
                authentication_delay_ms=0,
                **self._tls,
            ),
            feed=FeedConfig(
                port=self._ports["feedapi"],
                tokens=(BearerToken(reading, "", "", "source"), BearerToken(writing, "", "target", "")),
                **self._tls,
            ),
        )
        self._server.__enter__()
        self.urls = self._server.urls
        self._ports = {door: urlsplit(url).port or 0 for door, url in self.urls.items()}

    def close(self) -> None:
        if self._server is not None:
            self._server.__exit__(None, None, None)
            self._server = None


@pytest.fixture
def log(tmp_path: Path) -> Iterator[ReferenceLog]:
    with ReferenceLog(tmp_path / "log") as opened:
        for name in ("source", "target"):
            opened.create_stream(name, 1)
        yield opened


def body(n: int) -> bytes:
    """Return a message whose body every format can read."""
    value = b'{"n": %d}' % n
    return b"\x00\x53\x75\xa0" + bytes([len(value)]) + value


def wait_until_copied(log: ReferenceLog, count: int, query: Any) -> None:
    deadline = time.monotonic() + 240
    while log.stream("target").partitions["0"].next_offset < count:
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline, query.status
        time.sleep(0.1)


@pytest.mark.nightly  # the clients' own tests have it by day
@pytest.mark.parametrize("name", ["rabbitmq-stream", "amqp-events", "feedapi"])
def test_secrets_change_while_a_query_reads_and_writes(
    name: str, spark: Any, log: ReferenceLog, tmp_path: Path, rate_limits: bool
) -> None:
    if name == "feedapi" and not rate_limits:
        pytest.skip("streams of feeds need Spark 4.2")
    authority = Authority(tmp_path, "authority")
    certificate, key = authority.issue("client")
    doors = Doors(log, authority)
    files = {side: tmp_path / side for side in ("reader", "writer")}

    def options(side: str, stream: str) -> dict[str, str]:
        url = doors.urls[DOORS[name]]
        tls = {"tls.caFile": str(authority.file), "tls.certFile": certificate, "tls.keyFile": key}
        if name == "feedapi":
            return {"url": f"{url}/{stream}", "tokenFile": str(files[side]), **tls}
        return {"url": url, "stream": stream, "username": side, "passwordFile": str(files[side]), **tls}

    def rotate(number: int) -> None:
        # While nobody can sign in: a client that comes before its secret has changed would be refused.
        doors.close()
        secrets = {side: f"geheim-{side}-{number}" for side in files}
        for side, file in files.items():
            new = tmp_path / "new"
            new.write_text(f"{secrets[side]}\n")
            new.replace(file)
        doors.open(secrets["reader"], secrets["writer"])

    rotate(1)
    try:
        reader = spark.readStream.format(name).options(**options("reader", "source"), startingOffsets="earliest")
        if name == "feedapi":
            reader = reader.option("spoolLocation", str(tmp_path / "spool"))
        writer = reader.load().select("value").writeStream.format(name).options(**options("writer", "target"))
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        try:
            for number in range(1, 3):
                log.stream("source").partitions["0"].append([body(n) for n in range(number * 3 - 3, number * 3)])
                wait_until_copied(log, number * 3, query)
                rotate(number + 1)
        finally:
            query.stop()
        assert spark.read.format(name).options(**options("reader", "source")).load().count() == 6
    finally:
        doors.close()
