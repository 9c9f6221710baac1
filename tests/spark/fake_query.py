"""A streaming query without Spark: the offsets that Spark would keep, and the rows that it would have read."""

from __future__ import annotations

import json

from spark_streams.options.amqp_events import parse_source
from spark_streams.options.rabbitmq_stream import parse_source as parse_rabbit_source
from spark_streams.spark.source.micro_batch import MicroBatches
from tests.spark.fake_client import FakeLog


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Query:
    """What Spark does with a source, and what a restart loses: everything but the JSON of two offset logs."""

    def __init__(self, log: FakeLog, **options: str) -> None:
        self.log, self.options, self.clock = log, options, Clock()
        self.committed: dict | None = None
        self.rows: list[tuple[str, str]] = []
        self.restart()

    def restart(self) -> None:
        """Stop and start again."""
        parse, scheme = (parse_rabbit_source, "rabbitmq-stream") if self.log.numeric else (parse_source, "amqp")
        parsed = parse({"url": f"{scheme}://h", "stream": "orders", **self.options}, streaming=True)
        self.source = MicroBatches(parsed, ("offset",), self.log.connect, self.clock)

    def plan(self, limit: int | None = None, may_wait: bool = True) -> tuple[dict, dict]:
        """Ask where the next batch starts and ends, a second later."""
        self.clock.now += 1
        first = self.committed is None
        start = self.source.initial() if first else self.committed
        start = json.loads(json.dumps(start))
        return start, json.loads(json.dumps(self.source.next_end(start, limit, may_wait=may_wait)))

    def read(self, start: dict, end: dict) -> list[tuple[str, str]]:
        """Read a planned batch."""
        rows = []
        for planned in self.source.reads(start, end):
            held, read = self.log.partitions[planned.read.partition], planned.read
            offsets = held.offsets(read.start, read.end)
            if read.filter is not None:
                offsets = held.matching(offsets, read.filter, read.partition)
            rows += [(read.partition, o) for o in offsets]
        return rows

    def batch(self, limit: int | None = None) -> int:
        """Run a batch; return its rows, or -1 when there is none to run."""
        first = self.committed is None
        start, end = self.plan(limit)
        if start == end and not first:
            return -1
        rows = self.read(start, end)
        self.rows += rows
        self.committed = end
        return len(rows)

    def drain(self, limit: int | None = None) -> list[int]:
        """Run batches until there is none to run; return their sizes."""
        sizes = []
        while (size := self.batch(limit)) >= 0:
            sizes.append(size)
            assert len(sizes) < 1000
        return sizes


def everything(log: FakeLog) -> list[tuple[str, str]]:
    """Return all events that a log has ever had."""
    return [(p, held.spell(n)) for p, held in log.partitions.items() for n in range(held.next) if n not in held.blanks]
