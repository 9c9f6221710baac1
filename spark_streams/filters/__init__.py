"""The filter language of all sources: it selects events, whatever peer or log they come from.

A filter is text (``parse``), Python calls (``builder``) or protobuf messages (``from_protobuf``); all three give the
same tree. ``read_filter`` reads the value of an option. docs/filters.md describes the language.

Each name is imported when it is first used: most queries have no filter.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from spark_streams.filters.building import builder
    from spark_streams.filters.describe import to_text, to_tree
    from spark_streams.filters.evaluate_many import evaluate_columns
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

_HOMES: Final = {
    "spark_streams.filters.building": ("builder",),
    "spark_streams.filters.describe": ("to_text", "to_tree"),
    "spark_streams.filters.evaluate_many": ("evaluate_columns",),
    "spark_streams.filters.evaluate_one": ("evaluate",),
    "spark_streams.filters.limits": ("check",),
    "spark_streams.filters.protobuf": ("from_protobuf", "read_filter", "to_protobuf"),
    "spark_streams.filters.text": ("parse",),
    "spark_streams.filters.tree": (
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
        "negate",
        "property_of",
    ),
}
"""Module to what is exported from it; no name is that of a module of this package, which Python would put there."""


def __getattr__(name: str) -> Any:
    home = next((module for module, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    value = globals()[name] = getattr(import_module(home), name)
    return value
