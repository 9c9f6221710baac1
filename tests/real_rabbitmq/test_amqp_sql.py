"""The texts of full SQL filters, at a real RabbitMQ and at the log's AMQP door: the same messages, the same rows.

RabbitMQ 4.2 and later take ``amqp:sql-filter`` on streams, over AMQP 1.0, under the name ``sql-filter``.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_streams.filters.row_columns import rows_that_match, wanted_columns
from spark_streams.filters.targets.amqp import AmqpCapability, split_for_amqp
from spark_streams.filters.text import parse
from spark_streams.log import ReferenceLog
from spark_streams.rows import FULL_MESSAGE_SCHEMA
from spark_streams.server import AmqpConfig, ServerThread
from spark_streams.wire.amqp.columns.block import MessageBlock
from spark_streams.wire.amqp.columns.decode import decode_columns
from tests.client.amqp.test_filtered_fetch import TEXTS, VALUES, message
from tests.real_rabbitmq.by_hand import Peer as StreamPeer
from tests.real_rabbitmq.by_hand import plain

pytestmark = pytest.mark.rabbitmq

COUNT = 300


def is_taken(value: Any) -> bool:
    """Say whether RabbitMQ 4.3 can deliver a value as an application property, and looks at it as we do.

    Null and NaN end the reader's session (internal-error). Lists and maps, which AMQP does not allow there (part 3
    §3.2.5), are null to its filters; to the door they are values that equal nothing.
    """
    return value is not None and not isinstance(value, (list, dict)) and value == value


TAKEN = [value for value in VALUES if is_taken(value)]
MESSAGES = [message(n, TAKEN) for n in range(COUNT)]

BY_HAND = [
    "kind = 'order'",
    "a.kind <> 'order'",
    "NOT kind = 'order'",
    "kind IS NULL",
    "kind IS NOT NULL",
    "[a long name] IS NULL",
    "[x.y] = 5",
    "kind = 5",
    "kind <> 5",
    "NOT (kind > 5)",
    "kind < 'f'",
    "kind >= 'order'",
    "number > 0.5",
    "number <= 5.0",
    "number = -5",
    "kind = TRUE",
    "kind IN ('order', 5, TRUE)",
    "kind NOT IN ('order', '5')",
    "kind LIKE 'or%'",
    "kind NOT LIKE '%5'",
    "kind LIKE 'a!_b' ESCAPE '!'",
    "kind LIKE '1__!%' ESCAPE '!'",
    "p.subject = 'eu-west'",
    "properties.subject LIKE 'eu-%' AND NOT p.group_id IS NULL",
    "p.creation_time > 100",
    "p.creation_time IS NULL",
    "p.group_sequence = 20 OR p.group_sequence = 22",
    "p.message_id = 'id-5'",
    "kind = 0x6F72646572",
    "h.priority = 4",
    "kind = 'order' OR kind = 'refund' AND number > 0",
    "5 = kind",
    "FALSE",
]


@pytest.fixture(scope="module")
def both(
    rabbitmq_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Callable[[str], list[int]]]]:
    """Two ways to ask which of ``COUNT`` messages match a text: at RabbitMQ, and at the door."""
    if "RABBITMQ_STREAM_FOLDER" not in os.environ:
        pytest.skip("only of a broker that was started here is the AMQP port known: RABBITMQ_STREAM_FOLDER is not set")
    folder = Path(os.environ["RABBITMQ_STREAM_FOLDER"])
    version = json.loads((folder / "broker.json").read_text())["version"]
    if tuple(int(part) for part in version.split(".")[:2]) < (4, 2):
        pytest.skip(f"RabbitMQ {version} has no SQL filters: they came with 4.2")
    configuration = (folder / "rabbitmq.conf").read_text()
    found = re.search(r"^listeners\.tcp\.1 = (.*)$", configuration, re.MULTILINE)
    assert found is not None
    stream = f"amqp-sql-{secrets.token_hex(4)}"
    writer = StreamPeer(rabbitmq_url).open(versions=())
    assert writer.create(stream) == 1
    assert writer.declare(1, stream) == 1
    writer.publish(1, [plain(n, each) for n, each in enumerate(MESSAGES)])
    writer.confirmed(COUNT)
    with ReferenceLog(tmp_path_factory.mktemp("door")) as log, ServerThread(log, AmqpConfig(port=0)) as door:
        log.create_stream(stream, 1).partitions["0"].append(MESSAGES)
        yield {
            "rabbitmq": lambda text: numbers(f"amqp://{found[1]}", f"/queues/{stream}", rabbitmq_filters(text)),
            "door": lambda text: numbers(door.urls["amqp"], stream, door_filters(text)),
        }
    assert writer.delete(stream) == 1


def rabbitmq_filters(text: str) -> dict[Any, Any]:
    from proton import Described, symbol

    first = Described(symbol("rabbitmq:stream-offset-spec"), "first")
    return {symbol("offset"): first, symbol("sql-filter"): Described(symbol("amqp:sql-filter"), text)}


def door_filters(text: str) -> dict[Any, Any]:
    from proton import Described, symbol

    return {symbol("sql-filter"): Described(symbol("amqp:sql-filter"), text)}


def numbers(url: str, address: str, filters: dict[Any, Any]) -> list[int]:
    """Read all events that match, and return their numbers; fails when the filters are not in force."""
    from tests.server.amqp.raw_peer import Peer

    peer = Peer(url)
    try:
        receiver = peer.receiver(address, filter=filters)
        assert {str(name) for name in receiver.echoed} == {str(name) for name in filters}
        return [int(re.sub(b"x", b"", event.body)) for event in receiver.drain()]
    finally:
        peer.close()


@pytest.mark.parametrize("text", BY_HAND)
def test_the_door_and_rabbitmq_deliver_the_same(both: dict[str, Callable[[str], list[int]]], text: str) -> None:
    assert both["door"](text) == both["rabbitmq"](text)


@pytest.mark.parametrize("text", TEXTS)
def test_what_the_client_pushes_and_checks_is_the_whole_filter_at_both(
    both: dict[str, Callable[[str], list[int]]], text: str
) -> None:
    capability = AmqpCapability(event_streams=False, filtex_sql=True, rabbitmq_types=True)
    split = split_for_amqp(parse(text), capability)
    if split.sql is None:
        pytest.skip("nothing of it is pushed")
    rows = all_rows()
    expected = matching(rows, parse(text))
    for peer, ask in both.items():
        delivered = ask(split.sql)
        kept = set(range(COUNT) if split.residual is None else matching(rows, split.residual))
        assert [n for n in delivered if n in kept] == expected, peer


def all_rows() -> pa.RecordBatch:
    sizes = np.array([len(each) for each in MESSAGES])
    ends = sizes.cumsum()
    names = [name for name in FULL_MESSAGE_SCHEMA.names if name not in ("stream", "partition", "offset", "timestamp")]
    columns = dict(decode_columns(MessageBlock(b"".join(MESSAGES), ends - sizes, ends), names))
    columns["offset"] = pa.array([f"{n:020d}" for n in range(COUNT)])
    columns["partition"] = pa.array(["0"] * COUNT)
    columns["timestamp"] = pa.nulls(COUNT, FULL_MESSAGE_SCHEMA.field("timestamp").type)
    return pa.RecordBatch.from_pydict(columns)


def matching(rows: pa.RecordBatch, expression: Any) -> list[int]:
    batch = rows.select(list(wanted_columns(("offset",), expression)))
    return [int(offset) for offset in rows_that_match(batch, expression, ("offset",)).column("offset").to_pylist()]
