"""What a user may do, in the words of all doors: configure, write and read, by the names of streams."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["ANONYMOUS", "EVERYBODY_ELSE", "Permissions", "permissions_of"]

EVERYBODY_ELSE: Final = "*"
"""Whose permissions are those of every user who has none of its own."""
ANONYMOUS: Final = "anonymous"
"""Who signs in with nothing."""


@dataclass(frozen=True)
class Permissions:
    """What one user may do, by regular expressions over stream names, which have to match whole names.

    Args:
        configure: create and delete.
        write: publish, and store offsets.
        read: subscribe, and ask for what a stream holds, for stored offsets and sequences.
    """

    configure: str = ".*"
    write: str = ".*"
    read: str = ".*"

    def __post_init__(self) -> None:
        for action in ("configure", "write", "read"):
            try:
                re.compile(getattr(self, action))
            except re.error as fault:
                raise ValueError(f"{action} is {getattr(self, action)!r}, no regular expression: {fault}") from fault

    def allow(self, action: str, stream: str) -> bool:
        """Say whether ``action`` (``configure``, ``write`` or ``read``) is allowed."""
        pattern: str = getattr(self, action)
        return re.fullmatch(pattern, stream) is not None


def permissions_of(permissions: Mapping[str, Permissions], user: str) -> Permissions | None:
    """Return what a user may do: what is said of it, else of everybody else; None: everything."""
    return permissions.get(user, permissions.get(EVERYBODY_ELSE))
