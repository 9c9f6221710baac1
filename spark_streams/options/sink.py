"""What every format's writer takes."""

from __future__ import annotations

from dataclasses import dataclass

from spark_streams.endpoint import Endpoint
from spark_streams.options.connection import DEFAULT_REQUEST_TIMEOUT_MS

__all__ = ["SinkOptions"]


@dataclass(frozen=True)
class SinkOptions:
    """Everything that a writer needs to know; picklable, and safe to print.

    Args:
        endpoint: where the peer is and how to get in.
        stream: the log that all rows go to; None when each row names its own in column ``stream``.
        request_timeout_ms: how long to wait for credit, and for the outcome of a delivery.
    """

    endpoint: Endpoint
    stream: str | None
    request_timeout_ms: int = DEFAULT_REQUEST_TIMEOUT_MS
