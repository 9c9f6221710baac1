"""What the system says when there is no room for more, so that a full disk is told apart from a broken one."""

from __future__ import annotations

import errno
from typing import Final

__all__ = ["is_full"]

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def is_full(fault: BaseException) -> bool:
    """Say whether a failure is a disk, or a quota, that is full: what was refused can be done when there is room."""
    return isinstance(fault, OSError) and fault.errno in _FULL
