"""Streaming copies whose log goes away under them: stopped, hung, killed, and put back from an older copy.

The copies are killed as well, again and again. Every row is there once, as docs/delivery.md promises, until the log is
an older copy of itself: that is told, and nothing is copied on top of it.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from spark_streams.testing import LogProcess, StreamFactory
from tests.e2e.lives import Job, check_once
from tests.e2e.rabbitmq.conftest import Served
from tests.e2e.test_kills import HOLD, PARTITIONS, ROWS, Feed, OfTheLog, RabbitMq, Target, append_to, limited

pytestmark = [pytest.mark.spark, pytest.mark.nightly, pytest.mark.timeout(3_600)]

KILLS = 20
COPIED = 15
"""The life before which the log's folder is copied."""
AWAY_S = 40


class AmqpToRabbitMq(OfTheLog):
    """From one protocol to another; rows go where their key, which is their text, belongs."""

    def __init__(self, streams: StreamFactory, broker: Served) -> None:
        super().__init__(streams)
        self.broker, self.copies = broker, broker.create_super(PARTITIONS, "amqp-copies")
        self.given = {
            "source": {"format": "amqp-events", "options": self.orders.options("amqp-events", **limited())},
            "select": ["value", "cast(value AS STRING) AS key"],
            "sink": {"format": "rabbitmq-stream", "options": {"url": broker.url, "superStream": self.copies}},
        }

    def size(self) -> int:
        return sum(chunk.records for i in range(PARTITIONS) for chunk in self.broker.chunks(f"{self.copies}-{i}"))

    def check(self, expected: set[str]) -> None:
        check_once([text for i in range(PARTITIONS) for text in self.broker.bodies(f"{self.copies}-{i}")], expected)


def away(log: LogProcess, how: str) -> None:
    """Have the log away in one of the ways, and back."""
    assert log.pid is not None
    if how == "stopped":
        log.stop()
        time.sleep(AWAY_S)
    elif how == "hung":
        os.kill(log.pid, signal.SIGSTOP)
        time.sleep(AWAY_S)
        os.kill(log.pid, signal.SIGCONT)
    else:
        log.kill()
    log.start()


def test_copies_whose_log_goes_away(spark: Any, tmp_path: Path) -> None:
    folder, copy = tmp_path / "log", tmp_path / "copy"
    seed = int.from_bytes(os.urandom(4), "big")
    print(f"random seed {seed}")
    chance = random.Random(seed)
    with LogProcess(folder) as log:
        streams, broker = StreamFactory(log), Served(log)
        targets: dict[str, Target] = {
            "rabbitmq": RabbitMq(broker, {}),
            "amqp-to-rabbitmq": AmqpToRabbitMq(streams, broker),
            "feed": Feed(streams, tmp_path, "door"),
        }
        given = {name: target.given for name, target in targets.items()}
        job = Job(tmp_path, given, rows=100, in_sink=True, cores=len(targets) * PARTITIONS)
        expected: set[str] = set()
        for life in range(KILLS):
            if life == COPIED:
                log.stop()
                shutil.copytree(folder, copy)
                log.start()
            before = append_to(targets, life, expected)
            how = {1: "stopped", 3: "hung"}.get(life % 5, "killed" if life % 2 else "")
            with job.life(hold=None if how else HOLD):
                for name, target in targets.items():
                    if how:
                        job.wait(lambda target=target, size=before[name]: target.size() != size, 0.2)
                    else:
                        job.wait(lambda name=name: job.holds(name), 0.2)
                if how:
                    away(log, how)
                    time.sleep(chance.uniform(0, 3))
        job.drain(spark)
        for target in targets.values():
            target.check(expected)
        log.kill()
        shutil.rmtree(folder)
        shutil.copytree(copy, folder)
        log.start()
        for more in (0, ROWS * (KILLS - COPIED + 1)):
            for name, target in targets.items():
                target.append([[f"{partition}-other-{n}" for n in range(more)] for partition in range(PARTITIONS)])
                stored = target.size()
                with pytest.raises(PySparkException, match="older copy"):
                    Job(tmp_path, {name: given[name]}).drain(spark)
                assert target.size() == stored, "nothing is copied on top of it"
