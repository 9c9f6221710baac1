"""Who is let in, in the words of all doors: users with their passwords, and who of them only from this machine.

As RabbitMQ has it, ``guest`` comes from a loopback address or not at all, whatever it signs in with.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Collection, Mapping
from typing import Final, Protocol

__all__ = [
    "DEFAULT_USERS",
    "LOOPBACK",
    "LOOPBACK_USERS",
    "UserSettings",
    "has_default_user",
    "has_own_users",
    "is_loopback",
    "knows",
    "may_come_from",
]

DEFAULT_USERS: Final[Mapping[str, str]] = {"guest": "guest"}
"""Whom doors that ask for a user know when nobody says otherwise; the password is no secret."""
LOOPBACK_USERS: Final = frozenset({"guest"})
LOOPBACK: Final = frozenset({"127.0.0.0/8", "::1"})


class UserSettings(Protocol):
    """What a door's settings say about users; the names are those of ``AmqpConfig``."""

    @property
    def users(self) -> Mapping[str, str]:
        """User name to password."""

    @property
    def loopback_users(self) -> frozenset[str]:
        """Users that are let in from loopback addresses only."""

    @property
    def loopback(self) -> frozenset[str]:
        """Addresses and networks that count as such."""

    @property
    def insecure(self) -> bool:
        """Whether these users are let in from everywhere all the same."""


def knows(users: Mapping[str, str], user: str, password: bytes) -> bool:
    """Say whether this is the user's password; an unknown user takes as long as a wrong password."""
    expected = users.get(user)
    same = hmac.compare_digest((expected or "").encode(), password)
    return same and expected is not None


def may_come_from(settings: UserSettings, user: str, peer_host: str | None) -> bool:
    """Say whether a user is let in from an address; None is one that is not known."""
    return settings.insecure or user not in settings.loopback_users or is_loopback(peer_host, settings.loopback)


def is_loopback(host: str | None, networks: Collection[str] = LOOPBACK) -> bool:
    """Say whether an address, IPv4 within IPv6 too, is in one of the networks."""
    try:
        address = ipaddress.ip_address((host or "").partition("%")[0])
    except ValueError:
        return False
    plain = getattr(address, "ipv4_mapped", None) or address
    return any(plain in ipaddress.ip_network(network) for network in networks)


def has_own_users(settings: UserSettings) -> bool:
    """Say whether somebody may come from another machine with a password that is not everybody's."""
    return settings.users != DEFAULT_USERS and any(user not in settings.loopback_users for user in settings.users)


def has_default_user(settings: UserSettings) -> bool:
    """Say whether somebody may come from another machine with a password that is everybody's."""
    return any(
        settings.users.get(user) == password and user not in settings.loopback_users
        for user, password in DEFAULT_USERS.items()
    )
