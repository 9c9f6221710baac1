"""Who a command speaks with: a url, and the stream in it; the url's scheme says the protocol."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

import click

from spark_streams.cli.words import endpoint_of
from spark_streams.client import AmqpClient, RabbitClient
from spark_streams.client.feed.feed import FeedAddress, FeedClient
from spark_streams.endpoint import AMQP_SCHEMES, HTTP_SCHEMES, RABBITMQ_SCHEMES, Endpoint, Secret
from spark_streams.errors import NotFound, OptionError

__all__ = ["ALL_SCHEMES", "PEER_EPILOG", "Peer", "read_peer", "token_option"]

ALL_SCHEMES: Final = (*AMQP_SCHEMES, *RABBITMQ_SCHEMES, *HTTP_SCHEMES)
TIMEOUT_MS: Final = 30_000
MAX_LINE_BYTES: Final = 64 << 20
PEER_EPILOG: Final = """\b
A peer is
  amqp://[user:password@]host[:port]#STREAM             or amqps://
  rabbitmq-stream://[user:password@]host[:port]#STREAM  or rabbitmq-stream+tls://;
                                                        a stream or a super stream
  http://host[:port]/path/of/the/feed                   or https://
Where the url has no credentials, SPARK_STREAMS_USERNAME, SPARK_STREAMS_PASSWORD and
SPARK_STREAMS_TOKEN are taken from the environment.
"""


@dataclass(frozen=True)
class Peer:
    """One stream of one peer.

    Args:
        endpoint: where it is.
        stream: its name there; of a feed the last part of its address.
    """

    endpoint: Endpoint
    stream: str

    @property
    def is_feed(self) -> bool:
        """Whether it is a feed."""
        return self.endpoint.scheme in HTTP_SCHEMES

    @property
    def is_rabbit(self) -> bool:
        """Whether it is a stream of a RabbitMQ broker."""
        return self.endpoint.scheme in RABBITMQ_SCHEMES

    def __str__(self) -> str:
        return self.endpoint.url if self.is_feed else f"{self.endpoint.url}#{self.stream}"

    def log_client(self) -> AmqpClient | RabbitClient:
        """Return a client of what is no feed.

        Raises:
            NotFound, SparkStreamsError: RabbitMQ was asked whether the name is a stream's or a super stream's.
        """
        if self.is_rabbit:
            return RabbitClient(self.endpoint, super_stream=self.is_super_stream(), timeout_ms=TIMEOUT_MS)
        return AmqpClient(self.endpoint, timeout_ms=TIMEOUT_MS)

    def feed_client(self) -> FeedClient:
        """Return a client of a feed, of FeedAPI version 2."""
        return FeedClient(FeedAddress(self.endpoint, self.stream, None, None, {}, None, TIMEOUT_MS, MAX_LINE_BYTES))

    def is_super_stream(self) -> bool:
        """Ask RabbitMQ whether the name is a super stream's; one that is neither is taken for a stream."""
        with RabbitClient(self.endpoint, super_stream=True, timeout_ms=TIMEOUT_MS) as client:
            try:
                client.partitions(self.stream)
            except NotFound:
                return False
        return True


def read_peer(url: str, stream: str | None = None, ca_file: str | None = None, token: str | None = None) -> Peer:
    """Read a peer's url.

    Args:
        url: as the epilog says.
        stream: the stream, where it is given apart from the url.
        ca_file: PEM file of the authorities to trust.
        token: bearer token of a feed; by default SPARK_STREAMS_TOKEN.

    Raises:
        OptionError: the url is none, or names no stream; the message holds no secret.
    """
    where, _, fragment = url.partition("#")
    endpoint = endpoint_of(where, ca_file, ALL_SCHEMES)
    if endpoint.scheme in HTTP_SCHEMES:
        if fragment or stream:
            raise OptionError("URL", f"{endpoint.url}: the address of a feed names it already: leave the stream out")
        token = token if token is not None else os.environ.get("SPARK_STREAMS_TOKEN")
        if token:
            endpoint = endpoint.with_token(Secret(token))
        return Peer(endpoint, endpoint.path.rstrip("/").rpartition("/")[2] or endpoint.address)
    if fragment and stream:
        raise OptionError("URL", f"names stream '{fragment}', and the arguments name '{stream}': expected one of them")
    name = stream or fragment
    if not name:
        raise OptionError("URL", f"{endpoint.url} names no stream, expected {endpoint.url}#STREAM")
    return Peer(endpoint, name)


token_option = click.option(
    "--token", metavar="TOKEN", help="Bearer token of a feed; better in SPARK_STREAMS_TOKEN, where nobody sees it."
)
