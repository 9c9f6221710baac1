"""All measures, in two suites.

    python -m tests.bench.peers [MEASURE ...] [--formats kafka,rabbitmq-stream] [--rows N] [--rounds N]
    python -m tests.bench.peers --plain                  those beside plain clients, doors and partitions
    python -m tests.bench.peers [MEASURE ...] --compare REV      this revision and another one, without the peers

Without a name, those beside Spark's Kafka source and sink and a JVM connector for RabbitMQ are run. The results are one
file of JSON for each measure, in ``build/bench-peers``, and a table of each with targets under it. `make bench-peers`
and `make bench` run the suites.
"""

from __future__ import annotations

import argparse

from tests.bench.harness import comparison
from tests.bench.harness.measure import parser, run_all
from tests.bench.peers import (
    doors,
    latency,
    long_log,
    memory,
    micro_batch,
    partitions,
    read_all,
    read_batch,
    read_plain,
    read_stream,
    start,
    stream_plain,
    window,
    write_batch,
    write_plain,
)

JVM = {
    "read_batch": read_batch.MEASURE,
    "read_all": read_all.MEASURE,
    "read_stream": read_stream.MEASURE,
    "write_batch": write_batch.MEASURE,
    "latency": latency.MEASURE,
    "micro_batch": micro_batch.MEASURE,
    "start": start.MEASURE,
    "memory": memory.MEASURE,
}
"""Beside Spark's Kafka source and sink and the JVM connector."""
PLAIN = {
    "read_plain": read_plain.MEASURE,
    "stream_plain": stream_plain.MEASURE,
    "write_plain": write_plain.MEASURE,
    "doors": doors.MEASURE,
    "long_log": long_log.MEASURE,
    "partitions": partitions.MEASURE,
    "window": window.MEASURE,
}
"""Beside plain clients, a real RabbitMQ, and streams of other sizes."""
MEASURES = {**JVM, **PLAIN}


def chosen(text: str) -> str:
    if text not in MEASURES:
        raise argparse.ArgumentTypeError(f"{text!r} is no measure: expected some of {', '.join(MEASURES)}")
    return text


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("measures", nargs="*", type=chosen, metavar="MEASURE", help=", ".join(MEASURES))
    arguments.add_argument("--plain", action="store_true", help=", ".join(PLAIN))
    arguments.add_argument("--compare", metavar="REV", help="alternate with the product's code of another revision")
    options = arguments.parse_args()
    names = options.measures or list(PLAIN if options.plain else JVM)
    if options.compare:
        print(comparison.compare_with(options.compare, names, options))
        return
    run_all([MEASURES[name] for name in names], options)


if __name__ == "__main__":
    main()
