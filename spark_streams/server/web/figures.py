"""The log's figures: their names, and where each comes from, in the terms of ``prometheus_client``.

Names follow those that operators know: kafka_exporter's for partitions and consumer groups, those of RabbitMQ's plugin
for connections and messages, after a prefix of our own (docs/adr/0058-figures.md).
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

from spark_streams.log import Partition, ReferenceLog, Stream
from spark_streams.server.activity import behind
from spark_streams.server.appender import RefusalReason
from spark_streams.server.counters import SECONDS, DoorCounters, Histogram
from spark_streams.server.web.observation import Group

PREFIX: Final = "spark_streams_log_"
PIECE: Final = 500
"""Samples that are written, in some three milliseconds, before other work has its turn."""
CONNECTION_REASONS: Final = ("full", "descriptors", "slow", "late", "tls")
EVENT_REASONS: Final = tuple(reason.label for reason in RefusalReason)


@dataclass(frozen=True)
class DoorFigures:
    """The state of one door, at one moment.

    Args:
        name: its name.
        counters: what it has done.
        readers: how many readers it has.
        writers: how many writers it has.
    """

    name: str
    counters: DoorCounters
    readers: int
    writers: int


@dataclass(frozen=True)
class Snapshot:
    """The source of the figures.

    Args:
        log: the log.
        streams: those that the client may read.
        groups: those that the client may see.
        doors: the state of each door.
    """

    log: ReferenceLog
    streams: Sequence[Stream]
    groups: Sequence[Group]
    doors: Sequence[DoorFigures]


_FAMILIES: Final[dict[str, Any]] = {
    "info": InfoMetricFamily,
    "gauge": GaugeMetricFamily,
    "counter": CounterMetricFamily,
    "histogram": HistogramMetricFamily,
}
Samples = Iterator[tuple[Sequence[str], Any]]
"""The labels of each sample, and its value: a number, or a ``Histogram``."""


@dataclass(frozen=True)
class Figure:
    """One figure.

    Args:
        name: its name.
        kind: ``info``, ``gauge``, ``counter`` or ``histogram``.
        labels: the names of its labels.
        text: what it is.
        samples: makes its samples.
    """

    name: str
    kind: str
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
        metric: Any = _FAMILIES[self.kind](self.name.removesuffix("_info"), self.text, labels=self.labels)
        for labels, value in piece:
            if isinstance(value, Histogram):
                metric.add_metric(labels, _buckets(value), value.sum_s)
            elif self.kind == "info":
                metric.add_metric((), dict(zip(self.labels, labels, strict=True)))
            else:
                metric.add_metric(labels, value)
        made: Metric = metric
        return made


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


def _figure(name: str, kind: str, labels: tuple[str, ...], text: str, samples: Callable[[Snapshot], Samples]) -> Figure:
    return Figure(PREFIX + name, kind, labels, text, samples)


_PARTITION: Final = ("stream", "partition")
_GROUP: Final = ("door", "consumergroup", "user", *_PARTITION)
_DOOR: Final = ("door",)
_REASON: Final = ("door", "reason")
_ANSWER: Final = ("door", "method", "status")
FIGURES: Final = (
    _figure("info", "info", ("version",), "The version of spark-streams",
        lambda snapshot: iter([((importlib.metadata.version("spark-streams"),), 1)])),
    _figure("streams", "gauge", (), "Streams",
        lambda snapshot: iter([((), len(snapshot.streams))])),
    _figure("stream_partitions", "gauge", ("stream",), "Partitions of a stream, closed ones too",
        lambda snapshot: (((stream.name,), len(stream.partitions)) for stream in snapshot.streams)),
    _figure("partition_current_offset", "gauge", _PARTITION, "Offset of the next event of a partition",
        _partitions(lambda partition: partition.next_offset)),
    _figure("partition_oldest_offset", "gauge", _PARTITION, "Offset of the oldest event that a partition has",
        _partitions(lambda partition: partition.first_offset)),
    _figure("partition_size_bytes", "gauge", _PARTITION, "Bytes of a partition on the disk",
        _partitions(lambda partition: partition.stored_bytes)),
    _figure("consumergroup_current_offset", "gauge", _GROUP, "Offset of the next event of a consumer group",
        _groups(lambda log, group: group.next_offset)),
    _figure("consumergroup_lag", "gauge", _GROUP, "Events that a consumer group has before it",
        _groups(lambda log, group: behind(log, group.stream, group.partition, group.next_offset))),
    _figure("connections", "gauge", _DOOR, "Connections that are served now",
        _doors(lambda door: door.counters.opened - door.counters.closed)),
    _figure("connections_opened_total", "counter", _DOOR, "Connections that were served",
        _doors(lambda door: door.counters.opened)),
    _figure("connections_closed_total", "counter", _DOOR, "Connections that were served and have ended",
        _doors(lambda door: door.counters.closed)),
    _figure("connections_refused_total", "counter", _REASON, "Connections that were not served",
        _reasons(CONNECTION_REASONS, lambda counters: counters.refused)),
    _figure("auth_attempts_failed_total", "counter", _DOOR, "Credentials that were not accepted",
        _doors(lambda door: door.counters.sign_ins_failed)),
    _figure("consumers", "gauge", _DOOR, "Links, subscriptions and fetching connections that read",
        _doors(lambda door: door.readers)),
    _figure("publishers", "gauge", _DOOR, "Links, publishers and connections that write",
        _doors(lambda door: door.writers)),
    _figure("messages_received_total", "counter", _DOOR, "Events of clients that were stored",
        _doors(lambda door: door.counters.received)),
    _figure("received_bytes_total", "counter", _DOOR, "Bytes of the events that were stored",
        _doors(lambda door: door.counters.received_bytes)),
    _figure("messages_delivered_total", "counter", _DOOR, "Events that were sent to clients",
        _doors(lambda door: door.counters.delivered)),
    _figure("delivered_bytes_total", "counter", _DOOR, "Bytes of the events that were sent, as the protocol has them",
        _doors(lambda door: door.counters.delivered_bytes)),
    _figure("messages_refused_total", "counter", _REASON, "Events of clients that were not stored",
        _reasons(EVENT_REASONS, lambda counters: counters.refused_events)),
    _figure("append_duration_seconds", "histogram", _DOOR, "Time from an append's arrival until its sender is told",
        _doors(lambda door: door.counters.appends)),
    _figure("http_request_duration_seconds", "histogram", _ANSWER, "Time from a request to its answer",
        _requests),
)  # fmt: skip
"""All figures, in the order in which they are written."""
