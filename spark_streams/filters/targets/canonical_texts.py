"""Find the AMQP values other than strings that have a given canonical text, or one that matches a pattern (Z-16).

Rows show every value of a map as text: the integer 5, the string '5', the char '5' and the decimal 5 are all ``5``, and
``test`` is a string, or the three bytes whose base64 it is. SQL compares typed values, so a target that pushes
``x = '5'`` has to list each of them. ``spark_streams/wire/amqp/canonical_text.py`` has the table of canonical texts.

Only three things of a pattern count: the text before its first wildcard, the text after its last, and its other
characters. A result may name a type whose texts cannot match after all, but it never leaves one out.
"""

from __future__ import annotations

import base64
import binascii
import re
from decimal import Decimal
from typing import Final, TypeAlias

from spark_streams.filters.split import Inexpressible
from spark_streams.filters.targets.sql_text import outline
from spark_streams.filters.text_matching import like

_NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]{1,4})?")
_MAX_NUMBER: Final = 64
"""The most characters of a number's canonical text, with room to spare: a decimal128 has 34 digits and an exponent of
four."""
_NOT_FINITE: Final = ("NaN", "Infinity", "-Infinity")
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
BOOLEANS: Final = {"true": True, "false": False}
"""The canonical text of each boolean."""
Range: TypeAlias = tuple[bytes, "bytes | None"]
"""Bytes from the first, included, to the second, excluded, in byte order; a second of None is no upper bound."""
_BASE64: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


def has_no_constant(text: str) -> bool:
    """Return whether SQL has no constant for a value with this text: NaN, infinity, a list, map, array or described."""
    return text in _NOT_FINITE or text.startswith(("[", "{"))


def number_with(text: str) -> Decimal | None:
    """Return the number that has this text as an integer, float or decimal; None if there is none."""
    return Decimal(text) if len(text) <= _MAX_NUMBER and _NUMBER.fullmatch(text) else None


def uuid_with(text: str) -> bytes | None:
    """Return the 16 bytes of the uuid that has this text; None if there is none."""
    return bytes.fromhex(text.replace("-", "")) if _UUID.fullmatch(text) else None


def binary_with(text: str) -> bytes | None:
    """Return the bytes, possibly none, that have this text; None where no bytes have it."""
    if len(text) % 4 or not text.isascii():
        return None
    try:
        value = base64.b64decode(text, validate=True)
    except binascii.Error:
        return None
    return value if base64.b64encode(value).decode("ascii") == text else None


def types_like(pattern: str) -> tuple[list[bool], int | None, list[Range]]:
    """Return the values other than strings and symbols whose canonical text may match a pattern.

    Args:
        pattern: a pattern of LIKE, without escapes (E-11), with at least one ``%`` or ``_``.

    Returns:
        The booleans that match; the only char that matches, None for none; the ranges of uuids and binary values.

    Raises:
        Inexpressible: they may be numbers, lists, maps, arrays, described values, more than one char, or bytes of which
            the pattern says nothing.
    """
    matches = like(pattern)
    head, _, tail = outline(pattern)
    letters = set(pattern) - {"%", "_"}
    one_character = len(pattern) - pattern.count("%") <= 1
    numbers = any(map(matches, _NOT_FINITE)) or _may_be_number(head, letters, tail)
    json = (not head or head[0] in "[{") and (not tail or tail[-1] in "]}")
    uuids = letters <= set("0123456789abcdef-")
    binaries = letters <= {*_BASE64, "="} and "=" not in head
    if numbers or json or (one_character and not letters) or ((uuids or binaries) and not head):
        raise Inexpressible
    booleans = [value for text, value in BOOLEANS.items() if matches(text)]
    ranges = [_uuids_with(head)] if uuids else []
    if binaries:
        ranges.append(_bytes_with(head))
    return booleans, ord(min(letters)) if one_character else None, ranges


def _may_be_number(head: str, letters: set[str], tail: str) -> bool:
    return (
        letters <= set("0123456789+-.eE")
        and (not head or head[0] in "-0123456789")
        and (not tail or tail[-1] in "0123456789")
    )


def _uuids_with(head: str) -> Range:
    """Return the range of the bytes of uuids whose text begins with ``head``, as ``_bytes_with`` does."""
    digits = head.replace("-", "")
    return _between(int(digits or "0", 16), 4 * len(digits))


def _bytes_with(head: str) -> Range:
    """Return the range of bytes whose base64 begins with ``head``: from, included, to, excluded."""
    bits = 0
    for character in head:
        bits = bits << 6 | _BASE64.index(character)
    # The last characters before padding have more bits than they stand for: bytes without the last zeros may match.
    return _between(bits, 6 * len(head))


def _between(bits: int, count: int) -> Range:
    """Return the least bytes that begin with some bits (or lack only zeros of them), and the first bytes beyond."""
    width = -(-count // 8)
    low = (bits << (8 * width - count)).to_bytes(width, "big").rstrip(b"\0")
    after = (bits + 1) << (8 * width - count)
    high = None if after >> (8 * width) else after.to_bytes(width, "big").rstrip(b"\0")
    return low or b"\0", high
