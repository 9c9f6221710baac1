"""Settings of the FeedAPI door."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from spark_streams.log.config import check_choices, expect_at_least
from spark_streams.server.http.config import HttpConfig


@dataclass(frozen=True)
class FeedConfig(HttpConfig):
    """Settings of the FeedAPI door: those of ``HttpConfig``, and these.

    Args:
        dialect: which version 2 is served: ``v2a`` with fetches on the feed's own path, ``v2b`` with ``/events`` and
            a token in the discovery. Version 1 is served beside either.
        go_numbers: write references between partitions as numbers, which Go's library needs (F-3).
        exactly_once: promise consumers that no event is on a feed twice. The door itself never repeats an event; a user
            who sets this promises that publishers do not, either.
        page_size: events of a page when the client does not request a number.
        max_page_size: the most events of a page.
        max_page_bytes: a page ends when it has as many bytes, not counting compression.
        checkpoint_events: events between two checkpoints of a page, at most.
        checkpoint_interval_ms: the time between checkpoints of a ``stream`` response without new events.
        max_stream_ms: how long a ``stream`` response lasts at most; 0: as long as the client wants.
        gzip_min_bytes: pages of at least so many bytes are compressed for clients that accept gzip; 0: none.
        cache_bytes: rendered events that are kept in memory for further readers.
        scan_bytes: the most stored bytes that one filtered fetch searches.
        max_body_events: the most events that a request may publish; more are answered 413.
        max_partitions: the most partitions of a feed that is created through the door.
        max_publishers: publishers of a partition whose last ``Idempotency-Sequence`` is remembered; when there are
            more, the user (or token) with the most publishers loses the one that wrote longest ago.
    """

    protocol: ClassVar = "feedapi"
    positive: ClassVar = (
        "page_size", "max_page_size", "max_page_bytes", "checkpoint_events", "checkpoint_interval_ms", "scan_bytes",
        "max_body_events", "bodies_bytes", "max_partitions", "max_publishers", *HttpConfig.positive,
    )  # fmt: skip

    port: int = 8080
    dialect: Literal["v2a", "v2b"] = "v2a"
    go_numbers: bool = False
    exactly_once: bool = False
    page_size: int = 10_000
    max_page_size: int = 100_000
    max_page_bytes: int = 16 << 20
    checkpoint_events: int = 1_000
    checkpoint_interval_ms: int = 5_000
    max_stream_ms: int = 0
    gzip_min_bytes: int = 64 << 10
    cache_bytes: int = 64 << 20
    scan_bytes: int = 16 << 20
    max_body_events: int = 1_000_000
    max_partitions: int = 1_000
    max_publishers: int = 10_000

    def __post_init__(self) -> None:
        super().__post_init__()
        expect_at_least(0, self, "max_stream_ms", "gzip_min_bytes", "cache_bytes")
        check_choices(self)
