"""Who may do what: bearer tokens (RFC 6750)."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from typing import Final

from spark_streams.server.feed.config import BearerToken
from spark_streams.server.feed.refusals import Refusal

__all__ = ["Access"]

_END: Final = {"Connection": "close"}
"""Who is not known does not keep a connection."""
_CHALLENGE: Final = {"WWW-Authenticate": 'Bearer realm="spark-streams"', **_END}
_WRONG: Final = {"WWW-Authenticate": 'Bearer realm="spark-streams", error="invalid_token"', **_END}


class Access:
    """The tokens of a door.

    Args:
        tokens: whom it lets in; none: everybody.
    """

    def __init__(self, tokens: tuple[BearerToken, ...]) -> None:
        self._tokens = tokens

    def check(self, authorization: str | None, action: str, stream: str) -> None:
        """Let a request pass, or not.

        Args:
            authorization: the header, None when there is none.
            action: ``configure``, ``write`` or ``read``.
            stream: the feed's name.

        Raises:
            Refusal: 401 without a token that is known, 403 when it does not allow this.
        """
        if not self.allowed(authorization, action, [stream]):
            raise Refusal(403, f"the bearer token does not allow to {action} feed '{stream:.200}'")

    def allowed(self, authorization: str | None, action: str, streams: Sequence[str]) -> list[str]:
        """Return those of ``streams`` that a request may do ``action`` to.

        Args:
            authorization: as ``check``.
            action: as ``check``.
            streams: names of feeds.

        Raises:
            Refusal: 401 without a token that is known.
        """
        if not self._tokens:
            return list(streams)
        scheme, _, given = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not given.strip():
            raise Refusal(401, "this door asks for a bearer token: send 'Authorization: Bearer <token>'", _CHALLENGE)
        shown = given.strip().encode("utf-8", "replace")
        # Every token is compared, each in constant time: how long it takes tells nothing.
        found = [token for token in self._tokens if hmac.compare_digest(token.token.encode(), shown)]
        if not found:
            raise Refusal(401, "the bearer token is not known here", _WRONG)
        return [stream for stream in streams if any(token.allows(action, stream) for token in found)]
