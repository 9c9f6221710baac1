"""Reading an offset of ours out of a query's progress, as each Spark gives it."""

from __future__ import annotations

import ast
import json
from typing import Any

__all__ = ["progress_offset"]


def progress_offset(told: object) -> dict[str, Any] | None:
    """Return an offset of a ``SourceProgress``, or None if it is not one of ours.

    Spark gives it as JSON or as a dict; 4.0 and 4.1 give ``query.lastProgress``, and on Spark Connect also listeners,
    what Python prints of the dict.
    """
    value = told
    if isinstance(told, str) and told.startswith("{"):
        try:
            value = json.loads(told)
        except json.JSONDecodeError:
            try:
                value = ast.literal_eval(told)
            except (ValueError, SyntaxError):
                return None
    return value if isinstance(value, dict) and {"version", "stream", "partitions"} <= value.keys() else None
