"""Users, their credentials, the delay of guesses, and their permissions, for all doors."""

from __future__ import annotations

import hmac
import ipaddress
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final

ACTIONS: Final = ("configure", "write", "read")
"""The actions on a stream that a user may have permission for."""
EVERYBODY_ELSE: Final = "*"
"""The user name whose permissions apply to every user without permissions of its own."""
ANONYMOUS: Final = "anonymous"
"""The user name of a peer that signs in without credentials."""
LOOPBACK: Final = frozenset({"127.0.0.0/8", "::1"})
LONGEST_DELAY_S: Final = 4.0
"""The longest delay; clients wait longer than this for an answer."""
FORGOTTEN_S: Final = 60.0
MOST_ADDRESSES: Final = 4_096


class StreamPatterns:
    """One regular expression over stream names for each action; it has to match the whole name.

    Raises:
        ValueError: a pattern is no regular expression; the message names the action.
    """

    def __post_init__(self) -> None:
        for action in ACTIONS:
            try:
                re.compile(getattr(self, action))
            except re.error as fault:
                raise ValueError(f"{action} is {getattr(self, action)!r}, no regular expression: {fault}") from fault

    def allow(self, action: str, stream: str) -> bool:
        """Return whether ``action`` (``configure``, ``write`` or ``read``) is allowed on a stream."""
        pattern: str = getattr(self, action)
        return re.fullmatch(pattern, stream) is not None


@dataclass(frozen=True)
class Permissions(StreamPatterns):
    """One user's permissions: a regular expression over stream names for each action; it has to match the whole name.

    Args:
        configure: streams that it may create and delete.
        write: streams that it may publish to, and store offsets of.
        read: streams that it may subscribe to, and query for what they hold, for stored offsets and sequences.
    """

    configure: str = ".*"
    write: str = ".*"
    read: str = ".*"


def permissions_of(permissions: Mapping[str, Permissions], user: str) -> Permissions | None:
    """Return a user's permissions: its own, else those of ``EVERYBODY_ELSE``; None: it may do everything."""
    return permissions.get(user, permissions.get(EVERYBODY_ELSE))


def knows(users: Mapping[str, str], user: str, password: bytes) -> bool:
    """Return whether this is the user's password; an unknown user takes as long as a wrong password."""
    expected = users.get(user)
    same = hmac.compare_digest((expected or "").encode(), password)
    return same and expected is not None


def displaced(owners: Mapping[Any, str], newcomer: str) -> Any:
    """Return the place to be given up for a newcomer: the oldest one of the user that would then have the most.

    Args:
        owners: all places, each with its user, the oldest first.
        newcomer: the user who wants one.
    """
    most, _ = max(Counter([*owners.values(), newcomer]).items(), key=itemgetter(1))
    return next(place for place, user in owners.items() if user == most)


class Guesses:
    """Wrong credentials at all doors of a server, by the address that they came from.

    They delay the answers to further wrong credentials, and no other answer, as many peers may share an address.

    Args:
        clock: returns seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._recent: dict[Hashable, tuple[int, float]] = {}
        """Address to how many came from it and when the last ones did; the latest address is the last."""

    def delay_s(self, host: str | None, first_s: float) -> float:
        """Note wrong credentials; return how much later they are answered.

        Args:
            host: the address that they came from, None when it is not known.
            first_s: the delay of the first ones; it doubles with each further one, up to ``LONGEST_DELAY_S``.
        """
        now, where = self._clock(), peer_network(host)
        count, last_s = self._recent.pop(where, (0, now))
        count = count + 1 if now - last_s < FORGOTTEN_S else 1
        self._recent[where] = count, now
        if len(self._recent) > MOST_ADDRESSES:
            del self._recent[next(iter(self._recent))]
        return max(first_s, min(LONGEST_DELAY_S, first_s * 2.0 ** min(count - 1, 16)))


def common_name(certificate: Mapping[str, Any] | None) -> str | None:
    """Return the common name of a certificate, or None."""
    for relative in (certificate or {}).get("subject", ()):
        for name, value in relative:
            if name == "commonName":
                return str(value)
    return None


def is_loopback(host: str | None, networks: Collection[str] = LOOPBACK) -> bool:
    """Return whether an address, IPv4 within IPv6 too, is in one of the networks."""
    plain = _address(host)
    return plain is not None and any(plain in ipaddress.ip_network(network) for network in networks)


def peer_network(host: str | None) -> Hashable:
    """Return what counts as one peer in limits by address: an IPv4 address, or the first 64 bits of an IPv6 address.

    Args:
        host: the address that the peer comes from; None if it is not known: all such peers count as one.
    """
    address = _address(host)
    return address if address is None or address.version == 4 else ipaddress.ip_network((address, 64), strict=False)


def host_name(host: str) -> str:
    """Return a host in a form to compare: a name in lower case, without a dot at its end; an address in one form."""
    return str(_address(host) or host.lower().removesuffix("."))


def is_host(text: str) -> bool:
    """Return whether a text is the name of a host, or an address, as clients write it, and nothing more."""
    return _address(text) is not None or re.fullmatch(r"[\w-]+(\.[\w-]+)*\.?", text, re.ASCII) is not None


def _address(host: str | None) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(host.partition("%")[0] if host and ":" in host else host or "")
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
