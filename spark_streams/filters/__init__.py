"""The filter language of all sources: it selects events, whatever peer or log they come from.

A filter is text (``parse``), Python calls (``builder``) or protobuf messages (``from_protobuf``); all three give the
same tree. ``read_filter`` reads the value of an option. docs/filters.md describes the language.
"""

from spark_streams.filters.builder import builder
from spark_streams.filters.describe import to_text, to_tree
from spark_streams.filters.evaluate_columns import evaluate_columns
from spark_streams.filters.evaluate_one import evaluate
from spark_streams.filters.limits import check
from spark_streams.filters.protobuf import from_protobuf, read_filter, to_protobuf
from spark_streams.filters.text import parse
from spark_streams.filters.tree import (
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
    "builder",
    "check",
    "evaluate",
    "evaluate_columns",
    "from_protobuf",
    "negate",
    "parse",
    "property_of",
    "read_filter",
    "to_protobuf",
    "to_text",
    "to_tree",
]
