"""What decoding and encoding in columns costs, beside proton's Message in the same run.

``python tests/bench/wire_columns.py [messages]`` prints a table; ``measure`` gives the numbers.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np
import pyarrow as pa
from proton import Message, symbol

from spark_streams.wire.amqp.columns.block import MessageBlock
from spark_streams.wire.amqp.columns.decode import decode_columns
from spark_streams.wire.amqp.columns.encode import encode_columns
from spark_streams.wire.amqp.columns.from_producers import incoming_columns
from spark_streams.wire.amqp.event_streams import delivery_annotations

ROW = ["value", "key", "properties", "application_properties", "message_annotations", "offset", "timestamp"]


def cpu_ns(work: Callable[[], object], count: int, rounds: int = 5) -> float:
    """Return the least CPU time of several rounds, in ns a message."""
    spent = []
    for _ in range(rounds):
        before = time.process_time()
        work()
        spent.append(time.process_time() - before)
    return min(spent) / count * 1e9


def delivered(payloads: pa.LargeBinaryArray) -> tuple[MessageBlock, list[bytes]]:
    """Return messages with the delivery annotations that a log node adds."""
    n = len(payloads)
    ((_, sections),) = delivery_annotations(np.arange(n), np.arange(n) + 1_585_672_841_000, None)
    raws = [section.tobytes() + payload for section, payload in zip(sections, payloads.to_pylist(), strict=True)]
    ends = np.cumsum([len(raw) for raw in raws], dtype=np.int64)
    return MessageBlock(b"".join(raws), ends - np.array([len(raw) for raw in raws], np.int64), ends), raws


def measure(n: int = 65_536) -> list[tuple[str, float, float | None]]:
    """Return (what, ns a message, ns a message of proton's or None) for ``n`` messages with 100-byte bodies."""
    random = np.random.default_rng(1)
    bodies, keys = [random.bytes(100) for _ in range(n)], [f"customer-{i % 500}" for i in range(n)]
    keyed = {"value": pa.array(bodies), "key": pa.array(keys)}
    pairs = [[("kind", "order"), ("n", str(i))] for i in range(n)]
    rich = {
        **keyed,
        "partition": pa.array(["0"] * n),
        "message_id": pa.array([f"q-1-0-{i}" for i in range(n)]),
        "timestamp": pa.array(np.arange(n) * 1000, pa.timestamp("us", tz="UTC")),
        "application_properties": pa.array(pairs, pa.map_(pa.string(), pa.string())),
    }
    few = min(n, 4000)

    def by_proton(raws: list[bytes]) -> float:
        def work() -> None:
            for raw in raws[:few]:
                message = Message()
                message.decode(raw)
                assert message.body is not None

        return cpu_ns(work, few, 3)

    def encode_by_proton() -> None:
        for body, key in zip(bodies[:few], keys[:few], strict=True):
            message = Message(body=body, inferred=True)
            message.annotations = {symbol("event-streams-group-key"): key}
            message.encode()

    keyed_block, keyed_raws = delivered(encode_columns(keyed))
    without = {name: column for name, column in rich.items() if name != "partition"}
    rich_block, rich_raws = delivered(encode_columns(without))
    keyed_proton, rich_proton = by_proton(keyed_raws), by_proton(rich_raws)
    results: list[tuple[str, float, float | None]] = []
    for what, block, names, proton in (
        ("decode value, offset, timestamp", keyed_block, ["value", "offset", "timestamp"], keyed_proton),
        ("decode value, key, offset, timestamp", keyed_block, ["value", "key", "offset", "timestamp"], keyed_proton),
        ("decode the default row", keyed_block, ROW, keyed_proton),
        ("decode the default row, with properties", rich_block, ROW, rich_proton),
        ("decode offset", keyed_block, ["offset"], keyed_proton),
    ):
        results.append((what, cpu_ns(lambda b=block, c=names: decode_columns(b, c), n), proton))
    results.append(("incoming columns", cpu_ns(lambda: incoming_columns(rich_block), n), None))
    results.append(("incoming columns, thorough", cpu_ns(lambda: incoming_columns(rich_block, thorough=True), n), None))
    results.append(("encode value, key", cpu_ns(lambda: encode_columns(keyed), n), cpu_ns(encode_by_proton, few, 3)))
    results.append(("encode a row with properties", cpu_ns(lambda: encode_columns(rich), n), None))
    numbers = np.arange(n)
    results.append(("delivery annotations", cpu_ns(lambda: delivery_annotations(numbers, numbers, "0"), n), None))
    return results


if __name__ == "__main__":
    for what, ours, proton in measure(int(sys.argv[1]) if len(sys.argv) > 1 else 65_536):
        ratio = "" if proton is None else f"{proton / ours:8.0f} times proton ({proton:.0f} ns)"
        print(f"{what:42}{ours:8.0f} ns {1e3 / ours:8.2f} M/s{ratio}")
