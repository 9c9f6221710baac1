"""Parsers of command line arguments: an address to listen on, credentials, and a stream to create."""

from __future__ import annotations

import re
from dataclasses import dataclass

import click

from spark_streams.errors import NameTaken, OptionError
from spark_streams.log import ReferenceLog, StreamConfig


@dataclass(frozen=True)
class StreamRequest:
    """A stream that a command creates unless it is there.

    Args:
        name: the stream's name.
        partitions: number of partitions; None creates one, and accepts any number of an existing stream.
        config: settings of a new stream; None for the log's settings.
    """

    name: str
    partitions: int | None = None
    config: StreamConfig | None = None

    def ensure(self, log: ReferenceLog) -> None:
        """Create the stream unless it is there.

        Raises:
            OptionError: the name is invalid or taken, or the stream is there with another number of partitions.
        """
        try:
            stream = log.create_stream(self.name, self.partitions or 1, self.config, exist_ok=True)
        except (ValueError, NameTaken) as fault:
            raise OptionError("--stream", f"'{self.name}' cannot be created: {fault}") from fault
        found = len(stream.partitions)
        # A stream that was split since its creation still matches the request.
        if self.partitions is not None and self.partitions not in (found, stream.partitions_before_splits):
            raise self.with_others("--stream", found)

    def with_others(self, option: str, found: int) -> OptionError:
        """Return the error that the stream has another number of partitions, ``found``; ``option`` requested it."""
        return OptionError(
            option,
            f"'{self.name}' is there already with {found} partitions, not {self.partitions}: ask for "
            f"{self.name}:{found}, or only {self.name}",
        )


def listen(value: str) -> tuple[str, int]:
    """Parse ``[HOST:]PORT``; an IPv6 address is in brackets, and the default host is loopback."""
    host, colon, port = value.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if (colon and not host) or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65_535:
        raise click.BadParameter(
            f"'{value}' is not [HOST:]PORT, expected such as 5672, 0 (any free port) or 0.0.0.0:5672"
        )
    return host or "127.0.0.1", int(port)


def credentials(value: str) -> tuple[str, str]:
    """Parse ``NAME:PASSWORD``; an error never shows the value."""
    name, colon, password = value.partition(":")
    if not colon or not name:
        raise click.BadParameter("expected NAME:PASSWORD, such as reader:secret (what was given is not shown here)")
    return name, password


def stream_request(value: str) -> StreamRequest:
    """Parse ``NAME[:PARTITIONS]``."""
    name, colon, count = value.rpartition(":")
    if not colon:
        return StreamRequest(value)
    if not name or not re.fullmatch(r"[0-9]{1,6}", count) or int(count) < 1:
        raise click.BadParameter(f"'{value}' is not NAME[:PARTITIONS], expected such as orders or orders:4")
    return StreamRequest(name, int(count))
