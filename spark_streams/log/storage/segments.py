"""Which segments retention no longer keeps."""

from __future__ import annotations

from collections.abc import Sequence

from spark_streams.log.config import StreamConfig
from spark_streams.log.storage.segment import Segment

__all__ = ["expired_segments"]


def expired_segments(segments: Sequence[Segment], config: StreamConfig, now_ms: int) -> int:
    """Return how many segments, from the oldest on, are to go.

    By age a segment goes when its last append is older than ``retention_max_age_ms``: the time of the append counts,
    not the records' own timestamps, so that events of 1957 are kept as long as any other. The active segment may go by
    age (the caller rolls it first). By size the oldest goes while the others still hold ``retention_max_bytes``; the
    active segment never goes by size.
    """
    count = 0
    if config.retention_max_age_ms is not None:
        for segment in segments:
            if not segment.end or segment.last_append_ms is None:
                break
            if now_ms - segment.last_append_ms <= config.retention_max_age_ms:
                break
            count += 1
    if config.retention_max_bytes is not None:
        left = sum(segment.end for segment in segments[count:])
        while count < len(segments) - 1 and left - segments[count].end >= config.retention_max_bytes:
            left -= segments[count].end
            count += 1
    return count
