"""What clients say in the doors' log: one line, whatever is in it."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from starlette.requests import Request

from spark_streams.client.rabbitmq.open import open_connection
from spark_streams.endpoint import parse_url
from spark_streams.log import ReferenceLog
from spark_streams.server import RabbitConfig, ServerThread
from spark_streams.server.feed.application import _failed
from spark_streams.testing import eventually
from spark_streams.wire.rabbitmq.connection_commands import Close

FORGED = "bye\n2026-01-01 ERROR all is lost\x1b[2J"


def test_the_reason_of_a_close(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with ReferenceLog(tmp_path) as log, ServerThread(log, None, RabbitConfig(port=0)) as server:
        url = server.urls["rabbitmq-stream"].replace("//", "//guest:guest@")
        with open_connection(parse_url(url, schemes={"rabbitmq-stream"}), timeout_ms=120_000) as connection:
            connection.send(Close(0x10, FORGED).encode())
            eventually(lambda: "closed by the peer" in caplog.text, "the line")
    (line,) = [each.getMessage() for each in caplog.records if "closed by the peer" in each.getMessage()]
    assert line.endswith(r"bye\n2026-01-01 ERROR all is lost\x1b[2J")


def test_the_path_of_a_request_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    scope = {
        "type": "http",
        "method": "GET",
        "path": f"/{FORGED}",
        "headers": [],
        "query_string": b"",
        "server": ("h", 1),
    }
    answer = asyncio.run(_failed(Request(scope), OSError("broken")))
    assert answer.status_code == 500
    (line,) = [each.getMessage() for each in caplog.records]
    assert line.isprintable() and r"\x1b[2J failed: broken" in line
