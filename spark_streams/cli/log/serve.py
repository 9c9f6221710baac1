"""Command ``spark-streams log serve``, which serves the reference log through its doors until it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import dataclasses
import gc
import json
import os
import signal
import ssl
import sys
import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Final

import click

from spark_streams.cli.arguments import StreamRequest, credentials, listen, stream_request
from spark_streams.cli.credentials import file_option, gathered, tokens_of, users_of
from spark_streams.cli.errors import exit_on_signal
from spark_streams.cli.log.config_file import Configuration, read_configuration
from spark_streams.errors import OptionError
from spark_streams.log import ReferenceLog
from spark_streams.protocols import DoorEntry, load, with_doors
from spark_streams.server import BearerToken, LogServer
from spark_streams.server.admission import allow_descriptors
from spark_streams.server.door import Door, DoorShut
from spark_streams.server.door_config import DoorConfig
from spark_streams.server.exposure import exposed

_EPILOG = """\b
Prints one line of JSON on stdout once it listens, such as
  {"amqp": "amqp://127.0.0.1:5672", "rabbitmq-stream": "rabbitmq-stream://127.0.0.1:5552",
   "feedapi": "http://127.0.0.1:8080", "event-hubs": "Endpoint=sb://127.0.0.1:5673/;…",
   "web": "http://127.0.0.1:8090"}
SIGTERM or Ctrl-C stop it cleanly. After kill -9 it starts again with every event
that was acknowledged.
Without --data-dir the log is temporary: its events are gone when it stops, and a
query's checkpoint fits no later log. The line then has "temporary": true, too.

\b
Doors:
  The doors that are named are opened, here or by their tables in the file of
  --config; when none is, all of them, on their usual ports. They serve the same
  streams: orders with four partitions is the AMQP address orders and the RabbitMQ
  super stream orders of the streams orders-0 to orders-3; with one partition it is
  the RabbitMQ stream orders. Its feed is http://127.0.0.1:8080/orders. For clients of
  Azure Event Hubs it is the event hub orders, by the connection string printed.
  The window, a page for a browser, shows what is in the streams, who reads and how far
  behind; it is opened with all doors, or when it is named, and has figures for Prometheus
  at /metrics.

\b
Who is let in:
  The users of --user sign in at every door: over AMQP and RabbitMQ's protocol, and
  at the feeds with basic authentication, where a --token is as good, and to the window
  alike; at Event Hubs' door they are SharedAccessKeyName and SharedAccessKey. With none of
  them it is guest with password guest, and anybody at the feeds and the window, from this
  machine alone: a door on another address than loopback is not opened without credentials.

\b
Examples:
  spark-streams log serve --data-dir ./data --stream orders:4
  spark-streams log serve --data-dir ./data --amqp 0.0.0.0:5672 --user writer:secret
  spark-streams log serve --rabbitmq-stream 0
  spark-streams log serve --feedapi 8080 --token secret --stream orders:4
  spark-streams log serve --user-file users.txt --token-file tokens.txt
  spark-streams log serve --config conf/log.toml
"""


def _bearers(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[BearerToken, ...]:
    try:
        return tuple(BearerToken(token) for token in value)
    except ValueError as fault:
        raise click.BadParameter(str(fault)) from fault


def _door_option(door: DoorEntry) -> Callable[..., Any]:
    config = load(door.config)
    where = f"Where the {door.title} listens; port 0 is any free one.  [default: {config.host}:{config.port}]"
    return click.option(f"--{door.name}", type=listen, metavar="[HOST:]PORT", help=where)


_SECRETS_FILE: Final[dict[str, Any]] = {
    "type": click.Path(dir_okay=False, path_type=Path),
    "metavar": "FILE",
    "help": "The same, a line each: nobody sees them in the list of processes.",
}


@click.command(epilog=_EPILOG)
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the log lives; without it the log is temporary.",
)
@gathered("where", dict, {name: _door_option(door) for name, door in with_doors().items()})
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
    help="Who may sign in, at every door. Again for more.  [default: guest:guest, but at feeds and window]",
)
@click.option("--user-file", **_SECRETS_FILE)
@click.option(
    "--token",
    "tokens",
    metavar="TOKEN",
    multiple=True,
    callback=_bearers,
    help="A token that feeds and window let in beside users. Again for more.  [default: none is needed]",
)
@click.option("--token-file", **_SECRETS_FILE)
@click.option(
    "--insecure", is_flag=True, help="Open doors to other machines that let in everybody, and guest from everywhere."
)
@file_option("--tls-cert", "PEM file of the server's certificate: the doors speak TLS.")
@file_option("--tls-key", "PEM file of its key.")
@click.option(
    "--config",
    "config_path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="TOML file with everything else, such as conf/log.toml; the command line takes precedence.",
)
@click.option(
    "--until-stdin-closes",
    is_flag=True,
    help="Stop, too, when standard input ends: given a pipe, the log does not outlive the process that started it.",
)
def serve(
    data_dir: Path | None,
    where: dict[str, tuple[str, int] | None],
    streams: tuple[StreamRequest, ...],
    users: tuple[tuple[str, str], ...],
    user_file: Path | None,
    tokens: tuple[BearerToken, ...],
    token_file: Path | None,
    insecure: bool,
    tls_cert: str | None,
    tls_key: str | None,
    config_path: Path | None,
    until_stdin_closes: bool,
) -> None:
    """Serve the reference log: AMQP 1.0 event log node, RabbitMQ stream broker, FeedAPI publisher, Event Hubs."""
    if (tls_cert is None) != (tls_key is None):
        raise click.UsageError("--tls-cert and --tls-key are needed together")
    configured = read_configuration(config_path) if config_path is not None else Configuration()
    named_users = (users_of(user_file) if user_file is not None else {}) | dict(users)
    named_tokens = (tokens_of(token_file) if token_file is not None else ()) + tokens
    common = dict(users=named_users, tokens=named_tokens, insecure=insecure, tls_cert=tls_cert, tls_key=tls_key)
    named = configured.named | {door for door, place in where.items() if place is not None}
    opened = opened_doors(named)
    doors = [_door(door, configured.doors[door], place, common) for door, place in where.items() if door in opened]
    _check_exposure(doors)
    signal.signal(signal.SIGTERM, exit_on_signal)  # until the event loop handles it; temporary data is removed
    sys.setswitchinterval(SWITCH_S)
    _give_memory_back()
    connections = sum(door.descriptors * (door.config.max_connections + door.config.max_handshakes) for door in doors)
    allow_descriptors(connections, FILES_OF_A_PARTITION * configured.log.max_partitions)
    data_dir = data_dir if data_dir is not None else configured.data_dir
    with ReferenceLog(data_dir, configured.log) as log:
        for request in (*configured.streams, *streams):
            request.ensure(log)
        # A collection of all objects makes all clients wait, and the objects that exist now are mostly modules'.
        gc.freeze()
        thresholds = gc.get_threshold()
        gc.set_threshold(*thresholds[:2], FULL_COLLECTIONS)
        try:
            asyncio.run(_serve(log, doors, until_stdin_closes, temporary=data_dir is None))
        finally:
            gc.set_threshold(*thresholds)
            gc.unfreeze()


_MISSING: Final = {
    "users": "add --user NAME:PASSWORD (or --user-file)",
    "tokens or users": "add --token TOKEN or --user NAME:PASSWORD (or --token-file, --user-file)",
    "allow_anonymous": "take allow_anonymous out of the file of --config",
}
"""Setting that would give strangers access, to the advice for the command line."""


def opened_doors(named: Collection[str]) -> Collection[str]:
    """Return the doors to open: the named ones, or all doors if none of the named ones gives access to streams."""
    entries = with_doors()
    return named if any(entries[door].format is not None for door in named) else entries


def _check_exposure(doors: list[Door]) -> None:
    """Refuse to open doors that would give strangers access, before the log is opened.

    Raises:
        OptionError: a door would give strangers access; the message names the door and the missing option.
    """
    for door in doors:
        with contextlib.suppress(OSError):  # a host name cannot be resolved: the door reports it
            fault = exposed(door.name, door.config)
            if fault is not None and not door.config.insecure:
                raise OptionError(
                    f"--{door.name}",
                    f"{fault.where} can be reached from other machines, and {fault.access.problem}: "
                    f"{_MISSING[fault.access.setting]}, listen on 127.0.0.1, or say --insecure to let in everybody",
                )


STDIN = 0
SWITCH_S = 0.0001
"""Seconds that a computing thread may keep Python's lock while the event loop waits for it, as the loop does after each
system call. The default is fifty times as long, and a request beside such a thread then takes many times as long."""
FULL_COLLECTIONS = 50
"""Collections of Python's middle generation before one of all objects, which takes a tenth of a second where thousands
of connections are open. Python's default is 10."""
MALLOC = {-8: 2, -3: 4 << 20, -1: 8 << 20}
"""Settings of glibc's ``mallopt``, by the numbers in its malloc.h. M_ARENA_MAX is the number of arenas that threads
share; by default each thread has its own, which keeps freed memory. M_MMAP_THRESHOLD and M_TRIM_THRESHOLD are in bytes;
by default they grow to 64 MiB as memory is freed. Freed blocks of this size go back to the system."""
FILES_OF_A_PARTITION = 4
"""Open files of a partition: segment, index and recovery point, and one in reserve."""


def _door(name: str, configured: DoorConfig, where: tuple[str, int] | None, common: Mapping[str, object]) -> Door:
    """Return a door with the settings of the configuration file, overridden by those that the command line gives.

    Args:
        name: the door's name.
        configured: the settings of the configuration file.
        where: host and port; None where the command line does not give them.
        common: settings for all doors that have them; one that the command line does not give is empty, False or None.
    """
    changes: dict[str, Any] = {key: each for key, each in common.items() if each and hasattr(configured, key)}
    if where is not None:
        changes["host"], changes["port"] = where
    door: Door = load(with_doors()[name].door)(dataclasses.replace(configured, **changes))
    return door


def _give_memory_back() -> None:
    """Make glibc return the memory of large messages to the system; do nothing with other C libraries."""
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError):
            mallopt = ctypes.CDLL(None).mallopt
            for number, value in MALLOC.items():
                mallopt(number, value)


def _at_end_of_stdin(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    """Set ``stop`` at the end of standard input; it runs in a thread, as no event loop waits for every kind of file."""
    while os.read(STDIN, 65_536):
        pass
    loop.call_soon_threadsafe(stop.set)


_TEMPORARY: Final = (
    "This log is temporary: its events are gone when it stops, and a query's checkpoint fits no later log. "
    "Give --data-dir DIR to keep them."
)
_READABLE: Final = "Other users of this machine may read the events in {0}: `chmod o-rwx {0}` keeps them out."


async def _serve(log: ReferenceLog, doors: list[Door], until_stdin_closes: bool, *, temporary: bool) -> None:
    """Serve until SIGTERM or SIGINT, or the end of standard input."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if until_stdin_closes:
        threading.Thread(target=_at_end_of_stdin, args=(loop, stop), daemon=True).start()
    server = LogServer(log, doors=doors)
    try:
        await server.start()
    except DoorShut as fault:
        door = server.door(fault.door).config
        if isinstance(fault.reason, ssl.SSLError):
            raise OptionError(
                "--tls-cert", f"{door.tls_cert} with key {door.tls_key} cannot be used: {fault.reason}"
            ) from fault
        raise OptionError(
            f"--{fault.door}",
            f"cannot listen on {door.host}:{door.port}: {fault.reason.strerror or fault.reason}: name another address "
            f"or port, such as --{fault.door} 0 for any free port",
        ) from fault
    try:
        if temporary:
            click.echo(_TEMPORARY, err=True)
        elif log.data_dir.stat().st_mode & 0o007:
            click.echo(_READABLE.format(log.data_dir), err=True)
        click.echo(json.dumps({**server.urls, **({"temporary": True} if temporary else {})}))
        await stop.wait()
    finally:
        await server.stop()
