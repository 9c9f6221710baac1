"""What an engine of proton's costs while its connection says nothing."""

from __future__ import annotations

import tracemalloc

from spark_streams.server import AmqpConfig
from spark_streams.server.amqp.engine import Engine


def test_an_engine_keeps_no_memory_for_what_it_may_send_one_day() -> None:
    Engine(AmqpConfig()).output()  # what is made once
    tracemalloc.start()
    try:
        engines = [Engine(AmqpConfig()) for _ in range(10)]
        sent = [engine.output() for engine in engines]
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sent == [sent[0]] * 10
    assert used < 10 * 50_000
