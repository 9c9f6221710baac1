"""Lines of feeds: any bytes, agreement with a plain reading by ``json``, and there and back."""

from __future__ import annotations

import base64
import contextlib
import json
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_streams.errors import RemoteProtocolError
from spark_streams.wire.feed.discovery import decode_discovery
from spark_streams.wire.feed.json_pointer import extract_text, extract_timestamp
from spark_streams.wire.feed.line import Dialect
from spark_streams.wire.feed.lines import LineBlocks, Lines, parse_lines
from spark_streams.wire.feed.lines_encode import encode_lines
from tests.wire.feed.single_lines import parse_singly

untimed = settings(deadline=None)
dialects = st.sampled_from(Dialect)
of_feeds = st.sampled_from([Dialect.V1, Dialect.V2A, Dialect.V2B])
numbers = st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False))
texts = st.text(st.characters(exclude_categories=("Cs",)))
documents = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, texts),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)),
    max_leaves=12,
)
objects = st.dictionaries(texts, documents, max_size=4)
members = st.fixed_dictionaries(
    {},
    optional={
        "event": st.one_of(objects, texts, documents),
        "data": st.one_of(objects, texts),
        "cursor": st.one_of(texts, st.none(), st.integers()),
        "partition": st.sampled_from([0, 1, "0", "1", -1, 1.5, None]),
        "key": st.one_of(texts, documents),
        "encoding": st.sampled_from(["base64", "x", None]),
        "headers": st.dictionaries(texts, texts, max_size=2),
        "ping": documents,
    },
)


@st.composite
def blocks(draw: st.DrawFn) -> bytes:
    """Lines as a server would write them, the same ones several times, so that many are alike."""
    written = []
    for member in draw(st.lists(members, min_size=1, max_size=6)):
        names = draw(st.permutations(list(member)))
        ascii_only, spaces = draw(st.booleans()), draw(st.sampled_from([(",", ":"), (", ", ": "), (" , ", "\t: ")]))
        line = json.dumps({name: member[name] for name in names}, ensure_ascii=ascii_only, separators=spaces)
        written.append(line.encode())
    lines = draw(st.lists(st.sampled_from(written), min_size=1, max_size=30))
    ending = draw(st.sampled_from([b"\n", b"\r\n", b"\n\n"]))
    return ending.join(lines) + draw(st.sampled_from([b"", b"\n"]))


def outcome(parse: Any, block: bytes, dialect: Dialect, partition: int | None) -> Any:
    try:
        lines: Lines = parse(block, dialect, partition)
    except RemoteProtocolError as error:
        return str(error)
    lines.values.validate(full=True)
    lines.cursors.validate(full=True)
    keys = lines.keys.to_pylist()
    return (
        lines.values.to_pylist(),
        lines.count,
        lines.cursors.to_pylist(),
        lines.covered.tolist(),
        lines.ends.tolist(),
        keys,
    )


def plainly(
    block: bytes, dialect: Dialect, partition: int | None
) -> tuple[list[Any], list[str], list[int], list[Any]] | None:
    """Read lines with ``json`` alone, objects as values; None for a block with a malformed line."""
    events: list[Any] = []
    keys: list[Any] = []
    cursors: list[str] = []
    covered: list[int] = []
    for line in block.split(b"\n"):
        if not line.strip(b" \t\r"):
            continue
        members = json.loads(line)
        cursor = members.get("cursor")
        if dialect is Dialect.PUBLISHED and (
            ("event" in members) + ("data" in members) != 1
            or members.keys() - {"event", "data", "key", "encoding"}
            or members.get("encoding") not in (None, "base64")
        ):
            return None
        if not isinstance(cursor, str | None):
            return None
        name = dialect.event_key
        if name not in members and cursor is None:
            name = dialect.other_event_key
        there = name in members and not (cursor is not None and members[name] is None)
        if not there and cursor is None:
            continue
        if dialect is Dialect.V1:
            number = members.get("partition")
            if number is None or str(number) not in ("0", "1"):
                return None
            if partition is not None and int(number) != partition:
                continue
        if there:
            event = members[name]
            if not isinstance(event, dict | str | None):
                return None
            if isinstance(event, str):
                try:
                    encoded = members.get("encoding") == "base64"
                    event = base64.b64decode(event, validate=True) if encoded else event.encode()
                except ValueError:
                    return None
            events.append(event)
            keys.append(members.get("key"))
        if cursor is not None:
            cursors.append(cursor)
            covered.append(len(events))
    return events, cursors, covered, keys


@untimed
@given(block=blocks(), dialect=dialects, partition=st.sampled_from([None, 0, 1]))
def test_reading_agrees_with_json(block: bytes, dialect: Dialect, partition: int | None) -> None:
    expected = plainly(block, dialect, partition)
    for parse in (parse_singly, parse_lines):
        found = outcome(parse, block, dialect, partition)
        if expected is None:
            assert isinstance(found, str)
            continue
        assert not isinstance(found, str), found
        read = [json.loads(e) if isinstance(x, dict) else e for e, x in zip(found[0], expected[0], strict=True)]
        assert (read, found[2], found[3]) == expected[:3]
        for key, its in zip(found[5] or [None] * len(read), expected[3], strict=True):
            assert key == its if its is None or isinstance(its, str) else json.loads(key) == its
        assert all(block[: end - 1].count(b"\n") < block[:end].count(b"\n") or end == len(block) for end in found[4])


@untimed
@given(
    block=blocks(), dialect=dialects, noise=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 256)), max_size=3)
)
def test_damaged_lines_are_read_the_same_together_and_singly(
    block: bytes, dialect: Dialect, noise: list[tuple[int, int]]
) -> None:
    damaged = bytearray(block + b"\n        ")
    for place, byte in noise:
        if byte == 256:
            del damaged[place % (len(damaged) + 1) :]
        elif damaged:
            damaged[place % len(damaged)] = byte
    damaged += b" " * max(0, 8 - len(damaged))
    assert outcome(parse_lines, bytes(damaged), dialect, 0) == outcome(parse_singly, bytes(damaged), dialect, 0)


parts = st.sampled_from(["", "x", "Jörg", "QQ==", "QUI=", "QUJD", "QQ==QUI=", "=", "A===", "=A==", "QR==", "QQ= ", "Q"])


@st.composite
def forms(draw: st.DrawFn, dialect: Dialect) -> str:
    """A line of strings in one of the forms that our door writes, perhaps with a quote too many or too few."""
    head = '{"partition":0,' if dialect is Dialect.V1 else "{"
    if draw(st.integers(0, 5)) == 0:
        line = f'{head}"cursor":"{draw(parts)}"}}'
    else:
        key = f'"key":"{draw(parts)}",' if draw(st.booleans()) else ""
        encoding = ',"encoding":"base64"' if draw(st.booleans()) else ""
        line = f'{head}{key}"{dialect.event_key}":"{draw(parts)}"{encoding}}}'
    places = [place for place, character in enumerate(line) if character in '",:}']
    change = draw(st.integers(0, 20))
    if change > 2:
        return line
    place = draw(st.sampled_from(places))
    return line[:place] + ("", '"' + line[place], line[place : place + 1] * 2)[change] + line[place + 1 :]


@untimed
@given(data=st.data(), dialect=dialects, repeated=st.integers(1, 4))
def test_lines_in_the_forms_of_our_door_are_read_the_same_together_and_singly(
    data: st.DataObject, dialect: Dialect, repeated: int
) -> None:
    block = "".join(line + "\n" for line in data.draw(st.lists(forms(dialect), min_size=1, max_size=6)) * repeated)
    assert outcome(parse_lines, block.encode(), dialect, 0) == outcome(parse_singly, block.encode(), dialect, 0)


@untimed
@given(block=st.one_of(st.binary(max_size=300), st.binary(max_size=10).map(lambda noise: noise * 50)), dialect=dialects)
def test_any_bytes_give_lines_or_a_protocol_error(block: bytes, dialect: Dialect) -> None:
    for parse in (parse_singly, parse_lines):
        outcome(parse, block, dialect, 0)
    pieces = LineBlocks(max_line_bytes=100)
    try:
        got = b"".join(part for start in range(0, len(block), 7) for part in pieces.feed(block[start : start + 7]))
        assert got + pieces.tail == block.removeprefix(b"\xef\xbb\xbf")
    except RemoteProtocolError:
        assert max(map(len, block.split(b"\n"))) > 100 - 7
    with contextlib.suppress(RemoteProtocolError):
        decode_discovery(block)


event_bytes = st.one_of(
    objects.map(lambda value: json.dumps(value, separators=(",", ":")).encode()),
    texts.map(str.encode),
    st.binary(max_size=30),
    st.sampled_from([b'{"a":1}{"b":2}', b'{"a":1},"m":{}', b'"a","cursor":"c"', b'{"a":NaN}', b"{", b'{"a":"\x01"}']),
)


@untimed
@given(
    values=st.lists(st.none() | event_bytes, max_size=80),
    dialect=of_feeds,
    checkpoints=st.lists(st.tuples(st.integers(0, 80), texts), max_size=5),
    keyed=st.booleans(),
    data=st.data(),
)
def test_there_and_back(
    values: list[bytes | None],
    dialect: Dialect,
    checkpoints: list[tuple[int, str]],
    keyed: bool,
    data: st.DataObject,
) -> None:
    covered = sorted(min(place, len(values)) for place, _ in checkpoints)
    cursors = [cursor for _, cursor in checkpoints]
    some = st.lists(st.one_of(st.none(), texts), min_size=len(values), max_size=len(values))
    keys = data.draw(some) if keyed else None
    column = pa.array([b"before", *values], pa.binary())[1:]
    block = encode_lines(column, dialect, 5, keys=None if keys is None else pa.array(keys, pa.string()))
    written = block.split(b"\n")[:-1]
    for line in written:
        json.loads(line)
    for place, cursor in reversed(list(zip(covered, cursors, strict=True))):
        head = {"partition": 5} if dialect is Dialect.V1 else {}
        written.insert(place, json.dumps({**head, "cursor": cursor}).encode())
    block = b"".join(line + b"\n" for line in written)
    lines = parse_lines(block, dialect, 5)
    assert lines.cursors.to_pylist() == cursors
    assert lines.covered.tolist() == covered
    for sent, got in zip(values, lines.values.to_pylist(), strict=True):
        assert got == sent or (sent is not None and json.loads(got) == json.loads(sent))
    if keys is not None and any(key is not None for key in keys):
        assert lines.keys.to_pylist() == keys


@untimed
@given(values=st.lists(st.one_of(objects, documents), max_size=20), name=st.sampled_from(["a", "t", "a/b", "0"]))
def test_pointers_agree_event_by_event_and_together(values: list[Any], name: str) -> None:
    column = pa.array([json.dumps(value).encode() for value in values], pa.binary())
    pointer = "/" + name.replace("/", "~1")
    together = extract_text(column, pointer).to_pylist()
    assert together == [extract_text(column[row : row + 1], pointer)[0].as_py() for row in range(len(values))]
    for value, text in zip(values, together, strict=True):
        there = value.get(name) if isinstance(value, dict) else None
        if isinstance(there, str):
            assert text == there
    with contextlib.suppress(RemoteProtocolError):
        extract_timestamp(column, pointer, overflow="null")
