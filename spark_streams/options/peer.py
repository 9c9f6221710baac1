"""The options that say where the peer is, how to get in, and how long to wait for it."""

from __future__ import annotations

import os
from typing import Final

from spark_streams.endpoint import Endpoint, Secret, Tls, parse_url, with_tls_scheme
from spark_streams.errors import OptionError
from spark_streams.options.given import Given
from spark_streams.options.names import (
    PASSWORD,
    REQUEST_TIMEOUT,
    TLS_CA_FILE,
    TLS_CERT_FILE,
    TLS_KEY_FILE,
    TLS_VERIFY_HOSTNAME,
    URL,
    USERNAME,
)

__all__ = ["DEFAULT_REQUEST_TIMEOUT_MS", "read_endpoint", "request_timeout_ms"]

DEFAULT_REQUEST_TIMEOUT_MS: Final = 30_000


def read_endpoint(given: Given) -> Endpoint:
    """Return where the peer is, with credentials and TLS.

    Raises:
        OptionError: no url or a bad one, credentials that contradict each other, or a TLS file that is not there.
    """
    url = given.required(URL, given.form.url_example)
    if any(given.has(name) for name in (TLS_CA_FILE, TLS_CERT_FILE, TLS_KEY_FILE, TLS_VERIFY_HOSTNAME)):
        url = with_tls_scheme(url)  # an option of TLS asks for TLS, on its default port when the url has none
    endpoint = parse_url(url, schemes=given.form.schemes)
    if given.has(USERNAME) or given.has(PASSWORD):
        if endpoint.username is not None:
            name = USERNAME if given.has(USERNAME) else PASSWORD
            raise OptionError(name, f"cannot be used together with credentials in '{URL}': give one of them")
        if not given.has(USERNAME):
            raise OptionError(PASSWORD, f"needs '{USERNAME}' beside it")
        password = given.get(PASSWORD)
        endpoint = endpoint.with_credentials(given.get(USERNAME), None if password is None else Secret(password))
    if endpoint.username is not None and endpoint.password is None:
        raise OptionError(USERNAME if given.has(USERNAME) else URL, f"a user name needs a password, in '{PASSWORD}'")
    return endpoint if endpoint.tls is None else endpoint.with_tls(_tls(given))


def request_timeout_ms(given: Given) -> int:
    """Return how long to wait for an answer of the peer.

    Raises:
        OptionError: no whole number of milliseconds.
    """
    return given.integer(REQUEST_TIMEOUT, 1, "milliseconds") or DEFAULT_REQUEST_TIMEOUT_MS


def _tls(given: Given) -> Tls:
    if given.has(TLS_KEY_FILE) and not given.has(TLS_CERT_FILE):
        raise OptionError(TLS_KEY_FILE, f"needs '{TLS_CERT_FILE}' beside it")
    for name in (TLS_CA_FILE, TLS_CERT_FILE, TLS_KEY_FILE):
        path = given.get(name)
        if path is not None and not os.path.isfile(path):
            raise OptionError(name, f"'{path}' is not a file that can be found here, expected a PEM file")
    return Tls(
        given.get(TLS_CA_FILE),
        given.get(TLS_CERT_FILE),
        given.get(TLS_KEY_FILE),
        given.boolean(TLS_VERIFY_HOSTNAME, True),
    )
