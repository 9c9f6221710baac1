"""Reading a filter's text and splitting it for a peer: what a query does once.

    python tests/bench/filters_split.py [--turns N]

For filters of several sizes and each target: the median time of ``parse`` alone, and of parsing and splitting together,
in microseconds; and the latter as a ratio to what Python's own ``ast.parse`` takes for an expression of as many
comparisons, which says how fast the machine is. The target is below 1 ms for filters that people write; the largest
filters that the language takes are here to show that nothing grows faster than the filter.
"""

from __future__ import annotations

import argparse
import ast
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from spark_streams.filters.targets.amqp import AmqpCapability, split_for_amqp
from spark_streams.filters.targets.feed import split_for_feed
from spark_streams.filters.targets.rabbitmq import split_for_rabbitmq
from spark_streams.filters.text import parse
from spark_streams.filters.tree import KEY, property_of

EVERYTHING = AmqpCapability(event_streams=True, filtex_sql=True, rabbitmq_types=True)
RABBIT = property_of("type")
FEED = {"key": KEY, "type": property_of("type")}
SPLITS: dict[str, Callable[[Any], Any]] = {
    "amqp-events": lambda expression: split_for_amqp(expression, EVERYTHING),
    "rabbitmq-stream": lambda expression: split_for_rabbitmq(expression, RABBIT),
    "feedapi": lambda expression: split_for_feed(expression, FEED),
}

SMALL = "type = 'order' AND publish_time >= -386380800000 AND subject LIKE 'eu-%'"
MIDDLE = (
    f"({SMALL} OR type IN ('test', '5', 'refund') AND NOT (n BETWEEN 1 AND 10 OR properties.subject <> 'x'))"
    " AND offset > '00000000000000000005' AND (key = 'k' OR event_time > 1585672841000) AND [x-y] IS NOT NULL"
)
FILTERS = {
    "3 predicates": (3, SMALL),
    "11 predicates": (11, MIDDLE),
    "IN of 150": (150, f"type IN ({', '.join(repr(f'value-{n}') for n in range(150))})"),
    "999 predicates": (999, " OR ".join(f"type = 'value-{n}'" for n in range(999))),
    "249 ORs in an AND": (747, " AND ".join(f"(offset = 'a{n}' OR offset = 'b{n}' OR type = 'c')" for n in range(249))),
}
"""Name to how many comparisons it has, and its text."""


def median_us(work: Callable[[], object], turns: int) -> float:
    """Return the median time of one call, in microseconds."""
    work()
    times = []
    for _ in range(turns):
        begin = time.perf_counter_ns()
        work()
        times.append((time.perf_counter_ns() - begin) / 1000)
    return statistics.median(times)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=200)
    turns = parser.parse_args().turns
    print(f"{'filter':20} {'target':16} {'parse µs':>10} {'parse+split µs':>15} {'x ast.parse':>12}")
    for name, (comparisons, text) in FILTERS.items():
        asked = turns if len(text) < 2000 else max(3, turns // 20)
        python = " or ".join(f"type == 'value-{n}'" for n in range(comparisons))
        yardstick = median_us(lambda source=python: ast.parse(source), asked)
        alone = median_us(lambda source=text: parse(source), asked)
        for target, split in SPLITS.items():
            both = median_us(lambda source=text, to=split: to(parse(source)), asked)
            print(f"{name:20} {target:16} {alone:10.0f} {both:15.0f} {both / yardstick:12.1f}", flush=True)


if __name__ == "__main__":
    main()
