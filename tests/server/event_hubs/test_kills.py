"""kill -9 of the log, again and again, while clients send batches to the Event Hubs door and others read from it.

What docs/delivery.md and docs/event-hubs-door.md promise is compared with what is stored in the end: a batch that was
accepted is there, whole, in one partition and once; one whose outcome nobody learnt is there so or not at all; what our
own sink was to write is there, repeated rows under the ids that they had; and what a reader was given is there, at the
offset that it had. The seed chooses sizes, keys and the moments of the kills.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from azure.eventhub import EventData, EventHubProducerClient
from azure.eventhub.exceptions import EventHubError
from proton import Described, symbol
from spark_streams.sinks.amqp_events import AmqpSink

from spark_streams.options.amqp_events import parse_sink
from spark_streams.spark.sink.sink import TaskName
from spark_streams.testing import LogProcess, LogStream, StreamFactory, eventually
from tests.door_urls import plain_url
from tests.e2e.stored import Stored, stored
from tests.server.amqp.raw_peer import Ended, Peer

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1_800)]

ROUNDS = 20
PARTITIONS = 3
WAIT_S = 240
MOST_EVENTS, MOST_BYTES = 60, 10_000
"""Of a batch, and of each of its events: some hundred kilobytes a batch."""
CREDIT = 100
SELECTOR = symbol("apache.org:selector-filter:string")


class Producer:
    """Microsoft's client, which sends batch after batch and repeats none.

    Args:
        kind: of where its batches go: ``partition``, ``key`` or ``neither``.
        chance: of places and sizes.
    """

    def __init__(self, kind: str, chance: random.Random) -> None:
        self._kind, self._chance = kind, chance
        self._numbers = itertools.count()
        self.accepted: dict[str, list[str]] = {}
        self.unknown: dict[str, list[str]] = {}

    def send_until_killed(self, connection_string: str, hub: str) -> None:
        client = EventHubProducerClient.from_connection_string(connection_string, eventhub_name=hub, retry_total=0)
        try:
            with client:
                while True:
                    self._send(client)
        except (EventHubError, OSError):  # the log has gone
            return

    def _send(self, client: Any) -> None:
        name = f"{self._kind}-{next(self._numbers)}"
        places = {"partition": ("partition_id", PARTITIONS), "key": ("partition_key", 20)}
        where = (
            {option: str(self._chance.randrange(of)) for option, of in [places[self._kind]]}
            if self._kind in places
            else {}
        )
        batch, values = client.create_batch(**where), []
        for n in range(self._chance.randrange(1, MOST_EVENTS)):
            value = f"{name}/{n} {'x' * self._chance.randrange(MOST_BYTES)}"
            try:
                batch.add(EventData(value))
            except ValueError:  # it is full
                break
            values.append(value)
        self.unknown[name] = values
        client.send_batch(batch)
        self.accepted[name] = self.unknown.pop(name)


class Writer:
    """Our own sink's task, which goes on over kills.

    Args:
        options: of the sink.
        chance: of sizes.
    """

    def __init__(self, options: dict[str, str], chance: random.Random) -> None:
        self._sink = AmqpSink(parse_sink({**options, "requestTimeout": "120000"}))
        self._chance = chance
        self._ended = threading.Event()
        self.rows: list[str] = []
        self.fault: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        task = TaskName("query", "7", 3, stable=True)
        try:
            outlet = self._sink.open(task, True)
            try:
                while not self._ended.is_set():
                    first, count = len(self.rows), self._chance.randrange(1, 500)
                    values = [f"ours-{first + n}/0 {'x' * self._chance.randrange(200)}" for n in range(count)]
                    keys = [None if n % 5 == 0 else f"customer-{n % 7}" for n in range(count)]
                    rows = pa.RecordBatch.from_pydict({"value": values, "key": keys})
                    self.rows += values
                    outlet.send(self._sink.columns(rows, task, first), str)
                    self._ended.wait(0.05)
                outlet.flush()
            finally:
                outlet.close()
        except BaseException as fault:
            self.fault = fault

    def end(self) -> None:
        """Return once the log has all of its rows."""
        self._ended.set()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()
        if self.fault is not None:
            raise self.fault


class Reader:
    """Reads a partition as it grows, on from where it was, and keeps what it was given."""

    def __init__(self, partition: str) -> None:
        self.partition = partition
        self.given: dict[int, bytes] = {}

    def read_until_killed(self, url: str, hub: str) -> None:
        last = max(self.given, default=-1)
        where = f"{hub}/ConsumerGroups/$Default/Partitions/{self.partition}"
        text = "amqp.annotation.x-opt-offset > '-1'"
        if self.given:
            text = f"amqp.annotation.x-opt-sequence-number > '{last}'"
        try:
            receiver = Peer(url).receiver(where, filter={SELECTOR: Described(SELECTOR, text)})
            while True:
                receiver.link.flow(CREDIT - receiver.link.credit)
                events = [*receiver.take(1, credit=False, timeout_s=WAIT_S), *receiver.arrived()]
                for event in events:
                    number = event.message.annotations[symbol("x-opt-sequence-number")]
                    assert number == last + 1, "each once, in order"
                    last = number
                    self.given[number] = event.body
        except (Ended, OSError):  # the log has gone
            return


def count(producers: list[Producer], readers: list[Reader]) -> list[int]:
    """How many batches each producer, and how many events all readers have had."""
    return [*(len(each.accepted) for each in producers), sum(len(each.given) for each in readers)]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LogProcess]:
    logger = logging.getLogger("azure.eventhub")  # what it says of killed connections is no news
    logger.disabled = True
    with LogProcess(tmp_path / "log") as process:
        yield process
    logger.disabled = False


def test_batches_over_kill_9(log: LogProcess, chance: random.Random) -> None:
    hub: LogStream = StreamFactory(log).create("orders", PARTITIONS)
    producers = [Producer(kind, random.Random(chance.random())) for kind in ("partition", "key", "neither")]
    readers = [Reader(str(n)) for n in range(PARTITIONS)]
    connection = log.event_hubs_connection_string
    ours = Writer({"connectionString": connection, "stream": hub.name}, random.Random(chance.random()))
    with ThreadPoolExecutor() as threads, contextlib.ExitStack() as after:
        after.callback(log.kill)  # which ends the threads
        for _ in range(ROUNDS):
            before = count(producers, readers)
            running = [threads.submit(each.send_until_killed, connection, hub.name) for each in producers]
            running += [threads.submit(each.read_until_killed, plain_url(connection), hub.name) for each in readers]

            def all_go_on(before: list[int] = before, running: list[Any] = running) -> bool:
                if ended := [each.result() for each in running if each.done()]:
                    raise RuntimeError(f"{len(ended)} have ended before the kill")
                return all(now > old for now, old in zip(count(producers, readers), before, strict=True))

            eventually(all_go_on, "batches are accepted and read", WAIT_S)
            time.sleep(chance.uniform(0, 0.5))  # the kill comes at any moment
            log.kill()
            for each in running:
                each.result(WAIT_S)
            log.start()
    log.start()
    ours.end()
    there = stored(hub)
    check_batches(there, producers)
    check_ours(there, ours.rows)
    at = {(event.partition, event.offset): event.body for event in there}
    for reader in readers:
        for number, body in reader.given.items():
            assert at[reader.partition, number] == body, "what was given is not taken back"
    assert sum(len(each.unknown) for each in producers) > 0, "no kill met a batch: the campaign shows nothing"


def check_batches(there: list[Stored], producers: list[Producer]) -> None:
    """Check that each batch is there whole, in one place and once, or, where nobody learnt of it, not at all."""
    found: dict[str, list[Stored]] = {}
    for event in there:
        found.setdefault(event.body.decode().partition("/")[0], []).append(event)
    for producer in producers:
        for batches, certain in ((producer.accepted, True), (producer.unknown, False)):
            for name, values in batches.items():
                events = found.get(name, [])
                assert events or not certain, f"batch {name} was accepted and is not there"
                if not events:
                    continue
                assert [event.body.decode() for event in events] == values, f"batch {name} is not there as it was sent"
                assert len({event.partition for event in events}) == 1
                first = events[0].offset
                assert [event.offset for event in events] == list(range(first, first + len(events)))


def check_ours(there: list[Stored], rows: list[str]) -> None:
    """Check that each row of our sink is there, and that repeated ones have the id that they had."""
    ids: dict[str, set[str]] = {}
    for event in there:
        text = event.body.decode()
        if text.startswith("ours-"):
            ids.setdefault(event.message.id, set()).add(text)
    assert ids == {f"query/7/3/{n}": {text} for n, text in enumerate(rows)}
