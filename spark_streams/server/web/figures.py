"""The log's figures: their names, and where each comes from, in the terms of ``prometheus_client``.

Names follow those that operators know: of partitions and consumer groups those of kafka_exporter, of connections and
messages those of RabbitMQ's plugin, behind a prefix of our own (docs/adr/0058-figures-of-the-log.md).
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)

from spark_streams.log import Partition, ReferenceLog
from spark_streams.server.activity import behind
from spark_streams.server.appender import RefusalReason
from spark_streams.server.counters import SECONDS, DoorCounters, Histogram
from spark_streams.server.web.observation import Group
from spark_streams.server.web.snapshot import DoorFigures, Snapshot

PREFIX: Final = "spark_streams_log_"
PIECE: Final = 500
"""Samples that are written before other work has its turn: some three milliseconds."""
CONNECTION_REASONS: Final = ("full", "descriptors", "slow", "late", "tls")
EVENT_REASONS: Final = tuple(reason.name.lower() for reason in RefusalReason)

Samples = Iterator[tuple[Sequence[str], Any]]
"""The labels of each sample, and its value: a number, or of a histogram a ``Histogram``."""


@dataclass(frozen=True)
class Figure:
    """One figure.

    Args:
        name: its name, behind the prefix.
        kind: its class of ``prometheus_client``.
        labels: the names of its labels.
        text: what it is.
        samples: makes its samples.
    """

    name: str
    kind: Any
    labels: tuple[str, ...]
    text: str
    samples: Callable[[Snapshot], Samples]

    def metrics(self, snapshot: Snapshot) -> Iterator[Metric]:
        """Yield the figure in pieces of up to ``PIECE`` samples; the first one may have none."""
        samples = self.samples(snapshot)
        more = True
        while more:
            piece = list(islice(samples, PIECE))
            yield self._metric(piece)
            more = len(piece) == PIECE

    def _metric(self, piece: Sequence[tuple[Sequence[str], Any]]) -> Metric:
        metric = self.kind((PREFIX + self.name).removesuffix("_info"), self.text, labels=self.labels)
        for labels, value in piece:
            if isinstance(value, Histogram):
                metric.add_metric(labels, _buckets(value), value.sum_s)
            elif self.kind is InfoMetricFamily:
                metric.add_metric((), dict(zip(self.labels, labels, strict=True)))
            else:
                metric.add_metric(labels, value)
        return metric  # type: ignore[no-any-return]


def _buckets(histogram: Histogram) -> list[tuple[str, int]]:
    below, found = 0, []
    for end, count in zip((*map(str, SECONDS), "+Inf"), list(histogram.counts), strict=True):
        below += count
        found.append((end, below))
    return found


def _partitions(number: Callable[[Partition], int]) -> Callable[[Snapshot], Samples]:
    def samples(snapshot: Snapshot) -> Samples:
        for stream in snapshot.streams:
            for name, partition in stream.partitions.items():
                yield (stream.name, name), number(partition)

    return samples


def _groups(number: Callable[[ReferenceLog, Group], int | None]) -> Callable[[Snapshot], Samples]:
    def samples(snapshot: Snapshot) -> Samples:
        for group in snapshot.groups:
            value = number(snapshot.log, group) if group.partition else None
            if value is not None:
                yield (group.door, group.name, group.owner, group.stream, group.partition), value

    return samples


def _doors(number: Callable[[DoorFigures], Any]) -> Callable[[Snapshot], Samples]:
    return lambda snapshot: (((door.name,), number(door)) for door in snapshot.doors)


def _reasons(names: Sequence[str], counts: Callable[[DoorCounters], dict[str, int]]) -> Callable[[Snapshot], Samples]:
    def samples(snapshot: Snapshot) -> Samples:
        for door in snapshot.doors:
            for name in names:
                yield (door.name, name), counts(door.counters).get(name, 0)

    return samples


def _requests(snapshot: Snapshot) -> Samples:
    for door in snapshot.doors:
        for (method, status), histogram in sorted(door.counters.requests.items()):
            yield (door.name, method, status), histogram


_PARTITION: Final = ("stream", "partition")
_GROUP: Final = ("door", "consumergroup", "user", *_PARTITION)
_DOOR: Final = ("door",)
_REASON: Final = ("door", "reason")
_G, _C, _H = GaugeMetricFamily, CounterMetricFamily, HistogramMetricFamily
FIGURES: Final = tuple(Figure(*each) for each in (
    ("info", InfoMetricFamily, ("version",), "The version of spark-streams",
        lambda snapshot: iter([((importlib.metadata.version("spark-streams"),), 1)])),
    ("streams", _G, (), "Streams",
        lambda snapshot: iter([((), len(snapshot.streams))])),
    ("stream_partitions", _G, ("stream",), "Partitions of a stream, closed ones too",
        lambda snapshot: (((stream.name,), len(stream.partitions)) for stream in snapshot.streams)),
    ("partition_current_offset", _G, _PARTITION, "Offset of the next event of a partition",
        _partitions(lambda partition: partition.next_offset)),
    ("partition_oldest_offset", _G, _PARTITION, "Offset of the oldest event that a partition has",
        _partitions(lambda partition: partition.first_offset)),
    ("partition_size_bytes", _G, _PARTITION, "Bytes of a partition on the disk",
        _partitions(lambda partition: partition.stored_bytes)),
    ("consumergroup_current_offset", _G, _GROUP, "Offset of the next event of a consumer group, or of a stored offset",
        _groups(lambda log, group: group.next_offset)),
    ("consumergroup_lag", _G, _GROUP, "Events that a consumer group has before it",
        _groups(lambda log, group: behind(log, group.stream, group.partition, group.next_offset))),
    ("connections", _G, _DOOR, "Connections that are served now",
        _doors(lambda door: door.counters.opened - door.counters.closed)),
    ("connections_opened", _C, _DOOR, "Connections that were served",
        _doors(lambda door: door.counters.opened)),
    ("connections_closed", _C, _DOOR, "Connections that were served and have ended",
        _doors(lambda door: door.counters.closed)),
    ("connections_refused", _C, _REASON, "Connections that were not served",
        _reasons(CONNECTION_REASONS, lambda counters: counters.refused)),
    ("auth_attempts_failed", _C, _DOOR, "Credentials that were not accepted",
        _doors(lambda door: door.counters.sign_ins_failed)),
    ("consumers", _G, _DOOR, "Links, subscriptions and fetching connections that read",
        _doors(lambda door: door.readers)),
    ("publishers", _G, _DOOR, "Links, publishers and connections that write",
        _doors(lambda door: door.writers)),
    ("messages_received", _C, _DOOR, "Events of clients that were stored",
        _doors(lambda door: door.counters.received)),
    ("received_bytes", _C, _DOOR, "Bytes of the events that were stored",
        _doors(lambda door: door.counters.received_bytes)),
    ("messages_delivered", _C, _DOOR, "Events that were sent to clients",
        _doors(lambda door: door.counters.delivered)),
    ("delivered_bytes", _C, _DOOR, "Bytes of the events that were sent, as the protocol carries them, before gzip",
        _doors(lambda door: door.counters.delivered_bytes)),
    ("messages_refused", _C, _REASON, "Events of clients that were not stored",
        _reasons(EVENT_REASONS, lambda counters: counters.refused_events)),
    ("append_duration_seconds", _H, _DOOR, "Time from an append's arrival until its sender is told",
        _doors(lambda door: door.counters.appends)),
    ("http_request_duration_seconds", _H, ("door", "method", "status"), "Time from a request's head to its answer's",
        _requests),
))  # fmt: skip
"""All of them, in their order; a counter's name ends with ``_total`` besides."""
