"""A cluster of three RabbitMQ nodes under source and sink.

Streams that only other nodes hold, leaders that move, nodes that are killed with kill -9, that of ``url`` too.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_streams.testing import KeptQuery, eventually
from tests.e2e.rabbitmq.broker import numbers
from tests.e2e.rabbitmq.conftest import Real
from tests.e2e.rabbitmq.queries import FORMAT, values
from tests.faults.proxy import Balancer
from tests.real_rabbitmq import by_hand
from tests.real_rabbitmq.by_hand import array, text
from tests.real_rabbitmq.conftest import Own
from tests.real_rabbitmq.conftest import rabbitmq_cluster as rabbitmq_cluster

pytestmark = [pytest.mark.spark, pytest.mark.rabbitmq, pytest.mark.nightly, pytest.mark.timeout(1_800)]

WAIT_S = 240
PARTITIONS = 3
ROWS = 3_000
"""Of each partition, in each step."""
SOME = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "900"}


class Cluster:
    """Nodes, and streams on them that end with the test."""

    def __init__(self, nodes: list[Own]) -> None:
        self.nodes = nodes
        self.brokers = [Real(node.url) for node in nodes]
        """Each node, asked by hand."""
        self.alive = 0
        """The number of the node that is asked where streams are."""

    def options(self, **more: str) -> dict[str, str]:
        """What finds the cluster: its first node."""
        return {"url": self.nodes[0].url, "requestTimeout": "120000", **more}

    @property
    def all(self) -> str:
        """The url that lists all nodes."""
        first, *others = (node.url for node in self.nodes)
        return ",".join((first, *(url.rpartition("@")[2] for url in others)))

    def leader(self, stream: str) -> int:
        """The number of the node that leads a stream, -1 while none does."""
        with self.brokers[self.alive].peer() as peer:
            body = peer.ask(by_hand.METADATA, array([text(stream)])).body
        ports, at = {}, 4
        for _ in range(struct.unpack_from(">I", body)[0]):
            reference, length = struct.unpack_from(">HH", body, at)
            (ports[reference],) = struct.unpack_from(">I", body, at + 4 + length)
            at += 8 + length
        (length,) = struct.unpack_from(">H", body, at + 4)
        code, leader = struct.unpack_from(">HH", body, at + 6 + length)
        urls = [node.url.rpartition(":")[2] for node in self.nodes]
        return urls.index(str(ports[leader])) if code == 1 and leader in ports else -1

    def move(self, stream: str, number: int) -> None:
        """Have a node lead a stream; the broker holds an election, in which the node is preferred, and may lose."""

        def elected() -> bool:
            to = ("--preferred-leader-node", self.nodes[number].name)
            self.nodes[self.alive].control("rabbitmq-streams", "restart_stream", stream, *to)
            return self.leader(stream) == number

        eventually(elected, f"node {number} leads {stream}", WAIT_S)

    def create_of_two(self, name: str) -> str:
        """Create a stream that has a member on node 1 and on one other."""
        return self.brokers[1].create(name, initial_cluster_size="2")

    def is_elsewhere(self, stream: str) -> bool:
        """Whether the first node has no member of it."""
        with self.brokers[0].peer() as peer:
            return peer.subscribe(1, stream, by_hand.FIRST) != 1

    def publish(self, stream: str, messages: list[str]) -> None:
        """Publish where the stream's leader is."""
        eventually(lambda: self.leader(stream) >= 0, f"{stream} has a leader", WAIT_S)
        self.brokers[self.leader(stream)].publish(stream, messages)


@pytest.fixture
def cluster(rabbitmq_cluster: list[Own]) -> Iterator[Cluster]:
    made = Cluster(rabbitmq_cluster)
    yield made
    for broker in made.brokers:
        broker.close()


def test_streams_that_only_another_node_holds(spark: SparkSession, cluster: Cluster) -> None:
    there = cluster.brokers[2].create("elsewhere", initial_cluster_size="1")
    options = cluster.options(stream=there)
    sent = numbers(0, 500)
    frame = spark.createDataFrame([(each,) for each in sent], "value STRING").coalesce(1)
    frame.write.format(FORMAT).options(**options).mode("append").save()
    assert cluster.leader(there) == 2
    assert cluster.brokers[2].bodies(there) == sent
    assert cluster.is_elsewhere(there)
    assert values(spark.read.format(FORMAT).options(**options).load()) == {there: sent}


def test_a_reader_goes_to_another_member_when_its_node_dies(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    there = next(name for n in range(20) if cluster.is_elsewhere(name := cluster.create_of_two(f"two-{n}")))
    limit = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "300"}
    frame = spark.readStream.format(FORMAT).options(**cluster.options(stream=there, **limit)).load()
    leader = cluster.leader(there)
    (follower,) = {1, 2} - {leader}
    sent = 0
    with KeptQuery(tmp_path, timeout_s=WAIT_S) as query:
        query.start(frame.select("partition", "offset", "value"))
        while len(query.rows) >= sent:
            before, sent = len(query.rows), sent + ROWS
            cluster.publish(there, numbers(sent - ROWS, sent))
            query.wait_for_rows(before + 1)
        cluster.nodes[follower].kill()
        query.wait_for_rows(sent)
        cluster.nodes[follower].restart()
    assert in_order(query) == {there: numbers(0, sent)}


class Copy:
    """A streaming query from one super stream to another, which somebody starts again when it ends.

    A session whose master is ``local[2]`` tries no task again: a connection that breaks under the sink ends the query.
    """

    def __init__(self, frame: DataFrame, options: dict[str, str]) -> None:
        self._writer = frame.writeStream.format(FORMAT).options(**options).trigger(processingTime="0 seconds")
        self.faults: list[str] = []
        self.query = self._writer.start()

    def goes_on(self) -> None:
        """Start it again where it has ended."""
        if not self.query.isActive:
            self.faults.append(str(self.query.exception()))
            assert len(self.faults) < 20, self.faults
            self.query = self._writer.start()

    def again(self) -> None:
        """Stop it and start it again."""
        self.query.stop()
        self.query = self._writer.start()


def test_behind_a_load_balancer_all_streams_are_read_and_written(spark: SparkSession, cluster: Cluster) -> None:
    there = [broker.create(f"at-{n}", initial_cluster_size="1") for n, broker in enumerate(cluster.brokers)]
    with Balancer(*(int(node.url.rpartition(":")[2]) for node in cluster.nodes)) as balancer:
        options = cluster.options(url=balancer.url(cluster.nodes[0].url), loadBalancer="true")
        for stream in there:
            sent = numbers(0, 500)
            frame = spark.createDataFrame([(each,) for each in sent], "value STRING").coalesce(1)
            frame.write.format(FORMAT).options(**options, stream=stream).mode("append").save()
            assert values(spark.read.format(FORMAT).options(**options, stream=stream).load()) == {stream: sent}
        assert [cluster.leader(stream) for stream in there] == [0, 1, 2]
        balancer.refuse()
        with pytest.raises(Exception, match=f"127.0.0.1:{balancer.port}: connection refused"):
            values(spark.read.format(FORMAT).options(**options, stream=there[0]).load())


class Copying:
    """Rows on their way from one super stream to another, and a query that reads the copies."""

    def __init__(self, cluster: Cluster, copy: Copy, query: KeptQuery, orders: str) -> None:
        self.cluster, self.copy, self.query, self.orders = cluster, copy, query, orders
        self.sent = 0
        """Rows of each partition."""

    def publish(self) -> None:
        """Add rows to each partition."""
        for n in range(PARTITIONS):
            self.cluster.publish(f"{self.orders}-{n}", numbers(self.sent, self.sent + ROWS))
        self.sent += ROWS

    def came(self, count: int) -> bool:
        self.copy.goes_on()
        return len(self.query.rows) >= count

    def through(self) -> None:
        """Wait until all rows came."""
        wanted, what = PARTITIONS * self.sent, f"all rows, {self.sent} in each partition"
        eventually(lambda: self.came(wanted), what, WAIT_S, query=self.query.running)

    def under_way(self) -> None:
        """Publish until some rows came and others did not: when a node dies there is something left to do."""
        while len(self.query.rows) >= PARTITIONS * self.sent:
            before = len(self.query.rows)
            self.publish()
            eventually(lambda before=before: self.came(before + 1), "the first rows", WAIT_S, query=self.query.running)


def test_leaders_move_and_nodes_are_killed_under_source_and_sink(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    """What is copied is there once, in order; and a query that only reads goes on by itself."""
    orders, copies = (cluster.brokers[0].create_super(PARTITIONS, name) for name in ("orders", "copies"))
    streams = [f"{each}-{n}" for each in (orders, copies) for n in range(PARTITIONS)]
    frame, read = (
        spark.readStream.format(FORMAT).options(**cluster.options(superStream=each, **SOME)).load()
        for each in (orders, copies)
    )
    copied = frame.selectExpr("value", f"replace(partition, '{orders}', '{copies}') AS stream")
    with KeptQuery(tmp_path, timeout_s=WAIT_S) as query:
        copy = Copy(copied, cluster.options(checkpointLocation=str(tmp_path / "copy")))
        rows = Copying(cluster, copy, query, orders)
        try:
            query.start(read.select("partition", "offset", "value"))
            rows.publish()
            for n, stream in enumerate(streams):
                cluster.move(stream, n % 3)
            rows.publish()
            rows.through()
            for number in (1, 2):
                led = [stream for stream in streams if cluster.leader(stream) == number]
                assert led, "a kill that nobody notices proves nothing"
                rows.under_way()
                cluster.nodes[number].kill()
                rows.publish()
                rows.through()
                assert number not in [cluster.leader(stream) for stream in streams]
                cluster.nodes[number].restart()
                cluster.nodes[0].control("rabbitmq-upgrade", "await_online_quorum_plus_one")
                cluster.move(led[0], number)
            rows.through()
        finally:
            copy.query.stop()
    expected = {f"{copies}-{n}": numbers(0, rows.sent) for n in range(PARTITIONS)}
    assert in_order(query) == expected, "each once, and in order"
    assert {stream: cluster.brokers[0].bodies(stream) for stream in expected} == expected
    assert all("spark_streams.errors." in fault for fault in copy.faults), copy.faults


def test_the_node_of_url_is_killed_under_source_and_sink(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    """A query whose url lists all nodes goes on, and starts again; so does a running one whose url lists only that."""
    orders, copies = (cluster.brokers[0].create_super(PARTITIONS, name) for name in ("orders", "copies"))

    def reading(super_stream: str, **url: str) -> DataFrame:
        options = cluster.options(superStream=super_stream, **SOME, **url)
        return spark.readStream.format(FORMAT).options(**options).load()

    copied = reading(orders, url=cluster.all).selectExpr(
        "value", f"replace(partition, '{orders}', '{copies}') AS stream"
    )
    with KeptQuery(tmp_path, timeout_s=WAIT_S) as query:
        copy = Copy(copied, cluster.options(url=cluster.all, checkpointLocation=str(tmp_path / "copy")))
        rows = Copying(cluster, copy, query, orders)
        try:
            query.start(reading(copies).select("partition", "offset", "value"))
            for n in range(PARTITIONS):
                cluster.move(f"{orders}-{n}", n)
            rows.publish()
            rows.through()
            rows.under_way()
            cluster.nodes[0].kill()
            cluster.alive = 1
            rows.publish()
            rows.through()
            # The same checkpoints, by another url, while the node is still gone.
            query.stop()
            copy.again()
            rows.publish()
            query.start(reading(copies, url=cluster.all).select("partition", "offset", "value"))
            rows.through()
        finally:
            copy.query.stop()
            cluster.nodes[0].restart()
            cluster.nodes[1].control("rabbitmq-upgrade", "await_online_quorum_plus_one")
            cluster.alive = 0
    expected = {f"{copies}-{n}": numbers(0, rows.sent) for n in range(PARTITIONS)}
    assert in_order(query) == expected, "each once, and in order"
    assert {stream: cluster.brokers[1].bodies(stream) for stream in expected} == expected
    assert all("spark_streams.errors." in fault for fault in copy.faults), copy.faults


def in_order(query: KeptQuery) -> dict[str, list[str]]:
    """Partition to bodies, as they came."""
    found: dict[str, list[str]] = {}
    for row in query.rows:
        found.setdefault(row.partition, []).append(bytes(row.value).decode())
    return found
