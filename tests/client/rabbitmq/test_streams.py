"""The list of streams, which the log's own door gives and no broker does."""

from __future__ import annotations

import pytest

from spark_streams.client.rabbitmq.connection import Connection
from tests.client.rabbitmq.brokers import Broker


def test_only_our_log_lists_its_streams(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    with broker.stream() as first, broker.stream() as second:
        with broker.client() as client:
            ours = broker.kind in ("door", "old-door")
            assert client.streams() == (sorted([first, second]) if ours else None)
        # What a broker answers to the same question, if it is asked all the same.
        monkeypatch.setattr(Connection, "is_reference_log", not ours)
        with broker.client() as client:
            assert client.streams() == (None if ours else [])
