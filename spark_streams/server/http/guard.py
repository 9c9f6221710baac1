"""Refuses the requests that no HTTP door accepts, whatever they ask for; each ends its connection.

- A head that is too long, or has too many lines, is refused before its fields are read.
- A request has one length: with ``Transfer-Encoding`` beside ``Content-Length`` a proxy may see its end elsewhere, and
  so another request after it ("request smuggling", RFC 9112 §6.1).
- A request that changes something and comes from a page of another site is refused, by the browser's headers (Fetch
  Metadata, ``Sec-Fetch-Site``; the header ``Origin``, RFC 6454 §7), before its body is read.
- Where nobody is asked for credentials, a request must name a loopback address, ``localhost``, or a host that the
  door's settings name: a page of another site whose name leads to this machine ("DNS rebinding") names that site. A
  request of HTTP/1.0 that names no host comes from no browser.
"""

from __future__ import annotations

import re
from typing import Final

from starlette.datastructures import Headers
from starlette.types import Scope

from spark_streams.server.http.config import HttpConfig
from spark_streams.server.http.requests import CLOSE, HttpError
from spark_streams.server.users import is_host

SAFE: Final = ("GET", "HEAD", "OPTIONS")
MOST_LINES: Final = 256
"""The most lines of a head; h11 needs milliseconds of the loop for a thousand."""
_OWN: Final = ("same-origin", "none")
"""``none``: an action of the user, such as a reload of the page that a form led to."""
_HOST: Final = re.compile(r"(?a)(?:\[([\w.-]*:[\w.:%-]*)\]|([^:]*))(?::([0-9]{0,5}))?")
_END: Final = re.compile(rb"\n\r?\n")


def head_fault(received: bytes, most: int) -> str | None:
    """Return what is wrong with the size of a head; None as long as nothing is.

    Args:
        received: the bytes of the head that have come, and perhaps bytes after it.
        most: the most bytes that it may have.
    """
    head = received[:most]
    if len(received) <= most and head.count(b"\n") <= MOST_LINES:
        return None
    end = _END.search(head)
    if end is None and len(received) > most:
        return f"the request's head has more than {most} bytes"
    lines = head.count(b"\n", 0, None if end is None else end.end())
    return f"the request's head has more than {MOST_LINES} lines" if lines > MOST_LINES else None


def check_request(scope: Scope, config: HttpConfig) -> None:
    """Check the head of a request.

    Args:
        scope: the request.
        config: the door's settings.

    Raises:
        HttpError: the request is refused: 400 when its Host is no host and port, or it has two lengths; 403 when it is
            for another host, or comes from a page of another site.
    """
    headers = Headers(scope=scope)
    host = headers.get("host", "")
    name = _name_of(host)
    if "transfer-encoding" in headers and "content-length" in headers:
        raise HttpError(400, "Content-Length stands beside Transfer-Encoding: expected one, as they may differ", CLOSE)
    # A request of HTTP/1.0 need not name a host (RFC 9112 §3.2); h11 refuses one of HTTP/1.1 that does not.
    if "host" in headers and config.asks_nobody and not (config.insecure or config.is_own(name, config.allowed_hosts)):
        text = (
            f"this door asks nobody for credentials, and is for this machine alone: it was asked for as '{name:.255}', "
            "expected 127.0.0.1 or localhost. Start the log with a user to reach it by another name, or name the host "
            "in allowed_hosts of its settings"
        )
        raise HttpError(403, text, CLOSE)
    if scope["method"] not in SAFE:
        site, origin = headers.get("sec-fetch-site", "none"), headers.get("origin")
        if site not in _OWN or (origin is not None and origin.lower().partition("://")[2] != host.lower()):
            text = f"a form of another site ({origin or site:.100}) was sent here: open the page itself, and repeat it"
            raise HttpError(403, text, CLOSE)


def _name_of(host: str) -> str:
    """Return the host of a Host header, without port and brackets: addresses of pages are read from the header too.

    Raises:
        HttpError: 400 when the header is no host and port (RFC 9112 §3.2).
    """
    address, name, port = match.groups("") if (match := _HOST.fullmatch(host)) else ("", "/", "")
    if host and not (is_host(address or name) and 0 < int(port or 80) < 65_536):
        raise HttpError(400, "the header Host is no host and port", CLOSE)
    return address or name
