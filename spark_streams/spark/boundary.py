"""The boundary to Spark: our methods that Spark calls, and what a user sees of them when a query fails.

Spark shows the user an exception as Python's ``traceback`` formats it: each frame that the exception came through, and
each exception that it was raised from, come before its text. An error of ours says in its text what was wrong and what
to do; its traceback through the package tells the reader nothing, and hides the text. So it leaves a method that Spark
calls without the traceback, which goes to the log at level DEBUG. Any other exception, and ``LocalProtocolError``, is a
defect of ours: it keeps the traceback, which is needed to fix it.
"""

from __future__ import annotations

import functools
import inspect
import logging
import traceback
from collections.abc import Callable
from types import FunctionType
from typing import Any, Final

from spark_streams.errors import LocalProtocolError, SparkStreamsError
from spark_streams.redaction import hidden

_log = logging.getLogger(__name__)

CALLED: Final = frozenset(
    (
        *("__init__", "schema", "reader", "streamReader", "writer", "streamWriter"),
        *("pushFilters", "partitions", "read", "write", "commit", "abort"),
        *("initialOffset", "latestOffset", "reportLatestOffset"),
        *("getDefaultReadLimit", "prepareForTriggerAvailableNow"),
    )
)
"""The methods of Spark's interface for Python data sources that may raise an error of ours."""


class CalledBySpark:
    """The base of the classes that Spark calls: an error of ours leaves their methods without its traceback.

    It costs a call and a ``try`` for each call of Spark's, and nothing for each batch of ``read``.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        """Wrap those methods of the interface that the class itself defines."""
        super().__init_subclass__(**options)
        for name in CALLED & vars(cls).keys():
            if isinstance(method := vars(cls)[name], FunctionType):
                setattr(cls, name, _bare_errors(method))


def _bare_errors(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method whose errors of ours have one frame of ours, and no exception before them."""
    if inspect.isgeneratorfunction(method):

        @functools.wraps(method)
        def called(*arguments: Any, **named: Any) -> Any:
            try:
                return (yield from method(*arguments, **named))
            except LocalProtocolError:
                raise
            except SparkStreamsError as fault:
                raise _bare(fault) from None

    else:

        @functools.wraps(method)
        def called(*arguments: Any, **named: Any) -> Any:
            try:
                return method(*arguments, **named)
            except LocalProtocolError:
                raise
            except SparkStreamsError as fault:
                raise _bare(fault) from None

    return called


def _bare(fault: SparkStreamsError) -> SparkStreamsError:
    """Return an error without its traceback, which is logged."""
    if _log.isEnabledFor(logging.DEBUG):
        way = "".join(traceback.format_exception(fault))
        _log.debug("the way of the error that Spark shows next:\n%s", hidden(way))  # a cause may have a peer's words
    return fault.with_traceback(None)
