"""Doors fail closed: which are not opened beyond loopback, and what it says then."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any

import pytest

from spark_streams.log import ReferenceLog
from spark_streams.server import AmqpConfig, BearerToken, FeedConfig, RabbitConfig, ServerThread
from spark_streams.server.exposure import DoorExposed, exposed, may_listen
from spark_streams.server.users import is_loopback

OWN = {"writer": "secret"}
TLS: dict[str, Any] = {"tls_cert": "c.pem", "tls_key": "k.pem", "tls_client_ca": "ca.pem"}
DOORS = {AmqpConfig: "amqp", RabbitConfig: "rabbitmq-stream", FeedConfig: "feedapi"}


@pytest.mark.parametrize("host", ["0.0.0.0", "", "::", "192.0.2.1", "2001:db8::1", "::ffff:192.0.2.1"])
@pytest.mark.parametrize(
    ("config", "setting"),
    [
        (AmqpConfig(), "users"),
        (AmqpConfig(users={}), "users"),
        (AmqpConfig(users={"guest": "a better one"}), "users"),
        (AmqpConfig(loopback_users=frozenset()), "users"),
        (AmqpConfig(users={"guest": "guest", **OWN}, loopback_users=frozenset()), "users"),
        (AmqpConfig(loopback_users=frozenset(), **TLS), "users"),
        (AmqpConfig(users=OWN, allow_anonymous=True), "allow_anonymous"),
        (RabbitConfig(), "users"),
        (RabbitConfig(loopback_users=frozenset(), **TLS), "users"),
        (RabbitConfig(loopback_users=frozenset({"guest", "writer"}), users=OWN), "users"),
        (FeedConfig(), "tokens or users"),
        (FeedConfig(users={"guest": "a better one"}), "tokens or users"),
        (FeedConfig(**TLS), "tokens or users"),
        (FeedConfig(users={"guest": "guest"}, loopback_users=frozenset(), tokens=("secret",)), "users"),
    ],
)
def test_a_door_that_lets_in_strangers_is_not_opened_to_the_network(config: Any, setting: str, host: str) -> None:
    door = DOORS[type(config)]
    fault = exposed(door, dataclasses.replace(config, host=host))
    assert fault is not None and fault.access.setting == setting
    said = str(fault)
    where = f"[{host}]:{config.port}" if ":" in host else f"{host}:{config.port}"
    assert f"the door {door} would listen on {where}," in said and f"set {setting} of its settings" in said
    assert "127.0.0.1" in said and "insecure" in said


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost", "::ffff:127.0.0.1"])
@pytest.mark.parametrize("config", [AmqpConfig(allow_anonymous=True), RabbitConfig(), FeedConfig()])
def test_on_loopback_every_door_may_be_open(config: Any, host: str) -> None:
    assert exposed(DOORS[type(config)], dataclasses.replace(config, host=host)) is None


@pytest.mark.parametrize(
    "config",
    [
        AmqpConfig(users=OWN),
        AmqpConfig(users={"guest": "guest", **OWN}),
        AmqpConfig(users={}, **TLS),
        RabbitConfig(users=OWN),
        RabbitConfig(**TLS),
        RabbitConfig(loopback_users=frozenset(), tls_client_required=True, **TLS),
        RabbitConfig(users={"guest": "a better one"}, loopback_users=frozenset()),
        FeedConfig(users=OWN),
        FeedConfig(tokens=("secret",)),
        FeedConfig(tokens=(BearerToken("secret", read=""),)),
        FeedConfig(tls_client_required=True, **TLS),
    ],
)
def test_one_that_asks_for_credentials_may_listen_everywhere(config: Any) -> None:
    assert exposed(DOORS[type(config)], dataclasses.replace(config, host="0.0.0.0")) is None


@pytest.mark.parametrize(
    "doors",
    [
        (AmqpConfig(port=0), None, FeedConfig(host="0.0.0.0", port=0)),
        (AmqpConfig(port=0), RabbitConfig(host="0.0.0.0", port=0), FeedConfig(port=0)),
        (AmqpConfig(host="0.0.0.0", port=0), None, None),
    ],
)
def test_no_door_is_opened_where_one_would_let_in_strangers(doors: Any, tmp_path: Path) -> None:
    with ReferenceLog(tmp_path / "log") as log:
        server = ServerThread(log, *doors)
        with pytest.raises(DoorExposed):
            server.start()
        assert server.urls == {}


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (AmqpConfig(), "nobody but guest is named"),
        (RabbitConfig(users={"guest": "guest", **OWN}), "user 'guest' may come from everywhere"),
        (FeedConfig(), "asks nobody"),
        (AmqpConfig(allow_anonymous=True, users=OWN), "allow_anonymous lets in everybody"),
    ],
)
def test_insecure_says_so_in_a_warning(config: Any, said: str, caplog: pytest.LogCaptureFixture) -> None:
    door = DOORS[type(config)]
    with caplog.at_level(logging.WARNING):
        may_listen(door, dataclasses.replace(config, host="0.0.0.0", insecure=True))
    (record,) = caplog.records
    assert record.levelno == logging.WARNING and record.getMessage().startswith(f"INSECURE: the door {door} listens on")
    assert said in record.getMessage()
    caplog.clear()
    may_listen(door, dataclasses.replace(config, insecure=True))
    may_listen(door, FeedConfig(host="0.0.0.0", tokens=("secret",), insecure=True))
    assert not caplog.records, "nothing is open to strangers"


@pytest.mark.parametrize(
    ("host", "there"),
    [
        *((host, True) for host in ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "::1%lo")),
        *((host, False) for host in ("10.0.0.1", "::ffff:10.0.0.1", "fe80::1%eth0", "", None)),
    ],
)
def test_what_is_loopback(host: str | None, there: bool) -> None:
    assert is_loopback(host) is there
