"""The words of the filter language: keywords, references, and what may be written as a bare property name."""

from __future__ import annotations

import re
from typing import Final

from spark_streams.filters.tree import (
    BODY_SIZE,
    EVENT_TIME,
    KEY,
    OFFSET,
    PARTITION,
    PUBLISH_TIME,
    Reference,
)
from spark_streams.wire.amqp.event_streams import OFFSET_KEY, TIMESTAMP_KEY

__all__ = ["ANNOTATIONS", "ANNOTATION_SECTIONS", "KEYWORDS", "REFERENCES", "WORD", "is_bare_property", "meant"]

WORD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*")
"""A name that needs no delimiters: ASCII letters, digits and ``_``, no digit first; dots join such names."""

KEYWORDS: Final = frozenset(
    {"ALL", "AND", "ANY", "BETWEEN", "CONTAINS", "FALSE", "IN", "IS", "LIKE", "NONE", "NOT", "NULL", "OR", "TRUE"}
)
"""Written in any case; a property that is called like one is written ``[any]``."""

REFERENCES: Final = {
    "event_time": EVENT_TIME,
    "publish_time": PUBLISH_TIME,
    "key": KEY,
    "partition": PARTITION,
    "offset": OFFSET,
    "body_size": BODY_SIZE,
}
"""What bare words mean that are no property."""

ANNOTATION_SECTIONS: Final = frozenset({"d", "delivery_annotations"})
ANNOTATIONS: Final[dict[str, Reference]] = {
    OFFSET_KEY: OFFSET,
    TIMESTAMP_KEY: PUBLISH_TIME,
}
"""The delivery annotations that mean a reference, as users of AMQP event stream filters know them."""

_SECTIONS: Final = frozenset({"properties", "application_properties", "message_annotations"})
_FOLDED: Final = {word.replace("_", ""): word for word in REFERENCES}


def is_bare_property(name: str) -> bool:
    """Say whether a name means the property of that name when it stands without delimiters."""
    first, dot, _ = name.partition(".")
    if not WORD.fullmatch(name) or first.upper() in KEYWORDS or meant(name) is not None:
        return False
    return not dot or first not in ANNOTATION_SECTIONS


def meant(word: str) -> str | None:
    """Return what a bare word is, or was probably meant to be, that is not a property of its own name.

    ``PublishTime`` and ``Properties.subject`` name no property by accident: who writes them bare is told so.

    Returns:
        The reference, or the name with its section as it should be written; None for a property.
    """
    first, dot, rest = word.partition(".")
    if dot:
        return f"{first.lower()}.{rest}" if first.lower() in _SECTIONS and first not in _SECTIONS else None
    return _FOLDED.get(word.replace("_", "").lower())
