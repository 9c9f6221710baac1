"""What of a query's filter the peer checks, and what is left to its tasks: a log line, and a part of its progress."""

from __future__ import annotations

import logging
from typing import Final

from spark_streams.client.log_client import Pushdown
from spark_streams.filters import Expression, to_text
from spark_streams.options import SourceOptions

__all__ = ["filter_json", "filter_line", "log_filter"]

_log = logging.getLogger("spark_streams.spark.filter")

MAX_SHOWN: Final = 1_000
"""Characters of an expression that a line shows: a list of a thousand values is no reading matter."""


def log_filter(options: SourceOptions, pushdown: Pushdown) -> None:
    """Log the line of a query that has a filter.

    Args:
        options: of the query.
        pushdown: what becomes of its filter.
    """
    if options.filter is not None:
        _log.info("%s", filter_line(options.stream, options.filter, pushdown))


def filter_json(expression: Expression, pushdown: Pushdown) -> dict[str, str | None]:
    """Return what a query's progress tells of its filter: keys ``filter``, ``pushed`` and ``residual``.

    Args:
        expression: the whole filter.
        pushdown: what becomes of it.
    """
    residual = None if pushdown.residual is None else _shown(to_text(pushdown.residual))
    pushed = None if pushdown.pushed is None else _shown(pushdown.pushed)
    return {"filter": _shown(to_text(expression)), "pushed": pushed, "residual": residual}


def filter_line(stream: str, expression: Expression, pushdown: Pushdown) -> str:
    """Return what is logged.

    Args:
        stream: the log's name.
        expression: the whole filter.
        pushdown: what becomes of it.
    """
    told = filter_json(expression, pushdown)
    pushed, residual = told["pushed"] or "nothing", told["residual"] or "nothing"
    return f"stream '{stream}': filter {told['filter']}: pushed: {pushed}; checked by the tasks: {residual}"


def _shown(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"
