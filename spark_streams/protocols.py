"""Lists the protocols: for each one its urls, its format, and the names of the classes that implement it.

An entry is all that the rest of the package knows of a protocol; its classes are imported only when they are used.
Urls, the command line, the server, the configuration file and ``spark_streams.testing`` iterate over the entries; a
program adds a protocol by adding an entry before it uses them (docs/extending.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, Literal

from spark_streams.errors import PackageMissing


@dataclass(frozen=True, kw_only=True)
class DoorEntry:
    """A door of the log.

    Args:
        name: its name in the settings, as an option of ``spark-streams log serve``, and in its line of JSON.
        scheme: the scheme of the urls where it listens.
        tls_scheme: the scheme of these urls with TLS.
        config: its ``DoorConfig``, as ``package.module:Class``; empty where the server has no door for the protocol.
        door: its ``Door``, as ``package.module:Class``; empty where the server has none.
        title: its name for people.
        format: the name of the format in Spark that reads and writes through it; None for a door through which programs
            cannot reach streams. A command that names only such doors opens all doors.
        url_option: the option of this format that says where the door is.
    """

    name: str
    scheme: str
    tls_scheme: str
    config: str = ""
    door: str = ""
    title: str = ""
    format: str | None = None
    url_option: str = "url"


@dataclass(frozen=True, kw_only=True)
class Protocol(DoorEntry):
    """One protocol, with its door.

    Args:
        format: the name of its format in Spark.
        port: the port of a url that names none.
        tls_port: the port of a TLS url that names none.
        path: the part that may follow the host in a url: nothing, a virtual host, or any path and query, which is then
            the stream's address.
        source: its ``DataSource``, as ``package.module:Class``.
        peer: the ``spark_streams.cli.peers.peer.Peer`` that the command line reads and writes with, in the same form.
        address: how the command line's help writes a url with its stream; one or more lines.
        stream_option: the option that names the stream where the url does not.
        partitioned_option: the option that names a stream with several partitions; None for ``stream_option``.
    """

    format: str
    port: int
    tls_port: int
    source: str
    peer: str
    address: str
    path: Literal["none", "virtual host", "any"] = "none"
    stream_option: str = "stream"
    partitioned_option: str | None = None

    @property
    def ports(self) -> dict[str, int]:
        """Scheme to the port of a url that names none."""
        return {self.scheme: self.port, self.tls_scheme: self.tls_port}

    @property
    def schemes(self) -> frozenset[str]:
        """The schemes of its urls."""
        return frozenset(self.ports)


PROTOCOLS: Final = {
    entry.name: entry
    for entry in (
        Protocol(
            name="amqp",
            format="amqp-events",
            scheme="amqp",
            tls_scheme="amqps",
            port=5672,  # assigned by IANA, as are the ports of HTTP
            tls_port=5671,
            source="spark_streams.sources.amqp_events:AmqpEventsDataSource",
            peer="spark_streams.cli.peers.log_peers:AmqpPeer",
            address="""amqp://[user:password@]host[:port]#STREAM             or amqps://;
                                                        a RabbitMQ's may name a virtual host: host/vhost""",
            path="virtual host",
            config="spark_streams.server.amqp.config:AmqpConfig",
            door="spark_streams.server.amqp.door:AmqpDoor",
            title="AMQP door",
        ),
        Protocol(
            name="rabbitmq-stream",
            format="rabbitmq-stream",
            scheme="rabbitmq-stream",
            tls_scheme="rabbitmq-stream+tls",
            port=5552,  # RabbitMQ's stream plugin
            tls_port=5551,
            source="spark_streams.sources.rabbitmq_stream:RabbitStreamDataSource",
            peer="spark_streams.cli.peers.log_peers:RabbitPeer",
            address="""rabbitmq-stream://[user:password@]host[:port]#STREAM  or rabbitmq-stream+tls://;
                                                        a stream or a super stream;
                                                        both may list hosts: host:port,host:port""",
            path="virtual host",
            partitioned_option="superStream",
            config="spark_streams.server.rabbitmq.config:RabbitConfig",
            door="spark_streams.server.rabbitmq.door:RabbitDoor",
            title="RabbitMQ streams door",
        ),
        Protocol(
            name="feedapi",
            format="feedapi",
            scheme="http",
            tls_scheme="https",
            port=80,
            tls_port=443,
            source="spark_streams.sources.feedapi:FeedDataSource",
            peer="spark_streams.cli.peers.feed_peer:FeedPeer",
            address="http://host[:port]/path/of/the/feed                   or https://",
            path="any",
            config="spark_streams.server.feed.config:FeedConfig",
            door="spark_streams.server.feed.door:FeedDoor",
            title="FeedAPI door (HTTP)",
        ),
    )
}
"""Name to entry, in the order of every listing."""


FURTHER_DOORS: Final = (
    DoorEntry(
        name="event-hubs",
        scheme="sb",
        tls_scheme="sb",
        config="spark_streams.server.event_hubs.config:EventHubsConfig",
        door="spark_streams.server.event_hubs.door:EventHubsDoor",
        title="Event Hubs door",
        format="amqp-events",
        url_option="connectionString",
    ),
    DoorEntry(
        name="web",
        scheme="http",
        tls_scheme="https",
        config="spark_streams.server.web.config:WebConfig",
        door="spark_streams.server.web.door:WebDoor",
        title="log's window, a page for people with figures for monitoring,",
    ),
)
"""Doors of the log that speak a dialect of one of the protocols, and the log's window for people."""


def protocol_of(scheme: str) -> Protocol | None:
    """Return the protocol that has urls with a scheme; None when no entry has the scheme."""
    return next((entry for entry in PROTOCOLS.values() if scheme in entry.schemes), None)


def with_doors() -> Mapping[str, DoorEntry]:
    """Return the doors that the server has, by their names."""
    return {each.name: each for each in (*PROTOCOLS.values(), *FURTHER_DOORS) if each.door}


def load(name: str) -> Any:
    """Return the class that an entry names.

    Raises:
        ImportError, AttributeError: there is no such module, or no such class in it.
    """
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


OF_THE_LOG: Final = ("click", "h11", "jinja2", "prometheus_client", "rich", "starlette", "uvicorn")
"""The packages of the extra ``log``; drivers and executors do not need them."""


def check_packages(what: str) -> None:
    """Check that all packages of the extra ``log`` are there; nothing is imported.

    Args:
        what: the part that needs them.

    Raises:
        PackageMissing: some are not installed.
    """
    missing = [name for name in OF_THE_LOG if find_spec(name) is None]
    if missing:
        raise PackageMissing(
            f"{what} needs packages that are not installed ({', '.join(missing)}): pip install 'spark-streams[log]'"
        )
