"""One log line a query: what of its filter the peer checks, and what is left to its tasks."""

from __future__ import annotations

import logging
from typing import Final

from spark_streams.client.model import Pushdown
from spark_streams.filters import Expression, to_text
from spark_streams.spark.driver import Driver

__all__ = ["filter_line", "log_filter"]

_log = logging.getLogger("spark_streams.spark.filter")

MAX_SHOWN: Final = 1_000
"""Characters of an expression that a line shows: a list of a thousand values is no reading matter."""


def log_filter(driver: Driver) -> None:
    """Log the line of a query that has a filter, if anybody reads such lines; nothing is read from the stream.

    Args:
        driver: of the query.
    """
    expression = driver.options.filter
    if expression is not None and _log.isEnabledFor(logging.INFO):
        _log.info("%s", filter_line(driver.options.stream, expression, driver.pushdown(expression)))


def filter_line(stream: str, expression: Expression, pushdown: Pushdown) -> str:
    """Return what is logged.

    Args:
        stream: the log's name.
        expression: the whole filter.
        pushdown: what becomes of it.
    """
    residual = "nothing" if pushdown.residual is None else _shown(to_text(pushdown.residual))
    pushed = "nothing" if pushdown.pushed is None else _shown(pushdown.pushed)
    return (
        f"stream '{stream}': filter {_shown(to_text(expression))}: pushed: {pushed}; checked by the tasks: {residual}"
    )


def _shown(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"
