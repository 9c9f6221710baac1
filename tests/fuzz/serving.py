"""The program that is fuzzed: a log behind its doors, which answers questions about itself on stdin and stdout.

It runs in a process of its own: what it takes of memory is its own, and a crash of native code ends it and no test.
Everything that would differ from run to run, the identities of its streams, is the same in each.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import logging
import resource
import sys
import traceback
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_streams.log import LogConfig, ReferenceLog, Stream, StreamConfig
from spark_streams.server import AmqpConfig, EventHubsConfig, ServerThread
from spark_streams.server.feed.config import FeedConfig
from spark_streams.server.rabbitmq.config import RabbitConfig
from spark_streams.wire.amqp.columns.encode import encode_columns

FUZZED = {"orders": 1, "many": 3, "created": 2}
"""Streams that cases name: they may write there what they like, and delete them."""
WITNESS = "the-witness-that-no-case-names"


class Kept(logging.Handler):
    """Keeps what must not be logged: errors, and whatever has a stack trace."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR or record.exc_info:
            fault = record.exc_info or sys.exc_info()
            trace = "".join(traceback.format_exception(*fault)) if fault[0] is not None else ""
            self.found.append(f"{record.levelname} {record.name}: {record.getMessage()}\n{trace}"[-6_000:])


def make_streams(log: ReferenceLog) -> None:
    for name, partitions in FUZZED.items():
        if name in {stream.name for stream in log.streams()}:
            continue
        config = StreamConfig(timestamp_type="create") if name == "created" else StreamConfig(segment_max_bytes=1 << 20)
        stream = log.create_stream(name, partitions, config)
        for partition in stream.partitions.values():
            rows = pa.array([b'{"n":%d,"type":"t%d"}' % (n, n % 3) for n in range(10)])
            values = encode_columns({"value": rows, "key": pa.array([f"k{n}" for n in range(10)])})
            partition.append(values, timestamps=list(range(10)) if name == "created" else None)


def stored(stream: Stream) -> int:
    return sum(partition.stored_bytes for partition in stream.partitions.values())


def peak_bytes() -> int:
    """Return the most memory that was taken since ``forget_peak``."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def forget_peak() -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def connections(server: ServerThread) -> int:
    door = server.server.door
    return sum(len(door(name).connections) for name in ("amqp", "rabbitmq-stream", "feedapi", "event-hubs"))


def main(folder: str, variant: int) -> None:
    faulthandler.enable()
    kept = Kept()
    logging.basicConfig(level=logging.WARNING, handlers=[kept])
    numbers = iter(range(1, 1 << 60))
    uuid.uuid4 = lambda: uuid.UUID(int=next(numbers))  # type: ignore[assignment]
    # Appends wait for the disk in threads of their own, or do not; a feed is served in either form of version 2.
    waits, second = bool(variant & 1), bool(variant & 2)
    with ReferenceLog(folder, LogConfig(fsync="always" if waits else "never")) as log:
        make_streams(log)
        log.create_stream(WITNESS)
        with ServerThread(
            log,
            AmqpConfig(port=0, unassigned="wait" if waits else "reject", unassigned_wait_ms=50),
            RabbitConfig(port=0, authentication_delay_ms=1, max_super_stream_partitions=50),
            FeedConfig(port=0, max_partitions=50, max_stream_ms=200, dialect="v2b" if second else "v2a"),
            EventHubsConfig(port=0, max_tokens=5, groups=frozenset({"g"}) if second else "dynamic"),
        ) as server:
            for line in sys.stdin:
                print(json.dumps(answer(line.strip(), server, log, kept)), flush=True)


def answer(question: str, server: ServerThread, log: ReferenceLog, kept: Kept) -> Any:
    if question == "urls":
        return {**server.urls, "incarnations": {stream.name: stream.incarnation for stream in log.streams()}}
    if question == "connections":
        return server.call(lambda: connections(server))
    if question == "renew":  # what cases deleted is there again, and what they made is not
        for stream in server.call(log.streams):
            if stream.name not in FUZZED and stream.name != WITNESS:
                server.call(lambda name=stream.name: log.delete_stream(name))  # type: ignore[misc]
        server.call(lambda: make_streams(log))
        return None
    if question == "shrink":
        for stream in server.call(log.streams):
            if sum(p.next_offset for p in stream.partitions.values()) > 20_000 or stored(stream) > 8 << 20:
                server.call(lambda name=stream.name: log.delete_stream(name))  # type: ignore[misc]
        server.call(lambda: make_streams(log))
        return None
    if question == "counts":
        return {
            stream.name: {p.id: [p.first_offset, p.next_offset] for p in stream.partitions.values()}
            for stream in log.streams()
        }
    gc.collect()  # what says 'Task exception was never retrieved' says it when the task goes
    found, kept.found = kept.found, []
    peak = peak_bytes()
    forget_peak()
    return {"found": found, "peak_bytes": peak, "now_bytes": peak_bytes()}


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
