"""The filter language: one way to say which events are wanted, for every source, peer and log.

Written as text (``parse``), in base64 (``read_filter``), in Python (``all_of`` and its like) or in the protobuf form;
read back as text (``to_text``) and as a tree in lines (``to_tree``). docs/filters.md describes the language.
"""

from spark_streams.filters.describe import to_text, to_tree
from spark_streams.filters.limits import check
from spark_streams.filters.nodes import (
    BODY_SIZE,
    EVENT_TIME,
    KEY,
    OFFSET,
    PARTITION,
    PUBLISH_TIME,
    And,
    Expression,
    Not,
    Operator,
    Or,
    Predicate,
    Reference,
    ReferenceKind,
    Value,
    ValueType,
    all_of,
    any_of,
    negate,
    property_of,
)
from spark_streams.filters.reading import read_filter
from spark_streams.filters.text import parse

__all__ = [
    "BODY_SIZE",
    "EVENT_TIME",
    "KEY",
    "OFFSET",
    "PARTITION",
    "PUBLISH_TIME",
    "And",
    "Expression",
    "Not",
    "Operator",
    "Or",
    "Predicate",
    "Reference",
    "ReferenceKind",
    "Value",
    "ValueType",
    "all_of",
    "any_of",
    "check",
    "negate",
    "parse",
    "property_of",
    "read_filter",
    "to_text",
    "to_tree",
]
