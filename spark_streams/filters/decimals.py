"""Numbers of filters and of texts in events: this file reads them and compares them exactly.

In a filter, in text and in the protobuf form::

    LONG    = ["+" | "-"] digits                                      within 64 bits
    DOUBLE  = LONG ["." digits] [("e" | "E") ["+" | "-"] digits]      finite; written as its shortest decimal

In an event (no binary float is involved when a property is compared with a literal)::

    number = ["+" | "-"] digits ["." digits] [("e" | "E") ["+" | "-"] digits]      digits are 0 to 9

Nothing else is a number: no blanks, no hexadecimal, no NaN, no infinity, no ``.5`` and no ``5.``. Numbers compare as
``Decimal``, exactly, however long they are: ``1e999999999`` needs no more memory than ``1``.

Spec: docs/specifications.md, E-7, E-8.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from fractions import Fraction
from typing import Final

from spark_streams.filters.tree import Value

MIN_INT64: Final = -(2**63)
MAX_INT64: Final = 2**63 - 1
NUMBER: Final = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
"""A number of either type; a LONG matches neither group."""

_INT64_DIGITS: Final = 19
_EXPONENT_DIGITS: Final = 17
"""The most digits of an exponent that surely fits a Decimal, whatever digits the number has before it."""
_FAR: Final = 10**_EXPONENT_DIGITS
"""The exponent in place of a longer one: no literal is near it, and no text has so many digits."""


def read_long(text: str) -> int | None:
    """Return the value of a LONG, of any length; None if the text is no LONG, or does not fit into 64 bits."""
    number = NUMBER.fullmatch(text)
    if number is None or number[1] or number[2]:
        return None
    # Count the digits first: int() of very many would take seconds, or fail.
    significant = text.lstrip("+-").lstrip("0") or "0"
    value = int(significant[: _INT64_DIGITS + 1])
    value = -value if text.startswith("-") else value
    return value if MIN_INT64 <= value <= MAX_INT64 else None


def read_double(text: str) -> float | None:
    """Return the value of a DOUBLE, of any length; None if the text is no DOUBLE, or is not finite."""
    if NUMBER.fullmatch(text) is None:
        return None
    value = float(text)
    return value if math.isfinite(value) else None


def numeral_of_text(text: str) -> Decimal | None:
    """Return the number in a text; None if the text is no number."""
    number = NUMBER.fullmatch(text)
    if number is None:
        return None
    exponent = number[2] or ""
    if len(exponent.lstrip("eE+-0")) > _EXPONENT_DIGITS:
        sign = "-" if "-" in exponent else ""
        text = f"{text[: number.start(2)]}e{sign}{_FAR}"
    return Decimal(text)


def numeral(value: int | float) -> Decimal:
    """Return a literal's number; that of a float is its shortest decimal that reads back to it (E-8).

    Raises:
        ValueError: the float is not finite.
    """
    found = numeral_of_text(repr(value))
    if found is None:
        raise ValueError(f"{value!r} is no number that can be compared: expected a finite one")
    return found


def floor_of(value: Value) -> tuple[int, bool]:
    """Return the greatest whole number that is not above a literal's number, and whether the two are equal.

    Args:
        value: of type LONG, or of type DOUBLE, whose number is its shortest decimal.
    """
    if isinstance(value, int):
        return value, True
    number = Fraction(repr(value))
    floor = math.floor(number)
    return floor, floor == number
