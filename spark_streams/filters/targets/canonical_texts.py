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
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from spark_streams.filters.split import Inexpressible
from spark_streams.filters.text_matching import like

_NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]{1,4})?")
_MAX_NUMBER: Final = 64
"""The most characters of a number's canonical text, with room to spare: a decimal128 has 34 digits and an exponent of
four."""
_NOT_FINITE: Final = ("NaN", "Infinity", "-Infinity")
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_BOOLEANS: Final = {"true": True, "false": False}
_BASE64: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


@dataclass(frozen=True)
class OtherTypes:
    """The values other than strings and symbols that have one text.

    Args:
        boolean: the boolean.
        number: the number whose text it is, as an integer, float or decimal.
        char: the code point.
        uuid: its 16 bytes.
        binary: the bytes, possibly none.
        no_constant: a value that SQL has no constant for: NaN, an infinity, a list, map, array or described value.
    """

    boolean: bool | None = None
    number: Decimal | None = None
    char: int | None = None
    uuid: bytes | None = None
    binary: bytes | None = None
    no_constant: bool = False


def types_with_text(text: str) -> OtherTypes:
    """Return the values other than strings that have this canonical text."""
    return OtherTypes(
        boolean=_BOOLEANS.get(text),
        number=Decimal(text) if len(text) <= _MAX_NUMBER and _NUMBER.fullmatch(text) else None,
        char=ord(text) if len(text) == 1 else None,
        uuid=bytes.fromhex(text.replace("-", "")) if _UUID.fullmatch(text) else None,
        binary=_base64_of(text),
        no_constant=text in _NOT_FINITE or text.startswith(("[", "{")),
    )


def _base64_of(text: str) -> bytes | None:
    if len(text) % 4 or not text.isascii():
        return None
    try:
        value = base64.b64decode(text, validate=True)
    except binascii.Error:
        return None
    return value if base64.b64encode(value).decode("ascii") == text else None


@dataclass(frozen=True)
class OtherTypesLike:
    """The values other than strings and symbols whose text may match a pattern.

    Args:
        booleans: the booleans that match.
        char: the only char that matches; None for none.
        ranges: the bytes of uuids and binary values, each range from the first, included, to the second, excluded, in
            byte order; a second of None is no upper bound.
    """

    booleans: tuple[bool, ...]
    char: int | None
    ranges: tuple[tuple[bytes, bytes | None], ...]


def types_like(pattern: str) -> OtherTypesLike:
    """Return the values other than strings whose canonical text may match a pattern.

    Args:
        pattern: a pattern of LIKE, without escapes (E-11), with at least one ``%`` or ``_``.

    Raises:
        Inexpressible: they may be numbers, lists, maps, arrays, described values, more than one char, or bytes of which
            the pattern says nothing.
    """
    matches = like(pattern)
    head = re.split("[%_]", pattern, maxsplit=1)[0]
    tail = re.split("[%_]", pattern)[-1]
    letters = set(pattern) - {"%", "_"}
    one_character = len(pattern) - pattern.count("%") <= 1
    numbers = any(map(matches, _NOT_FINITE)) or _may_be_number(head, letters, tail)
    json = (not head or head[0] in "[{") and (not tail or tail[-1] in "]}")
    uuids = letters <= set("0123456789abcdef-")
    binaries = letters <= {*_BASE64, "="} and "=" not in head
    if numbers or json or (one_character and not letters) or ((uuids or binaries) and not head):
        raise Inexpressible
    return OtherTypesLike(
        booleans=tuple(value for text, value in _BOOLEANS.items() if matches(text)),
        char=ord(min(letters)) if one_character else None,
        ranges=(*([_uuids_with(head)] if uuids else []), *([_bytes_with(head)] if binaries else [])),
    )


def _may_be_number(head: str, letters: set[str], tail: str) -> bool:
    return (
        letters <= set("0123456789+-.eE")
        and (not head or head[0] in "-0123456789")
        and (not tail or tail[-1] in "0123456789")
    )


def _uuids_with(head: str) -> tuple[bytes, bytes | None]:
    """Return the range of the bytes of uuids whose text begins with ``head``, as ``_bytes_with`` does."""
    digits = head.replace("-", "")
    return _between(int(digits or "0", 16), 4 * len(digits))


def _bytes_with(head: str) -> tuple[bytes, bytes | None]:
    """Return the range of bytes whose base64 begins with ``head``: from, included, to, excluded."""
    bits = 0
    for character in head:
        bits = bits << 6 | _BASE64.index(character)
    # The last characters before padding have more bits than they stand for: bytes without the last zeros may match.
    return _between(bits, 6 * len(head))


def _between(bits: int, count: int) -> tuple[bytes, bytes | None]:
    """Return the least bytes that begin with some bits (or lack only zeros of them), and the first bytes beyond."""
    width = -(-count // 8)
    low = (bits << (8 * width - count)).to_bytes(width, "big").rstrip(b"\0")
    after = (bits + 1) << (8 * width - count)
    high = None if after >> (8 * width) else after.to_bytes(width, "big").rstrip(b"\0")
    return low or b"\0", high
