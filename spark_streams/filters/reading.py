"""A filter as it stands in an option: text, or the protobuf form in base64."""

from __future__ import annotations

from spark_streams.filters.nodes import Expression
from spark_streams.filters.text import parse

__all__ = ["read_filter"]


def read_filter(text: str) -> Expression:
    """Read a filter that is written either way."""
    return parse(text)
