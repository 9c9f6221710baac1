"""What an engine costs while its connection says nothing."""

from __future__ import annotations

import tracemalloc

from spark_streams.server.amqp.config import AmqpConfig
from tests.wire.amqp.engine.serving import serving


def test_an_engine_keeps_no_memory_for_what_it_may_send_one_day() -> None:
    serving(AmqpConfig()).written()  # what is made once
    tracemalloc.start()
    try:
        engines = [serving(AmqpConfig()) for _ in range(10)]
        sent = [engine.written() for engine in engines]
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sent == [sent[0]] * 10
    assert used < 10 * 20_000
