"""Authorization of requests: bearer tokens (RFC 6750), and users of all doors by basic authentication (RFC 7617)."""

from __future__ import annotations

import base64
import hmac
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request

from spark_streams.errors import UnknownStream
from spark_streams.log import ReferenceLog, Stream
from spark_streams.server.http.config import HttpConfig
from spark_streams.server.http.requests import HttpError
from spark_streams.server.users import ANONYMOUS, knows, permissions_of

_BEARER: Final = 'Bearer realm="spark-streams"'
_UNKNOWN: Final = "user or password are not known here"
_BASIC: Final = 'Basic realm="spark-streams", charset="UTF-8"'


@dataclass(frozen=True)
class Known:
    """The user or token of a request.

    Args:
        user: the user's name, or ``token`` and the token's index.
        name: the user or token in messages.
        allows: takes an action and a stream's name, and returns whether it is allowed.
        limited: whether permissions limit what is allowed; without them everything is.
        by_token: whether a token was shown; the same index means another token at other doors.
    """

    user: str
    name: str
    allows: Callable[[str, str], bool]
    limited: bool
    by_token: bool = False


class Authorization:
    """Decides which requests are allowed.

    Args:
        log: the log.
        config: the users and tokens; without any of them the door authenticates nobody.
        noun: the word for a stream in messages to clients.
    """

    def __init__(self, log: ReferenceLog, config: HttpConfig, noun: str = "feed") -> None:
        self._log = log
        self._noun = noun
        self._config = config
        self._tokens = config.bearers

    def check(self, request: Request, action: str, stream: str, known: Known | None = None) -> None:
        """Check that a request may do something to a stream.

        Args:
            request: the request, whose header ``Authorization`` and address of origin count.
            action: ``configure``, ``write`` or ``read``.
            stream: the stream's name.
            known: the user or token, if it is known already.

        Raises:
            HttpError: 401 without a known user or token, 403 when the user or token may not do this.
        """
        known = known or self.known(request)
        if not known.allows(action, stream):
            raise HttpError(403, f"{known.name} may not {action} {self._noun} '{stream:.200}'")

    def stream(self, request: Request, name: str, action: str = "read", known: Known | None = None) -> Stream:
        """Return the stream of a request.

        Args:
            request: as for ``check``.
            name: the stream's name.
            action: as for ``check``.
            known: as for ``check``.

        Raises:
            HttpError: 401 and 403 as for ``check``; 404 when there is no such stream.
        """
        self.check(request, action, name, known)
        try:
            return self._log.stream(name)
        except UnknownStream:
            raise HttpError(404, f"there is no {self._noun} '{name:.200}'") from None

    def known(self, request: Request) -> Known:
        """Return the user or token of a request, and note it at the connection.

        Raises:
            HttpError: 401 without a known user or token; 503 when it has too many connections.
        """
        known = self._known(request)
        request.scope["state"]["connection"].belongs_to(known.user)
        return known

    def _known(self, request: Request) -> Known:
        users = self._config.users
        if not self._tokens and not users:
            return self._permitted(ANONYMOUS)
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        given = given.strip()
        if scheme.lower() == "bearer" and given and self._tokens:
            return self.of_token(request, given)
        if scheme.lower() == "basic" and given and users:
            return self._basic(request, given)
        wanted = [
            *(["a bearer token, 'Authorization: Bearer <token>'"] if self._tokens else []),
            *(["a user and its password, 'Authorization: Basic <base64 of user:password>'"] if users else []),
        ]
        raise self._refusal(f"this door asks for {' or '.join(wanted)}")

    def of_token(self, request: Request, given: str) -> Known:
        """Return who shows a token in a request.

        Raises:
            HttpError: 401 when the token is not known.
        """
        shown = given.encode("utf-8", "replace")
        # Every token is compared, each in constant time, so that the duration reveals nothing.
        same = [hmac.compare_digest(token.token.encode(), shown) for token in self._tokens]
        found = [token for token, is_same in zip(self._tokens, same, strict=True) if is_same]
        if not found:
            raise self._failed(request, "the bearer token is not known here", ', error="invalid_token"')
        return Known(
            f"token {same.index(True)}",
            "the bearer token",
            lambda action, stream: any(token.allow(action, stream) for token in found),
            limited=all(token.limited for token in found),
            by_token=True,
        )

    def _basic(self, request: Request, given: str) -> Known:
        try:
            user, _, password = base64.b64decode(given, validate=True).decode().partition(":")
        except ValueError:
            user = password = ""
        return self.of_user(request, user, password)

    def of_user(self, request: Request, user: str, password: str) -> Known:
        """Return who gives a name and a password.

        Args:
            request: the request that they came with; the address that it comes from counts.
            user: the name.
            password: the password.

        Raises:
            HttpError: 401 when they are not known, or the user is not let in from this address.
        """
        if not knows(self._config.users, user, password.encode("utf-8", "replace")):
            raise self._failed(request, _UNKNOWN)
        if not self._config.admits(user, host_of(request)):
            raise self._failed(request, f"user '{user}' is let in from the door's own machine alone")
        return self._permitted(user)

    def _permitted(self, user: str) -> Known:
        permissions = permissions_of(self._config.permissions, user)
        return Known(
            user,
            f"user '{user}'",
            lambda action, stream: permissions is None or permissions.allow(action, stream),
            limited=permissions is not None,
        )

    def _failed(self, request: Request, text: str, of_bearer: str = "") -> HttpError:
        """Note credentials that are not accepted, which count once even if they are checked twice; return the error."""
        request.scope["state"]["connection"].wrong_credentials = text
        return self._refusal(text, of_bearer)

    def _refusal(self, text: str, of_bearer: str = "") -> HttpError:
        """Return a 401 with a challenge for each kind of credentials of the door; it closes the connection."""
        challenges = [*([_BEARER + of_bearer] if self._tokens else []), *([_BASIC] if self._config.users else [])]
        return HttpError(401, text, {"WWW-Authenticate": ", ".join(challenges), "Connection": "close"})


def host_of(request: Request) -> str | None:
    """Return the host that a request comes from; None where it is not known."""
    return request.client.host if request.client is not None else None
