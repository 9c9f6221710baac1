"""A filter as it stands in an option: text, or the protobuf form in base64."""

from __future__ import annotations

import base64
import re
from typing import Final

from spark_streams.errors import FilterError
from spark_streams.filters.protobuf import from_protobuf
from spark_streams.filters.text import parse
from spark_streams.filters.tree import Expression

__all__ = ["read_filter"]

_BASE64: Final = re.compile(r"[A-Za-z0-9+/_-]+={0,2}")
"""Either alphabet of base64. No filter's text is of these alone: each has a blank, a sign or a quote besides."""
_BEGINNING: Final = "CA"
"""What every message begins with in base64, as all libraries write them: the type of the expression."""
_MAX_BASE64: Final = 1_400_000
"""Characters that may still be a protobuf form within its own limit."""


def read_filter(text: str) -> Expression:
    """Read a filter that is written either way.

    Args:
        text: in the filter language, or the bytes of the protobuf form in base64, of either alphabet, padded or not;
            blanks around it do not count.

    Raises:
        FilterError: it is neither; ``column`` is where the text is at fault, 1 where it is the protobuf form.

    """
    word = text.strip()
    if len(word) > _MAX_BASE64 or not _BASE64.fullmatch(word):
        return parse(text)
    try:
        return from_protobuf(_decode(word))
    except FilterError as error:
        raise _neither(text, error) from None


def _decode(word: str) -> bytes:
    digits = word.rstrip("=").replace("-", "+").replace("_", "/")
    if len(digits) % 4 == 1:
        raise FilterError(word, None, f"base64 of {len(digits)} characters: the last is missing, or one too many")
    return base64.b64decode(digits + "=" * (-len(digits) % 4))


def _neither(text: str, as_protobuf: FilterError) -> FilterError:
    """Say what is wrong with what may be base64, and may be the beginning of a text."""
    word = text.strip()
    reason = f"in base64: {as_protobuf.reason}"
    if not word.isidentifier():
        return FilterError(text, 1, reason)
    try:
        parse(text)
    except FilterError as as_text:
        if not word.startswith(_BEGINNING):
            both = f"{as_text.reason} (nor is it the protobuf form {reason})"
            return FilterError(text, as_text.column, both)
        reason = f"{reason} (nor is it a filter as text, column {as_text.column}: {as_text.reason})"
    return FilterError(text, 1, reason)
