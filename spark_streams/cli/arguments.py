"""Words of the command line that several commands take."""

from __future__ import annotations

import re

import click

from spark_streams.cli.log.config_file import StreamRequest

__all__ = ["credentials", "listen", "stream_request"]


def listen(value: str | tuple[str, int]) -> tuple[str, int]:
    """Read ``[HOST:]PORT``; an IPv6 address stands in brackets, and no host is loopback."""
    if isinstance(value, tuple):
        return value
    host, colon, port = value.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if (colon and not host) or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65_535:
        raise click.BadParameter(
            f"'{value}' is not [HOST:]PORT, expected such as 5672, 0 (any free port) or 0.0.0.0:5672"
        )
    return host or "127.0.0.1", int(port)


def credentials(value: str | tuple[str, str]) -> tuple[str, str]:
    """Read ``NAME:PASSWORD``; what was given is never shown."""
    if isinstance(value, tuple):
        return value
    name, colon, password = value.partition(":")
    if not colon or not name:
        raise click.BadParameter("expected NAME:PASSWORD, such as reader:secret (what was given is not shown here)")
    return name, password


def stream_request(value: str | StreamRequest) -> StreamRequest:
    """Read ``NAME[:PARTITIONS]``."""
    if isinstance(value, StreamRequest):
        return value
    name, colon, count = value.rpartition(":")
    if not colon:
        return StreamRequest(value)
    if not name or not re.fullmatch(r"[0-9]{1,6}", count) or int(count) < 1:
        raise click.BadParameter(f"'{value}' is not NAME[:PARTITIONS], expected such as orders or orders:4")
    return StreamRequest(name, int(count))
