"""Numbers as filters write them, in text and in the protobuf form.

::

    LONG    = ["+" | "-"] digits                                      within 64 bits
    DOUBLE  = LONG ["." digits] [("e" | "E") ["+" | "-"] digits]      finite; written as its shortest decimal

Spec: docs/specifications.md, E-7, E-8.
"""

from __future__ import annotations

import math
import re
from typing import Final

__all__ = ["MAX_INT64", "MIN_INT64", "NUMBER", "read_double", "read_long"]

MIN_INT64: Final = -(2**63)
MAX_INT64: Final = 2**63 - 1
NUMBER: Final = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
"""A number of either type; a LONG has neither of the groups."""

_INT64_DIGITS: Final = 19


def read_long(text: str) -> int | None:
    """Return the value of a LONG, of any length; None if it is none, or does not fit into 64 bits."""
    number = NUMBER.fullmatch(text)
    if number is None or number[1] or number[2]:
        return None
    # Digits are counted first: int() of very many would take seconds, or fail.
    significant = text.lstrip("+-").lstrip("0") or "0"
    value = int(significant[: _INT64_DIGITS + 1])
    value = -value if text.startswith("-") else value
    return value if MIN_INT64 <= value <= MAX_INT64 else None


def read_double(text: str) -> float | None:
    """Return the value of a DOUBLE, of any length; None if it is none, or is not finite."""
    if NUMBER.fullmatch(text) is None:
        return None
    value = float(text)
    return value if math.isfinite(value) else None
