"""Reads the options for the peer's address, the credentials, TLS and the timeout."""

from __future__ import annotations

import os
import re
from typing import Final, Literal, cast

from spark_streams.endpoint import DEFAULT_PORTS, Endpoint, Secret, Tls, parse_url, with_tls_scheme
from spark_streams.errors import OptionError
from spark_streams.options.connection_string import EXAMPLE, parse_connection_string
from spark_streams.options.names import (
    CONNECTION_STRING,
    CUSTOM_ENDPOINT,
    LOG_LEVEL,
    PASSWORD,
    PASSWORD_FILE,
    PASSWORD_PROVIDER,
    REQUEST_TIMEOUT,
    TLS_CA_FILE,
    TLS_CERT_FILE,
    TLS_KEY_FILE,
    TLS_VERIFY_HOSTNAME,
    TOKEN,
    TOKEN_FILE,
    TOKEN_PROVIDER,
    TRANSPORT,
    URL,
    USERNAME,
)
from spark_streams.options.parser import OptionReader
from spark_streams.secrets import CalledSecret, FileSecret

DEFAULT_REQUEST_TIMEOUT_MS: Final = 30_000
DEFAULT_LOG_LEVEL: Final = "info"
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
"""The values of ``logLevel``. With the default, logging that the process has set up keeps its own level."""
HTTPS_PORT: Final = 443
"""The port of WebSockets over TLS, where the url names none."""
_GATEWAY: Final = re.compile(r"(?:[a-z]+://)?(\[[0-9a-fA-F:.]+\]|[^\[\]/@,?#\s:]+)(?::([0-9]{1,5}))?/?")


def read_endpoint(given: OptionReader) -> Endpoint:
    """Return the peer's endpoint, with credentials, TLS, transport and gateway.

    Raises:
        OptionError: the url or the connection string is missing or wrong, credentials contradict each other, or a TLS
            file does not exist.
    """
    endpoint = _reached(given, _address(given))
    has_credentials = endpoint.username is not None or endpoint.token is not None
    named = given.one_of(PASSWORD, PASSWORD_FILE, PASSWORD_PROVIDER)
    if given.has(USERNAME) or named is not None:
        if has_credentials:
            name = USERNAME if named is None or given.has(USERNAME) else named
            raise _both(name, f"credentials in '{endpoint.option}'")
        if named is not None:
            given.needs(named, USERNAME)
        password = given.get(PASSWORD)
        endpoint = endpoint.with_credentials(
            given.get(USERNAME),
            read_secret(given, PASSWORD_FILE, PASSWORD_PROVIDER) if password is None else Secret(password),
        )
    if endpoint.username is not None and endpoint.password is None:
        raise OptionError(USERNAME if given.has(USERNAME) else URL, f"a user name needs a password, in '{PASSWORD}'")
    endpoint = _with_token(given, endpoint)
    if endpoint.option == CONNECTION_STRING and endpoint.username is None and endpoint.token is None:
        raise OptionError(
            CONNECTION_STRING,
            f"has neither SharedAccessKey nor SharedAccessSignature: copy all of it, or give '{TOKEN_PROVIDER}', "
            f"'{TOKEN_FILE}' or '{TOKEN}', or the rule as '{USERNAME}' and its key as '{PASSWORD_FILE}'",
        )
    return endpoint if endpoint.tls is None else endpoint.with_tls(_tls(given))


def _address(given: OptionReader) -> Endpoint:
    """Return the endpoint that the url or the connection string names."""
    given_tls = [name for name in (TLS_CA_FILE, TLS_CERT_FILE, TLS_KEY_FILE, TLS_VERIFY_HOSTNAME) if given.has(name)]
    if given.one_of(URL, CONNECTION_STRING) == CONNECTION_STRING:
        found = parse_connection_string(given.required(CONNECTION_STRING, EXAMPLE))
        if found.endpoint.tls is None and given_tls:
            raise OptionError(given_tls[0], f"cannot be used with UseDevelopmentEmulator=true in '{CONNECTION_STRING}'")
        return found.endpoint
    url = given.required(URL, given.form.url_example)
    # A TLS option implies TLS, on the default TLS port when the url names no port.
    return parse_url(with_tls_scheme(url) if given_tls else url, schemes=given.form.schemes)


def _reached(given: OptionReader, endpoint: Endpoint) -> Endpoint:
    """Return the endpoint with its transport and gateway, where the format has options for them."""
    if TRANSPORT not in given.form.both:
        return endpoint
    transport = cast(Literal["tcp", "websocket"], given.word(TRANSPORT, "tcp", "websocket"))
    gateway = given.text(CUSTOM_ENDPOINT, "host or host:port")
    if transport == "websocket" and endpoint.tls is not None and endpoint.port == DEFAULT_PORTS[endpoint.scheme]:
        endpoint = endpoint.on_port(HTTPS_PORT)
    if gateway is None:
        return endpoint.reached(transport, None)
    if endpoint.others:
        raise OptionError(CUSTOM_ENDPOINT, f"leads to one host, and '{URL}' lists several")
    found = _GATEWAY.fullmatch(gateway)
    if found is None or (found[2] and not 0 < int(found[2]) < 65_536):
        raise OptionError(CUSTOM_ENDPOINT, "is no address, expected host or host:port, without a path")
    return endpoint.reached(transport, (found[1].strip("[]"), int(found[2] or endpoint.port)))


def _with_token(given: OptionReader, endpoint: Endpoint) -> Endpoint:
    """Return the endpoint with the token that is given in place of a password."""
    named = given.one_of(TOKEN, TOKEN_FILE, TOKEN_PROVIDER)
    if named is None:
        return endpoint
    if endpoint.token is not None or (endpoint.username is not None and not given.has(USERNAME)):
        raise _both(named, f"credentials in '{endpoint.option}'")
    if endpoint.username is not None:
        raise _both(named, f"'{USERNAME}' and '{PASSWORD}'")
    token = given.text(TOKEN, "a token")
    if token is None:
        return endpoint.with_token(read_secret(given, TOKEN_FILE, TOKEN_PROVIDER))
    if not token.isascii() or not token.isprintable():
        raise OptionError(TOKEN, "has characters that no token has, expected printable ASCII")
    return endpoint.with_token(Secret(token))


def _both(option: str, other: str) -> OptionError:
    return OptionError(option, f"cannot be used together with {other}: give one of them")


def read_secret(given: OptionReader, file: str, provider: str) -> Secret | None:
    """Return a secret that is read each time it is used; None where neither option is given.

    Args:
        given: the options.
        file: the name of the option with a path.
        provider: the name of the option with a function.

    Raises:
        OptionError: the file does not exist, or the function's name is malformed.
    """
    if (path := given.text(file, "the path of a file")) is not None:
        if not os.path.isfile(path):
            raise OptionError(file, f"'{path}' is not a file that can be found here, expected one with the secret")
        return FileSecret(path, file)
    name = given.text(provider, "a function such as package.module:function")
    return None if name is None else CalledSecret(name, provider)


def request_timeout_ms(given: OptionReader) -> int:
    """Return how many milliseconds to wait for an answer of the peer.

    Raises:
        OptionError: the value is no whole number of milliseconds.
    """
    return given.integer(REQUEST_TIMEOUT, 1, "milliseconds") or DEFAULT_REQUEST_TIMEOUT_MS


def log_level(given: OptionReader) -> str:
    """Return the lowest level of the log lines, one of ``LOG_LEVELS``.

    Raises:
        OptionError: there is no such level.
    """
    return given.word(LOG_LEVEL, *LOG_LEVELS, default=DEFAULT_LOG_LEVEL)


def _tls(given: OptionReader) -> Tls:
    given.needs(TLS_KEY_FILE, TLS_CERT_FILE)
    files = {name: given.get(name) for name in (TLS_CA_FILE, TLS_CERT_FILE, TLS_KEY_FILE)}
    for name, path in files.items():
        if path is not None and not os.path.isfile(path):
            raise OptionError(name, f"'{path}' is not a file that can be found here, expected a PEM file")
    return Tls(files[TLS_CA_FILE], files[TLS_CERT_FILE], files[TLS_KEY_FILE], given.boolean(TLS_VERIFY_HOSTNAME, True))
