"""Groups of consumers of which one is active at a time, for streams and super streams."""

from __future__ import annotations

__all__ = ["SingleActiveGroups"]


class SingleActiveGroups:
    """The groups of a node, across its connections."""
