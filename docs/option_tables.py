"""Write the tables of options in the pages anew from the code, and docs/options.md; `make docs` runs it.

A page's table has every option that the code takes there, and no other; its types, units and limits are what the code
reads, its defaults what the code has (``option_defaults.py``). Only what an option means is the page's own words.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from docs.option_defaults import default_of
from spark_streams.options.amqp_events import FORMAT as AMQP_FORMAT
from spark_streams.options.amqp_events import parse_sink as parse_sink_options
from spark_streams.options.amqp_events import parse_source
from spark_streams.options.feedapi import BY_TIME
from spark_streams.options.feedapi import FORMAT as FEED_FORMAT
from spark_streams.options.feedapi import parse_sink as parse_feed_sink
from spark_streams.options.feedapi import parse_source as parse_feed_source
from spark_streams.options.names import (
    ENDING_OFFSETS,
    ENDING_OFFSETS_BY_TIMESTAMP,
    ENDING_TIMESTAMP,
    FILTER,
    FILTER_VALUES,
    KEY_FIELD,
    MAX_TRIGGER_DELAY,
    OF_EVERY_FORMAT,
    OF_EVERY_READER,
    STARTING_EXPRESSION,
    STARTING_OFFSETS,
    STARTING_OFFSETS_BY_TIMESTAMP,
    STARTING_TIMESTAMP,
    TIMESTAMP_FIELD,
    TLS_VERIFY_HOSTNAME,
    URL,
)
from spark_streams.options.parser import MAX_INT64, Format, OptionReader
from spark_streams.options.rabbitmq_stream import FORMAT as RABBIT_FORMAT
from spark_streams.options.rabbitmq_stream import parse_sink as parse_rabbit_sink
from spark_streams.options.rabbitmq_stream import parse_source as parse_rabbit_source

DOCS = Path(__file__).parent
HEAD = ["| option | [type](options.md#types) | default | meaning |", "|---|---|---|---|"]
UNITS = {"an epoch": "number", "Spark partitions": "tasks"}
"""Units as errors say them, and as they are written here."""
TYPES = {
    URL: "url",
    TLS_VERIFY_HOSTNAME: "`true`, `false`",
    STARTING_OFFSETS: "position",
    ENDING_OFFSETS: "position",
    STARTING_TIMESTAMP: "instant",
    ENDING_TIMESTAMP: "instant",
    STARTING_OFFSETS_BY_TIMESTAMP: "instants",
    ENDING_OFFSETS_BY_TIMESTAMP: "instants",
    MAX_TRIGGER_DELAY: "duration",
    FILTER: "filter",
    STARTING_EXPRESSION: "filter",
    FILTER_VALUES: "list",
    KEY_FIELD: "JSON pointer",
    TIMESTAMP_FIELD: "JSON pointer",
}
"""Types of options that are not read as a number, as a word or as `true` or `false`; the rest is by the name's end."""
MEANINGS = """
## Types

Spark hands every option over as text: `option("pollInterval", 500)` is as good as `"500"`. Words, and `true` and
`false`, are taken in any case. A value of another type is an error that says what was expected.

| type | what is written |
|---|---|
| a unit, such as milliseconds | a whole number of them; the least, and the most if there is one, stand beside it |
| duration | `15m`, `30s`, `1h`, or a number of milliseconds; the units are us, ms, s, m, h and d |
| instant | milliseconds since 1970, negative before it, or ISO 8601, in UTC if it says no offset: `1957-10-04` |
| instants | JSON, an instant for each partition: `{"0": 1585672841000, "1": "1957-10-04"}` |
| position | `earliest`, `latest`, or JSON with a position for each partition; what that may be is the format's |
| filter | the [filter language](filters.md), or the base64 of its protobuf form |
| JSON pointer | `/customer/id` (RFC 6901) |
| list | texts with commas between, or a JSON list |
| path | of a file; with a url's scheme where the page says so |
| function | `package.module:function` |
"""


class Drift(Exception):
    """A page's table and the code do not have the same options."""


def reading(form: Format) -> tuple[str, ...]:
    """Return the options of a format's reader."""
    without = BY_TIME if form is FEED_FORMAT else ()
    names = (*OF_EVERY_FORMAT, *form.both, *OF_EVERY_READER, *form.reading)
    prefixed = tuple(f"{prefix}<name>" for prefix in form.prefixes)
    return tuple(name for name in (*names, *prefixed) if name not in without)


def writing(form: Format) -> tuple[str, ...]:
    """Return the options of a format's writer."""
    return (*OF_EVERY_FORMAT, *form.both, *form.writing)


@dataclass(frozen=True)
class Page:
    """A page with a table of options under the heading "Options".

    Args:
        file: in docs/.
        names: the options that the code takes.
        least: what has to be given, so that the rest has its defaults.
        parse: reads the options; a reader's of a stream, unless ``streaming`` says of a batch.
        reads: whether they are a reader's.
    """

    file: str
    names: tuple[str, ...]
    least: Mapping[str, str]
    parse: Callable[..., Any]
    reads: bool

    def types(self) -> dict[str, str]:
        """Return what the code reads each option as."""
        found = {name: TYPES.get(name, _by_name(name)) for name in self.names}
        integer, boolean, word = OptionReader.integer, OptionReader.boolean, OptionReader.word

        def integers(given: OptionReader, name: str, low: int, unit: str, *, high: int = MAX_INT64) -> int | None:
            limits = f"from {low}" if high == MAX_INT64 else f"{low} to {high}"
            found[name] = f"{UNITS.get(unit, unit)}, {limits}"
            return integer(given, name, low, unit, high=high)

        def booleans(given: OptionReader, name: str, default: bool) -> bool:
            found[name] = "`true`, `false`"
            return boolean(given, name, default)

        def words(given: OptionReader, name: str, *known: str, default: str | None = None) -> str:
            found[name] = ", ".join(f"`{each}`" for each in known)
            return word(given, name, *known, default=default)

        with patch.multiple(OptionReader, integer=integers, boolean=booleans, word=words):
            self.parse(self.least)
        return found

    def default(self, name: str) -> str:
        """Return what the code has where the option is not given, in words where that is no value."""
        return default_of(name, self.least, self.parse, reads=self.reads)

    def value(self, name: str) -> str | None:
        """Return the default where it is a value, or that there is none and one is required; else None."""
        found = self.default(name)
        return found if found == "required" or found.startswith("`") else None

    def table(self, lines: list[str]) -> list[str]:
        """Return the lines of a table as the code has it.

        Raises:
            Drift: an option is missing, or is none; or options of one row have different defaults.
        """
        rows = [[cell.strip() for cell in line[1:].removesuffix("|").split("|", 3)] for line in lines[2:]]
        listed = [re.findall(r"`([^`]+)`", row[0]) for row in rows]
        flat = [name for names in listed for name in names]
        missing, unknown = sorted(set(self.names) - set(flat)), sorted(set(flat) - set(self.names))
        if missing or unknown or len(flat) != len(set(flat)):
            raise Drift(f"docs/{self.file}: no row for {missing}, no such option {unknown}, or one is there twice")
        types = self.types()
        for names, row in zip(listed, rows, strict=True):
            defaults = {self.default(name) for name in names}
            if len(defaults) > 1:
                raise Drift(f"docs/{self.file}: {', '.join(names)} have different defaults: expected a row for each")
            row[1] = "; ".join(dict.fromkeys(types[name] for name in names))
            row[2] = defaults.pop()
        return HEAD + ["| " + " | ".join(row).replace("|  |", "| |") + " |" for row in rows]

    def text(self) -> str:
        """Return the page with its table as the code has it."""
        lines = (DOCS / self.file).read_text().splitlines()
        start = lines.index(HEAD[0])
        end = next(i for i in range(start, len(lines)) if not lines[i].startswith("|"))
        return "\n".join(lines[:start] + self.table(lines[start:end]) + lines[end:]) + "\n"


def _by_name(name: str) -> str:
    """Return the type of an option that the code takes as text."""
    return "path" if re.search("File$|Location$", name) else "function" if name.endswith("Provider") else "text"


def _pages(
    form: Format, url: str, source: Callable[..., object], sink: Callable[..., object]
) -> tuple[Format, Page, Page]:
    """Return a format, and the pages of its reader and its writer."""
    least = {"url": url, "stream": "orders"}
    return (
        form,
        Page(f"{form.name}.md", reading(form), least, partial(source, streaming=True), True),
        Page(f"{form.name}-sink.md", writing(form), least, sink, False),
    )


_FORMATS = (
    _pages(AMQP_FORMAT, "amqp://host", parse_source, parse_sink_options),
    _pages(RABBIT_FORMAT, "rabbitmq-stream://host", parse_rabbit_source, parse_rabbit_sink),
    _pages(FEED_FORMAT, "http://host/orders", parse_feed_source, parse_feed_sink),
)
PAGES = tuple(page for _, *pages in _FORMATS for page in pages)


def overview() -> str:
    """Return docs/options.md: which format takes which option, for what, with which default."""
    every = dict.fromkeys(name for page in PAGES for name in page.names)
    lines = [
        "# All options",
        "",
        "Which format takes which option, for reading (R) and for writing (W), and the default where it is a value.",
        "The pages of the formats say what each means; the same word means the same everywhere. Names are taken in any",
        "case. `make docs` writes this page from the code.",
        "",
        "| option | "
        + " | ".join(f"[`{form.name}`]({source.file}#options)" for form, source, _ in _FORMATS)
        + " |\n|---|---|---|---|",
    ]
    for name in every:
        cells = []
        for _, source, sink in _FORMATS:
            read = source.value(name) if name in source.names else None
            write = sink.value(name) if name in sink.names else None
            modes = "R" * (name in source.names) + "W" * (name in sink.names)
            if len(modes) == 2 and read != write:
                cells.append(" ".join(filter(None, ("R", read, "W", write))))
            else:
                cells.append(" ".join(filter(None, (modes or "–", read or write))))
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n" + MEANINGS


def written() -> dict[Path, str]:
    """Return each page that has a table of options as it should be.

    Raises:
        Drift: a page's table and the code do not have the same options.
    """
    return {DOCS / "options.md": overview(), **{DOCS / page.file: page.text() for page in PAGES}}


if __name__ == "__main__":
    try:
        for path, text in written().items():
            path.write_text(text)
    except Drift as drift:
        sys.exit(str(drift))
