"""The access of one connection: all that its user may use, or what the tokens cover that it has put to ``$cbs``.

A token is signed with a rule's key; a rule is a user of the log. A token covers a hub, what lies below one, or the
whole namespace, until it expires; a later token of the same rule for the same place, however it is spelled, replaces
it. Where tokens of several rules cover an address, it may be used as any of them.

Spec: docs/specifications.md, Event Hubs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from spark_streams.errors import LocalProtocolError
from spark_streams.log import Stream
from spark_streams.server.amqp.error_conditions import UNAUTHORIZED, LinkRefused
from spark_streams.server.event_hubs.addresses import HubAddress, read_address
from spark_streams.server.event_hubs.config import EventHubsConfig
from spark_streams.wire.amqp.cbs import SIGNATURE_TYPE
from spark_streams.wire.amqp.engine.session import RESOURCE_LIMIT
from spark_streams.wire.amqp.management import MANAGEMENT
from spark_streams.wire.amqp.shared_access import SharedAccessSignature

MOST_WRONG_TOKENS: Final = 3
_UNKNOWN_KEY: Final = "\0"
"""The key for a rule that does not exist: no signature fits it, and the check takes as long as that of a wrong one."""


_Place: TypeAlias = tuple[str, ...]
"""What a token covers, to be compared with the ``place`` of an address; empty for the whole namespace."""
_Holder: TypeAlias = tuple[str, str]
"""The rule to which a token grants access, and the name of the hub, or of the namespace's host."""


class WrongToken(Exception):
    """A token is not valid; the message quotes nothing of it."""


@dataclass(eq=False)
class Access:
    """The access of one connection.

    Args:
        config: the rules, and the limit of tokens.
        find: returns the stream that the name of a hub means; None: none.
        peer_host: the peer's address, None when it is not known.
        user: the user who has signed in with SASL; None: tokens decide.

    Attributes:
        wrong_tokens: how many the peer has shown; from ``MOST_WRONG_TOKENS`` on, no token is checked.
    """

    config: EventHubsConfig
    find: Callable[[str], Stream | None]
    peer_host: str | None
    user: str | None
    wrong_tokens: int = 0
    _grants: dict[_Place, dict[_Holder, int]] = field(default_factory=dict)
    """Place to holder to the time, in seconds since the epoch, when the token runs out."""

    @property
    def signed_in(self) -> bool:
        """Whether the peer has proved who it is."""
        return self.user is not None or bool(self._grants)

    @property
    def names(self) -> list[str]:
        """The user, or the rules of the tokens."""
        if self.user is not None:
            return [self.user]
        return sorted({rule for grants in self._grants.values() for rule, _ in grants})

    def put(self, text: str, kind: str) -> None:
        """Take a token.

        Args:
            text: the token.
            kind: its type, as sent to ``$cbs``.

        Raises:
            WrongToken: it is not valid.
            LinkRefused: there are too many tokens.
        """
        place, holder, expires_s = self._checked(text, kind)
        self._drop_expired()
        there = self._grants.get(place, {})
        for other in [each for each in there if each[0] == holder[0] and self.find(each[1]) is self.find(holder[1])]:
            del there[other]
        count = sum(map(len, self._grants.values()))
        if count >= self.config.max_tokens:
            raise LinkRefused(RESOURCE_LIMIT, f"the connection has put {count} tokens, and may no more")
        self._grants.setdefault(place, {})[holder] = expires_s

    def _checked(self, text: str, kind: str = SIGNATURE_TYPE) -> tuple[_Place, _Holder, int]:
        if self.wrong_tokens >= MOST_WRONG_TOKENS:
            raise LinkRefused(UNAUTHORIZED, f"{MOST_WRONG_TOKENS} tokens of this connection were wrong")
        if kind != SIGNATURE_TYPE:
            raise WrongToken(f"a token of type '{kind:.80}': this namespace knows {SIGNATURE_TYPE} alone")
        try:
            token = SharedAccessSignature.parsed(text)
        except LocalProtocolError as fault:
            raise WrongToken(str(fault)) from fault
        key = self.config.users.get(token.rule)
        if not token.is_signed_by(_UNKNOWN_KEY if key is None else key) or key is None:
            raise WrongToken("InvalidSignature: The token has an invalid signature.")
        if token.expires_s <= time.time():
            raise WrongToken("ExpiredToken: The token is expired.")
        if not self.config.admits(token.rule, self.peer_host):
            raise WrongToken(f"rule '{token.rule}' is one of loopback_users, of this machine alone")
        host, path = token.resource or (None, "")
        if host is None or (host and not self.config.is_own(host)):
            raise WrongToken(f"InvalidAudience: the uri '{token.uri:.200}' is none of sb://<host>/<hub>, nor this door")
        covered = read_address(f"sb:///{path}") if path else HubAddress("", host, ())
        return covered.place, (token.rule, covered.hub), token.expires_s

    def _covers(self, place: _Place, name: str, address: HubAddress) -> bool:
        """Return whether a place covers an address: case counts only where nothing else differs."""
        meant = self.find(address.hub) if place else None  # the host's name may be that of a hub, and mean the hub
        return address.place[: len(place)] == place and self.find(name) is meant

    def users(self, address: HubAddress) -> Sequence[str]:
        """Return the users as whom an address may be used, at least one.

        Raises:
            LinkRefused: no token covers it (amqp:unauthorized-access).
        """
        if self.user is not None:
            return [self.user]
        now, above = time.time(), [address.place[:end] for end in range(len(address.place) + 1)]
        grants = [(place, *each) for place in above for each in self._grants.get(place, {}).items()]
        covering = [(rule, until) for place, (rule, name), until in grants if self._covers(place, name, address)]
        found = [rule for rule, expires_s in covering if expires_s > now]
        if found:
            return found
        path = f"{address.path:.200}"
        if covering:
            raise LinkRefused(UNAUTHORIZED, f"ExpiredToken: The token for '{path}' is expired.")
        raise LinkRefused(UNAUTHORIZED, f"Unauthorized access. 'Listen' or 'Send' claim is required for '{path}'.")

    def managers(self, hub: str, token: str) -> Sequence[str]:
        """Return the users as whom a hub may be asked about, by the connection's tokens or by one of the request.

        Raises:
            WrongToken: the one of the request is not valid.
            LinkRefused: neither covers it (amqp:unauthorized-access).
        """
        address = HubAddress(f"{hub}/{MANAGEMENT}", hub, (hub.lower(), MANAGEMENT))
        try:
            return self.users(address)
        except LinkRefused:
            if token:
                place, (rule, name), _ = self._checked(token)
                if self._covers(place, name, address):
                    return [rule]
            raise

    @property
    def expires_s(self) -> float | None:
        """When the next token runs out, in seconds since the epoch; None where none does."""
        now = time.time()
        times = (each for grants in self._grants.values() for each in grants.values())
        return min((float(expires_s) for expires_s in times if expires_s > now), default=None)

    def _drop_expired(self) -> None:
        now, places = time.time(), self._grants.items()
        living = {place: {who: until for who, until in grants.items() if until > now} for place, grants in places}
        self._grants = {place: grants for place, grants in living.items() if grants}
