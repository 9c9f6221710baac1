"""Who is let in, in the words of all doors: users with their passwords, and what each of them may do."""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

ACTIONS: Final = ("configure", "write", "read")
"""What a user may do to a stream."""
EVERYBODY_ELSE: Final = "*"
"""Whose permissions are those of every user who has none of its own."""
ANONYMOUS: Final = "anonymous"
"""Who signs in with nothing."""
LOOPBACK: Final = frozenset({"127.0.0.0/8", "::1"})


class StreamPatterns:
    """For each action a regular expression over stream names, which has to match whole names.

    Raises:
        ValueError: one is no regular expression; the message names the action.
    """

    configure: str
    write: str
    read: str

    def __post_init__(self) -> None:
        for action in ACTIONS:
            try:
                re.compile(getattr(self, action))
            except re.error as fault:
                raise ValueError(f"{action} is {getattr(self, action)!r}, no regular expression: {fault}") from fault

    def allow(self, action: str, stream: str) -> bool:
        """Say whether ``action`` (``configure``, ``write`` or ``read``) is allowed."""
        pattern: str = getattr(self, action)
        return re.fullmatch(pattern, stream) is not None


@dataclass(frozen=True)
class Permissions(StreamPatterns):
    """What one user may do, by regular expressions over stream names, which have to match whole names.

    Args:
        configure: create and delete.
        write: publish, and store offsets.
        read: subscribe, and ask for what a stream holds, for stored offsets and sequences.
    """

    configure: str = ".*"
    write: str = ".*"
    read: str = ".*"


def permissions_of(permissions: Mapping[str, Permissions], user: str) -> Permissions | None:
    """Return what a user may do: what is said of it, else of everybody else; None: everything."""
    return permissions.get(user, permissions.get(EVERYBODY_ELSE))


def knows(users: Mapping[str, str], user: str, password: bytes) -> bool:
    """Say whether this is the user's password; an unknown user takes as long as a wrong password."""
    expected = users.get(user)
    same = hmac.compare_digest((expected or "").encode(), password)
    return same and expected is not None


def is_loopback(host: str | None, networks: Collection[str] = LOOPBACK) -> bool:
    """Say whether an address, IPv4 within IPv6 too, is in one of the networks."""
    try:
        address = ipaddress.ip_address((host or "").partition("%")[0])
    except ValueError:
        return False
    plain = getattr(address, "ipv4_mapped", None) or address
    return any(plain in ipaddress.ip_network(network) for network in networks)
