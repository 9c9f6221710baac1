"""Decimal numbers in text, compared exactly: no binary float stands between a property and a literal.

::

    number = ["+" | "-"] digits ["." digits] [("e" | "E") ["+" | "-"] digits]      digits are 0 to 9

Nothing else is a number: no blanks, no hexadecimal, no NaN, no infinity, no ``.5`` and no ``5.``. A number becomes a
``Numeral``, whose order is that of the numbers, however long they are: ``1e999999999`` takes no more room than ``1``.

Spec: docs/specifications.md, E-7, E-8.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final, TypeAlias

__all__ = ["Numeral", "as_fraction", "numeral", "numeral_of_text"]

Numeral: TypeAlias = tuple[int, int, str]
"""Sign, size and digits of a number; two of them compare as the numbers do."""

_NUMBER: Final = re.compile(r"([+-]?)([0-9]+)(?:\.([0-9]+))?(?:[eE]([+-]?)([0-9]+))?")
_ZERO: Final[Numeral] = (0, 0, "")
_FAR: Final = 10**18
"""An exponent beyond this is taken for this: no literal is anywhere near, and no text has so many digits."""
_NINES: Final = str.maketrans("0123456789", "9876543210")
_AFTER_DIGITS: Final = ":"


def numeral_of_text(text: str) -> Numeral | None:
    """Return the number that a text is; None for one that is none."""
    found = _NUMBER.fullmatch(text)
    if found is None:
        return None
    sign, whole, fraction, exponent_sign, exponent = found.groups("")
    digits = whole + fraction
    significant = digits.lstrip("0")
    if not significant:
        return _ZERO
    exponent = exponent.lstrip("0")
    power = _FAR if len(exponent) > 18 else int(exponent or "0")
    size = len(whole) - (len(digits) - len(significant)) + (-power if exponent_sign == "-" else power)
    # The number is 0.<digits> times ten to the power of its size: digits compare from the left, like text.
    significant = significant.rstrip("0")
    if sign == "-":
        return -1, -size, significant.translate(_NINES) + _AFTER_DIGITS
    return 1, size, significant


def numeral(value: int | float) -> Numeral:
    """Return a literal's number: of a float, its shortest decimal that reads back to it (E-8).

    Raises:
        ValueError: a float that is not finite.
    """
    found = numeral_of_text(repr(value))
    if found is None:
        raise ValueError(f"{value!r} is no number that can be compared: expected a finite one")
    return found


def as_fraction(value: int | float) -> Fraction:
    """Return a literal's number as a fraction: of a float, its shortest decimal."""
    return Fraction(repr(value))
