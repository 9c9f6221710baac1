"""Turns faults of HTTP into our errors: none quotes a url, a secret, or more than a line of an answer."""

from __future__ import annotations

import contextlib
import logging
import ssl
from collections.abc import Iterator
from typing import Final
from urllib.parse import parse_qsl, urlsplit

import requests
import urllib3

from spark_streams.client.tls import WANTS_A_CERTIFICATE, is_no_tls, refused_certificate, unverified
from spark_streams.endpoint import Endpoint
from spark_streams.errors import ConnectFailed, ConnectionLost, DeadlineExceeded
from spark_streams.redaction import ALONE, hidden, one_line, remember, told

__all__ = ["first_line", "hide_in_logs", "mapped", "remember_query"]

SHOWN: Final = 300
"""Characters of an answer that a message has."""


def remember_query(endpoint: Endpoint) -> None:
    """Remember what the user wrote behind the url's question mark as secrets, which its values may be."""
    if endpoint.query is not None:
        query = endpoint.query.reveal()
        values = (value for _, value in parse_qsl(query))
        for each in (query, *values, *(pair.partition("=")[2] for pair in query.split("&"))):
            if len(each) >= ALONE:
                remember(each)


def first_line(body: bytes, *, cut: bool = False) -> str:
    """Return what an answer begins with, fit for a message.

    Args:
        body: of it; of a long one the beginning.
        cut: whether the answer goes on.
    """
    # The whole is searched, and then cut: half of a secret would not be found.
    text = hidden(body.decode("utf-8", "replace"), cut=cut).strip()
    return one_line(text.splitlines()[0] if text else "", SHOWN)


class _NoSecrets(logging.Filter):
    """Takes our secrets out of what urllib3 logs: addresses with their query, and header lines that are none."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record through, without secrets."""
        said = record.getMessage()
        safe = hidden(said)
        if safe != said:
            record.msg, record.args, record.exc_info = safe, (), None  # the exception says it again
        return True


_NO_SECRETS: Final = _NoSecrets()


def hide_in_logs() -> None:
    """Have urllib3's log lines hold no secret of ours."""
    for name in ("urllib3.connection", "urllib3.connectionpool"):
        logging.getLogger(name).addFilter(_NO_SECRETS)


@contextlib.contextmanager
def mapped(what: str) -> Iterator[None]:
    """Turn the errors of the libraries into ours; theirs quote the url, so they are not chained."""
    try:
        yield
    except (requests.exceptions.ConnectTimeout, urllib3.exceptions.ConnectTimeoutError):
        failed = ConnectFailed(
            f"{what}: no connection in time: check the host and port in option 'url', and firewalls on the way"
        )
        failed.costly = True
        raise failed from None
    except (requests.exceptions.Timeout, urllib3.exceptions.TimeoutError):
        raise DeadlineExceeded(
            f"{what}: nothing came within the time of option 'requestTimeout': the peer hangs, or the network does; "
            "raise it if they are slow"
        ) from None
    except requests.exceptions.ConnectionError as fault:
        reason = told(_reason(fault))
        tls = _tls_fault(fault)
        if tls is not None and (todo := _todo(tls, urlsplit(what.split(" ")[-1]).netloc)) is not None:
            raise _final(f"{what}: {todo}") from None
        if "NewConnectionError" in repr(fault) or "NameResolution" in repr(fault):
            raise ConnectFailed(
                f"{what}: no connection: {reason}: check the host and port in option 'url', and that the feed runs"
            ) from None
        # How a door ends that wants a certificate: in order, or by a reset if the request has come meanwhile.
        bare = "without response" in reason or "reset by peer" in reason
        hint = f": if it {WANTS_A_CERTIFICATE}" if "https://" in what and bare else ""
        raise ConnectionLost(f"{what}: {reason}{hint}") from None
    except (urllib3.exceptions.HTTPError, requests.exceptions.RequestException, OSError) as fault:
        raise ConnectionLost(f"{what}: the answer broke off: {told(_reason(fault))}") from None


def _final(message: str) -> ConnectFailed:
    """Return a fault that another try cannot heal: a file or an option has to be changed first."""
    fault = ConnectFailed(message)
    fault.retriable = False
    return fault


def _todo(fault: ssl.SSLError, where: str) -> str | None:
    if isinstance(fault, ssl.SSLCertVerificationError):
        return unverified(fault, where)
    if is_no_tls(fault):
        return f"TLS does not work there ({fault.reason.lower()}): if it is a plain port, write http:// in option 'url'"
    return refused_certificate(fault)


def _tls_fault(fault: BaseException) -> ssl.SSLError | None:
    """Return what TLS said, which the libraries wrap several times; None when it was not TLS."""
    inner: object = fault
    for _ in range(8):
        if isinstance(inner, ssl.SSLError):
            return inner
        if not isinstance(inner, BaseException):
            return None
        deeper = getattr(inner, "reason", None)
        inner = (
            deeper
            if isinstance(deeper, BaseException)
            else next((a for a in inner.args if isinstance(a, BaseException)), inner.__cause__ or inner.__context__)
        )
    return None


def _reason(fault: BaseException) -> str:
    """Return the innermost reason of a library's error, which does not quote the url."""
    inner: object = fault
    for _ in range(8):
        deeper = getattr(inner, "reason", None)
        if not isinstance(deeper, BaseException):
            arguments = getattr(inner, "args", ())
            deeper = next((a for a in arguments if isinstance(a, BaseException)), None)
        if deeper is None:
            break
        inner = deeper
    text = str(inner) or type(inner).__name__
    return text.rpartition(": ")[2] if "HTTPConnection" in text or "HTTPSConnection" in text else text
