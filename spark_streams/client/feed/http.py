"""Makes signed HTTP calls to a feed with pooled connections and timeouts, and names call and answer in its errors.

No message ever holds a credential, the query that the user wrote into the url, or a feed's token.

A request is bounded as a whole: to connect, to pass a proxy, to send, and to get an answer. The library's time-outs
start anew for each of these steps, for each address of a host, and for each byte of an answer; behind a SOCKS proxy
they still do.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import time
from collections.abc import Collection, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import urlencode, urljoin, urlsplit

import requests
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError
from urllib3.util import Timeout

from spark_streams.client.feed.errors import first_line, hide_in_logs, mapped, remember_query
from spark_streams.client.feed.response import Response
from spark_streams.client.retry import Deadline
from spark_streams.client.tcp import final
from spark_streams.client.timed import TimedResponse, connect, left_s
from spark_streams.client.tls import tls_context
from spark_streams.client.what_answers import known_right, secured_advice, was_right
from spark_streams.endpoint import Endpoint
from spark_streams.errors import (
    AuthenticationFailed,
    ConnectFailed,
    NotFound,
    PeerError,
    Refused,
    SparkStreamsError,
)
from spark_streams.redaction import remember, safe_text
from spark_streams.secrets import FreshSecret, Secret
from spark_streams.wire.feed.line import NDJSON

SHOWN_BYTES: Final = 8_000
"""Bytes of an answer that are read for its first line."""
MAX_REDIRECTS: Final = 5
MAX_RETRY_AFTER_S: Final = 60.0
"""The longest pause in seconds: a feed that requests a longer one is called sooner, and fails as unavailable later."""
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_HIDDEN_ARGUMENTS: Final = frozenset({"token"})
_WANTS_TLS: Final = (b"HTTPS", b"SSL-enabled")
"""Parts of the answers of HTTPS servers to HTTP without TLS: nginx, Go; Apache."""


class Conflict(Refused):
    """The feed's partitions or token have changed (status 409): the client has to request them again."""

    retriable = True


class Expired(Refused):
    """The feed has lost the events after the cursor (status 410), or does not know the cursor."""


class Unavailable(Refused):
    """The feed cannot answer now (status 408, 425, 429, 5xx)."""

    retriable = True


_ERRORS: Final[Mapping[int, type[PeerError]]] = {401: AuthenticationFailed, 404: NotFound, 409: Conflict, 410: Expired}
_LATER: Final = frozenset({408, 425, 429, *range(500, 600)})
"""The statuses of temporary failures (``Unavailable``); a status that is in neither collection is ``Refused``."""


class _Credentials(requests.auth.AuthBase):
    """Signs requests with the current credentials of one feed.

    Args:
        endpoint: the feed's endpoint; its token or password may be a ``FreshSecret``.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._source = endpoint.token or endpoint.password or Secret("")
        self._secret: str | None = None

    def refresh(self) -> None:
        """Read the secret if it has not been read yet, or is cheap to read.

        Raises:
            OptionError: the secret cannot be read, or no header can carry it.
        """
        if self._secret is None or self._source.is_cheap:
            self.renew()

    def renew(self) -> bool:
        """Read the secret; return whether it has changed.

        Raises:
            OptionError: the secret cannot be read, or no header can carry it.
        """
        source, secret = self._source, self._source.reveal()
        is_printable = secret.isascii() and secret.isprintable()
        if self._secret == secret:
            return False
        if source is self._endpoint.token and isinstance(source, FreshSecret) and not is_printable:
            raise source.fault("gives characters that no HTTP header can carry, expected printable ASCII")
        self._secret = secret
        return True

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Sign a request, and remember the secret, so that no message shows it."""
        endpoint, secret = self._endpoint, self._secret or ""
        remember(secret, endpoint.username if endpoint.token is None else None)
        if endpoint.token is not None:
            request.headers["Authorization"] = f"Bearer {secret}"  # RFC 6750
        elif endpoint.username is not None:
            requests.auth.HTTPBasicAuth(endpoint.username.encode(), secret.encode())(request)
        return request


class FeedSession:
    """Connections to one feed; for one thread at a time.

    Args:
        endpoint: the feed's address, with credentials and TLS.
        timeout_ms: how many milliseconds a request may take, from connecting to the end of the answer, but for the body
            of a page; and how long the feed may be silent within that body.
    """

    broken = False
    """Never broken: the session replaces connections that the server has closed."""

    def __init__(self, endpoint: Endpoint, timeout_ms: int) -> None:
        self._endpoint = endpoint
        self._timeout_s = timeout_ms / 1000
        hide_in_logs()
        self._session = session = requests.Session()
        # The session uses the environment's proxies and authorities; a netrc file would add unwanted credentials.
        session.headers["Accept"] = f"{NDJSON}, application/json;q=0.9, */*;q=0.5"
        if _is_this_machine(endpoint.host):
            # Compressing costs both sides more than loopback does.
            session.headers["Accept-Encoding"] = "identity, gzip;q=0.5"
        self._environment: dict[tuple[str, str, int | None], dict[str, Any]] = {}
        self._credentials = _Credentials(endpoint)
        session.auth = self._credentials
        tls = endpoint.tls
        session.mount("http://", TimedAdapter())
        session.mount("https://", TimedAdapter() if tls is None or tls.verify_hostname else _AnyHostName())
        # Each request gets the authorities: the environment's would replace those of the session.
        self._verify = None if tls is None else tls.ca_file
        if tls is not None and (tls.ca_file, tls.cert_file) != (None, None):
            tls_context(tls)  # for its messages: those of the library do not name the option of a file
        if tls is not None and tls.cert_file is not None:
            session.cert = tls.cert_file if tls.key_file is None else (tls.cert_file, tls.key_file)

    def turn(self) -> None:
        """Do nothing: between two requests, HTTP has nothing to say (``kept_connections.py``)."""

    def close(self) -> None:
        """Close all connections."""
        self._session.close()

    def url(self, arguments: Sequence[tuple[str, str]] = (), *, below: str = "") -> str:
        """Return the address of a call: the path, then ``below``, the user's own query, and ``arguments``."""
        own = self._endpoint.query
        return self._address(below, "" if own is None else own.reveal(), urlencode(arguments))

    def shown(self, arguments: Sequence[tuple[str, str]] = (), *, below: str = "") -> str:
        """Return the address of a call for messages, without anything secret."""
        shown = [(name, "***" if name in _HIDDEN_ARGUMENTS else value) for name, value in arguments]
        return self._address(below, "" if self._endpoint.query is None else "***", urlencode(shown, safe="*"))

    def _address(self, below: str, *queries: str) -> str:
        path = self._endpoint.url.rstrip("/") + below if below else self._endpoint.url
        query = "&".join(filter(None, queries))
        return f"{path}?{query}" if query else path

    def send(
        self,
        method: str,
        arguments: Sequence[tuple[str, str]] = (),
        *,
        below: str = "",
        wait_ms: int = 0,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
        accepted: Collection[int] = (200,),
    ) -> Response:
        """Make a call; the caller closes the answer.

        Credentials from a file are read before each call, and those of a callable when the feed answers 401; if they
        have changed then, the call is made once more.

        Args:
            method: the method of HTTP, such as ``GET``.
            arguments: names and values, not encoded.
            below: a path below the feed's own.
            wait_ms: how many milliseconds longer than the timeout the feed may take, as the call has requested.
            body: the body of the request; None if there is none.
            headers: headers beside those of every call, or in their place.
            accepted: the statuses of success.

        Raises:
            OptionError: the credentials cannot be read.
            AuthenticationFailed: status 401.
            NotFound: status 404.
            Expired: status 410.
            Conflict: status 409.
            Unavailable: status 408, 425, 429 or 5xx.
            Refused: any other status that is not accepted.
            ConnectFailed, ConnectionLost, DeadlineExceeded: the network failed.
        """
        what = f"{method} {self.shown(arguments, below=below)}"
        url = self.url(arguments, below=below)
        remember_query(self._endpoint)
        for name, value in arguments:
            if name in _HIDDEN_ARGUMENTS:
                remember(value)
        renewed = False
        self._credentials.refresh()
        deadline = Deadline(int(self._timeout_s * 1_000) + wait_ms)
        for _ in range(MAX_REDIRECTS + 1):
            left_s = deadline.left_s(f"{what}: no answer")
            try:
                with mapped(what, self._endpoint):
                    request = requests.Request(method, url, headers=headers, data=body)
                    response = self._session.send(
                        self._session.prepare_request(request),
                        allow_redirects=False,
                        timeout=Timeout(left_s, min(left_s, self._timeout_s)),
                        **self._surroundings(url),
                    )
            except ConnectFailed as fault:
                fault.retriable = fault.retriable or was_right(self._endpoint)  # then the network has damaged bytes
                raise
            if response.status_code in _REDIRECTS and method == "GET" and "Location" in response.headers:
                target = urljoin(url, response.headers["Location"])
                response.close()
                if _origin(target) != _origin(url):
                    scheme, host, port = _origin(target)
                    raise Refused(
                        f"status {response.status_code}",
                        f"it redirects to {scheme}://{safe_text(host)}:{port}, another origin, which credentials are "
                        "not sent to: give that address in option 'url' if you trust it",
                        what,
                    )
                url = target
                continue
            if response.status_code in accepted:
                known_right(self._endpoint)
                return Response(response, what, silence_s=deadline.timeout_ms / 1_000, waits=wait_ms > 0)
            if response.status_code == 401 and not renewed and self._credentials.renew():
                renewed = True
                deadline.restart()  # a function that returns tokens may have taken long
                response.close()
                continue
            with contextlib.closing(response):
                raise _refusal(response, what, self._endpoint)
        raise Refused("too many redirects", f"more than {MAX_REDIRECTS}", what)

    def _surroundings(self, url: str) -> dict[str, Any]:
        """Return the proxies and authorities for a URL's origin, as the environment had them at its first request.

        ``Session.request`` reads the whole environment twice for each request, which took most of a request's time.
        """
        origin = _origin(url)
        if origin not in self._environment:
            self._environment[origin] = self._session.merge_environment_settings(url, {}, True, self._verify, None)
        return self._environment[origin]


class TimedHTTPConnection(HTTPConnection):
    """A connection whose time-out covers connecting, the request and the answer together, from when it is set."""

    response_class = TimedResponse

    @property
    def timeout(self) -> float:
        """The seconds that are left, which the library gives its socket before a step; each request sets them."""
        return left_s(self._until)

    @timeout.setter
    def timeout(self, seconds: object) -> None:
        self._until = time.monotonic() + seconds if isinstance(seconds, float | int) else 0.0

    def send(self, data: Any) -> None:
        """Send the head of a request, or its body, within the time that is left."""
        if self.sock is not None:  # else it connects first
            self.sock.settimeout(self.timeout)
        super().send(data)

    def _tunnel(self) -> None:
        super()._tunnel()
        self.sock.settimeout(self.timeout)  # for the handshake of TLS

    def _new_conn(self) -> socket.socket:
        try:
            return connect((self._dns_host, self.port), self._until)
        except (OSError, UnicodeError, OverflowError) as fault:  # the host is no name, the port no number
            raised = ConnectTimeoutError if isinstance(fault, TimeoutError) else NewConnectionError
            raise raised(self, str(fault)) from fault


class TimedHTTPSConnection(TimedHTTPConnection, HTTPSConnection):
    """The same with TLS."""


_TIMED: Final[dict[Any, Any]] = {HTTPConnection: TimedHTTPConnection, HTTPSConnection: TimedHTTPSConnection}


class TimedAdapter(requests.adapters.HTTPAdapter):
    """Makes requests on connections that are timed as a whole."""

    def get_connection_with_tls_context(self, *arguments: Any, **named: Any) -> Any:
        """Return the pool of connections for a request; see the library."""
        pool = super().get_connection_with_tls_context(*arguments, **named)
        pool.ConnectionCls = _TIMED.get(pool.ConnectionCls, pool.ConnectionCls)
        return pool


class _AnyHostName(TimedAdapter):
    """Checks a certificate's authority, but not the name in it."""

    def init_poolmanager(self, *arguments: Any, **named: Any) -> None:
        super().init_poolmanager(*arguments, assert_hostname=False, **named)


def _refusal(response: requests.Response, what: str, endpoint: Endpoint) -> PeerError | ConnectFailed:
    """Return the error for a status; as long as none was accepted, the port may be wrong."""
    status = response.status_code
    begins = b""
    with contextlib.suppress(SparkStreamsError), mapped(what):
        begins = response.raw.read(SHOWN_BYTES, decode_content=True) or b""
    words = first_line(begins, cut=len(begins) >= SHOWN_BYTES) or safe_text(response.reason or "")
    if status == 400 and not (endpoint.tls or was_right(endpoint)) and any(each in begins for each in _WANTS_TLS):
        return final(ConnectFailed(f"{what}: the port speaks TLS: {secured_advice(endpoint)}"))
    if status == 401:
        words = words or "the feed wants credentials, such as option 'token'"
    fault = _ERRORS.get(status, Unavailable if status in _LATER else Refused)(f"status {status}", words, what)
    if isinstance(fault, Unavailable):
        fault.retry_after_s = _retry_after_s(response.headers.get("Retry-After"))
    return fault


def _is_this_machine(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _origin(url: str) -> tuple[str, str, int | None]:
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = -1
    return parts.scheme, parts.hostname or "", port or {"http": 80, "https": 443}.get(parts.scheme)


def _retry_after_s(text: str | None) -> float | None:
    """Read ``Retry-After`` (RFC 9110 §10.2.3): seconds, or a date."""
    if text is not None:
        with contextlib.suppress(ValueError):
            is_number = text.isascii() and text.strip().isdigit()
            pause_s = float(text) if is_number else parsedate_to_datetime(text).timestamp() - time.time()
            return min(max(0.0, pause_s), MAX_RETRY_AFTER_S)
    return None
