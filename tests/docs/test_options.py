"""The tables of options are those of the code; `make docs` writes them."""

from __future__ import annotations

import pytest

from docs.option_tables import DOCS, PAGES, Drift, written
from spark_streams.options import parse_rabbit_source, parse_source
from spark_streams.options.feedapi import parse_feed_source
from spark_streams.position import EARLIEST, LATEST


def test_the_committed_tables_are_the_codes() -> None:
    for path, text in written().items():
        assert path.read_text() == text, f"run `make docs`: {path.name} is not what the code says"


def test_a_row_that_is_missing_or_of_no_option_is_an_error() -> None:
    for page in PAGES:
        lines = [line for line in (DOCS / page.file).read_text().splitlines() if line.startswith("| `")]
        table = [line for line in lines if line.startswith("| `url`")] + ["| `nonsense` | | |"]
        with pytest.raises(Drift, match=r"requestTimeout.*no such option \['nonsense'\]"):
            page.table(["", "", *table])


def test_a_default_that_the_code_does_not_have_is_replaced() -> None:
    (page,) = [page for page in PAGES if page.file == "rabbitmq-stream-sink.md"]
    lines = (DOCS / page.file).read_text().splitlines()
    start = lines.index("| option | default | meaning |")
    end = lines.index("", start)
    changed = [line.replace("`10000`", "`99`") for line in lines[start:end]]
    assert changed != lines[start:end]
    assert page.table(changed) == lines[start:end]


def test_where_reading_starts_and_ends_by_default() -> None:
    """What the tables say in words."""
    for parse, least in (
        (parse_source, {"url": "amqp://host", "stream": "orders"}),
        (parse_rabbit_source, {"url": "rabbitmq-stream://host", "stream": "orders"}),
        (parse_feed_source, {"url": "http://host/orders"}),
    ):
        stream, batch = parse(least, streaming=True), parse(least, streaming=False)
        assert (stream.starting.everywhere, stream.ending) == (LATEST, None)
        assert batch.ending is not None
        assert (batch.starting.everywhere, batch.ending.everywhere) == (EARLIEST, LATEST)
