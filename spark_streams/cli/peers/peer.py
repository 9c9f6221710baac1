"""The interface of commands to a stream of a peer, which they read, write and describe in any protocol.

A url's scheme determines the protocol, and ``spark_streams.protocols`` names the class for it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Final

import click
import pyarrow as pa

from spark_streams.cli.credentials import (
    CREDENTIALS_EPILOG,
    PeerOptions,
    endpoint_of,
    file_option,
    gathered,
    hub_of,
    password_option,
)
from spark_streams.endpoint import AMQP_SCHEMES, Endpoint, Tls
from spark_streams.errors import OptionError, Refused
from spark_streams.options.connection_string import is_connection_string
from spark_streams.protocols import PROTOCOLS, load
from spark_streams.rows import COMMON_SCHEMA, MESSAGE_SCHEMA
from spark_streams.wire.amqp.dialects import AUTO, DIALECTS, EVENT_HUBS

TIMEOUT_MS: Final = 30_000
_ADDRESSES: Final = "\n".join(f"  {protocol.address}" for protocol in PROTOCOLS.values())
PEER_EPILOG: Final = f"""\b
A peer is
{_ADDRESSES}
  'Endpoint=sb://HOST/;SharedAccessKeyName=RULE;SharedAccessKey=KEY;EntityPath=HUB'

{CREDENTIALS_EPILOG}"""
POSITIONS_EPILOG: Final = """\b
--from takes:
  earliest          all that is retained
  latest            what comes from now on
  offset:OFFSET     this event and what follows; needs --partition; not of feeds
  after:OFFSET      what follows this event; needs --partition; a feed's cursor
  timestamp:WHEN    from the first event not earlier than WHEN, which is milliseconds
                    since 1970 (negative before it) or ISO 8601; not of feeds

\b
Within a partition events come in their order; between partitions there is none.
"""


@dataclass(frozen=True)
class ReadRequest:
    """A request to read a stream.

    Args:
        start: the starting position, in the form of ``POSITIONS_EPILOG``.
        only: the one partition to read, or None for all.
        columns: columns of ``spark_streams.rows``; feeds have only those of ``COMMON_SCHEMA``.
        fail_on_loss: whether lost events end the read with ``PositionLost``; else a warning reports them.
    """

    start: str
    only: str | None
    columns: tuple[str, ...]
    fail_on_loss: bool = False

    @property
    def columns_read(self) -> tuple[str, ...]:
        """The columns, and the offset if it is not among them: it determines the current position."""
        return self.columns if "offset" in self.columns else (*self.columns, "offset")

    @property
    def position(self) -> tuple[str, str]:
        """The word of ``start``, and the operand after its colon.

        Raises:
            OptionError: ``start`` is not a position, or is one that needs a partition.
        """
        word, colon, operand = self.start.partition(":")
        if self.start in ("earliest", "latest"):
            return self.start, ""
        if word in ("offset", "after") and operand:
            if self.only is None:
                raise OptionError("--from", f"'{self.start}': an offset means nothing without --partition")
            return word, operand
        if word == "timestamp" and colon:
            return word, operand
        raise OptionError(
            "--from", f"'{self.start}' is none of earliest, latest, offset:OFFSET, after:OFFSET, timestamp:WHEN"
        )


class PeerReader(ABC):
    """A reader of one stream, with its position in each partition.

    Args:
        client: the peer's client; the caller closes it.
        stream: the stream's name.
        request: the request.
    """

    def __init__(self, client: Any, stream: str, request: ReadRequest) -> None:
        self._client = client
        self._stream = stream
        self._request = request
        self._begin()

    @abstractmethod
    def _begin(self) -> None:
        """Set the starting position of each partition."""

    @property
    @abstractmethod
    def positions(self) -> dict[str, str]:
        """Partition to the position from which reading continues, in the form of ``--from``."""

    @abstractmethod
    def new_events(self) -> Iterator[pa.RecordBatch]:
        """Yield the events up to the current ends, partition by partition."""

    @abstractmethod
    def left(self) -> int | None:
        """Return the number of events left to read now, None where the peer does not tell."""


class PeerWriter:
    """Writes rows in their order, at least once; they are confirmed when ``flush`` returns.

    Args:
        publisher: the peer's publisher; the caller closes it.
        arguments: returns, for rows, the arguments of the publisher's ``send`` that precede the function that names
            rows in errors.
    """

    def __init__(self, publisher: Any, arguments: Callable[[pa.RecordBatch], tuple[Any, ...]]) -> None:
        self._publisher = publisher
        self._arguments = arguments
        self._rows = 0

    def send(self, rows: pa.RecordBatch) -> None:
        """Send rows with columns of ``MESSAGE_SCHEMA``; errors name them by their number among all rows, from 1."""
        first, self._rows = self._rows + 1, self._rows + rows.num_rows
        self._publisher.send(*self._arguments(rows), lambda row: f"event {first + row}")

    def flush(self) -> None:
        """Return once the peer has confirmed everything."""
        self._publisher.flush()


@dataclass(frozen=True)
class Peer(ABC):
    """One stream of one peer.

    Args:
        endpoint: the peer's address.
        stream: the stream's name there. A feed's name is the one under which it is listed, else the last part of its
            address. It is empty for the peer itself.
        options: the command's options about the peer.

    Attributes:
        columns: the columns of its events.
        copied: the columns that a copy reads.
    """

    endpoint: Endpoint
    stream: str
    options: PeerOptions = field(repr=False)

    columns: ClassVar[tuple[str, ...]] = tuple(MESSAGE_SCHEMA.names)
    copied: ClassVar[tuple[str, ...]] = tuple(COMMON_SCHEMA.names)

    @classmethod
    def read(cls, endpoint: Endpoint, names: Sequence[str], options: PeerOptions, needs_stream: bool) -> Peer:
        """Return the peer of a command's arguments.

        Args:
            endpoint: the peer's address.
            names: the names of the stream, in the url and beside it; none for the peer itself.
            options: the options about the peer.
            needs_stream: whether a missing name is an error.

        Raises:
            OptionError: the arguments name no stream or two streams, or one is not for this protocol.
        """
        if options.partitions is not None:
            raise OptionError("--partitions", f"is for feeds of version 1: {endpoint.url} tells how many it has")
        if len(names) > 1:
            raise OptionError(
                "URL", f"names stream '{names[0]}', and the arguments name '{names[1]}': expected one of them"
            )
        if not names and needs_stream:
            raise OptionError("URL", f"{endpoint.url} names no stream, expected {endpoint.url}#STREAM")
        return cls(endpoint, names[0] if names else "", options)

    @property
    def names_stream(self) -> bool:
        """Whether this is one stream, and not the peer itself."""
        return bool(self.stream)

    def named(self, stream: str) -> Peer:
        """Return a stream of this peer, whose url names no stream.

        Raises:
            OptionError: the protocol's urls cannot have the name.
        """
        return replace(self, stream=stream)

    def __str__(self) -> str:
        return f"{self.endpoint.url}#{self.stream}" if self.stream else self.endpoint.url

    @abstractmethod
    def open_reader(self, request: ReadRequest) -> AbstractContextManager[PeerReader]:
        """Return a context with a reader, which is closed at its end.

        Raises:
            OptionError: the position is invalid, or the peer does not support it.
            NotFound: there is no such stream or partition.
            SparkStreamsError: a request to the peer failed.
        """

    @abstractmethod
    def open_writer(self) -> AbstractContextManager[PeerWriter]:
        """Return a context with a writer, which is closed at its end.

        Raises:
            NotFound: there is no such stream.
            SparkStreamsError: the peer cannot be reached, or does not accept events.
        """

    @abstractmethod
    def about(self) -> dict[str, Any] | None:
        """Return the description of the peer itself; None if the address is a stream's.

        It has ``kind``, ``peer`` (facts) and ``streams``, their names; if these are None, ``why`` has the reason.
        """

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return the description of the stream: ``kind``, ``peer`` (facts) and ``partitions``, a row for each.

        Raises:
            NotFound: there is no such stream.
            SparkStreamsError: a request to the peer failed.
        """

    def settings(self) -> dict[str, Any]:
        """Return the settings of the stream, by the peer's names; by default the protocol has no way to ask for them.

        Raises:
            NotFound: there is no such stream.
            Refused: the peer does not tell them; the description says who does.
            SparkStreamsError: a request to the peer failed.
        """
        raise Refused("not supported", "its protocol has no way to ask for a stream's settings", str(self))

    def create(self, partitions: int | None, settings: Mapping[str, str | int]) -> bool:
        """Create the stream; by default the protocol has no way to do it.

        Args:
            partitions: how many; None for one, or for as many as there are.
            settings: settings of ``StreamConfig``, by their names.

        Returns:
            False if there is such a stream already.

        Raises:
            OptionError: the protocol has no such setting.
            Refused: the user lacks the permission, or the peer does not create such a stream.
            SparkStreamsError: a request to the peer failed.
        """
        raise Refused("not supported", "its protocol has no way to create a stream", str(self))

    def delete(self) -> None:
        """Delete the stream with all its events; by default the protocol has no way to do it.

        Raises:
            NotFound: there is no such stream.
            Refused: the user lacks the permission, or the peer does not delete it.
            SparkStreamsError: a request to the peer failed.
        """
        raise Refused("not supported", "its protocol has no way to delete a stream", str(self))


def read_peer(
    url: str, options: PeerOptions, stream: str | None = None, tls: Tls | None = None, *, needs_stream: bool = True
) -> Peer:
    """Return the peer of a url and a command's options.

    Args:
        url: the url, in a form of ``PEER_EPILOG``, or a connection string of Event Hubs.
        options: the options about the peer.
        stream: the stream, if an argument names it apart from the url.
        tls: the TLS options.
        needs_stream: whether a url that names no stream is an error.

    Raises:
        OptionError: the url is invalid or names no stream, or an option does not fit it; the text has no secret.
    """
    if is_connection_string(url):
        where, fragment = url, hub_of(url).hub or ""
        options = replace(options, dialect=options.dialect or EVENT_HUBS.name)
    else:
        where, _, fragment = url.partition("#")
    schemes = [scheme for protocol in PROTOCOLS.values() for scheme in protocol.schemes]
    endpoint = endpoint_of(where, options, tls, schemes)
    kind: type[Peer] = load(endpoint.protocol.peer)
    if options.dialect is not None and endpoint.scheme not in AMQP_SCHEMES:
        raise OptionError(options.option("dialect"), f"is for AMQP, and {endpoint.url} is no address of it")
    return kind.read(endpoint, [name for name in (fragment, stream) if name], options, needs_stream)


def speaks_tls(url: str) -> bool:
    """Return whether a url's scheme, or a connection string, means TLS."""
    if is_connection_string(url):
        return hub_of(url).endpoint.tls is not None
    scheme = url.strip().partition("://")[0].lower()
    return any(scheme == protocol.tls_scheme for protocol in PROTOCOLS.values())


def peer_options(
    side: str = "", user: str = "the url's user", feed: str = "a feed", partitions: bool = False
) -> Callable[..., Any]:
    """Return the options for one peer, except those about TLS.

    The command gets them as argument ``options``, or, with a side, as ``from_options`` or ``to_options``. With
    ``partitions`` they include the number of partitions of a feed that does not report it.
    """
    before = f"{side.lower()}_" if side else ""
    option = PeerOptions(side=side).option
    seen = f"Bearer token of {feed}; everybody sees it in the list of processes: better in a file."
    shows = "The dialect of an AMQP peer; by default the one that it shows."
    added = {
        "password_file": password_option(option("password-file"), user),
        "token": click.option(option("token"), metavar="TOKEN", help=seen),
        "token_file": file_option(option("token-file"), f"File with the token of {feed}."),
        "dialect": click.option(option("dialect"), type=click.Choice([AUTO, *DIALECTS]), help=shows),
    }
    if partitions:
        text = f"Speak version 1 of FeedAPI (ZeroEventHub) with {feed}, which does not tell how many partitions it has."
        kind = click.IntRange(1, 32_768)
        added["partitions"] = click.option("--partitions", f"{before}partitions", type=kind, metavar="N", help=text)
    return gathered(f"{before}options", partial(PeerOptions, side=side), added, before)
