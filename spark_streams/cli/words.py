"""Words of the command line that several commands take."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from dataclasses import replace

import click

from spark_streams.cli.config_file import StreamRequest
from spark_streams.endpoint import AMQP_SCHEMES, HTTP_SCHEMES, Endpoint, Secret, Tls, parse_url

__all__ = ["credentials", "endpoint_of", "listen", "stream_request", "tls_options"]


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


def endpoint_of(url: str, ca_file: str | None = None, schemes: Collection[str] = AMQP_SCHEMES) -> Endpoint:
    """Return where ``url`` points, with credentials from the environment when it has none.

    Args:
        url: what the user wrote.
        ca_file: PEM file of the authorities to trust, which makes TLS of a plain scheme too.
        schemes: those that the command takes.

    Raises:
        OptionError: the url is none, in words that hold no password.
    """
    endpoint = parse_url(url, schemes=schemes, option="URL")
    if endpoint.scheme not in HTTP_SCHEMES and endpoint.username is None and "SPARK_STREAMS_USERNAME" in os.environ:
        password = os.environ.get("SPARK_STREAMS_PASSWORD")
        endpoint = endpoint.with_credentials(
            os.environ["SPARK_STREAMS_USERNAME"], None if password is None else Secret(password)
        )
    if ca_file is not None:
        endpoint = endpoint.with_tls(replace(endpoint.tls or Tls(), ca_file=ca_file))
        endpoint = replace(endpoint, scheme={"http": "https"}.get(endpoint.scheme, endpoint.scheme))
    return endpoint


tls_options = click.option(
    "--tls-ca",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="PEM file of the authorities to trust; makes TLS of amqp:// too.",
)
