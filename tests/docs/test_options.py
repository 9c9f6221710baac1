"""The tables of options are those of the code; `make docs` writes them."""

from __future__ import annotations

import re

import pytest

from docs.option_tables import DOCS, HEAD, PAGES, Drift, written
from spark_streams.options import parse_rabbit_source, parse_source
from spark_streams.options.feedapi import parse_feed_source
from spark_streams.position import EARLIEST, LATEST
from tests.cli.pages import tables


def test_the_committed_tables_are_the_codes() -> None:
    for path, text in written().items():
        assert path.read_text() == text, f"run `make docs`: {path.name} is not what the code says"


def test_a_row_that_is_missing_or_of_no_option_is_an_error() -> None:
    for page in PAGES:
        lines = [line for line in (DOCS / page.file).read_text().splitlines() if line.startswith("| `")]
        table = [line for line in lines if line.startswith("| `url`")] + ["| `nonsense` | | |"]
        with pytest.raises(Drift, match=r"requestTimeout.*no such option \['nonsense'\]"):
            page.table(["", "", *table])


def test_types_and_units_are_what_the_code_reads() -> None:
    (page,) = [page for page in PAGES if page.file == "feedapi.md"]
    types = page.types()
    assert types["pollInterval"] == "milliseconds, from 0"
    assert types["maxLineBytes"] == "bytes, from 1"
    assert types["partitions"] == "partitions, 1 to 32768"
    assert types["dialect"] == "`auto`, `v1`, `v2a`, `v2b`"
    assert types["ordered"] == "`true`, `false`"
    lines = (DOCS / page.file).read_text().splitlines()
    start = lines.index(HEAD[0])
    table = lines[start : lines.index("", start)]
    changed = [line.replace("milliseconds, from 0", "seconds") for line in table]
    assert changed != table and page.table(changed) == table


def test_each_type_is_explained() -> None:
    ((*rows,),) = tables("docs/options.md", "Types")
    explained = {row[0] for row in rows} | {"text", "url"}
    for page in PAGES:
        for name, kind in page.types().items():
            is_number = re.fullmatch(r"[a-z]+, (from \d+|\d+ to \d+)", kind)
            assert kind in explained or is_number or kind.startswith("`"), (name, kind)


def test_a_default_that_the_code_does_not_have_is_replaced() -> None:
    (page,) = [page for page in PAGES if page.file == "rabbitmq-stream-sink.md"]
    lines = (DOCS / page.file).read_text().splitlines()
    start = lines.index(HEAD[0])
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
