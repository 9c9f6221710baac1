"""The configuration file: conf/log.toml holds every setting with its default, and every key does something."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from spark_streams.cli.log.config_file import Configuration, read_configuration
from spark_streams.errors import OptionError
from spark_streams.log import LogConfig, StreamConfig
from spark_streams.server import (
    AmqpConfig,
    BearerToken,
    EventHubsConfig,
    FeedConfig,
    Permissions,
    RabbitConfig,
    Redirect,
    WebConfig,
)

SHIPPED = Path(__file__).parents[3] / "conf" / "log.toml"
TABLES = {"stream", "users", "redirects", "permissions", "tokens"}
"""Fields that are tables of the file, not keys."""
KINDS = {
    "log": LogConfig,
    "log.stream": StreamConfig,
    "amqp": AmqpConfig,
    "rabbitmq-stream": RabbitConfig,
    "feedapi": FeedConfig,
    "event-hubs": EventHubsConfig,
    "web": WebConfig,
}


def test_the_shipped_file_says_the_defaults() -> None:
    assert read_configuration(SHIPPED) == Configuration()


def sections(text: str) -> dict[str, set[str]]:
    """Return table to keys, commented-out ones too."""
    found: dict[str, set[str]] = {"": set()}
    table = ""
    for line in text.splitlines():
        if header := re.fullmatch(r"(?:# )?\[+([\w.-]+)\]+", line):
            table = header[1]
            found[table] = set()
        elif key := re.match(r"(?:# )?(\w+) = ", line):
            found[table].add(key[1])
    return found


def test_every_field_is_in_the_shipped_file_and_nothing_else() -> None:
    there = sections(SHIPPED.read_text())
    for table, kind in KINDS.items():
        assert there[table] == {field.name for field in dataclasses.fields(kind)} - TABLES
    assert there["amqp.redirects"] == {"stream", "partition", *(f.name for f in dataclasses.fields(Redirect))}
    assert there["users"] == {"writer"}
    assert there["permissions.reader"] == {field.name for field in dataclasses.fields(Permissions)}
    for table in ("feedapi.tokens.reader", "web.tokens.prometheus"):
        assert there[table] == {field.name for field in dataclasses.fields(BearerToken)}
    assert {"name", "partitions"} < there["streams"]
    assert there[""] == {"data_dir"}


def test_what_is_commented_out_can_be_put_in(tmp_path: Path) -> None:
    lines = (re.sub(r"^# (?=\w+ = |\[)", "", line) for line in SHIPPED.read_text().splitlines())
    file = tmp_path / "log.toml"
    file.write_text("\n".join(lines))
    read = read_configuration(file)
    assert read.data_dir == tmp_path / "../data"
    assert read.log.stream.retention_max_age_ms == 604_800_000
    assert read.doors["amqp"].tls_cert == str(tmp_path / "server.pem")
    assert read.doors["amqp"].redirects[("orders", "3")] == Redirect("log-2.example.com", "10.0.0.2", 5672, "orders")
    assert set(read.doors) == {"amqp", "rabbitmq-stream", "feedapi", "event-hubs", "web"}
    for door in read.doors.values():
        assert door.users == {"writer": "secret"}
        assert door.permissions == {"reader": Permissions("", "", "orders.*")}
    assert read.doors["rabbitmq-stream"].tls_client_ca == str(tmp_path / "clients-ca.pem")
    assert read.doors["rabbitmq-stream"].advertised_port == 5552
    assert all(door.tls_client_required for door in read.doors.values())
    assert read.doors["feedapi"].tls_key == str(tmp_path / "server.key")
    assert read.doors["feedapi"].bearers == (BearerToken("secret", "", "", "orders.*"),)
    assert read.named == set(read.doors)
    (stream,) = read.streams
    assert (stream.name, stream.partitions) == ("orders", 4)
    assert stream.config is not None and stream.config.timestamp_type == "create"
    assert stream.config.retention_max_bytes == 10_737_418_240, "what [log.stream] says holds for it too"


def other(value: Any, name: str) -> Any:
    """Return another valid value of a setting."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value * 2 or 7
    if isinstance(value, frozenset):
        return frozenset({3} if name == "without" else {"10.0.0.7"})
    choices = {"append": "create", "extended": "legacy", "error": "degrade", "interval": "always", "reject": "wait"}
    choices["v2a"] = "v2b"
    return choices.get(value, "0.0.0.0" if name == "host" else 7 if re.match("ret|seg|.*_port|max", name) else "x")


def toml(value: Any) -> str:
    if isinstance(value, frozenset):
        return f"[{', '.join(map(toml, value))}]"
    return str(value).lower() if isinstance(value, (bool, int)) else f'"{value}"'


@pytest.mark.parametrize(
    ("table", "kind", "name"),
    [
        (table, kind, field.name)
        for table, kind in KINDS.items()
        for field in dataclasses.fields(kind)
        if field.name not in TABLES | {"tls_cert", "tls_key", "tls_client_ca", "tls_client_required", "groups"}
    ],
)
def test_every_key_sets_its_field(tmp_path: Path, table: str, kind: type, name: str) -> None:
    default = {field.name: field.default for field in dataclasses.fields(kind)}[name]
    wanted = other(default, name)
    file = tmp_path / "log.toml"
    file.write_text(f"[{table}]\n{name} = {toml(wanted)}\n")
    read = read_configuration(file)
    parts = {
        "log": read.log,
        "log.stream": read.log.stream,
    }
    part = parts[table] if table in parts else read.doors[table]
    assert getattr(part, name) == wanted != default


@pytest.mark.parametrize("door", ["amqp", "rabbitmq-stream", "feedapi", "event-hubs"])
def test_client_certificates_need_an_authority(tmp_path: Path, door: str) -> None:
    file = tmp_path / "log.toml"
    file.write_text(f"[{door}]\ntls_client_required = true\n")
    with pytest.raises(OptionError, match="tls_client_required needs tls_client_ca"):
        read_configuration(file)


def test_a_door_is_named_by_its_table(tmp_path: Path) -> None:
    file = tmp_path / "log.toml"
    file.write_text('[rabbitmq-stream.users]\nann = "first"\n')
    read = read_configuration(file)
    assert read.named == {"rabbitmq-stream"} and dict(read.doors["rabbitmq-stream"].users) == {"ann": "first"}
    file.write_text("[log]\n")
    assert read_configuration(file).named == frozenset()


def test_users_of_all_doors_and_those_of_one(tmp_path: Path) -> None:
    file = tmp_path / "log.toml"
    file.write_text(
        '[users]\nann = "first"\nbob = "second"\n[permissions.ann]\nread = "orders"\n[permissions."*"]\nread = ""\n'
        '[amqp]\n[rabbitmq-stream.permissions.ann]\nread = "orders-[0-9]"\n'
        '[feedapi.users]\nbob = "other"\ncarl = "third"\n'
    )
    read = read_configuration(file)
    assert read.doors["amqp"].users == read.doors["rabbitmq-stream"].users == {"ann": "first", "bob": "second"}
    assert read.doors["feedapi"].users == {"ann": "first", "bob": "other", "carl": "third"}
    nobody = Permissions(read="")
    assert (
        read.doors["amqp"].permissions
        == read.doors["feedapi"].permissions
        == {"ann": Permissions(read="orders"), "*": nobody}
    )
    assert read.doors["rabbitmq-stream"].permissions == {"ann": Permissions(read="orders-[0-9]"), "*": nobody}
    assert read.named == {"amqp", "rabbitmq-stream", "feedapi"}


def test_users_and_groups(tmp_path: Path) -> None:
    file = tmp_path / "log.toml"
    file.write_text('[amqp]\ngroups = ["a", "b"]\n[amqp.users]\nann = "first"\n')
    read = read_configuration(file).doors["amqp"]
    assert read.groups == frozenset({"a", "b"}) and dict(read.users) == {"ann": "first"}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[rabbitmq-stream]\nheartbeat = 3", "rabbitmq-stream.heartbeat is not known: did you mean 'heartbeat_s'?"),
        ("[rabbitmq-stream]\nwithout = ['x']", "rabbitmq-stream.without is ['x'], expected a list of numbers"),
        ("[rabbitmq-stream]\nloopback = 3", "rabbitmq-stream.loopback is 3, expected a list of texts"),
        ("[rabbitmq-stream]\nloopback = ['here']", "[rabbitmq-stream] 'here' does not appear to be"),
        ("[rabbitmq-stream]\nframe_max_bytes = 8", "frame_max_bytes is 8, expected 0 or 8192 up"),
        ("[amqp.permissions.ann]\nraed = 'x'", "amqp.permissions.ann.raed is not known: did you mean 'read'?"),
        ("[amqp.permissions.ann]\nread = '('", "[amqp.permissions.ann] read is '('"),
        ("[rabbitmq-stream.permissions.ann]\nraed = 'x'", "permissions.ann.raed is not known: did you mean 'read'?"),
        ("[rabbitmq-stream.permissions.ann]\nread = '('", "[rabbitmq-stream.permissions.ann] read is '('"),
        ("[feedapi]\npage_sizes = 3", "feedapi.page_sizes is not known: did you mean 'page_size'?"),
        ("[feedapi]\ndialect = 'v1'", "feedapi.dialect is 'v1', expected one of 'v2a', 'v2b'"),
        ("[feedapi]\npage_size = 0", "[feedapi] page_size is 0, expected at least 1"),
        ("[feedapi.tokens.ann]\nread = 'x'", "feedapi.tokens.ann.token is no text, expected a text: the secret"),
        ("[feedapi.tokens.ann]\ntoken = 'a b'", "[feedapi.tokens.ann] a token is not printable ASCII without spaces"),
        ("[feedapi.tokens.ann]\ntoken = 'a'\nread = '('", "[feedapi.tokens.ann] read is '('"),
        ("[log]\nfsink = 'always'", "log.fsink is not known: did you mean 'fsync'?"),
        ("[amqp]\nmax_link = 3", "amqp.max_link is not known: did you mean 'max_links'?"),
        ("[ampq]\nport = 3", "ampq is not known: did you mean 'amqp'?"),
        ("[log.stream]\nzzz = 3", "log.stream.zzz is not known: expected one of timestamp_type"),
        ("[[streams]]\nname = 'x'\npartition = 3", "streams[0].partition is not known: did you mean 'partitions'?"),
        ("[[streams]]\npartitions = 3", "streams[0].name is None, expected a text"),
        ("[log]\nfsync = 'sometimes'", "log.fsync is 'sometimes', expected one of 'always', 'interval', 'never'"),
        ("[log]\nfsync_interval_ms = 'long'", "log.fsync_interval_ms is 'long', expected a whole number"),
        ("[log]\nfsync_interval_ms = 0", "fsync_interval_ms is 0, expected at least 1 ms"),
        ("[amqp]\nport = true", "amqp.port is True, expected a whole number"),
        ("[amqp]\nreset_epoch = 1", "amqp.reset_epoch is 1, expected true or false"),
        ("[amqp]\ngroups = 3", 'amqp.groups is 3, expected "dynamic" or a list of names'),
        ("[amqp]\ntls_cert = 'a.pem'", "tls_cert and tls_key are needed together"),
        ("[amqp.users]\nann = 5", "amqp.users.ann is no text, expected a text: the password"),
        ("[users]\nann = 5", "users.ann is no text, expected a text: the password"),
        ("[permissions.ann]\nraed = 'x'", "permissions.ann.raed is not known: did you mean 'read'?"),
        ("[[amqp.redirects]]\nstream = 'x'", "amqp.redirects[0] has no partition"),
        ("streams = 3", "streams is no list of tables"),
        ("log = 3", "log is 3, expected a table, [log]"),
        ("data_dir = 3", "data_dir is 3, expected a text"),
        ("[log", "is no TOML"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, content: str, said: str) -> None:
    file = tmp_path / "log.toml"
    file.write_text(content)
    with pytest.raises(OptionError) as raised:
        read_configuration(file)
    assert said in str(raised.value) and str(file) in str(raised.value)
