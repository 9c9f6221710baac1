"""The tables of options are those of the code; `make docs` writes them."""

from __future__ import annotations

import re

import pytest

from docs.option_tables import DOCS, HEAD, PAGES, Drift, Page, written
from spark_streams.errors import OptionError
from spark_streams.options.amqp_events import parse_source
from spark_streams.options.feedapi import parse_source as parse_feed_source
from spark_streams.options.names import REQUEST_TIMEOUT, TLS_VERIFY_HOSTNAME
from spark_streams.options.parser import MAX_INT64, OptionReader
from spark_streams.options.rabbitmq_stream import parse_source as parse_rabbit_source
from spark_streams.position import EARLIEST, LATEST, At
from tests.docs.pages import tables


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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.file)
def test_a_default_that_changes_in_the_code_changes_the_page(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every option that is a number, a word or a boolean: with another default the page is not what is committed."""
    committed = (DOCS / page.file).read_text()
    integer, boolean, word, has = OptionReader.integer, OptionReader.boolean, OptionReader.word, OptionReader.has
    asked: set[str] = set()
    numbers: set[str] = set()
    changed = ""

    def integers(given: OptionReader, name: str, low: int, unit: str, *, high: int = MAX_INT64) -> int | None:
        asked.add(name)
        numbers.add(name)
        return 77 if name == changed else integer(given, name, low, unit, high=high)

    def booleans(given: OptionReader, name: str, default: bool) -> bool:
        asked.add(name)
        return boolean(given, name, default is not (name == changed))

    def words(given: OptionReader, name: str, *known: str, default: str | None = None) -> str:
        asked.add(name)
        return word(given, name, *known, default=known[-1] if name == changed else default)

    def is_there(given: OptionReader, name: str) -> bool:
        return (name == changed and name in numbers) or has(given, name)

    for name, patched in (("integer", integers), ("boolean", booleans), ("word", words), ("has", is_there)):
        monkeypatch.setattr(OptionReader, name, patched)
    assert page.text() == committed
    assert {REQUEST_TIMEOUT, TLS_VERIFY_HOSTNAME} <= asked
    for name in asked & set(page.names):
        changed = name
        try:
            assert page.text() != committed, name
        except OptionError as fault:  # an option that needs another one beside it
            assert fault.option == name


@pytest.mark.parametrize(
    ("where", "value", "pages"),
    [
        ("spark_streams.options.common.EARLIEST", At("7"), ["amqp-events.md", "rabbitmq-stream.md", "feedapi.md"]),
        ("spark_streams.options.common.DEFAULT_MAX_TRIGGER_DELAY_MS", 60_000, ["amqp-events.md", "feedapi.md"]),
        ("docs.option_defaults.DEFAULT_LOGIN", ("me", "me"), ["rabbitmq-stream.md", "rabbitmq-stream-sink.md"]),
    ],
)
def test_defaults_that_are_no_plain_values(
    where: str, value: object, pages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, value)
    text = {path.name: text for path, text in written().items()}
    for page in (*pages, "options.md"):
        assert text[page] != (DOCS / page).read_text(), page


def test_options_with_different_defaults_have_a_row_each() -> None:
    (page,) = [page for page in PAGES if page.file == "amqp-events-sink.md"]
    lines = (DOCS / page.file).read_text().splitlines()
    start = lines.index(HEAD[0])
    table = lines[start : lines.index("", start)]
    rows = [line for line in table if not line.startswith(("| `tls.caFile`", "| `tls.verifyHostname`"))]
    with pytest.raises(Drift, match=r"tls.caFile, tls.verifyHostname have different defaults"):
        page.table([*rows, "| `tls.caFile`, `tls.verifyHostname` | | | both |"])


def test_where_reading_starts_and_ends_by_default() -> None:
    """And that the pages say so: the generator's words are these."""
    for parse, least in (
        (parse_source, {"url": "amqp://host", "stream": "orders"}),
        (parse_rabbit_source, {"url": "rabbitmq-stream://host", "stream": "orders"}),
        (parse_feed_source, {"url": "http://host/orders"}),
    ):
        stream, batch = parse(least, streaming=True), parse(least, streaming=False)
        assert (stream.starting.everywhere, stream.ending) == (LATEST, None)
        assert batch.ending is not None
        assert (batch.starting.everywhere, batch.ending.everywhere) == (EARLIEST, LATEST)
    for page in ("amqp-events.md", "rabbitmq-stream.md", "feedapi.md"):
        ((*rows,),) = tables(f"docs/{page}", "Options")
        told = {row[0]: row[2] for row in rows if len(row) > 3}
        assert told["`startingOffsets`"] == "`latest` in a stream, `earliest` in a batch"
        assert told["`endingOffsets`"] == "`latest`"


def test_a_default_that_depends_on_what_stands_beside() -> None:
    least = {"url": "rabbitmq-stream://host", "stream": "orders", "filterValueFrom": "key"}
    for beside, expected in (("filter", True), ("filterValues", False)):
        text = {"filter": "key = 'a'", "filterValues": "a"}[beside]
        assert parse_rabbit_source({**least, beside: text}, streaming=True).match_unfiltered is expected
    ((*rows,),) = tables("docs/rabbitmq-stream.md", "Options")
    (told,) = (row[2] for row in rows if row[0] == "`matchUnfiltered`")
    assert told == "`true` beside `filter`, `false` beside `filterValues`"
