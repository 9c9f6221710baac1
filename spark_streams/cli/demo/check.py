"""Whether what came out is what went in: the output stream is read back and compared, order by order."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field

import pyarrow as pa

from spark_streams.cli.demo.orders import VAT_PERCENT, Orders
from spark_streams.client import AmqpClient, RangeRead
from spark_streams.position import EARLIEST

__all__ = ["Found", "read_back"]


@dataclass
class Found:
    """What the output stream holds.

    Args:
        per_partition: partition to events.
        per_key: key to events.
        faults: what is wrong, in words; empty when all is well.
        checks: what was found right, in words.
    """

    per_partition: Counter[str] = field(default_factory=Counter)
    per_key: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    checks: list[str] = field(default_factory=list)

    def expect(self, right: bool, words: str) -> None:
        """Note a check and how it ended."""
        (self.checks if right else self.faults).append(words)


def read_back(client: AmqpClient, stream: str, orders: Orders) -> Found:
    """Read all of ``stream`` and compare it with the orders that were sent."""
    found = Found()
    numbers: list[int] = []
    instants: dict[int, int] = {}
    ids: set[str] = set()
    net = vat = ledger = 0
    in_order = True
    last_of_key: dict[str, int] = {}
    columns = ("value", "key", "timestamp", "properties")
    for partition, bounds in sorted(client.describe(stream).partitions.items()):
        found.per_partition[partition] = 0
        if bounds.latest is None:
            continue
        for batch in client.fetch(RangeRead(stream, partition, EARLIEST, bounds.latest, columns)):
            found.per_partition[partition] += batch.num_rows
            ids.update(batch.column("properties").field("message_id").to_pylist())
            instants_ms = [us // 1_000 for us in batch.column("timestamp").cast(pa.int64()).to_pylist()]
            for value, key, instant in zip(
                batch.column("value").to_pylist(), batch.column("key").to_pylist(), instants_ms, strict=True
            ):
                order = json.loads(value)
                numbers.append(order["order"])
                instants[order["order"]] = instant
                found.per_key[key] += 1
                net += order["net_cents"]
                vat += order["vat_cents"]
                ledger += order["origin"] == "ledger"
                in_order &= last_of_key.get(key, -1) < order["order"]
                last_of_key[key] = order["order"]
    right_vat = sum((2 * int(cents) * VAT_PERCENT + 100) // 200 for cents in orders.net_cents)
    right_ledger = int(orders.ledger.sum())
    found.expect(sorted(numbers) == list(range(orders.count)), f"each of {orders.count:,} orders came out exactly once")
    found.expect(len(ids) == orders.count and None not in ids, "every event has a message-id of its own")
    found.expect(in_order, "every customer's orders are in the order in which they were sent")
    found.expect(found.per_key == orders.per_customer, f"all {len(found.per_key)} customers have their orders")
    found.expect(net == int(orders.net_cents.sum()), f"the prices add up: {net / 100:,.2f} EUR")
    found.expect(vat == right_vat, f"so does the VAT: {vat / 100:,.2f} EUR")
    same = all(instants.get(n) == int(instant) for n, instant in enumerate(orders.instants_ms))
    found.expect(same, "every event kept its time to the millisecond")
    found.expect(ledger == right_ledger, f"{ledger:,} of them lie before 1970, the first on 1957-10-04")
    return found
