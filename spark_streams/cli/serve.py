"""``spark-streams log serve``: the reference log behind its doors, until it is told to stop."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import signal
import ssl
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import click

from spark_streams.cli.config_file import Configuration, StreamRequest, read_configuration
from spark_streams.cli.words import credentials, listen, stream_request
from spark_streams.errors import OptionError
from spark_streams.log import ReferenceLog
from spark_streams.server import AmqpConfig, LogServer

__all__ = ["serve"]

_EPILOG = """\b
Prints one line of JSON on stdout once it listens, such as
  {"amqp": "amqp://127.0.0.1:5672"}
SIGTERM or Ctrl-C stop it cleanly. After kill -9 it starts again with every event
that was acknowledged.

\b
Examples:
  spark-streams log serve --stream orders:4
  spark-streams log serve --data-dir ./data --amqp 0.0.0.0:5672 --user writer:secret
  spark-streams log serve --config conf/log.toml
"""


def _not_yet(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    if value:
        raise click.UsageError(
            f"{param.opts[0]}: this release has the AMQP door only; the doors for RabbitMQ streams and FeedAPI, and "
            "the bearer tokens of the latter, come with a later one"
        )


@click.command(epilog=_EPILOG)
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the log lives; without it the data is temporary.",
)
@click.option(
    "--amqp",
    type=listen,
    metavar="[HOST:]PORT",
    help="Where the AMQP door listens; port 0 is any free one.  [default: 127.0.0.1:5672]",
)
@click.option(
    "--stream",
    "streams",
    type=stream_request,
    metavar="NAME[:PARTITIONS]",
    multiple=True,
    help="Create this stream unless it is there. Again for more.",
)
@click.option(
    "--user",
    "users",
    type=credentials,
    metavar="NAME:PASSWORD",
    multiple=True,
    help="Who may connect. Again for more.  [default: guest:guest]",
)
@click.option(
    "--tls-cert",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="PEM file of the server's certificate: the door speaks TLS.",
)
@click.option("--tls-key", type=click.Path(exists=True, dir_okay=False), metavar="FILE", help="PEM file of its key.")
@click.option(
    "--config",
    "config_path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="TOML file with everything else, such as conf/log.toml; what is said here counts more.",
)
@click.option("--rabbitmq-stream", hidden=True, expose_value=False, callback=_not_yet)
@click.option("--feedapi", hidden=True, expose_value=False, callback=_not_yet)
@click.option("--token", hidden=True, multiple=True, expose_value=False, callback=_not_yet)
def serve(
    data_dir: Path | None,
    amqp: tuple[str, int] | None,
    streams: tuple[StreamRequest, ...],
    users: tuple[tuple[str, str], ...],
    tls_cert: str | None,
    tls_key: str | None,
    config_path: Path | None,
) -> None:
    """Serve the reference log as an AMQP 1.0 event log node."""
    if (tls_cert is None) != (tls_key is None):
        raise click.UsageError("--tls-cert and --tls-key are needed together")
    said = read_configuration(config_path) if config_path is not None else Configuration()
    changes: dict[str, Any] = {}
    if amqp is not None:
        changes["host"], changes["port"] = amqp
    if users:
        changes["users"] = dict(users)
    if tls_cert is not None:
        changes["tls_cert"], changes["tls_key"] = tls_cert, tls_key
    door = dataclasses.replace(said.amqp, **changes)
    signal.signal(signal.SIGTERM, _stopped_early)
    with ReferenceLog(data_dir if data_dir is not None else said.data_dir, said.log) as log:
        for request in (*said.streams, *streams):
            request.ensure(log)
        asyncio.run(_serve(log, door))


def _stopped_early(number: int, frame: FrameType | None) -> NoReturn:
    """End in good order, temporary data included, when the signal comes before the loop takes it."""
    raise SystemExit(128 + number)


async def _serve(log: ReferenceLog, door: AmqpConfig) -> None:
    """Serve until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    server = LogServer(log, door)
    try:
        await server.start()
    except ssl.SSLError as fault:
        raise OptionError("--tls-cert", f"{door.tls_cert} with key {door.tls_key} cannot be used: {fault}") from fault
    except OSError as fault:
        raise OptionError(
            "--amqp",
            f"cannot listen on {door.host}:{door.port}: {fault.strerror or fault}: name another address or port, such "
            "as --amqp 0 for any free port",
        ) from fault
    try:
        click.echo(json.dumps(server.urls))
        await stop.wait()
    finally:
        await server.stop()
