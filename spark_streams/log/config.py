"""Settings of the reference log and of one stream in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Literal, get_args, get_origin, get_type_hints

DEFAULT_SEGMENT_BYTES = 64 << 20
"""64 MiB: the last segment is checked at start-up, in about 2 s if every batch holds one small record, else in less."""
DEFAULT_INDEX_INTERVAL_BYTES = 4096
"""Kafka's default too: an entry of 24 bytes for each 4 KiB keeps the index at 0.6 % of the segment."""


_kinds = cache(get_type_hints)
"""The type of each setting of a class, by its name."""


@dataclass(frozen=True)
class StreamConfig:
    """The settings by which one stream stores, rolls and removes; fixed when the stream is created.

    Args:
        timestamp_type: ``append``: a record's timestamp is the instant it was added (the default); ``create``: it is
            the producer's own, and may be absent or lie before 1970.
        timestamp_format: ``extended`` writes KIP-228 batches; ``legacy`` writes batches without the bit, as a broker
            that knows nothing of KIP-228 does.
        legacy_negative: what a ``legacy`` stream does with a timestamp it cannot hold: ``error`` refuses the append,
            ``degrade`` stores the record without a timestamp (KIP-228, compatibility table, rows W5 and W9).
        segment_max_bytes: a segment is rolled before it would grow past this, in bytes.
        segment_max_age_ms: a segment is rolled when its first append is older than this; None: never by age.
        retention_max_bytes: the oldest segments are removed while the rest still holds at least this much; None: no
            limit.
        retention_max_age_ms: a segment is removed when its last append (not its records' timestamps) is older; None:
            never.
        index_interval_bytes: about how many bytes of a segment one entry of its sparse index covers.
    """

    timestamp_type: Literal["append", "create"] = "append"
    timestamp_format: Literal["extended", "legacy"] = "extended"
    legacy_negative: Literal["error", "degrade"] = "error"
    segment_max_bytes: int = DEFAULT_SEGMENT_BYTES
    segment_max_age_ms: int | None = None
    retention_max_bytes: int | None = None
    retention_max_age_ms: int | None = None
    index_interval_bytes: int = DEFAULT_INDEX_INTERVAL_BYTES

    def __post_init__(self) -> None:
        check_choices(self)
        expect_at_least(1, self, "segment_max_bytes", "index_interval_bytes", unit=" byte")
        expect_at_least(0, self, "segment_max_age_ms", "retention_max_bytes", "retention_max_age_ms")


@dataclass(frozen=True)
class LogConfig:
    """The settings by which the log as a whole treats its files.

    Args:
        fsync: when appended bytes are forced to the disk. ``always``: before the append is acknowledged, so that it
            survives a power cut; ``interval``: every ``fsync_interval_ms`` (the default); ``never``: when the system
            does. With every choice an acknowledged append survives kill -9 of the process, because it has been written
            to the operating system before it is acknowledged.
        fsync_interval_ms: how much an ``interval`` log may lose to a power cut, in milliseconds.
        retention_check_ms: how often retention is enforced, in milliseconds.
        max_partitions: the most partitions of all streams together; each takes some three open files. A user who signs
            in at a door may make 7/8 of them. A log that has more is still opened.
        stream: settings of streams that are created without their own.
    """

    fsync: Literal["always", "interval", "never"] = "interval"
    fsync_interval_ms: int = 1_000
    retention_check_ms: int = 10_000
    max_partitions: int = 4_096
    stream: StreamConfig = field(default_factory=StreamConfig)

    def __post_init__(self) -> None:
        check_choices(self)
        expect_at_least(1, self, "fsync_interval_ms", "retention_check_ms", unit=" ms")
        expect_at_least(1, self, "max_partitions")


def check_choices(config: object) -> None:
    """Raise ValueError when a setting has none of the values that its type lists."""
    for name, kind in _kinds(type(config)).items():  # type: ignore[arg-type]  # mypy: no class is hashable
        if get_origin(kind) is Literal and getattr(config, name) not in get_args(kind):
            raise ValueError(f"{name} is {getattr(config, name)!r}, expected one of {', '.join(get_args(kind))}")


def expect_at_least(least: int, config: object, *names: str, unit: str = "") -> None:
    """Check settings that are numbers, or None.

    Raises:
        ValueError: a setting is less than ``least``; the message names it.
    """
    for name in names:
        if (value := getattr(config, name)) is not None and value < least:
            raise ValueError(f"{name} is {value}, expected at least {least}{unit}")
