"""The table of decided cases in docs/filters.md: each row is a test, on one row of ours and by both evaluations."""

from __future__ import annotations

import datetime
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_streams.errors import FilterError
from spark_streams.filters import (
    Expression,
    Reference,
    ReferenceKind,
    builder,
    evaluate,
    evaluate_columns,
    from_protobuf,
    parse,
    to_text,
)
from spark_streams.filters.row_columns import feed_columns, message_columns
from spark_streams.rows import COMMON_SCHEMA, MESSAGE_SCHEMA

PAGE = Path(__file__).resolve().parents[2] / "docs" / "filters.md"
HEAD = "| written | event | result | why |"
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
TIMES = {"creation_time", "absolute_expiry_time"}
HEX = re.compile(r"[0-9a-f]{2,4}( [0-9a-f]{2,4})*")


def table() -> list[tuple[str, str, str]]:
    """Return (written, event, result) of each row, without the marks of code."""
    _, _, after = PAGE.read_text().partition(HEAD)
    rows = [line.split("|")[1:-1] for line in after.splitlines()[2:] if line.startswith("|")]
    assert all(len(row) == 4 for row in rows)
    return [
        (written.strip().strip("`"), event.strip().strip("`"), result.strip()) for written, event, result, _ in rows
    ]


def instant(milliseconds: int) -> datetime.datetime:
    return EPOCH + datetime.timedelta(milliseconds=milliseconds)


def message_row(event: dict[str, Any]) -> pa.RecordBatch:
    """Return a row of a message that has what the names say."""
    properties: dict[str, Any] = {}
    maps: dict[str, dict[str, str]] = {"application_properties": {}, "message_annotations": {}}
    row: dict[str, Any] = {"properties": properties, "timestamp": instant(1), "partition": "0", "offset": "0", **maps}
    for name, value in event.items():
        section, _, rest = name.partition(".")
        if name == "publish_time":
            row["timestamp"] = instant(value)
        elif name == "event_time" or (section == "properties" and rest in TIMES):
            properties[rest or "creation_time"] = instant(value)
        elif section == "properties":
            properties[rest] = value
        elif section in maps and rest:
            maps[section][rest] = value
        elif name in ("key", "offset", "partition"):
            row[name] = value
        elif name == "value":
            row[name] = value.encode()
        else:
            maps["application_properties"][name] = value
    row |= {name: list(entries.items()) for name, entries in maps.items()}
    return pa.RecordBatch.from_pylist([row], schema=MESSAGE_SCHEMA)


def answers(expression: Expression, event: str) -> set[bool | None]:
    """Return what both evaluations say."""
    if event.startswith("feed "):
        row = {"value": event.removeprefix("feed ").encode(), "partition": "0", "offset": "x"}
        lookup = feed_columns(pa.RecordBatch.from_pylist([row], schema=COMMON_SCHEMA))
    else:
        lookup = message_columns(message_row(json.loads(event)))

    def scalar(reference: Reference) -> Any:
        return lookup(reference)[0].as_py()

    return {evaluate(expression, scalar), evaluate_columns(expression, lookup, 1)[0].as_py()}


def read(written: str) -> Expression:
    if written.startswith("builder()"):
        built = eval(f"({written}).build()", {"builder": builder, "float": float})
        assert built is not None
        return built  # type: ignore[no-any-return]
    return from_protobuf(bytes.fromhex(written)) if HEX.fullmatch(written) else parse(written)


@pytest.mark.parametrize(("written", "event", "result"), table())
def test_the_table(written: str, event: str, result: str) -> None:
    if result.startswith(("refused: ", "column ")):
        assert not event
        with pytest.raises(FilterError) as fault:
            read(written)
        if fault.value.column is None:
            assert result.removeprefix("refused: ") in fault.value.reason
        else:
            assert result == f"column {fault.value.column}"
    elif event:
        assert answers(read(written), event) == {{"true": True, "false": False, "unknown": None}[result]}
    else:
        expression = read(written)
        assert f"`{to_text(expression)}`" == result
        assert parse(to_text(expression)) == expression


def test_the_table_was_found_and_covers_every_reference() -> None:
    rows = table()
    assert len(rows) > 80
    assert {result for _, _, result in rows} > {"true", "false", "unknown"}
    texts = " ".join(written for written, *_ in rows)
    assert [kind.name for kind in ReferenceKind if kind.value and kind.name.lower() not in texts] == []
