"""One connection of the Event Hubs door: it signs in by SASL or by tokens, and is sent frames with all fields.

Clients of Event Hubs index the fields of performatives, so null ones at the end are written too.

Spec: AMQP 1.0 part 1 §1.4 (a field that is null may be left out); docs/specifications.md, Event Hubs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Any, Final
from weakref import WeakKeyDictionary

from spark_streams.log import Stream
from spark_streams.server.admission import Admission
from spark_streams.server.amqp.connection import AmqpConnection
from spark_streams.server.amqp.connection_links import AttachedLink, LinkResources
from spark_streams.server.amqp.error_conditions import UNAUTHORIZED, LinkRefused
from spark_streams.server.amqp.handshake import Handshake
from spark_streams.server.amqp.requests import Replies, Reply
from spark_streams.server.event_hubs.access import MOST_WRONG_TOKENS, Access
from spark_streams.server.event_hubs.config import EventHubsConfig
from spark_streams.server.turns import Timer
from spark_streams.wire.amqp.dialects.event_hubs import CBS_MECHANISM
from spark_streams.wire.amqp.engine.engine import Options

_MOST_TIMER_S: Final = 86_400.0
_MOST_EARLY_BYTES: Final = 512 << 10
"""More than is read at a time, as a peer may have sent everything before it is known to have signed in."""


class HubConnection(AmqpConnection):
    """One connection of the door.

    Args:
        node: links are attached to it.
        find: returns the stream that the name of a hub means.
        admission: the connection's place among those that the door may have.

    Attributes:
        access: what it may use, once SASL is over.
    """

    config: EventHubsConfig
    access: Access

    def __init__(self, node: LinkResources, find: Callable[[str], Stream | None], admission: Admission) -> None:
        super().__init__(node, admission)
        self._find = find
        self._replies: dict[str, Replies] = {}
        self._early_bytes = 0
        self._granted: WeakKeyDictionary[AttachedLink, Callable[[], object]] = WeakKeyDictionary()
        self._expiry = Timer(node.loop)

    def data_received(self, data: bytes) -> None:
        """Take bytes from the peer: a bounded number until it has signed in, as it may have links before."""
        if not self.established:
            self._early_bytes += len(data)
            if self._early_bytes > _MOST_EARLY_BYTES:
                self._admission.drop(f"it sent {self._early_bytes} bytes, and has not signed in")
                return
        super().data_received(data)

    def _shake_hands(self, certificate: Mapping[str, Any] | None) -> Handshake:
        # With a signature in its connection string, Microsoft's SDK for JavaScript leaves SASL out.
        mechanisms = (CBS_MECHANISM, "ANONYMOUS")
        return Handshake(self.config, self.peer_host, certificate, anonymous=mechanisms, skippable=True)

    def _options(self) -> Options:
        user = self._handshake.user if self._handshake.proven else None
        self.access = Access(self.config, self._find, self.peer_host, user)
        return replace(super()._options(), outcomes=False, all_fields=True)

    def _opened(self) -> None:
        """Count the connection as served, once it has signed in: until then the handshake's time limit runs."""
        if self.access.signed_in:
            self._establish()

    def connection_lost(self, exc: Exception | None) -> None:
        """Release what the connection and its links hold."""
        self._expiry.stop()
        super().connection_lost(exc)

    @property
    def known_as(self) -> str:
        """The peer's user, or the rules of its tokens, for people."""
        return ", ".join(self.access.names)

    def replies_from(self, address: str) -> Replies:
        """Return the links on which the peer gets replies from an address."""
        return self._replies.setdefault(address, Replies())

    # --- tokens

    def token_put(self) -> None:
        """Note that the peer has put a token."""
        self._opened()
        self._wait_for_expiry()

    def refuse_token(self, why: str) -> Coroutine[object, object, Reply]:
        """Note a wrong token; return the answer, which is late. After several the connection is closed instead."""
        self.access.wrong_tokens += 1
        return self._refused(self._admission.wrong_credentials(why), why)

    async def _refused(self, told: asyncio.Future[None], why: str) -> Reply:
        await told
        if self.access.wrong_tokens >= MOST_WRONG_TOKENS:
            self.guarded(lambda: self.close(UNAUTHORIZED, f"too many wrong tokens: {why}"))
        return Reply(HTTPStatus.UNAUTHORIZED, why)

    def grant(self, attached: AttachedLink, check: Callable[[], object]) -> None:
        """Serve a link as long as the tokens allow it.

        Args:
            attached: the link.
            check: raises ``LinkRefused`` once they do not; it is asked whenever one has run out.
        """
        self._granted[attached] = check

    def _wait_for_expiry(self) -> None:
        expires_s = self.access.expires_s
        if expires_s is not None:
            self._expiry.start(min(_MOST_TIMER_S, max(0.0, expires_s - time.time())), self.guarded, self._check_tokens)

    def _check_tokens(self) -> None:
        for attached, check in list(self._granted.items()):
            try:
                if not attached.ended:
                    check()
            except LinkRefused as refusal:
                attached.fail(refusal)
        self._wait_for_expiry()
