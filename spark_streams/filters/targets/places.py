"""Where in a message a property is: its name says it, or it is an application property."""

from __future__ import annotations

from typing import Final

from spark_streams.filters.tree import Reference, ReferenceKind

__all__ = ["place_of"]

_SECTIONS: Final = frozenset({"properties", "application_properties", "message_annotations"})


def place_of(reference: Reference) -> tuple[str, str] | None:
    """Return the section and the name within it of a property; None for any other reference."""
    if reference.kind is not ReferenceKind.PROPERTY:
        return None
    name = reference.name or ""
    section, dot, rest = name.partition(".")
    return (section, rest) if dot and section in _SECTIONS else ("application_properties", name)
