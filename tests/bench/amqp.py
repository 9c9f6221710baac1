"""How fast and how lean: the AMQP client and door, side by side with proton's MessagingHandler on the same server.

    python tests/bench/amqp.py [--quick]          also: make bench

The server is a process of its own, and so is every reader and writer, so that each one's CPU time and memory are its
own. CPU time per message is what counts (ratios are the same on any machine, seconds are not); the door's is read off
the server's process. What is printed at the end holds the targets of the issue beside what was seen.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
BODY_BYTES = 100
STREAM = "bench"


# --- the processes


def serve(data_dir: str, events: int, body_bytes: int) -> None:
    """Fill a stream, serve it, print its url as a JSON line, and stay until stdin closes."""
    import proton
    import pyarrow as pa

    from spark_streams.log import ReferenceLog
    from spark_streams.server import AmqpConfig, ServerThread

    message = proton.Message(body=b"x" * body_bytes, inferred=True).encode()
    message = message[message.index(b"\x00\x53\x75") :]  # the log stores messages from their annotations or body on
    with ReferenceLog(data_dir) as log:
        partition = log.create_stream(STREAM, 1).partitions["0"]
        log.create_stream("written", 1)
        left, step = events, max(1, (8 << 20) // len(message))
        block = pa.array([bytes(message)] * step, pa.binary())
        while left:
            partition.append(block.slice(0, min(step, left)))
            left -= min(step, left)
        with ServerThread(log, AmqpConfig(port=0)) as server:
            last = f"{partition.next_offset - 1:020d}"
            print(json.dumps({"url": server.urls["amqp"], "last": last}), flush=True)
            sys.stdin.read()


def report(messages: int, begun: tuple[float, float]) -> None:
    """Print what a reader or writer used since ``begun``, as a JSON line."""
    print(
        json.dumps(
            {
                "messages": messages,
                "cpu_s": time.process_time() - begun[1],
                "wall_s": time.perf_counter() - begun[0],
                "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            }
        )
    )


def clock() -> tuple[float, float]:
    """Return wall and CPU seconds."""
    return time.perf_counter(), time.process_time()


def client_for(url: str) -> Any:
    """Return our client for the door's url, signed in as guest."""
    from spark_streams.client import AmqpClient
    from spark_streams.endpoint import parse_url

    return AmqpClient(parse_url(url.replace("amqp://", "amqp://guest:guest@")))


def read_client(url: str, start: str, end: str, limit: int) -> None:
    """Read a range as the source does: the default columns, in record batches."""
    from spark_streams.client import RangeRead
    from spark_streams.position import EARLIEST, After
    from spark_streams.rows import MESSAGE_SCHEMA

    with client_for(url) as client:
        client.describe(STREAM)
        begun, rows = clock(), 0
        position = After(start) if start else EARLIEST
        for batch in client.fetch(RangeRead(STREAM, "0", position, end, tuple(MESSAGE_SCHEMA.names))):
            rows += batch.num_rows
        if limit and rows != limit:
            raise SystemExit(f"{rows} rows, expected {limit}")
        report(rows, begun)


def read_proton(url: str, start: str, end: str, limit: int) -> None:
    """Read with a plain proton consumer: MessagingHandler, on_message, a window of 1,000."""
    from proton import Described, symbol, ulong
    from proton.handlers import MessagingHandler
    from proton.reactor import AtMostOnce, Container, Filter

    class Consumer(MessagingHandler):
        def __init__(self) -> None:
            super().__init__(prefetch=1_000)
            self.count = 0

        def on_start(self, event: Any) -> None:
            connection = event.container.connect(url, user="guest", password="guest", allow_insecure_mechs=True)
            everything = {symbol("event-streams-offset"): symbol("@earliest")}
            start_at = Filter({symbol("start"): Described(ulong(512), everything)})
            event.container.create_receiver(connection, STREAM, options=[start_at, AtMostOnce()])

        def on_message(self, event: Any) -> None:
            if not self.count:
                self.begun = clock()
            assert event.message.body is not None
            self.count += 1
            if self.count == limit:
                event.connection.close()

    consumer = Consumer()
    Container(consumer).run()
    report(consumer.count - 1, consumer.begun)


def write_client(url: str, start: str, end: str, limit: int) -> None:
    """Write as the sink does: columns to messages, then the publisher."""
    import pyarrow as pa

    from spark_streams.wire.amqp.columns.encode import encode_columns

    values = pa.array([b"x" * BODY_BYTES] * min(limit, 20_000), pa.binary())
    with client_for(url) as client:
        publisher = client.publisher("written")
        begun, sent = clock(), 0
        while sent < limit:
            rows = min(len(values), limit - sent)
            publisher.send(encode_columns({"value": values.slice(0, rows)}), lambda row: f"row {row}")
            sent += rows
        publisher.flush()
        report(sent, begun)
        publisher.close()


def write_proton(url: str, start: str, end: str, limit: int) -> None:
    """Write with a plain proton producer: MessagingHandler, on_sendable, unsettled, each outcome counted."""
    from proton import Message
    from proton.handlers import MessagingHandler
    from proton.reactor import Container

    class Producer(MessagingHandler):
        sent = accepted = 0

        def on_start(self, event: Any) -> None:
            connection = event.container.connect(url, user="guest", password="guest", allow_insecure_mechs=True)
            event.container.create_sender(connection, "written")

        def on_sendable(self, event: Any) -> None:
            if not self.sent:
                self.begun = clock()
            while event.sender.credit and self.sent < limit:
                event.sender.send(Message(body=b"x" * BODY_BYTES, inferred=True))
                self.sent += 1

        def on_accepted(self, event: Any) -> None:
            self.accepted += 1
            if self.accepted == limit:
                event.connection.close()

    producer = Producer()
    Container(producer).run()
    report(producer.accepted, producer.begun)


ROLES = {
    "read-client": read_client,
    "read-proton": read_proton,
    "write-client": write_client,
    "write-proton": write_proton,
}


# --- the run


class Server:
    """A server process over a new log; a context manager."""

    def __init__(self, events: int, body_bytes: int = BODY_BYTES) -> None:
        self.events = events
        self._folder = tempfile.TemporaryDirectory(prefix="spark-streams-bench-")
        arguments = ["--serve", self._folder.name + "/log", "--events", str(events), "--body-bytes", str(body_bytes)]
        self._process = subprocess.Popen(
            [sys.executable, __file__, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("the server did not start")
        said = json.loads(line)
        self.url, self.last = said["url"], said["last"]
        self._usage = psutil.Process(self._process.pid)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()

    def run(self, role: str, limit: int, start: str = "", end: str = "") -> dict[str, float]:
        """Run one reader or writer against it, and return what both used, per message in microseconds."""
        before = self._cpu()
        arguments = [
            "--role",
            role,
            "--url",
            self.url,
            "--limit",
            str(limit),
            "--start",
            start,
            "--end",
            end or self.last,
        ]
        done = subprocess.run([sys.executable, __file__, *arguments], stdout=subprocess.PIPE, text=True, check=True)
        used = json.loads(done.stdout.splitlines()[-1])
        used["us"] = used["cpu_s"] / used["messages"] * 1e6
        used["server_us"] = (self._cpu() - before) / used["messages"] * 1e6
        return used

    def _cpu(self) -> float:
        times = self._usage.cpu_times()
        return float(times.user + times.system)


def line(name: str, used: dict[str, float]) -> None:
    """Print one run."""
    print(
        f"{name:<38} {used['messages']:>10,.0f} {used['us']:>10.2f} {1e6 / used['us']:>12,.0f} "
        f"{used['server_us']:>11.2f} {1e6 / max(used['server_us'], 1e-9):>12,.0f} "
        f"{used['messages'] / used['wall_s']:>11,.0f} {used['peak_mb']:>8.0f}"
    )


def verdict(name: str, seen: str, wanted: str, met: bool) -> bool:
    """Print one target and what was seen, and return whether it was met."""
    print(f"{'met ' if met else 'MISSED'}  {name:<58} {seen:>14}   target {wanted}")
    return met


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of everything: does it run, not how fast is it")
    parser.add_argument("--memory-mb", type=int, default=None, help="size of the read whose memory is measured")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--events", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--body-bytes", type=int, default=BODY_BYTES, help=argparse.SUPPRESS)
    parser.add_argument("--role", choices=ROLES, help=argparse.SUPPRESS)
    for name in ("--url", "--start", "--end"):
        parser.add_argument(name, default="", help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.events, options.body_bytes)
    elif options.role:
        ROLES[options.role](options.url, options.start, options.end, options.limit)
    else:
        sys.exit(bench(options.quick, options.memory_mb or (100 if options.quick else 1_000)))


def bench(quick: bool, memory_mb: int) -> int:
    """Run everything and print it; return 1 when a target was missed, else 0."""
    ours, theirs = (60_000, 5_000) if quick else (400_000, 40_000)
    print(f"{BODY_BYTES}-byte bodies; CPU in microseconds per message; wall-clock rates depend on the machine's load\n")
    print(
        f"{'':<38} {'messages':>10} {'client us':>10} {'per core':>12} {'server us':>11} {'per core':>12} "
        f"{'wall /s':>11} {'peak MB':>8}"
    )
    with Server(ours) as server:
        server.run("read-client", ours)  # warms the page cache and the server
        read = server.run("read-client", ours)
        line("source: client.fetch", read)
        plain_read = server.run("read-proton", theirs)
        line("proton MessagingHandler consumer", plain_read)
        write = server.run("write-client", ours)
        line("sink: encode_columns + publisher", write)
        plain_write = server.run("write-proton", theirs)
        line("proton MessagingHandler producer", plain_write)
    with Server(10 * ours) as server:
        server.run("read-client", ours, start=f"{9 * ours - 1:020d}")
        tail = server.run("read-client", ours, start=f"{9 * ours - 1:020d}")
        line("10 x the log, its last tenth", tail)
        whole = server.run("read-client", 10 * ours)
        line("10 x the log, all of it", whole)
    body = 1_000
    with Server(memory_mb * 1_000_000 // body, body) as server:
        memory = server.run("read-client", memory_mb * 1_000_000 // body)
        line(f"{memory_mb:,} MB in 1,000-byte bodies", memory)
    print()
    source = plain_read["us"] / read["us"]
    sink = plain_write["us"] / write["us"]
    door = 1e6 / read["server_us"]
    peak = memory["peak_mb"]
    growth = (whole["server_us"] + whole["us"]) / (read["server_us"] + read["us"])
    later = (tail["server_us"] + tail["us"]) / (read["server_us"] + read["us"])
    met = [
        verdict("source : MessagingHandler, messages per CPU second", f"{source:.1f} x", ">= 10 x", source >= 10),
        verdict("sink : MessagingHandler, messages per CPU second", f"{sink:.1f} x", ">= 10 x", sink >= 10),
        verdict("door, events/s out of one core", f"{door:,.0f}", ">= 100,000", door >= 100_000),
        verdict(f"peak memory of a reader of {memory_mb:,} MB", f"{peak:.0f} MB", "< 400 MB", peak < 400),
        verdict("cost per event, 10 x the log : the log", f"{growth:.2f} x", "<= 1.25 x", growth <= 1.25),
        verdict("cost per event at the end of 10 x the log", f"{later:.2f} x", "<= 1.25 x", later <= 1.25),
    ]
    # A quick run is too short to judge by: start-up weighs as much as the messages.
    return 0 if quick or all(met) else 1


if __name__ == "__main__":
    main()
