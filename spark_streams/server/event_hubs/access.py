"""What one connection may use: everything that its user may, or what the tokens cover that it has put to ``$cbs``.

A token is signed with a rule's key; a rule is a user of the log. It covers its uri and everything below it until it
expires, and another one of the rule for the same uri takes its place. Where tokens of several rules cover an address,
it may be used as any of them.

Spec: docs/specifications.md, Event Hubs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from spark_streams.errors import LocalProtocolError
from spark_streams.server.amqp.error_conditions import RESOURCE_LIMIT, UNAUTHORIZED, LinkRefused
from spark_streams.server.event_hubs.config import EventHubsConfig
from spark_streams.wire.amqp.cbs import SIGNATURE_TYPE
from spark_streams.wire.amqp.management import MANAGEMENT
from spark_streams.wire.amqp.shared_access import SharedAccessSignature, path_of

_UNKNOWN_KEY: Final = "\0"
"""Signs nothing that a peer sends: a rule that there is not takes as long as a wrong signature."""


class Access:
    """The access of one connection.

    Args:
        config: the rules, and the limit of tokens.
        peer_host: the peer's address, None when it is not known.
        user: the user who has signed in with SASL; None: tokens decide.
    """

    def __init__(self, config: EventHubsConfig, peer_host: str | None, user: str | None) -> None:
        self._config = config
        self._peer_host = peer_host
        self._user = user
        self._tokens: dict[tuple[str, ...], dict[str, SharedAccessSignature]] = {}
        """Path to rule to token."""

    @property
    def signed_in(self) -> bool:
        """Whether the peer has proved who it is."""
        return self._user is not None or bool(self._tokens)

    @property
    def names(self) -> list[str]:
        """The user, or the rules of the tokens."""
        if self._user is not None:
            return [self._user]
        return sorted({rule for tokens in self._tokens.values() for rule in tokens})

    def put(self, text: str, kind: str) -> None:
        """Take a token.

        Args:
            text: the token.
            kind: its type, as ``$cbs`` is told it.

        Raises:
            LinkRefused: it is not valid, or there are too many; the message has nothing of it.
        """
        token = self._checked(text, kind)
        self._drop_expired()
        count = sum(map(len, self._tokens.values()))
        if count >= self._config.max_tokens and token.rule not in self._tokens.get(token.path, {}):
            raise LinkRefused(RESOURCE_LIMIT, f"the connection has put {count} tokens, and may no more")
        self._tokens.setdefault(token.path, {})[token.rule] = token

    def _checked(self, text: str, kind: str = SIGNATURE_TYPE) -> SharedAccessSignature:
        if kind != SIGNATURE_TYPE:
            raise LinkRefused(
                UNAUTHORIZED, f"a token of type '{kind:.80}': this namespace knows {SIGNATURE_TYPE} alone"
            )
        try:
            token = SharedAccessSignature.parsed(text)
        except LocalProtocolError as fault:
            raise LinkRefused(UNAUTHORIZED, str(fault)) from fault
        key = self._config.users.get(token.rule)
        if not token.is_signed_by(_UNKNOWN_KEY if key is None else key) or key is None:
            raise LinkRefused(UNAUTHORIZED, "InvalidSignature: The token has an invalid signature.")
        if token.expires_s <= time.time():
            raise LinkRefused(UNAUTHORIZED, "ExpiredToken: The token is expired.")
        if not self._config.admits(token.rule, self._peer_host):
            raise LinkRefused(UNAUTHORIZED, f"rule '{token.rule}' is one of loopback_users, of this machine alone")
        return token

    def users(self, path: str) -> Sequence[str]:
        """Return the users as whom a path may be used, at least one.

        Raises:
            LinkRefused: no token covers it (amqp:unauthorized-access).
        """
        if self._user is not None:
            return [self._user]
        now, wanted = time.time(), path_of(path)
        covering = [token for end in range(len(wanted) + 1) for token in self._tokens.get(wanted[:end], {}).values()]
        found = [token.rule for token in covering if token.expires_s > now]
        if found:
            return found
        if covering:
            raise LinkRefused(UNAUTHORIZED, f"ExpiredToken: The token for '{path:.200}' is expired.")
        raise LinkRefused(UNAUTHORIZED, f"Unauthorized access. 'Listen' or 'Send' claim is required for '{path:.200}'.")

    def managers(self, hub: str, token: str) -> Sequence[str]:
        """Return the users as whom a hub may be asked about, by the connection's tokens or by one of the request.

        Raises:
            LinkRefused: neither covers it (amqp:unauthorized-access).
        """
        path = f"{hub}/{MANAGEMENT}"
        try:
            return self.users(path)
        except LinkRefused:
            checked = self._checked(token) if token else None
            if checked is None or not checked.covers(path):
                raise
            return [checked.rule]

    @property
    def expires_s(self) -> float | None:
        """When the next token runs out, in seconds since the epoch; None where none does."""
        now = time.time()
        times = (token.expires_s for tokens in self._tokens.values() for token in tokens.values())
        return min((float(expires_s) for expires_s in times if expires_s > now), default=None)

    def _drop_expired(self) -> None:
        now = time.time()
        for path, tokens in list(self._tokens.items()):
            for rule in [rule for rule, token in tokens.items() if token.expires_s <= now]:
                del tokens[rule]
            if not tokens:
                del self._tokens[path]
