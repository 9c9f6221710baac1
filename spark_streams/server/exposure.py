"""Checks whether a door may listen on its host: beyond loopback only if it requires credentials.

The server checks all doors before any of them listens, because all serve the same streams.
"""

from __future__ import annotations

import socket

from spark_streams.server.activity import peer_text
from spark_streams.server.counters import logger
from spark_streams.server.door_config import DoorConfig, OpenAccess
from spark_streams.server.users import is_loopback


class DoorExposed(ValueError):
    """A door would listen beyond loopback, and let in strangers.

    Args:
        door: its name, as in ``LogServer.urls``.
        where: host and port.
        access: why it would let in strangers.
    """

    def __init__(self, door: str, where: str, access: OpenAccess) -> None:
        wanted = "unset" if access.setting == "allow_anonymous" else "set"
        super().__init__(
            f"the door {door} would listen on {where}, which other machines reach, and {access.problem}: {wanted} "
            f"{access.setting} of its settings, listen on 127.0.0.1, or set insecure to let in everybody"
        )
        self.door = door
        self.where = where
        self.access = access


def exposed(door: str, settings: DoorConfig) -> DoorExposed | None:
    """Return why a door must not be opened unless it is ``insecure``; None when it may.

    Raises:
        OSError: the host's name cannot be resolved.
    """
    open_access = settings.open_access
    local = sorted(settings.loopback_users & settings.users.keys()) if settings.insecure else []
    if open_access is None and local:
        open_access = OpenAccess(f"user '{local[0]}' may come from everywhere", "insecure")
    if open_access is None:
        return None
    # The addresses that a server binds to: no host means every address, and one name may have several.
    found = socket.getaddrinfo(settings.host or None, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    if all(is_loopback(str(address[0])) for *_, address in found):
        return None
    return DoorExposed(door, peer_text((settings.host, settings.port)), open_access)


def may_listen(door: str, config: DoorConfig) -> None:
    """Check that a door may be opened where its settings say; warn of one that is exposed and ``insecure``.

    Raises:
        DoorExposed: it would listen beyond loopback and let in strangers, and is not ``insecure``.
        OSError: the host's name cannot be resolved.
    """
    fault = exposed(door, config)
    if fault is None:
        return
    if not config.insecure:
        raise fault
    logger.warning(
        "INSECURE: the door %s listens on %s, which other machines reach, and %s: strangers are let in",
        door,
        fault.where,
        fault.access.problem,
    )
