"""Files with passwords and tokens that ``spark-streams log serve`` reads; others must not be able to."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final

from spark_streams.errors import OptionError
from spark_streams.server import BearerToken

__all__ = ["tokens_of", "users_of", "warn_if_others_may_read"]

USER_FILE: Final = "--user-file"
TOKEN_FILE: Final = "--token-file"

logger = logging.getLogger("spark_streams.cli")


def users_of(path: Path) -> dict[str, str]:
    """Read users and their passwords, ``NAME:PASSWORD`` a line.

    Raises:
        OptionError: the file cannot be read, or a line is something else; the message has its number alone.
    """
    users = {}
    for number, line in _lines(path, USER_FILE):
        name, colon, password = line.partition(":")
        if not colon or not name:
            raise OptionError(USER_FILE, f"{path}, line {number}: expected NAME:PASSWORD (it is not shown here)")
        users[name] = password
    return users


def tokens_of(path: Path) -> tuple[BearerToken, ...]:
    """Read bearer tokens, one a line.

    Raises:
        OptionError: the file cannot be read, or a line is no token; the message has its number alone.
    """
    tokens = []
    for number, line in _lines(path, TOKEN_FILE):
        try:
            tokens.append(BearerToken(line))
        except ValueError as fault:
            raise OptionError(TOKEN_FILE, f"{path}, line {number}: {fault}") from None
    return tuple(tokens)


def warn_if_others_may_read(path: Path) -> None:
    """Warn of a file with secrets that other users of this machine can read; where there are no such modes, never."""
    if os.name == "posix" and path.stat().st_mode & 0o044:
        logger.warning("%s holds secrets, and other users of this machine can read it: chmod 600 %s", path, path)


def _lines(path: Path, option: str) -> list[tuple[int, str]]:
    """Return the lines that are not blank and do not begin with ``#``, with their numbers."""
    try:
        content = path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as fault:
        reason = fault.strerror if isinstance(fault, OSError) else "it is no UTF-8"
        raise OptionError(option, f"{path} cannot be read: {reason}") from None
    warn_if_others_may_read(path)
    lines = enumerate((line.strip("\r\n") for line in content.split("\n")), 1)
    found = [(number, line) for number, line in lines if line.strip() and not line.startswith("#")]
    if not found:
        raise OptionError(option, f"{path} is empty, expected a line for each")
    return found
