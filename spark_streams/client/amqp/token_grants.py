"""Hands tokens to a peer over its address ``$cbs``, for each hub before its first link, and again before they run out.

::

    grant(hub) --> token --> put-token --> status-code      before the first link to a hub: its caller waits
    serve()    --> due?  --> put-token ··> status-code      within the turns of the connection: nobody waits

Nothing runs in the background: a token is due while the connection turns, as it does in each read and each write.

Spec: docs/specifications.md, H-1, H-2.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from spark_streams.client.amqp.request_pair import RequestPair
from spark_streams.client.amqp.sign_in import TokenSource
from spark_streams.client.retry import Deadline
from spark_streams.endpoint import Endpoint
from spark_streams.errors import AuthenticationFailed, NotFound, Refused, SparkStreamsError
from spark_streams.wire.amqp.cbs import TAKEN, Reply, Token, audience, decode_reply, encode_put_token
from spark_streams.wire.amqp.dialects.event_hubs import CBS
from spark_streams.wire.amqp.engine.endpoints import Condition
from spark_streams.wire.amqp.engine.links import Session

RENEWED_AT: Final = 0.9
"""The fraction of a token's time after which it is renewed, as the service's own client does."""
UNKNOWN_S: Final = 300.0
"""Seconds after which a token without a time of expiry is renewed."""
AGAIN_S: Final = 10.0
"""Seconds until the next try, where there is no newer token yet."""
_NOT_FOUND: Final = 404
_PASSES: Final = 500
"""The first status that is not the token's fault."""

_log = logging.getLogger(__name__)


class Carrier(Protocol):
    """The connection."""

    endpoint: Endpoint
    timeout_ms: int

    def session(self) -> Session:
        """Return a new session."""

    def wait(self, done: Callable[[], bool], deadline: Deadline, what: str) -> None:
        """Turn until ``done()``."""

    def fault(self, condition: Condition | None, context: str) -> SparkStreamsError:
        """Return the error that a condition of the peer means."""


@dataclass
class _Grant:
    """What is known of one hub's token.

    Args:
        token: the token that the peer has; None before it has taken one.
        due_s: when the next token is due, in seconds since the epoch.
        asked: the token that is to be handed over, or was handed over and has no answer yet; None if there is none.
        request: the message-id of the request that handed it over; None before that.
        deadline: for the answer.
        fault: why the peer did not take the first token.
    """

    token: Token | None = None
    due_s: float = 0.0
    asked: Token | None = None
    request: str | None = None
    deadline: Deadline | None = None
    fault: SparkStreamsError | None = None


class TokenGrants:
    """The tokens that the peer of one connection has.

    Args:
        connection: it calls ``serve`` in each turn.
        source: where tokens come from.
    """

    def __init__(self, connection: Carrier, source: TokenSource) -> None:
        self._connection = connection
        self._source = source
        self._grants: dict[str, _Grant] = {}
        self._links: RequestPair | None = None
        self._is_busy = self._has_answered = False
        self._next_s = float("inf")

    def grant(self, address: str) -> None:
        """Hand over a token for the hub of an address, unless the peer has one, and wait until it is taken.

        Raises:
            AuthenticationFailed: the token has expired or is for another hub, or the peer refuses it.
            OptionError: the token cannot be read.
            NotFound: there is no such hub.
            DeadlineExceeded, TransportError: the peer does not answer, or the connection broke.
        """
        hub = address.lstrip("/").partition("/")[0]
        if not hub or hub.startswith("$") or hub in self._grants:
            return
        token = self._source.token(hub)
        grant = self._grants[hub] = _Grant()
        deadline = self._ask(grant, token)
        self._connection.wait(lambda: grant.asked is None, deadline, f"no answer from '{CBS}'")
        if grant.fault is not None:
            del self._grants[hub]
            raise grant.fault

    def held(self, hub: str) -> str | None:
        """Return the text of the token that the peer has for a hub; None if there is none."""
        grant = self._grants.get(hub)
        return None if grant is None or grant.token is None else grant.token.text

    def serve(self) -> None:
        """Hand over what is due, and read answers; never wait.

        Raises:
            AuthenticationFailed: a token was not renewed, and the one that the peer has runs out.
            SparkStreamsError: the peer refused the new one, does not answer, or closed ``$cbs``.
        """
        now_s = self._source.clock()
        if now_s >= self._next_s:
            for hub, grant in self._grants.items():
                if grant.asked is None and grant.token is not None and now_s >= grant.due_s:
                    self._renew(hub, grant, grant.token)
            self._schedule()
        if self._is_busy:
            self._exchange()

    # --- when

    def _renew(self, hub: str, grant: _Grant, former: Token) -> None:
        """Ask for a newer token; without one, go on with the old one as long as it is valid."""
        try:
            token = self._source.token(hub)
        except SparkStreamsError as fault:
            self._go_on(grant, former, fault)
            return
        if token != former or former.expires_s is None:
            self._ask(grant, token)
        else:
            self._go_on(grant, former, self._source.refused(hub, "the token runs out, and there is no newer one"))

    def _go_on(self, grant: _Grant, former: Token, fault: SparkStreamsError) -> None:
        """Go on with the former token, as long as it holds."""
        now_s, until_s = self._source.clock(), former.expires_s
        if until_s is None or now_s >= until_s:
            raise fault
        _log.warning("%s; going on with the former token for %d s", fault, until_s - now_s)
        grant.due_s = min(now_s + AGAIN_S, until_s)
        self._schedule()

    def _ask(self, grant: _Grant, token: Token) -> Deadline:
        deadline = Deadline(self._connection.timeout_ms)
        grant.asked, grant.request, grant.deadline, self._is_busy = token, None, deadline, True
        return deadline

    def _taken(self, grant: _Grant, token: Token) -> None:
        now_s = self._source.clock()
        left_s = UNKNOWN_S if token.expires_s is None else RENEWED_AT * (token.expires_s - now_s)
        grant.token, grant.due_s = token, now_s + max(left_s, 0.0)
        self._schedule()

    def _schedule(self) -> None:
        waiting = [each.due_s for each in self._grants.values() if each.token is not None and each.asked is None]
        self._next_s = min(waiting, default=float("inf"))

    # --- how

    def _exchange(self) -> None:
        links = self._opened()
        for hub, grant in self._grants.items():
            if grant.asked is not None and grant.request is None and links.room:
                grant.request = uuid.uuid4().hex
                name, reply_to = audience(self._source.host, hub), links.receiver.name
                links.send(encode_put_token(grant.asked, name, grant.request, reply_to))
            elif grant.asked is not None and grant.deadline is not None:
                grant.deadline.left_s(f"{self._connection.endpoint.address}: no answer from '{CBS}'")
        if links.refusal is not None:
            raise self._unusable(Condition.of(next(iter(links.refusal.fields), None)))
        for reply in links.received(decode_reply):
            self._answered(reply)
        self._is_busy = any(grant.asked is not None for grant in self._grants.values())

    def _opened(self) -> RequestPair:
        """Return the links; attach them again where the peer has closed them since its last answer.

        Raises:
            SparkStreamsError: the peer closes them at once, or without an answer.
        """
        if self._links is None:
            name = f"spark-streams-cbs-{uuid.uuid4().hex}"
            self._links = RequestPair(self._connection.session(), name, CBS, settles=False)
        ended = self._links.ended
        if ended is None:
            return self._links
        self._links.end()
        self._links = None
        if not self._has_answered or any(grant.request is not None for grant in self._grants.values()):
            raise self._unusable(ended.error)
        self._has_answered = False
        return self._opened()

    def _unusable(self, condition: Condition | None) -> SparkStreamsError:
        where = f"signing in at {self._connection.endpoint.address}"
        fault = self._connection.fault(condition, f"{where}: '{CBS}'")
        if fault.retriable:
            return fault
        name = "" if condition is None else condition.name
        return AuthenticationFailed(name, f"the peer takes no tokens over '{CBS}': {fault}", where)

    def _answered(self, reply: Reply) -> None:
        self._has_answered = True
        for hub, grant in self._grants.items():
            if grant.request != reply.request or grant.asked is None:
                continue
            asked, grant.asked, grant.request, grant.deadline = grant.asked, None, None, None
            if reply.status in TAKEN:
                self._taken(grant, asked)
                continue
            fault = self._refused(hub, reply.status, reply.description)
            if grant.token is None:
                grant.fault = fault
            elif not fault.retriable:
                raise fault
            else:
                self._go_on(grant, grant.token, fault)

    def _refused(self, hub: str, status: int, description: str) -> SparkStreamsError:
        said = f"status {status}" + (f", {description}" if description else "")
        if status == _NOT_FOUND:
            return NotFound("amqp:not-found", said, f"signing in for '{hub}' at {self._connection.endpoint.address}")
        if status < _PASSES:
            return self._source.refused(hub, f"the peer refused the token ({said})")
        fault = Refused(
            f"status {status}", description, f"signing in for '{hub}' at {self._connection.endpoint.address}"
        )
        fault.retriable = True
        return fault
