"""Whether a door may listen where it is told to: beyond loopback only if it asks for credentials.

It is decided for all doors before any of them listens: they have the same streams behind them.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Final, Protocol

from spark_streams.server.users import UserSettings, is_loopback

__all__ = ["DEFAULT_USER", "NO_USERS", "DoorExposed", "ExposedSettings", "Unguarded", "exposed"]


@dataclass(frozen=True)
class Unguarded:
    """Why a door would let in strangers.

    Args:
        problem: in words.
        setting: what is to be set of the door's settings: ``users``, ``tokens or users``, or ``allow_anonymous``,
            which is to be unset.
    """

    problem: str
    setting: str


NO_USERS: Final = Unguarded("nobody but guest is named who may sign in", "users")
DEFAULT_USER: Final = Unguarded("guest may come from there with password guest, which everybody knows", "users")


class ExposedSettings(UserSettings, Protocol):
    """What all doors' settings say about it."""

    @property
    def host(self) -> str:
        """Address to bind to."""

    @property
    def port(self) -> int:
        """TCP port."""

    @property
    def unguarded(self) -> Unguarded | None:
        """Why strangers would be let in; None when they would not."""


class DoorExposed(ValueError):
    """A door would listen beyond loopback, and let in strangers.

    Args:
        door: which one, as in ``LogServer.urls``.
        where: host and port.
        unguarded: why.
    """

    def __init__(self, door: str, where: str, unguarded: Unguarded) -> None:
        super().__init__(door, where, unguarded)
        self.door = door
        self.where = where
        self.unguarded = unguarded

    def __str__(self) -> str:
        wanted = "unset" if self.unguarded.setting == "allow_anonymous" else "set"
        return (
            f"the door {self.door} would listen on {self.where}, which other machines reach, and "
            f"{self.unguarded.problem}: {wanted} {self.unguarded.setting} of its settings, listen on 127.0.0.1, or set "
            "insecure to let in everybody"
        )


def exposed(door: str, settings: ExposedSettings) -> DoorExposed | None:
    """Return why a door must not be opened unless it is to be ``insecure``; None when it may.

    Raises:
        OSError: the host's name cannot be resolved.
    """
    unguarded = settings.unguarded
    local = sorted(settings.loopback_users & settings.users.keys()) if settings.insecure else []
    if unguarded is None and local:
        unguarded = Unguarded(f"user '{local[0]}' may come from everywhere", "insecure")
    if unguarded is None:
        return None
    # What a server binds to: no host is every address, and one name may have several.
    found = socket.getaddrinfo(settings.host or None, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    if all(is_loopback(str(address[0])) for *_, address in found):
        return None
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return DoorExposed(door, f"{host}:{settings.port}", unguarded)
