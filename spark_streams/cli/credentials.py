"""TLS and credentials on the command line: those that commands use at a peer, and those that ``log serve`` accepts.

Secrets come from files and from the environment, so that they need not be on the command line, where ``ps`` shows
them. Other users of the machine must not be able to read such a file.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import click

from spark_streams.endpoint import AMQP_SCHEMES, HTTP_SCHEMES, Endpoint, Secret, Tls, parse_url
from spark_streams.errors import OptionError
from spark_streams.options.connection_string import ConnectionString, is_connection_string, parse_connection_string
from spark_streams.secrets import FileSecret
from spark_streams.server import BearerToken

PREFIX: Final = "SPARK_STREAMS_"
"""Prefix of the names of our environment variables."""
CREDENTIALS_EPILOG: Final = """\b
Passwords and tokens, so that no list of processes shows them:
  the environment   SPARK_STREAMS_USERNAME, SPARK_STREAMS_PASSWORD, SPARK_STREAMS_TOKEN,
                    or SPARK_STREAMS_PASSWORD_FILE, SPARK_STREAMS_TOKEN_FILE
  a file            --password-file, with a user in the url: amqp://reader@host
A connection string of Event Hubs may be without its key, which is a password then.
The command line takes precedence over the environment.
"""


@dataclass(frozen=True)
class PeerOptions:
    """A command's options about one peer, besides those about TLS, and the environment variables about it.

    Args:
        password_file: a file with the password of the url's user.
        token: bearer token of a feed.
        token_file: a file with the bearer token.
        partitions: value of ``--partitions``.
        dialect: the dialect of an AMQP peer; None for the one that the peer shows.
        side: ``FROM`` or ``TO`` of a command with two peers, for the names of options and variables; else empty.
    """

    password_file: str | None = None
    token: str | None = field(default=None, repr=False)
    token_file: str | None = None
    partitions: int | None = None
    dialect: str | None = None
    side: str = ""

    def option(self, name: str) -> str:
        """Return the full name of an option, such as ``--from-token`` for ``token``."""
        return f"--{self.side.lower()}-{name}" if self.side else f"--{name}"

    def variable(self, name: str) -> str:
        """Return the full name of the variable to read: this side's if it is set, else the one for both sides."""
        own = f"{PREFIX}{self.side}_{name}"
        return own if self.side and os.environ.get(own) else PREFIX + name

    def secret(self, name: str, file: str | None) -> Secret | None:
        """Return a secret from a file or the environment; None without either.

        Args:
            name: ``PASSWORD`` or ``TOKEN``.
            file: the path that the option for the secret gives, or None.
        """
        if file is not None:
            return FileSecret(file, self.option(f"{name.lower()}-file"))
        value = os.environ.get(self.variable(name))
        if value:
            return Secret(value)
        variable = self.variable(f"{name}_FILE")
        path = os.environ.get(variable)
        return FileSecret(path, variable) if path else None


def endpoint_of(url: str, options: PeerOptions, tls: Tls | None, schemes: Collection[str] = AMQP_SCHEMES) -> Endpoint:
    """Return the endpoint of ``url``, with credentials from a file or the environment when the url has none.

    Args:
        url: the user's url; or a connection string of Event Hubs, where the command speaks AMQP.
        options: the options about the peer.
        tls: the TLS options, which turn on TLS for a plain scheme too; None without any.
        schemes: schemes that the command accepts.

    Raises:
        OptionError: the url is invalid, a password is missing or given twice, or a password file has no user; the text
            has no password.
    """
    option = options.option("password-file")
    if is_connection_string(url) and not AMQP_SCHEMES.isdisjoint(schemes):
        endpoint = hub_of(url).endpoint
    else:
        endpoint = parse_url(url, schemes=schemes, option="URL")
    if tls is not None:
        endpoint = endpoint.with_tls(tls)
        endpoint = replace(endpoint, scheme={"http": "https"}.get(endpoint.scheme, endpoint.scheme))
    if endpoint.password is not None:
        if options.password_file is not None:
            raise OptionError(option, "the url has a password already: give one of them")
        return endpoint
    username = endpoint.username
    if username is None:
        username = os.environ.get(options.variable("USERNAME")) or None
    if username is None:
        if options.password_file is not None:
            raise OptionError(option, "needs a user, in the url as in amqp://reader@host")
        return endpoint
    password = options.secret("PASSWORD", options.password_file)
    if password is None and endpoint.scheme in HTTP_SCHEMES and endpoint.username is None:
        return endpoint  # the variable is for another peer, as feeds take tokens
    if password is None:
        raise OptionError("URL", f"user '{username}' has no password: expected {option} FILE or {PREFIX}PASSWORD")
    return endpoint.with_credentials(username, password)


def hub_of(text: str) -> ConnectionString:
    """Read a connection string that is given in place of a url.

    Raises:
        OptionError: it is malformed; the message shows no part of it.
    """
    try:
        found = parse_connection_string(text)
    except OptionError as fault:
        raise OptionError("URL", f"a connection string: {fault.problem}") from None
    return found._replace(endpoint=replace(found.endpoint, option="URL"))


def gathered(
    into: str, make: Callable[..., Any], options: dict[str, Callable[..., Any]], before: str = ""
) -> Callable[..., Any]:
    """Return a decorator that adds options to a command, which gets them together as one argument.

    Args:
        into: the argument's name.
        make: makes the argument from the options' values, which it takes by name.
        options: each option's name to click's decorator for it.
        before: the prefix that the names have in click.
    """

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def with_options(**named: Any) -> Any:
            given = {name: named.pop(before + name.replace("-", "_")) for name in options}
            return command(**{into: make(**given)}, **named)

        for option in reversed(options.values()):
            with_options = option(with_options)
        return with_options

    return add


def _tls(tls_ca: str | None, tls_cert: str | None, tls_key: str | None, tls_any_host: bool) -> Tls | None:
    if tls_key is not None and tls_cert is None:
        raise click.UsageError("--tls-key needs --tls-cert beside it")
    given = tls_ca is not None or tls_cert is not None or tls_any_host
    return Tls(tls_ca, tls_cert, tls_key, not tls_any_host) if given else None


def file_option(name: str, help_text: str) -> Callable[..., Any]:
    """Return an option whose value is the path of an existing file."""
    return click.option(name, type=click.Path(exists=True, dir_okay=False), metavar="FILE", help=help_text)


def password_option(name: str = "--password-file", of: str = "the url's user") -> Callable[..., Any]:
    """Return the option for a file with a password."""
    return file_option(name, f"File with the password of {of}.")


_ANY_HOST: Final = "Take a certificate of another host, if its authority is trusted."
tls_options: Final = gathered(
    "tls",
    _tls,
    {
        "tls_ca": file_option("--tls-ca", "PEM file of the authorities to trust; makes TLS of amqp:// too."),
        "tls_cert": file_option("--tls-cert", "PEM file of our certificate, for peers that ask for one."),
        "tls_key": file_option("--tls-key", "PEM file of its key, if that is not beside it."),
        "tls_any_host": click.option("--tls-any-host", is_flag=True, help=_ANY_HOST),
    },
)
"""Adds the TLS options to a command, which gets them as argument ``tls``; it is None without any of them."""

USER_FILE: Final = "--user-file"
TOKEN_FILE: Final = "--token-file"

logger = logging.getLogger("spark_streams.cli")


def users_of(path: Path) -> dict[str, str]:
    """Read users and their passwords, one ``NAME:PASSWORD`` per line.

    Raises:
        OptionError: the file cannot be read or is empty, or a line has another form; the message shows only its number.
    """
    users = {}
    for number, line in _lines(path, USER_FILE):
        name, colon, password = line.partition(":")
        if not colon or not name:
            raise OptionError(USER_FILE, f"{path}, line {number}: expected NAME:PASSWORD (it is not shown here)")
        users[name] = password
    return users


def tokens_of(path: Path) -> tuple[BearerToken, ...]:
    """Read bearer tokens, one per line.

    Raises:
        OptionError: the file cannot be read or is empty, or a line is not a token; the message shows only its number.
    """
    tokens = []
    for number, line in _lines(path, TOKEN_FILE):
        try:
            tokens.append(BearerToken(line))
        except ValueError as fault:
            raise OptionError(TOKEN_FILE, f"{path}, line {number}: {fault}") from None
    return tuple(tokens)


def warn_if_others_may_read(path: Path) -> None:
    """Warn if other users of this machine can read a file with secrets; only systems with POSIX modes can tell."""
    if os.name == "posix" and path.stat().st_mode & 0o044:
        logger.warning("%s holds secrets, and other users of this machine can read it: chmod 600 %s", path, path)


def _lines(path: Path, option: str) -> list[tuple[int, str]]:
    """Return the lines that are not blank and do not begin with ``#``, with their numbers."""
    try:
        content = path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as fault:
        reason = fault.strerror if isinstance(fault, OSError) else "it is no UTF-8"
        raise OptionError(option, f"{path} cannot be read: {reason}") from None
    warn_if_others_may_read(path)
    lines = enumerate((line.strip("\r\n") for line in content.split("\n")), 1)
    found = [(number, line) for number, line in lines if line.strip() and not line.startswith("#")]
    if not found:
        raise OptionError(option, f"{path} is empty, expected a line for each")
    return found
