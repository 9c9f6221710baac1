"""What every answer of the window says to the browser, and which requests are not taken at all.

- Nothing is loaded but from the window itself, no script or style stands in a page, and no form goes elsewhere (CSP 3).
- No other site may show a page in a frame, unless ``frame_ancestors`` names it.
- A request that changes something and comes from another site is refused, by what the browser says of it
  (Fetch Metadata, ``Sec-Fetch-Site``; the header ``Origin``, RFC 6454 §7), before its form is looked at.
- Where nobody is asked to sign in, a request must name a loopback address or ``localhost``: a page of another site
  whose name leads to this machine ("DNS rebinding") names itself.
"""

from __future__ import annotations

import ipaddress
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from spark_streams.server.web.config import WebConfig

SAFE: Final = ("GET", "HEAD", "OPTIONS")
_OWN: Final = ("same-origin", "none")
"""``none``: the user's own doing, such as a reload of the page that a form led to."""


def policy(config: WebConfig) -> str:
    """Return the policy of content security."""
    ancestors = " ".join(["'self'", *sorted(config.frame_ancestors)]) if config.frame_ancestors else "'none'"
    return (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        f"form-action 'self'; base-uri 'none'; frame-ancestors {ancestors}"
    )


class Protection:
    """An ASGI application that refuses what browsers are made to send for others, and adds the headers.

    Args:
        application: answers the other requests.
        config: the window's settings.
    """

    def __init__(self, application: ASGIApp, config: WebConfig) -> None:
        self._application = application
        self._config = config
        headers = {
            "Content-Security-Policy": policy(config),
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "same-origin",  # with no-referrer a form would come from the origin "null"
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
        }
        if not config.frame_ancestors:
            headers["X-Frame-Options"] = "DENY"  # for browsers that know no frame-ancestors
        self._headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(self._headers)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        headers = Headers(scope=scope)
        if _names_a_place(headers.get("host", "")):
            status, refusal = HTTPStatus.FORBIDDEN, self._refusal(scope["method"], headers)
        else:
            status, refusal = HTTPStatus.BAD_REQUEST, "the header Host is no host and port"
        if refusal is None:
            await self._application(scope, receive, with_headers)
        else:
            answer = PlainTextResponse(refusal + "\n", status, {"Connection": "close"})
            await answer(scope, receive, with_headers)

    def _refusal(self, method: str, headers: Headers) -> str | None:
        host = headers.get("host", "")
        if self._config.asks_nobody and not self._config.insecure and not _names_loopback(host):
            return (
                f"this page asks nobody to sign in, and is for this machine alone: it was asked for as '{host:.100}', "
                "expected 127.0.0.1 or localhost. Start the log with a user to reach it by another name"
            )
        if method in SAFE:
            return None
        site, origin = headers.get("sec-fetch-site", "none"), headers.get("origin")
        if site not in _OWN or (origin is not None and _place(origin) != host.lower()):
            return f"a form of another site ({origin or site:.100}) was sent here: open the page itself, and repeat it"
        return None


def _names_a_place(host: str) -> bool:
    """Return whether a Host header is a host and port: addresses of pages are read from it (RFC 9112 §3.2)."""
    try:
        parts = urlsplit(f"//{host}")
        return parts.netloc == host and "@" not in host and (parts.port is None or parts.port > 0)
    except ValueError:
        return False


def _place(origin: str) -> str:
    """Return the host and port of an origin; empty where it has none."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _names_loopback(host: str) -> bool:
    """Return whether a Host header that is a host and port names this machine (RFC 9110 §7.2)."""
    name = urlsplit(f"//{host}").hostname or ""
    if name in ("localhost", "localhost."):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
