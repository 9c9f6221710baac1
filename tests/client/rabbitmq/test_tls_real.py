"""The client over TLS with a real broker: by password, and by certificate (SASL EXTERNAL)."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from spark_streams.client.rabbitmq.open import open_connection
from spark_streams.endpoint import RABBITMQ_SCHEMES, Tls, parse_url
from spark_streams.errors import AuthenticationFailed, ConnectFailed, NotFound
from spark_streams.wire.rabbitmq.stream_commands import StreamStats, StreamStatsAnswer
from tests.real_rabbitmq.conftest import FOLDER

pytestmark = pytest.mark.rabbitmq


def test_by_password_and_by_certificate() -> None:
    if FOLDER not in os.environ:
        pytest.skip(f"nobody says where this RabbitMQ has its certificates: {FOLDER} is not set")
    folder = Path(os.environ[FOLDER])
    with_password = replace(
        parse_url(json.loads((folder / "broker.json").read_text())["tls_url"], schemes=RABBITMQ_SCHEMES),
        tls=Tls(str(folder / "tls/ca.pem")),
    )
    certificate = Tls(str(folder / "tls/ca.pem"), str(folder / "tls/client.pem"), str(folder / "tls/client.key"))
    by_certificate = replace(with_password, username=None, password=None, tls=certificate)
    for endpoint in (with_password, by_certificate):
        with (
            open_connection(endpoint, timeout_ms=120_000) as connection,
            pytest.raises(NotFound, match="does-not-exist"),
        ):
            connection.request(StreamStats("no-such-stream"), StreamStatsAnswer, "stats")
    with pytest.raises(ConnectFailed, match="verif"):
        open_connection(replace(with_password, tls=Tls()), timeout_ms=120_000)
    stranger = Tls(str(folder / "tls/ca.pem"), str(folder / "tls/server.pem"), str(folder / "tls/server.key"))
    with pytest.raises(AuthenticationFailed, match=r"trusts the certificate .*, and lets in no user of the name in it"):
        open_connection(replace(by_certificate, tls=stranger), timeout_ms=120_000)
