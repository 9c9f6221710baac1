"""Says how messages are published to streams: a sink's options, and what its publishers go by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Routing = Literal["hash", "rstream", "key"]
"""By the hash of RabbitMQ's own clients, by rstream's, or by binding key."""
Codec = Literal["none", "gzip", "snappy", "lz4", "zstd"]


@dataclass(frozen=True)
class RabbitPublishing:
    """How to publish.

    Args:
        super_stream: the super stream that rows are routed in; None when rows name their streams, or all go to one.
        routing: which partition of the super stream a row goes to: by ``hash`` of its key (murmur3, as RabbitMQ's
            clients), by that of ``rstream``, or the one whose binding key is the row's ``key``.
        compression: of sub-entry batches.
        sub_entry_size: messages of a sub-entry batch; 1 for none, each message an entry of its own.
        max_in_flight: messages that may wait for their confirm, at most.
        request_timeout_ms: how many milliseconds the broker may confirm nothing, or not answer.
    """

    super_stream: str | None = None
    routing: Routing = "hash"
    compression: Codec = "none"
    sub_entry_size: int = 1
    max_in_flight: int = 10_000
    request_timeout_ms: int = 30_000
