"""RabbitMQ streams inside Spark: this source and sink beside plain rstream and Spark's own ceiling, in one run.

    python tests/bench/rabbitmq.py [--quick]          also: make bench, which starts a real broker where it can

With RABBITMQ_STREAM_URL set everything runs on that broker, and the embedded log's door is measured beside it; without
it everything runs on the door. Wall time and CPU time are those of one Spark job after a warm-up; CPU is the sum over
the driver's JVM and its Python workers, memory the largest resident size of one Python worker. Ratios are what counts.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]
BODY_BYTES = 100
TURNS = 7
"""How often the door and the broker are measured beside each other."""
SCHEMA = "value BINARY, offset STRING, timestamp TIMESTAMP"


# --- brokers


def serve(data_dir: str) -> None:
    """Serve a log through the RabbitMQ door, print its url as a JSON line, and stay until stdin closes."""
    from spark_streams.log import ReferenceLog
    from spark_streams.server import ServerThread
    from spark_streams.server.rabbitmq.config import RabbitConfig

    with ReferenceLog(data_dir) as log, ServerThread(log, None, RabbitConfig(port=0)) as server:
        print(json.dumps({"url": server.rabbit_url}), flush=True)
        sys.stdin.read()


@contextlib.contextmanager
def door() -> Iterator[tuple[str, psutil.Process]]:
    """The embedded log's door, in a process of its own: its url and process."""
    with tempfile.TemporaryDirectory(prefix="spark-streams-bench-") as folder:
        command = [sys.executable, __file__, "--serve", folder]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdin is not None and process.stdout is not None
            yield json.loads(process.stdout.readline())["url"], psutil.Process(process.pid)
        finally:
            process.stdin.close()
            process.wait(30)


def create(url: str) -> str:
    """Create a stream of a new name."""
    from spark_streams.client.rabbitmq.open import open_connection
    from spark_streams.wire.rabbitmq.stream_commands import Create, CreateAnswer

    name = f"bench-{secrets.token_hex(4)}"
    with open_connection(endpoint(url), timeout_ms=30_000) as connection:
        connection.request(Create(name), CreateAnswer, "create")
    return name


def endpoint(url: str) -> Any:
    from spark_streams.endpoint import RABBITMQ_SCHEMES, parse_url

    return parse_url(url, schemes=RABBITMQ_SCHEMES)


def fill(url: str, stream: str, messages: int, body_bytes: int) -> float:
    """Publish messages over one connection, at least once; return messages per second."""
    import pyarrow as pa

    from spark_streams.client import RabbitPublishing, TaskPublisher, encode_columns

    publisher = TaskPublisher(endpoint(url), RabbitPublishing(max_in_flight=40_000), None)
    values = pa.array([b"x" * body_bytes] * min(10_000, max(1, (4 << 20) // body_bytes)), pa.binary())
    begun, left = time.perf_counter(), messages
    while left:
        some = values.slice(0, min(left, len(values)))
        publisher.send(encode_columns({"value": some}), stream, None, str)
        left -= len(some)
    publisher.flush()
    took = time.perf_counter() - begun
    publisher.close()
    return messages / took


def consume(url: str, stream: str) -> float:
    """Read a whole stream over one connection, as rows; return messages per second."""
    from spark_streams.client import RabbitClient, RangeRead
    from spark_streams.position import EARLIEST

    with RabbitClient(endpoint(url)) as client:
        last = client.describe(stream).partitions[stream].latest
        assert last is not None
        read = RangeRead(stream, stream, EARLIEST, last, ("value", "offset", "timestamp"))
        begun, rows = time.perf_counter(), 0
        for batch in client.fetch(read):
            rows += batch.num_rows
        return rows / (time.perf_counter() - begun)


def drain(url: str, stream: str) -> float:
    """Read a whole stream over one connection without decoding messages; return messages per second."""
    from spark_streams.client.rabbitmq.bounds import extent
    from spark_streams.client.rabbitmq.open import open_connection
    from spark_streams.client.rabbitmq.subscription import Subscription
    from spark_streams.wire.rabbitmq.consumer_commands import OffsetSpecification, OffsetType

    with open_connection(endpoint(url), timeout_ms=30_000) as connection:
        last = extent(connection, stream).last
        assert last is not None
        begun, records = time.perf_counter(), 0
        subscription = Subscription(connection, stream, OffsetSpecification(OffsetType.FIRST), 10)
        while True:
            chunk = subscription.next(10.0)
            assert chunk is not None, "nothing came for ten seconds"
            records += chunk.header.records
            if chunk.header.next_offset > last:
                return records / (time.perf_counter() - begun)
            subscription.grant(1)


async def receive(url: str, stream: str, messages: int) -> float:
    """Read the beginning of a stream with rstream, messages as bytes; return messages per second."""
    from rstream import Consumer, ConsumerOffsetSpecification, OffsetType

    to, seen, done = urlsplit(url), 0, asyncio.Event()

    def on_message(message: Any, context: Any) -> None:
        nonlocal seen
        seen += 1
        if seen == messages:
            done.set()

    consumer = Consumer(to.hostname, port=to.port, username=to.username, password=to.password)
    await consumer.start()
    begun = time.perf_counter()
    await consumer.subscribe(
        stream, on_message, offset_specification=ConsumerOffsetSpecification(OffsetType.FIRST, None), initial_credit=10
    )
    await done.wait()
    took = time.perf_counter() - begun
    await consumer.close()
    return messages / took


# --- Spark


class Ceiling:
    """Constant Arrow batches, as many rows as the stream has: the most that Spark takes from a Python source."""

    @staticmethod
    def source() -> type:
        import pyarrow as pa
        from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

        class Reader(DataSourceReader):  # type: ignore[misc]
            def __init__(self, count: int) -> None:
                self.count = count

            def partitions(self) -> list[InputPartition]:
                return [InputPartition(0)]

            def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
                rows = 10_000
                columns = [
                    pa.array([b"x" * BODY_BYTES] * rows, pa.binary()),
                    pa.array([f"{n:020d}" for n in range(rows)], pa.string()),
                    pa.array([0] * rows, pa.timestamp("us", tz="UTC")),
                ]
                batch = pa.RecordBatch.from_arrays(columns, names=["value", "offset", "timestamp"])
                for start in range(0, self.count, rows):
                    yield batch.slice(0, min(rows, self.count - start))

        class Source(DataSource):  # type: ignore[misc]
            @classmethod
            def name(cls) -> str:
                return "ceiling"

            def schema(self) -> str:
                return SCHEMA

            def reader(self, schema: Any) -> DataSourceReader:
                return Reader(int(self.options["count"]))

        return Source


class Watch:
    """Wall time, CPU time of this process's descendants, and the largest Python worker, while the context is open."""

    def __enter__(self) -> Watch:
        self._self = psutil.Process()
        self._cpu: dict[int, float] = {}
        self._base = self._sample()
        self.peak_mb = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        self._begun = time.perf_counter()
        return self

    def _sample(self) -> dict[int, float]:
        for child in self._self.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                times = child.cpu_times()
                self._cpu[child.pid] = times.user + times.system
        return dict(self._cpu)

    def _watch(self) -> None:
        while not self._stop.wait(0.05):
            self._sample()
            for child in self._self.children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    if "python" in child.name():
                        self.peak_mb = max(self.peak_mb, child.memory_info().rss / 1e6)

    def __exit__(self, *fault: object) -> None:
        self.wall_s = time.perf_counter() - self._begun
        self._stop.set()
        self._thread.join()
        self.cpu_s = sum(value - self._base.get(pid, 0.0) for pid, value in self._sample().items())


def session() -> Any:
    from plain_rstream import PlainSource
    from pyspark.sql import SparkSession

    import spark_streams

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join((str(ROOT), str(Path(__file__).parent)))
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark_streams.register(spark)
    for source in (PlainSource, Ceiling.source()):
        spark.dataSource.register(source)
    return spark


def measure(name: str, rows: int, job: Callable[[], None]) -> dict[str, float]:
    """Run a job and print what it used."""
    with Watch() as watch:
        job()
    seen = {"wall_us": watch.wall_s / rows * 1e6, "cpu_us": watch.cpu_s / rows * 1e6, "peak_mb": watch.peak_mb}
    print(
        f"{name:<44} {rows:>10,} {rows / watch.wall_s:>12,.0f} {seen['wall_us']:>9.2f} {seen['cpu_us']:>9.2f} "
        f"{seen['peak_mb']:>9.0f}",
        flush=True,
    )
    return seen


def verdict(name: str, seen: str, wanted: str, met: bool) -> bool:
    """Print one target and what was seen, and return whether it was met."""
    print(f"{'met ' if met else 'MISSED'}  {name:<62} {seen:>10}   target {wanted}")
    return met


def bench(quick: bool) -> int:
    """Run everything and print it; return 1 when a target was missed, else 0."""
    scale = 10 if quick else 1
    ours, plain, memory_mb = 4_000_000 // scale, 200_000 // scale, 1_000 // scale
    with contextlib.ExitStack() as stack:
        embedded, _ = stack.enter_context(door())
        real = os.environ.get("RABBITMQ_STREAM_URL")
        url = real or embedded
        broker = "RabbitMQ" if real else "the embedded log (RABBITMQ_STREAM_URL is not set)"
        print(f"broker: {broker}; {BODY_BYTES}-byte bodies\n")
        head = "inside Spark, one task"
        print(f"{head:<44} {'rows':>10} {'rows/s':>12} {'wall us':>9} {'CPU us':>9} {'worker MB':>9}")
        stream = create(url)
        fill(url, stream, ours, BODY_BYTES)
        spark = stack.enter_context(contextlib.closing(Closing(session()))).spark

        def read(form: str, count: int, name: str = stream, **options: str) -> Callable[[], None]:
            reader = spark.read.format(form).schema(SCHEMA) if form == "rabbitmq-stream" else spark.read.format(form)
            if form == "rabbitmq-stream":
                options = {"url": url, "stream": name, "endingOffsets": json.dumps({name: count}), **options}
            else:
                options = {"url": url, "stream": name, "count": str(count), **options}
            return lambda: reader.options(**options).load().write.format("noop").mode("overwrite").save()

        for form in ("rabbitmq-stream", "plain-rstream", "ceiling"):
            read(form, 10_000)()
        source = measure("source: rabbitmq-stream", ours, read("rabbitmq-stream", ours))
        rstream = measure("plain rstream source, amqp_decoder, tuples", plain, read("plain-rstream", plain))
        ceiling = measure("ceiling: constant Arrow batches", ours, read("ceiling", ours))

        frame = spark.range(ours).selectExpr(f"cast(repeat('x', {BODY_BYTES}) as binary) AS value").coalesce(1)
        few = frame.limit(plain).coalesce(1)

        def write(name: str, rows: Any) -> Callable[[], None]:
            writer = rows.write.format("rabbitmq-stream").options(url=url, stream=name).mode("append")
            return lambda: writer.save()

        from plain_rstream import send_rows

        written = create(url)
        write(written, frame.limit(1_000).coalesce(1))()
        sink = measure("sink: rabbitmq-stream", ours // 4, write(written, frame.limit(ours // 4).coalesce(1)))
        other = create(url)
        few.limit(1_000).foreachPartition(send_rows(url, other))
        sender = measure(
            "rstream send_batch in foreachPartition", plain, lambda: few.foreachPartition(send_rows(url, other))
        )

        body = 1_000
        large = create(url)
        fill(url, large, memory_mb * 1_000_000 // body, body)
        memory = measure(
            f"source: {memory_mb:,} MB in {body:,}-byte bodies",
            memory_mb * 1_000_000 // body,
            read("rabbitmq-stream", memory_mb * 1_000_000 // body, large),
        )
        print()
        met = [
            verdict(
                "source : plain rstream source, rows per second",
                f"{rstream['wall_us'] / source['wall_us']:.1f} x",
                ">= 5 x",
                rstream["wall_us"] >= 5 * source["wall_us"],
            ),
            verdict(
                "source : ceiling, rows per second",
                f"{ceiling['wall_us'] / source['wall_us']:.2f} x",
                ">= 0.25 x",
                ceiling["wall_us"] >= 0.25 * source["wall_us"],
            ),
            verdict(
                "sink : rstream send_batch, rows per second",
                f"{sender['wall_us'] / sink['wall_us']:.1f} x",
                ">= 4 x",
                sender["wall_us"] >= 4 * sink["wall_us"],
            ),
            verdict(
                f"largest Python worker reading {memory_mb:,} MB",
                f"{memory['peak_mb']:.0f} MB",
                "< 400 MB",
                memory["peak_mb"] < 400,
            ),
        ]
        if real:
            met += beside(real, embedded, ours // 4)
    # A quick run is too short to judge by: start-up weighs as much as the messages.
    return 0 if quick or all(met) else 1


def beside(real: str, embedded: str, messages: int) -> list[bool]:
    """Measure the embedded door beside the real broker, one connection each, turn by turn.

    Both are written and read by the same clients. What counts is the median of the turns' ratios: a turn measures both
    within a few seconds, with whatever else the machine has to do then.
    """
    turns: list[dict[str, dict[str, float]]] = []
    for number in range(TURNS):
        turn = {url: _one_turn(url, messages) for url in ((real, embedded), (embedded, real))[number % 2]}
        turns.append(turn)

    def middle(what: str, url: str) -> float:
        return statistics.median(turn[url][what] for turn in turns)

    met = []
    for what, name, judged in (
        ("write", "one producer, messages per second", True),
        ("read", "one consumer, messages per second", True),
        ("rstream", "one consumer by rstream, undecoded, messages per second", True),
        ("drain", "one consumer that looks at chunks' headers only", False),
    ):
        ratio = statistics.median(turn[embedded][what] / turn[real][what] for turn in turns)
        if judged:
            met.append(verdict(f"door : broker, {name}", f"{ratio:.2f} x", ">= 1 x", ratio >= 1))
        else:
            print(f"        door : broker, {name}: {ratio:.2f} x")
        print(f"        {middle(what, embedded):,.0f} against {middle(what, real):,.0f} messages/s", end="")
        print(f"; CPU {middle(what + ' CPU', embedded):.2f} against {middle(what + ' CPU', real):.2f} us a message")
    return met


def _one_turn(url: str, messages: int) -> dict[str, float]:
    """Write a stream and read it in several ways: messages per second, and microseconds of the server's CPU time."""
    stream, server = create(url), server_of(url)
    seen: dict[str, float] = {}
    for what, measured, count in (
        ("write", lambda: fill(url, stream, messages, BODY_BYTES), messages),
        ("read", lambda: consume(url, stream), messages),
        ("drain", lambda: drain(url, stream), messages),
        ("rstream", lambda: asyncio.run(receive(url, stream, messages // 10)), messages // 10),
    ):
        before = cpu_s(server)
        seen[what] = measured()
        seen[what + " CPU"] = (cpu_s(server) - before) / count * 1e6
    return seen


def server_of(url: str) -> psutil.Process | None:
    """Return the process that listens where a url leads to, None where the system does not say."""
    port = urlsplit(url).port
    with contextlib.suppress(psutil.Error):
        for each in psutil.net_connections("tcp"):
            if each.status == psutil.CONN_LISTEN and each.laddr.port == port and each.pid:
                return psutil.Process(each.pid)
    return None


def cpu_s(process: psutil.Process | None) -> float:
    """Return the CPU time that a process has used, NaN for none."""
    return sum(process.cpu_times()[:2]) if process is not None else float("nan")


class Closing:
    """A session that ``contextlib.closing`` can close."""

    def __init__(self, spark: Any) -> None:
        self.spark = spark

    def close(self) -> None:
        self.spark.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of everything: does it run, not how fast is it")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
    else:
        sys.exit(bench(options.quick))


if __name__ == "__main__":
    main()
