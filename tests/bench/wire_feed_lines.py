"""Lines of a feed: ``parse_lines`` beside ``json`` and ``orjson`` line by line, interleaved, medians of CPU time.

Run by hand: ``.venv/bin/python tests/bench/wire_feed_lines.py``. Ratios matter, not the figures.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import orjson

from spark_streams.wire.feed.line import Dialect
from spark_streams.wire.feed.lines import parse_lines

ROUNDS = 11


def few_fields(i: int) -> dict[str, Any]:
    return {
        "id": i,
        "type": "order",
        "customer": f"customer-{i % 1000}",
        "amount": i * 1.5,
        "currency": "EUR",
        "ok": True,
    }


def nested_100(i: int) -> dict[str, Any]:
    return {"id": i, "o": {"c": f"customer-{i % 1000}", "a": [i, i + 1, {"x": 1.5}]}, "t": {"k": "order"}, "s": "abcde"}


def long_texts(i: int) -> dict[str, Any]:
    return {"id": i, "name": f"Ann {i}", "text": "lorem ipsum dolor " * 40, "more": "x" * 150, "z": i * 2.5}


def nested_1000(i: int) -> dict[str, Any]:
    lines = [{"sku": f"a{j}", "n": j, "price": 1.25 * j} for j in range(25)]
    return {"id": i, "customer": {"name": f"Ann {i}", "address": {"street": "x" * 20, "zip": 12345}}, "lines": lines}


def page(event: Callable[[int], dict[str, Any]], count: int, *, every: int = 1000, keyed: bool = False) -> bytes:
    out = []
    for i in range(count):
        key = f'"key":"customer-{i % 1000}",' if keyed else ""
        out.append(f'{{{key}"event":{json.dumps(event(i), separators=(",", ":"))}}}\n')
        if (i + 1) % every == 0:
            out.append(f'{{"cursor":"0000-{i:020d}"}}\n')
    out.append('{"cursor":"end"}\n')
    return "".join(out).encode()


def by_line(loads: Callable[[bytes], Any]) -> Callable[[bytes], int]:
    def read(block: bytes) -> int:
        events, cursors = [], []
        for line in block.split(b"\n"):
            if line:
                members = loads(line)
                if "event" in members:
                    events.append(members["event"])
                elif "cursor" in members:
                    cursors.append(members["cursor"])
        return len(events)

    return read


READERS: dict[str, Callable[[bytes], int]] = {
    "json": by_line(json.loads),
    "orjson": by_line(orjson.loads),
    "parse_lines": lambda block: parse_lines(block, Dialect.V2A).count,
}

PAGES = {
    "100 B, few fields": page(few_fields, 20_000),
    "100 B, nested": page(nested_100, 20_000),
    "100 B, a cursor each": page(few_fields, 20_000, every=1),
    "100 B, with keys": page(few_fields, 20_000, keyed=True),
    "1 kB, long texts": page(long_texts, 4_000),
    "1 kB, nested": page(nested_1000, 4_000),
}


def main() -> None:
    for name, block in PAGES.items():
        times: dict[str, list[float]] = {reader: [] for reader in READERS}
        count = 0
        for _ in range(ROUNDS):
            for reader, read in READERS.items():
                start = time.process_time()
                count = read(block)
                times[reader].append(time.process_time() - start)
        median = {reader: statistics.median(found) / count * 1e6 for reader, found in times.items()}
        shown = "  ".join(f"{reader} {found:.2f}" for reader, found in median.items())
        ratios = "  ".join(f"{other}/ours {median[other] / median['parse_lines']:.2f}" for other in ("json", "orjson"))
        print(f"{name:22} µs an event: {shown}   {ratios}")


if __name__ == "__main__":
    main()
