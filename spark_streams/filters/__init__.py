"""The filter language of all sources: it selects events, whatever peer or log they come from.

A filter is text (``parse``), Python calls (``builder``) or protobuf messages (``from_protobuf``); all three give the
same tree. ``read_filter`` reads the value of an option. docs/filters.md describes the language.

Each name is imported when it is first used: most queries have no filter.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from spark_streams.filters.building import builder as builder
    from spark_streams.filters.describe import to_text as to_text
    from spark_streams.filters.describe import to_tree as to_tree
    from spark_streams.filters.evaluate_many import evaluate_columns as evaluate_columns
    from spark_streams.filters.evaluate_one import evaluate as evaluate
    from spark_streams.filters.limits import check as check
    from spark_streams.filters.protobuf import from_protobuf as from_protobuf
    from spark_streams.filters.protobuf import read_filter as read_filter
    from spark_streams.filters.protobuf import to_protobuf as to_protobuf
    from spark_streams.filters.text import parse as parse
    from spark_streams.filters.tree import BODY_SIZE as BODY_SIZE
    from spark_streams.filters.tree import EVENT_TIME as EVENT_TIME
    from spark_streams.filters.tree import KEY as KEY
    from spark_streams.filters.tree import OFFSET as OFFSET
    from spark_streams.filters.tree import PARTITION as PARTITION
    from spark_streams.filters.tree import PUBLISH_TIME as PUBLISH_TIME
    from spark_streams.filters.tree import And as And
    from spark_streams.filters.tree import Expression as Expression
    from spark_streams.filters.tree import Not as Not
    from spark_streams.filters.tree import Operator as Operator
    from spark_streams.filters.tree import Or as Or
    from spark_streams.filters.tree import Predicate as Predicate
    from spark_streams.filters.tree import Reference as Reference
    from spark_streams.filters.tree import ReferenceKind as ReferenceKind
    from spark_streams.filters.tree import Value as Value
    from spark_streams.filters.tree import ValueType as ValueType
    from spark_streams.filters.tree import all_of as all_of
    from spark_streams.filters.tree import any_of as any_of
    from spark_streams.filters.tree import negate as negate
    from spark_streams.filters.tree import property_of as property_of

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

__all__ = [name for names in _HOMES.values() for name in names]


def __getattr__(name: str) -> Any:
    home = next((module for module, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    value = globals()[name] = getattr(import_module(home), name)
    return value
