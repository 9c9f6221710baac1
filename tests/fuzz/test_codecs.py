"""What reads peers' bytes below the doors, and beside them in clients: it reads them, or says what is wrong with them.

One error class for each reader, whatever the bytes; a failure prints reader, seed and case.
"""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from spark_streams.errors import FilterError, LocalProtocolError, RemoteProtocolError
from spark_streams.filters import parse
from spark_streams.filters.predicates.amqp_sql import parse_amqp_sql
from spark_streams.filters.predicates.event_streams import parse_sql
from spark_streams.server.amqp.requests import read_request
from spark_streams.server.feed.cursors import Cursors
from spark_streams.server.feed.request_bodies import ARROW, plain_pieces, read_body
from spark_streams.server.http.requests import HttpError
from spark_streams.wire.amqp.columns.block import MessageBlock
from spark_streams.wire.amqp.columns.from_producers import incoming_columns
from spark_streams.wire.amqp.decode import decode_value
from spark_streams.wire.amqp.event_batches import split_batch
from spark_streams.wire.amqp.sasl import SaslServer
from spark_streams.wire.amqp.shared_access import SharedAccessSignature
from spark_streams.wire.feed.discovery import decode_discovery
from spark_streams.wire.feed.line import NDJSON, Dialect
from spark_streams.wire.feed.lines import parse_lines
from spark_streams.wire.rabbitmq.chunk import decode_chunk
from spark_streams.wire.rabbitmq.compression import decompress
from spark_streams.wire.rabbitmq.connection_commands import decode
from spark_streams.wire.rabbitmq.frames import FrameReader
from spark_streams.wire.rabbitmq.publish_decode import decode_publish
from tests.fuzz import amqp_cases, event_hubs_cases, feed_cases, rabbit_cases
from tests.fuzz.mutation import damaged
from tests.real_rabbitmq import by_hand as hand
from tests.wire.amqp.messages import decode_message

SEED = 20_261_121
CASES = 120
MOST = 1 << 20
"""Bytes that a body may become."""
MOST_MEMORY = 400 << 20
"""Bytes that Python objects may take in one case: sub-batches may become 256 MiB."""


def _columns(content: bytes) -> None:
    half = len(content) // 2
    block = MessageBlock(np.frombuffer(content, np.uint8), np.array([0, half]), np.array([half, len(content)]))
    if incoming_columns(block, thorough=True).malformed.any():
        raise RemoteProtocolError("a message is told to be malformed")


def _frames(content: bytes) -> None:
    reader = FrameReader(1 << 20)
    reader.feed(content)
    while (frame := reader.next()) is not None:
        decode(frame)


def _publish(chance: random.Random) -> bytes:
    return b"\1" + hand.array([rabbit_cases.entry(chance, n) for n in range(chance.randrange(1, 4))])


def _chunk(chance: random.Random) -> bytes:
    """Return a chunk as a broker delivered it."""
    golden = Path(__file__).parents[1] / "wire" / "rabbitmq" / "golden" / "rabbitmq-4.3.hex"
    named = (line.split() for line in golden.read_text().splitlines() if line.startswith("server-deliver-v2"))
    return bytes.fromhex(chance.choice([frame for _, frame in named]))[17:]


def _lines(chance: random.Random) -> bytes:
    return chance.choice(feed_cases.JSON)


def _text(chance: random.Random) -> bytes:
    return chance.choice((*amqp_cases.SQL, *feed_cases.SQL)).encode("utf-8", "surrogatepass")


def _sql(read: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda content: read(content.decode("utf-8", "surrogateescape"))


EMPTY: Any = SimpleNamespace(id="0", batch_with=lambda offset: None)
"""A partition whose events are all gone, as far as cursors ask."""
READERS: dict[str, tuple[Callable[[bytes], Any], Callable[[random.Random], bytes], type[Exception]]] = {
    "amqp value": (decode_value, amqp_cases.anything, RemoteProtocolError),
    "amqp message": (decode_message, amqp_cases.message, RemoteProtocolError),
    "amqp columns": (_columns, amqp_cases.message, RemoteProtocolError),
    "event hubs batch": (split_batch, event_hubs_cases.batch, RemoteProtocolError),
    "event hubs request": (
        read_request,
        lambda chance: event_hubs_cases.request(chance, chance.choice(("$cbs", "$management"))),
        RemoteProtocolError,
    ),
    "event hubs token": (
        lambda c: SharedAccessSignature.parsed(c.decode("utf-8", "replace")).resource,
        lambda chance: event_hubs_cases.token(chance).encode(),
        LocalProtocolError,
    ),
    "sasl": (
        lambda content: SaslServer(["PLAIN"], lambda user, password: False, None).receive(content),
        lambda chance: b"".join(amqp_cases.opening()[:2]),
        RemoteProtocolError,
    ),
    "event streams sql": (_sql(parse_sql), _text, FilterError),
    "amqp sql": (_sql(parse_amqp_sql), _text, FilterError),
    "filter": (_sql(parse), _text, FilterError),
    "rabbit frames": (_frames, rabbit_cases.command, RemoteProtocolError),
    "rabbit publish": (lambda c: decode_publish(c, 0, len(c), 1), _publish, RemoteProtocolError),
    "rabbit publish 2": (lambda c: decode_publish(c, 0, len(c), 2), _publish, RemoteProtocolError),
    "rabbit bombs": (
        lambda c: decompress(1 + len(c) % 4, c, 10_000),
        lambda chance: rabbit_cases.bomb(chance.randrange(1, 5), 1 << 20),
        RemoteProtocolError,
    ),
    "rabbit chunk": (lambda c: decode_chunk(c, 0, len(c), check_crc=False), _chunk, RemoteProtocolError),
    "feed lines": (lambda c: parse_lines(c, Dialect.V2A), _lines, RemoteProtocolError),
    "feed discovery": (decode_discovery, _lines, RemoteProtocolError),
    "feed body": (lambda c: list(read_body([c], "", NDJSON, MOST, MOST)), _lines, HttpError),
    "feed arrow": (
        lambda c: list(read_body([c], "", ARROW, MOST, MOST)),
        lambda chance: feed_cases.arrow(chance.randrange(8)),
        HttpError,
    ),
    "feed gzip": (
        lambda c: list(plain_pieces([c], "gzip", MOST)),
        lambda chance: feed_cases.packed(2 << 20),
        HttpError,
    ),
    "feed cursor": (
        lambda c: Cursors("x", {}).decode(c.decode("latin-1")),
        lambda chance: Cursors("x", {}).encode(EMPTY, chance.randrange(2**63)).encode(),
        HttpError,
    ),
}


@pytest.mark.parametrize("name", READERS)
def test_whatever_the_bytes(name: str) -> None:
    read, make, refusal = READERS[name]
    refused = 0
    for number in range(CASES):
        chance = random.Random(f"{name}/{SEED}/{number}")
        content = make(chance)
        if number % 4:
            content = damaged(chance, content, (*amqp_cases.NESTED, *feed_cases.NESTED))
        try:
            read(content)
        except refusal:
            refused += 1
        except Exception as fault:
            raise AssertionError(
                f"reader {name}, seed {SEED}, case {number}: {type(fault).__name__}: {fault}"
            ) from fault
    assert refused


@pytest.mark.parametrize("name", ["rabbit publish", "feed arrow", "feed gzip", "rabbit bombs"])
def test_no_more_memory_than_may_be(name: str) -> None:
    read, make, refusal = READERS[name]
    for number in range(20):
        content = make(random.Random(f"{name}/{SEED}/{number}"))
        tracemalloc.start()
        try:
            read(content)
        except refusal:
            pass
        finally:
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        assert peak < MOST_MEMORY
