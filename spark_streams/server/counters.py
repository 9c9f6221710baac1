"""Counts the work of a door, for ``/metrics`` of the log's window and other readers, and names the server's logger.

A door always counts, whether or not anybody asks: one addition for each batch, chunk or request, none for an event. It
counts only on the server's loop, so nothing here is locked; another thread may read a number, but not a mapping.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import partial
from typing import Final

logger: Final = logging.getLogger("spark_streams.server")
"""Logs what people are told about the server and its doors."""
SECONDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""The upper ends of a histogram's buckets, inclusive: an append in memory takes the first ones, one that waits for the
disk the middle ones."""
METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"})
OTHER_METHOD: Final = "other"
"""The key of all other methods together: a peer could name any number of them."""


class Histogram:
    """The durations of something, as counts in buckets.

    Attributes:
        counts: how many times fell into each bucket of ``SECONDS``; the last one is for longer times.
        sum_s: all times together, in seconds.
    """

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(SECONDS) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Add a time."""
        self.counts[bisect_left(SECONDS, seconds)] += 1
        self.sum_s += seconds


@dataclass(eq=False)
class DoorCounters:
    """The counters of one door since it was first opened.

    Args:
        opened: connections whose peers introduced themselves, and that were served.
        closed: how many of these have ended.
        refused: connections that were not served, by reason: ``full``, ``descriptors``, ``slow``, ``late`` or ``tls``.
        sign_ins_failed: credentials that were not accepted.
        received: events of clients that were stored.
        received_bytes: their bytes, as they are stored, without keys and times.
        delivered: events that were sent to clients; one that is sent again counts again.
        delivered_bytes: their bytes, with what the protocol puts around each.
        refused_events: events of clients that were not stored, by the label of the ``RefusalReason``; what is stored
            in another partition instead is not among them.
        appends: how long events of clients took to be stored, or refused.
        requests: HTTP method and class of the status, such as ``2xx``, to the times from a request's head to the head
            of its answer.
    """

    opened: int = 0
    closed: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    sign_ins_failed: int = 0
    received: int = 0
    received_bytes: int = 0
    delivered: int = 0
    delivered_bytes: int = 0
    refused_events: Counter[str] = field(default_factory=Counter)
    appends: Histogram = field(default_factory=Histogram)
    requests: dict[tuple[str, str], Histogram] = field(default_factory=partial(defaultdict, Histogram))

    def answered(self, method: str, status: int, seconds: float) -> None:
        """Count an HTTP request.

        Args:
            method: its method.
            status: the status of the answer.
            seconds: how long it took.
        """
        key = method if method in METHODS else OTHER_METHOD, f"{status // 100}xx"
        self.requests[key].observe(seconds)
