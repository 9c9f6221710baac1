"""Reads the options for the peer's address, the credentials, TLS and the timeout."""

from __future__ import annotations

import os
from typing import Final

from spark_streams.endpoint import Endpoint, Secret, Tls, parse_url, with_tls_scheme
from spark_streams.errors import OptionError
from spark_streams.options.names import (
    PASSWORD,
    PASSWORD_FILE,
    PASSWORD_PROVIDER,
    REQUEST_TIMEOUT,
    TLS_CA_FILE,
    TLS_CERT_FILE,
    TLS_KEY_FILE,
    TLS_VERIFY_HOSTNAME,
    URL,
    USERNAME,
)
from spark_streams.options.parser import OptionReader
from spark_streams.secrets import CalledSecret, FileSecret

DEFAULT_REQUEST_TIMEOUT_MS: Final = 30_000


def read_endpoint(given: OptionReader) -> Endpoint:
    """Return the peer's endpoint, with credentials and TLS.

    Raises:
        OptionError: the url is missing or wrong, credentials contradict each other, or a TLS file does not exist.
    """
    url = given.required(URL, given.form.url_example)
    if any(given.has(name) for name in (TLS_CA_FILE, TLS_CERT_FILE, TLS_KEY_FILE, TLS_VERIFY_HOSTNAME)):
        url = with_tls_scheme(url)  # an option of TLS implies TLS, on its default port when the url has none
    endpoint = parse_url(url, schemes=given.form.schemes)
    named = given.one_of(PASSWORD, PASSWORD_FILE, PASSWORD_PROVIDER)
    if given.has(USERNAME) or named is not None:
        if endpoint.username is not None:
            name = USERNAME if named is None or given.has(USERNAME) else named
            raise OptionError(name, f"cannot be used together with credentials in '{URL}': give one of them")
        if named is not None and not given.has(USERNAME):
            raise OptionError(named, f"needs '{USERNAME}' beside it")
        password = given.get(PASSWORD)
        endpoint = endpoint.with_credentials(
            given.get(USERNAME),
            read_secret(given, PASSWORD_FILE, PASSWORD_PROVIDER) if password is None else Secret(password),
        )
    if endpoint.username is not None and endpoint.password is None:
        raise OptionError(USERNAME if given.has(USERNAME) else URL, f"a user name needs a password, in '{PASSWORD}'")
    return endpoint if endpoint.tls is None else endpoint.with_tls(_tls(given))


def read_secret(given: OptionReader, file: str, provider: str) -> Secret | None:
    """Return a secret that is read when it is needed, None without either of the two options.

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


def _tls(given: OptionReader) -> Tls:
    if given.has(TLS_KEY_FILE) and not given.has(TLS_CERT_FILE):
        raise OptionError(TLS_KEY_FILE, f"needs '{TLS_CERT_FILE}' beside it")
    files = {name: given.get(name) for name in (TLS_CA_FILE, TLS_CERT_FILE, TLS_KEY_FILE)}
    for name, path in files.items():
        if path is not None and not os.path.isfile(path):
            raise OptionError(name, f"'{path}' is not a file that can be found here, expected a PEM file")
    return Tls(files[TLS_CA_FILE], files[TLS_CERT_FILE], files[TLS_KEY_FILE], given.boolean(TLS_VERIFY_HOSTNAME, True))
