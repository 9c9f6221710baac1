"""Sign-ins to the log's window, and the CSRF tokens of its forms.

A sign-in is a random session token in a cookie that scripts cannot read and that no request from another site carries.
Sessions are kept under the hashes of their tokens. A form has a CSRF token, which is a MAC of the session token under a
key of this process: another site can read neither, so it cannot send a form that is accepted (double submit with a
signature; RFC 6265bis §8.8.2 on why the cookie alone is not enough). Where nobody has to sign in, the CSRF token comes
from the key alone.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from spark_streams.server.http.authorization import Known
from spark_streams.server.users import displaced

TOKEN_BYTES: Final = 32


@dataclass(frozen=True)
class Session:
    """One sign-in.

    Args:
        known: who signed in.
        until_s: when it ends, on the clock of ``Sessions``.
    """

    known: Known
    until_s: float


class Sessions:
    """All sign-ins, in the memory of this process: they end with it.

    Args:
        duration_ms: how long a sign-in lasts.
        most: the most sign-ins; a further one ends the oldest of the user with the most.
        clock: returns seconds, monotonic.
    """

    def __init__(self, duration_ms: int, most: int, clock: Callable[[], float]) -> None:
        self._duration_s = duration_ms / 1000
        self._most = most
        self._clock = clock
        self._open: dict[bytes, Session] = {}
        self._key = secrets.token_bytes(TOKEN_BYTES)

    def begin(self, known: Known) -> str:
        """Begin a session, and return its token."""
        now = self._clock()
        self._open = {key: each for key, each in self._open.items() if each.until_s > now}
        while len(self._open) >= self._most:
            del self._open[displaced({key: each.known.user for key, each in self._open.items()}, known.user)]
        token = secrets.token_urlsafe(TOKEN_BYTES)
        self._open[_hashed(token)] = Session(known, now + self._duration_s)
        return token

    def find(self, token: str) -> Known | None:
        """Return who signed in with a session token; None for an unknown one, and for one that has ended."""
        session = self._open.get(_hashed(token))
        return session.known if session is not None and session.until_s > self._clock() else None

    def end(self, token: str) -> None:
        """End a sign-in, if there is one."""
        self._open.pop(_hashed(token), None)

    def csrf_token(self, token: str) -> str:
        """Return the CSRF token of a session's forms; for ``""`` that of all clients without a session."""
        return hmac.new(self._key, token.encode("utf-8", "replace"), hashlib.sha256).hexdigest()

    def has_csrf_token(self, token: str, given: str) -> bool:
        """Return whether a form was given the CSRF token of this session."""
        return hmac.compare_digest(self.csrf_token(token).encode(), given.encode("utf-8", "replace"))


def _hashed(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()
