"""Who a command speaks with: a url, and the stream in it; the url's scheme says the protocol."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import quote

import click

from spark_streams.cli.credentials import CREDENTIALS_EPILOG, Environment, endpoint_of, secret_of
from spark_streams.client import AmqpClient, RabbitClient
from spark_streams.client.feed.client import FeedAddress, FeedClient
from spark_streams.endpoint import AMQP_SCHEMES, HTTP_SCHEMES, RABBITMQ_SCHEMES, Endpoint, Secret, Tls
from spark_streams.errors import NotFound, OptionError
from spark_streams.wire.feed.dialect import Dialect

__all__ = ["ALL_SCHEMES", "PEER_EPILOG", "Peer", "partitions_option", "read_peer", "speaks_tls", "token_options"]

ALL_SCHEMES: Final = (*AMQP_SCHEMES, *RABBITMQ_SCHEMES, *HTTP_SCHEMES)
TIMEOUT_MS: Final = 30_000
MAX_LINE_BYTES: Final = 64 << 20
PEER_EPILOG: Final = f"""\b
A peer is
  amqp://[user:password@]host[:port]#STREAM             or amqps://
  rabbitmq-stream://[user:password@]host[:port]#STREAM  or rabbitmq-stream+tls://;
                                                        a stream or a super stream;
                                                        both may list hosts: host:port,host:port
  http://host[:port]/path/of/the/feed                   or https://

{CREDENTIALS_EPILOG}"""


@dataclass(frozen=True)
class Peer:
    """One stream of one peer.

    Args:
        endpoint: where it is.
        stream: its name there; of a feed the one that it is listed under, else the last part of its address. Empty
            where only the peer itself is meant.
        partitions: of a feed that speaks version 1, how many it has; None of any other peer.
    """

    endpoint: Endpoint
    stream: str
    partitions: int | None = None

    @property
    def is_feed(self) -> bool:
        """Whether it is a feed."""
        return self.endpoint.scheme in HTTP_SCHEMES

    @property
    def is_rabbit(self) -> bool:
        """Whether it is a stream of a RabbitMQ broker."""
        return self.endpoint.scheme in RABBITMQ_SCHEMES

    @property
    def names_stream(self) -> bool:
        """Whether it is one stream; what has no path may be a feed, or the root of several."""
        return bool(self.endpoint.path.strip("/")) if self.is_feed else bool(self.stream)

    def named(self, stream: str) -> Peer:
        """Return a stream of this peer, whose url names none.

        Raises:
            OptionError: a feed's name that no url can hold: ``.`` and ``..`` are taken out of its path.
        """
        if self.is_feed and {".", ".."} & {*stream.split("/")}:
            raise OptionError("URL", f"feed '{stream}' cannot be asked for: '.' and '..' are no parts of an address")
        endpoint = replace(self.endpoint, path=f"/{quote(stream)}") if self.is_feed else self.endpoint
        return replace(self, stream=stream, endpoint=endpoint)

    def __str__(self) -> str:
        return f"{self.endpoint.url}#{self.stream}" if self.stream and not self.is_feed else self.endpoint.url

    def log_client(self) -> AmqpClient | RabbitClient:
        """Return a client of what is no feed.

        Raises:
            NotFound, SparkStreamsError: RabbitMQ was asked whether the name is a stream's or a super stream's.
        """
        if self.is_rabbit:
            return RabbitClient(self.endpoint, super_stream=self.is_super_stream(), timeout_ms=TIMEOUT_MS)
        return AmqpClient(self.endpoint, timeout_ms=TIMEOUT_MS)

    def feed_client(self) -> FeedClient:
        """Return a client of a feed: of version 1 where its number of partitions is told, else of what it speaks."""
        dialect = None if self.partitions is None else Dialect.V1
        where = (self.endpoint, self.stream, dialect, self.partitions)
        return FeedClient(FeedAddress(*where, {}, None, TIMEOUT_MS, MAX_LINE_BYTES))

    def is_super_stream(self) -> bool:
        """Ask RabbitMQ whether the name is a super stream's; one that is neither is taken for a stream."""
        with RabbitClient(self.endpoint, super_stream=True, timeout_ms=TIMEOUT_MS) as client:
            try:
                client.partitions(self.stream)
            except NotFound:
                return False
        return True


def read_peer(
    url: str,
    stream: str | None = None,
    tls: Tls | None = None,
    token: str | None = None,
    *,
    token_file: str | None = None,
    password_file: str | None = None,
    side: str = "",
    partitions: int | None = None,
    needs_stream: bool = True,
) -> Peer:
    """Read a peer's url.

    Args:
        url: as the epilog says.
        stream: the stream, where it is given apart from the url.
        tls: what the options of TLS say.
        token: bearer token of a feed.
        token_file: a file with it.
        password_file: a file with the password of the url's user.
        side: ``FROM`` or ``TO`` of a command with two peers, for variables and options.
        partitions: what ``--partitions`` says.
        needs_stream: whether a url that names no stream is an error.

    Raises:
        OptionError: the url is none, or names no stream; the message holds no secret.
    """
    where, _, fragment = url.partition("#")
    environment = Environment(side)
    prefix = f"--{side.lower()}-" if side else "--"
    endpoint = endpoint_of(
        where,
        tls,
        ALL_SCHEMES,
        password_file=password_file,
        password_option=f"{prefix}password-file",
        environment=environment,
    )
    if endpoint.scheme in HTTP_SCHEMES:
        if fragment or stream:
            raise OptionError("URL", f"{endpoint.url}: the address of a feed names it already: leave the stream out")
        if token is not None and token_file is not None:
            raise OptionError(f"{prefix}token-file", f"cannot be used together with {prefix}token: give one of them")
        found = Secret(token) if token else secret_of("TOKEN", token_file, environment, f"{prefix}token-file")
        if found is not None:
            endpoint = endpoint.with_token(found)
        return Peer(endpoint, endpoint.path.rstrip("/").rpartition("/")[2] or endpoint.address, partitions)
    if partitions is not None:
        raise OptionError("--partitions", f"is for feeds of version 1: {endpoint.url} tells how many it has")
    if fragment and stream:
        raise OptionError("URL", f"names stream '{fragment}', and the arguments name '{stream}': expected one of them")
    name = stream or fragment
    if not name and needs_stream:
        raise OptionError("URL", f"{endpoint.url} names no stream, expected {endpoint.url}#STREAM")
    return Peer(endpoint, name)


def speaks_tls(url: str) -> bool:
    """Say whether a url's scheme means TLS."""
    return url.strip().partition("://")[0].lower() in ("amqps", "rabbitmq-stream+tls", "https")


def partitions_option(of: str = "a feed") -> Callable[..., Any]:
    """Return the option for the number of partitions of a feed that does not tell it."""
    said = f"Speak version 1 of FeedAPI (ZeroEventHub) with {of}, which does not tell how many partitions it has."
    return click.option("--partitions", type=click.IntRange(1, 32_768), metavar="N", help=said)


def token_options(side: str = "", of: str = "a feed") -> Callable[..., Any]:
    """Return the options for the bearer token of a feed."""
    prefix = f"--{side}-" if side else "--"

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        file = click.Path(exists=True, dir_okay=False)
        command = click.option(f"{prefix}token-file", type=file, metavar="FILE", help=f"File with the token of {of}.")(
            command
        )
        seen = f"Bearer token of {of}; everybody sees it in the list of processes: better in a file."
        return click.option(f"{prefix}token", metavar="TOKEN", help=seen)(command)

    return add
