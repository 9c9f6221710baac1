"""Turns faults of HTTP into our errors, which quote no url, no secret, and one line of an answer at most."""

from __future__ import annotations

import contextlib
import logging
import ssl
from collections.abc import Iterator
from http.client import BadStatusLine
from typing import Final
from urllib.parse import parse_qsl, urlsplit

import requests
import urllib3

from spark_streams.client.tcp import costly, final
from spark_streams.client.tls import certificate_advice, certificate_hint, is_no_tls, plain_port_advice
from spark_streams.client.what_answers import wrong_port
from spark_streams.endpoint import Endpoint
from spark_streams.errors import ConnectFailed, ConnectionLost, DeadlineExceeded
from spark_streams.protocols import PROTOCOLS
from spark_streams.redaction import ALONE, hidden, one_line, remember, safe_text

SHOWN: Final = 300
"""Characters of an answer that a message has."""
_MAX_CAUSES: Final = 9
"""The most wrapped errors that are followed: libraries nest fewer, and errors may wrap each other in a circle."""


def remember_query(endpoint: Endpoint) -> None:
    """Remember the query of the url and its values as secrets, as each of them may be one."""
    if endpoint.query is not None:
        query = endpoint.query.reveal()
        values = (value for _, value in parse_qsl(query))
        for each in (query, *values, *(pair.partition("=")[2] for pair in query.split("&"))):
            if len(each) >= ALONE:
                remember(each)


def first_line(body: bytes, *, cut: bool = False) -> str:
    """Return the first line of an answer, fit for a message.

    Args:
        body: its body, or the beginning of a long body.
        cut: whether the body continues after ``body``.
    """
    # Hide secrets in the whole text, then cut it: half of a secret would not be found.
    text = hidden(body.decode("utf-8", "replace"), cut=cut).strip()
    return one_line(text.splitlines()[0] if text else "", SHOWN)


def hide_in_logs() -> None:
    """Keep our secrets out of urllib3's log lines, which quote addresses with queries, and malformed header lines."""
    for name in ("urllib3.connection", "urllib3.connectionpool"):
        logging.getLogger(name).addFilter(_hide_secrets)


def _hide_secrets(record: logging.LogRecord) -> bool:
    """Accept every record, with its secrets hidden."""
    message = record.getMessage()
    safe = hidden(message)
    if safe != message:
        record.msg, record.args, record.exc_info = safe, (), None  # the exception repeats the secret
    return True


@contextlib.contextmanager
def mapped(what: str, endpoint: Endpoint | None = None) -> Iterator[None]:
    """Turn the errors of the libraries into ours, and do not chain theirs, which quote the url.

    Args:
        what: the call, for messages.
        endpoint: the feed, for a call that may be the first of its connection; None for no such call.

    Raises:
        ConnectFailed: no connection could be made, or TLS failed on it.
        DeadlineExceeded: the peer sent nothing in time.
        ConnectionLost: the connection broke, or the answer broke off.
    """
    try:
        yield
    except (requests.exceptions.ConnectTimeout, urllib3.exceptions.ConnectTimeoutError):
        slow = "no connection in time: check the host and port in option 'url', and firewalls on the way"
        raise costly(ConnectFailed(f"{what}: {slow}")) from None
    except (urllib3.exceptions.HTTPError, OSError) as fault:  # those of requests are OSErrors
        # ReadTimeoutError where the answer is late, TimeoutError where the request was being sent.
        if any(isinstance(each, (TimeoutError, urllib3.exceptions.ReadTimeoutError)) for each in _causes(fault)):
            raise DeadlineExceeded(
                f"{what}: the answer did not come, or not go on, within the time of option 'requestTimeout': the peer "
                "hangs, or the network does; raise it if they are slow"
            ) from None
        reason = safe_text(_reason(fault))
        if not isinstance(fault, requests.exceptions.ConnectionError):
            raise ConnectionLost(f"{what}: the answer broke off: {reason}") from None
        of_tls = next((each for each in _causes(fault, context=True) if isinstance(each, ssl.SSLError)), None)
        if of_tls is not None:
            todo = (
                plain_port_advice(of_tls.reason.lower(), PROTOCOLS["feedapi"])
                if is_no_tls(of_tls)
                else certificate_advice(of_tls, urlsplit(what.split(" ")[-1]).netloc)
            )
            if todo is not None:
                raise final(ConnectFailed(f"{what}: {todo}")) from None
        if "NewConnectionError" in repr(fault) or "NameResolution" in repr(fault):
            raise ConnectFailed(
                f"{what}: no connection: {reason}: check the host and port in option 'url', and that the feed runs"
            ) from None
        # A door that requires a client's certificate closes without a response, or with a reset if the request came.
        bare = "without response" in reason or "reset by peer" in reason
        hint, wrong = "", None
        if endpoint is not None:
            hint = f": if it {certificate_hint(endpoint.tls)}" if endpoint.tls is not None and bare else ""
            heard = next((str(each) for each in _causes(fault) if type(each) is BadStatusLine), "")
            wrong = wrong_port(endpoint, heard.encode("latin-1"), what)
        raise (wrong or ConnectionLost(f"{what}: {reason}{hint}")) from None


def _causes(fault: BaseException, *, context: bool = False) -> Iterator[BaseException]:
    """Yield an error of a library and the errors that it wraps, the innermost last.

    Args:
        fault: the outermost error.
        context: whether an error that wraps none is followed by its cause or context.
    """
    for _ in range(_MAX_CAUSES):
        yield fault
        inner = getattr(fault, "reason", None)
        if not isinstance(inner, BaseException):
            inner = next((each for each in fault.args if isinstance(each, BaseException)), None)
        if inner is None and context:
            inner = fault.__cause__ or fault.__context__
        if inner is None:
            return
        fault = inner


def _reason(fault: BaseException) -> str:
    """Return the innermost reason of a library's error, which does not quote the url."""
    *_, inner = _causes(fault)
    text = str(inner) or type(inner).__name__
    return text.rpartition(": ")[2] if "HTTPConnection" in text or "HTTPSConnection" in text else text
