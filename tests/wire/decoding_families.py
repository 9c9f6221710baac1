"""Bytes for every decoder, in families: what one of them is given ten times as long, or ten times as often.

A family makes bytes of a size and returns what decodes them. In a ``long`` one a single value grows, in a ``many`` one
the number of values does. Most are what a peer would send who means ill: they lead to the turns of a loop.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import struct
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from spark_streams.errors import SparkStreamsError
from spark_streams.filters.predicates.amqp_sql.parser import parse_amqp_sql
from spark_streams.filters.predicates.event_streams import parse_sql
from spark_streams.filters.protobuf import from_protobuf, read_filter, to_protobuf
from spark_streams.filters.text import parse
from spark_streams.log.config import StreamConfig
from spark_streams.log.format.batch_headers import RecordCodes, decode_codes, encode_codes
from spark_streams.log.format.batching import encode_records, place
from spark_streams.log.format.record_batch import parse_header, verify
from spark_streams.log.format.records import decode_batches, message_columns_of, record_headers
from spark_streams.server.amqp.config import AmqpConfig
from spark_streams.server.feed.request_bodies import read_body, read_within
from spark_streams.wire.amqp import cbs, management
from spark_streams.wire.amqp import message as m
from spark_streams.wire.amqp.columns.block import MessageBlock, foreign
from spark_streams.wire.amqp.columns.decode import COLUMN_TYPES, decode_columns
from spark_streams.wire.amqp.columns.from_producers import incoming_columns
from spark_streams.wire.amqp.columns.plain_bodies import plain_body_columns, plain_rows
from spark_streams.wire.amqp.columns.typed import FieldOfMessage, typed_columns
from spark_streams.wire.amqp.decode import decode_value, finished
from spark_streams.wire.amqp.encode import encode_value
from spark_streams.wire.amqp.engine.links import Link
from spark_streams.wire.amqp.event_batches import split_batch
from spark_streams.wire.amqp.event_hubs import outgoing_pieces, with_group_keys
from spark_streams.wire.amqp.part_head import PartHead
from spark_streams.wire.amqp.performatives import (
    USUAL_DISPOSITION,
    empty_frames,
    encode_frame,
    performative_code,
    read_performative,
    usual_range,
)
from spark_streams.wire.amqp.sasl import SaslClient, SaslLogin, SaslServer
from spark_streams.wire.amqp.shared_access import SharedAccessSignature
from spark_streams.wire.amqp.transfer_encode import Sender, split_message
from spark_streams.wire.amqp.transfer_frames import read_transfers, split_frames
from spark_streams.wire.amqp.values import Described, UInt, ULong
from spark_streams.wire.columnar.byte_view import Words
from spark_streams.wire.feed.discovery import decode_discovery
from spark_streams.wire.feed.fetch_arguments import decode_fetch
from spark_streams.wire.feed.json_pointer import extract_text, extract_timestamp
from spark_streams.wire.feed.line import Dialect
from spark_streams.wire.feed.lines import LineBlocks, parse_lines
from spark_streams.wire.feed.strict_json import check_json, depth_of, load_json
from spark_streams.wire.rabbitmq import connection_commands, stream_commands
from spark_streams.wire.rabbitmq.chunk import decode_chunk, encode_selection
from spark_streams.wire.rabbitmq.compression import Compression
from spark_streams.wire.rabbitmq.connection_commands import decode
from spark_streams.wire.rabbitmq.consumer_commands import decode_deliver, encode_deliver_head
from spark_streams.wire.rabbitmq.entries import read_entries
from spark_streams.wire.rabbitmq.frames import Command, Frame, FrameReader
from spark_streams.wire.rabbitmq.publish_decode import (
    decode_confirm,
    decode_publish,
    decode_publish_error,
    encode_confirm,
    encode_publish_error,
    publish_parts,
)
from spark_streams.wire.rabbitmq.publish_v2 import filtered_begins
from spark_streams.wire.rabbitmq.sub_batches import pack_sub_batch
from tests.wire.amqp.engine.serving import OPENING, serving
from tests.wire.rabbitmq.chunks import encode_chunk

Do = Callable[[], object]


class Family(NamedTuple):
    """One of them.

    Args:
        name: what grows.
        size: the smallest size.
        make: makes the bytes of a size; returns what decodes them.
        long: whether it is one value that grows, whose length must not be the number of anybody's steps.
    """

    name: str
    size: int
    make: Callable[[int], Do]
    long: bool


FAMILIES: list[Family] = []


def many(name: str, size: int) -> Callable[[Callable[[int], Do]], Callable[[int], Do]]:
    """Have a function known as what makes many values."""
    return lambda make: FAMILIES.append(Family(name, size, make, False)) or make  # type: ignore[func-returns-value]


def long(name: str, size: int = 4_000) -> Callable[[Callable[[int], Do]], Callable[[int], Do]]:
    """Have a function known as what makes one long value."""
    return lambda make: FAMILIES.append(Family(name, size, make, True)) or make  # type: ignore[func-returns-value]


def refused(do: Callable[[], object]) -> Do:
    """Return what does it, whether it is refused or not."""

    def tried() -> None:
        with contextlib.suppress(SparkStreamsError):
            do()

    return tried


# --- feeds

EVENT = b'{"event":{"id":1,"t":"some text"}}\n'
LONG_LINES: dict[str, Callable[[bytes], bytes]] = {
    "a key before its event": lambda text: b'{"key":"' + text + b'","event":{}}\n',
    "a key behind its event": lambda text: b'{"event":{},"key":"' + text + b'"}\n',
    "a text": lambda text: b'{"event":"' + text + b'"}\n',
    "a text with an escape": lambda text: b'{"event":"\\n' + text + b'"}\n',
    "base64": lambda text: b'{"event":"' + text + b'","encoding":"base64"}\n',
    "an object": lambda text: b'{"event":{"a":"' + text + b'"}}\n',
    "spaces": lambda text: b'{"event":{}' + b" " * len(text) + b"}\n",
    "a number": lambda text: b'{"event":{"a":' + b"1" * len(text) + b"}}\n",
    "an escaped key": lambda text: b'{"key":"' + b'\\"' * (len(text) // 2) + b'","event":{}}\n',
}
LONG_OTHERS: dict[str, Callable[[bytes], bytes]] = {
    "a cursor": lambda text: b'{"cursor":"' + text + b'"}\n',
    "a member's name": lambda text: b'{"' + text + b'":1,"event":{}}\n',
    "a member that is unknown": lambda text: b'{"event":{},"other":"' + text + b'"}\n',
}
for dialect, lines in ((Dialect.PUBLISHED, LONG_LINES), (Dialect.V2A, LONG_LINES | LONG_OTHERS)):
    for title, line in lines.items():

        @long(f"feed {dialect.value}: {title}", 40_000)
        def _(size: int, dialect: Dialect = dialect, line: Callable[[bytes], bytes] = line) -> Do:
            block = line(b"abcd" * (size // 4))
            return refused(lambda: parse_lines(block * 2, dialect))


@many("feed: lines with keys and cursors", 80)
def _(size: int) -> Do:
    block = b'{"event":{"id":1},"key":"k"}\n{"event":"a","key":"k"}\n{"event":"\\n"}\n{"cursor":"c"}\n' * size
    return lambda: parse_lines(block, Dialect.V2A)


@many("feed: lines that are read one by one", 9)
def _(size: int) -> Do:
    block = b'{"event":{"a":NaN},"cursor":7}\n' + b'{"event":{"a":1},"event":{"a":2}}\n' * size
    return (
        refused(lambda: parse_lines(block[31:], Dialect.V2A))
        if size % 2
        else refused(lambda: parse_lines(EVENT * size + block, Dialect.V2A))
    )


@many("feed: lines of base64", 70)
def _(size: int) -> Do:
    block = b'{"event":"AAEC","encoding":"base64"}\n' * size
    return lambda: parse_lines(block, Dialect.V2A)


@many("feed: objects that are none, here and there", 5)
def _(size: int) -> Do:
    block = b'{"event":{"a":1e999}}\n{"event":{"a":1}}\n' * size
    return refused(lambda: parse_lines(block, Dialect.V2A))


@many("feed: strings of one line", 70)
def _(size: int) -> Do:
    line = b'{"other":[' + b",".join([b'"a"'] * size) + b'],"event":{}}\n'
    return lambda: parse_lines(line + EVENT * 70, Dialect.V2A)


@many("feed: members of one line", 10)
def _(size: int) -> Do:
    line = b"{" + b"".join(b'"%d":0,' % n for n in range(size)) + b'"event":{}}\n'
    return lambda: parse_lines(line * 2, Dialect.V2A)


@many("feed: brackets, and a string without an end", 1_200)
def _(size: int) -> Do:
    body = b'{"event":' + b"[" * size + b'"' + b'\\"' * size
    return refused(lambda: [refused(lambda: parse_lines(body + b"\n", Dialect.V2A))(), load_json(body, "a body")])


@many("feed: objects next to each other", 1_200)
def _(size: int) -> Do:
    body = b"[" + b"{}," * size + b"{}]"
    return lambda: [load_json(body, "a body"), depth_of(body.decode())]


@many("feed: JSON that is checked alone", 2_000)
def _(size: int) -> Do:
    text = "[" + '{"a":[1,true]},' * size + "0]"
    return lambda: check_json(text)


@many("feed: pieces of a line", 20)
def _(size: int) -> Do:
    def fed() -> None:
        blocks = LineBlocks()
        for _ in range(size):
            blocks.feed(b"a" * 500)
        blocks.feed(b"\n" + b"b" * 500)
        assert len(blocks.tail) == 500

    return fed


@many("feed: a body in gzip", 100)
def _(size: int) -> Do:
    body = [gzip.compress(EVENT * size)]
    kind = "application/x-ndjson"
    return lambda: [
        finished(read_body(body, "gzip", kind, 1 << 24, 1 << 20)),
        finished(read_within(1 << 24, body, "gzip", kind, 1 << 24, 1 << 20)),
    ]


@many("feed: partitions", 5)
def _(size: int) -> Do:
    listed = [{"id": str(n), "startsAfterPartition": None} for n in range(size)]
    body = json.dumps({"partitions": listed}).encode()
    return lambda: decode_discovery(body)


@many("feed: partitions, the last of them twice", 10)
def _(size: int) -> Do:
    body = json.dumps({"partitions": [{"id": str(n)} for n in (*range(size), size - 1)]}).encode()
    return refused(lambda: decode_discovery(body))


@many("feed: arguments", 2)
def _(size: int) -> Do:
    pairs = [("partition", "0"), ("cursor", "c"), *((f"x{n}", "y") for n in range(size))]
    return lambda: decode_fetch(pairs, Dialect.V2A)


@long("feed: an argument")
def _(size: int) -> Do:
    return lambda: decode_fetch([("n", "1"), ("cursor0", "c" * size), ("headers", "h")], Dialect.V1)


@many("feed: members as columns", 4)
def _(size: int) -> Do:
    values = pa.array([b'{"a":{"b":"text"},"n":1.5,"at":1}', b'{"a":{"b":2},"n":null,"at":2}'] * size, pa.binary())
    return lambda: [
        extract_text(values, "/a/b"),
        extract_text(values, "/n"),
        extract_timestamp(values, "/at"),
        extract_timestamp(values, "/missing", overflow="null"),
    ]


@long("feed: a member as a column")
def _(size: int) -> Do:
    values = pa.array([json.dumps({"a": ["ü" * size]}, ensure_ascii=False).encode()], pa.binary())
    return lambda: extract_text(values, "/a/0")


# --- AMQP: values and messages


def section(code: int, value: object) -> bytes:
    return encode_value(Described(ULong(code), value))


def block_of(messages: Iterable[bytes]) -> MessageBlock:
    every = list(messages)
    ends = np.cumsum([len(each) for each in every], dtype=np.int64)
    return MessageBlock(b"".join(every), ends - [len(each) for each in every], ends)


def all_columns(block: MessageBlock) -> Do:
    fields = [
        FieldOfMessage(m.APPLICATION_PROPERTIES, "key"),
        FieldOfMessage(m.PROPERTIES, "subject"),
        FieldOfMessage(m.MESSAGE_ANNOTATIONS, "a"),
    ]

    def decoded() -> None:
        foreign(block)
        incoming_columns(block, thorough=True)
        plain_body_columns(block, ["value"])
        plain_rows(Words(np.frombuffer(block.buffer, np.uint8)), block.starts, block.ends)
        for column in typed_columns(block, fields).values():
            column.equals(b"value")
            assert len(column.texts) == len(block.starts)
        refused(lambda: decode_columns(block, list(COLUMN_TYPES), overflow="null"))()

    return decoded


def usual(properties: dict[str, object], body: bytes = b"body") -> bytes:
    return b"".join(
        (
            section(m.MESSAGE_ANNOTATIONS, {"a": "b"}),
            section(m.PROPERTIES, ["id", b"user", None, "subject"]),
            section(m.APPLICATION_PROPERTIES, properties),
            section(m.DATA, body),
        )
    )


AMQP_MESSAGES: dict[str, tuple[int, Callable[[int], list[bytes]]]] = {
    "messages alike": (40, lambda size: [usual({"key": "value"})] * size),
    "messages of one data section": (40, lambda size: [section(m.DATA, b"body")] * size),
    "messages of many shapes": (8, lambda size: [usual({f"k{n % 97}": n, "b": 1.5}) for n in range(size)]),
    "messages that are broken": (2, lambda size: [usual({"k": "v"}), usual({"k": "v"})[:-3]] * size),
    "messages with one key twice": (1, lambda size: [b"\0Sr\xc1\x09\x04\xa3\x01aC\xa3\x01aC"] * size),
    "texts that are no text": (1, lambda size: [usual({"key": "value"}).replace(b"subject", b"sub\xffect")] * size),
    "entries of a map": (3, lambda size: [usual({f"key-{n}": n for n in range(size)})]),
    "data sections": (2, lambda size: [section(m.DATA, b"") * size] * 2),
    "items of a sequence": (10, lambda size: [section(m.AMQP_SEQUENCE, [None] * size)]),
    "sections behind a footer": (3, lambda size: [section(m.FOOTER, {}) + section(m.DATA, b"") * size]),
}
for title, (least, messages) in AMQP_MESSAGES.items():

    @many(f"amqp: {title}", least)
    def _(size: int, messages: Callable[[int], list[bytes]] = messages) -> Do:
        return all_columns(block_of(messages(size)))


AMQP_LONG: dict[str, Callable[[int], bytes]] = {
    "a body": lambda size: usual({}, b"x" * size),
    "a key": lambda size: usual({"k" * size: "value"}),
    "a value": lambda size: usual({"key": "v" * size}),
    "bytes as a text": lambda size: section(m.APPLICATION_PROPERTIES, {"key": b"v" * size}),
    "a text as body": lambda size: section(m.AMQP_VALUE, "ü" * size),
    "bytes in a sequence": lambda size: section(m.AMQP_SEQUENCE, [b"x" * size]),
}
for title, message in AMQP_LONG.items():
    for copies in (2, 20):

        @long(f"amqp: {title}, in {copies} messages")
        def _(size: int, message: Callable[[int], bytes] = message, copies: int = copies) -> Do:
            return all_columns(block_of([message(size)] * copies))


def map_of(entries: Iterable[tuple[bytes, bytes]]) -> bytes:
    items = [part for entry in entries for part in entry]
    content = b"".join(items)
    return b"\xd1" + struct.pack(">II", len(content) + 4, len(items)) + content


@many("amqp: uuids as keys, all of one hash", 10)
def _(size: int) -> Do:
    same = [(b"\x98" + (7 + n * (2**61 - 1)).to_bytes(16, "big"), b"\x40") for n in range(size)]
    value = map_of(same)
    return lambda: decode_value(value)


@many("amqp: constructors without data", 10)
def _(size: int) -> Do:
    value = encode_value([[], None, True] * size)
    return lambda: decode_value(value)


@long("amqp: a symbol")
def _(size: int) -> Do:
    value = b"\xb3" + struct.pack(">I", size) + b"s" * size
    return lambda: decode_value(memoryview(value))


@many("amqp: events of a batch", 20)
def _(size: int) -> Do:
    alike = split_in_batch([section(m.DATA, b"a")] * 20 + [section(m.DATA, b"b" * (n % 9)) for n in range(size)])
    return lambda: split_batch(alike)


def split_in_batch(events: list[bytes]) -> bytes:
    return section(m.MESSAGE_ANNOTATIONS, {"x-opt-partition-key": "k"}) + b"".join(section(m.DATA, e) for e in events)


@many("event hubs: keys in and annotations out", 2)
def _(size: int) -> Do:
    annotated = section(m.MESSAGE_ANNOTATIONS, {"x-opt-partition-key": "k", "x-opt-offset": "1"}) + usual({})[9:]
    block = block_of([annotated, section(m.DATA, b"x")] * size)
    numbers = np.arange(2 * size, dtype=np.int64)
    return lambda: [
        with_group_keys(block),
        outgoing_pieces(bytes(block.buffer), block.starts, block.ends, numbers, numbers),
    ]


@many("event hubs: answers", 4)
def _(size: int) -> Do:
    said = {"status-code": 200, **{f"name-{n}": "v" for n in range(size)}}
    answer = section(m.APPLICATION_PROPERTIES, said)
    return refused(lambda: [management.decode_reply(answer), cbs.decode_reply(answer)])


@many("event hubs: parts of a token", 40)
def _(size: int) -> Do:
    token = "SharedAccessSignature sr=x&sig=y&se=1&skn=z" + "&a=%41" * size
    return lambda: [SharedAccessSignature.parsed(token), cbs.Token.read(token), cbs.Token.read("a." * size)]


# --- AMQP: frames


def transfer(tag: bytes, body: bytes = b"x") -> bytes:
    fields = b"\x43\x52\x01\xb0" + struct.pack(">I", len(tag)) + tag + b"\x40\x41"
    content = b"\x00\x53\x14\xd0" + struct.pack(">II", len(fields) + 4, 5) + fields + body
    return struct.pack(">IBBH", 8 + len(content), 2, 0, 0) + content


FRAMES: dict[str, tuple[int, Callable[[int], bytes]]] = {
    "frames alike": (20, lambda size: transfer(b"tag") * size),
    "frames of many layouts": (8, lambda size: b"".join(transfer(b"t" * (n % 31)) for n in range(size))),
    "frames that are no transfers": (20, lambda size: encode_frame(0, 0x13, [None] * 4) * size),
    "frames behind one with a long tag": (20, lambda size: transfer(b"t" * 44 * size) + transfer(b"tag") * 2 * size),
    "fields of a frame": (40, lambda size: encode_frame(0, 0x10, ["x", *[None] * size])),
}
for title, (least, frames) in FRAMES.items():

    @many(f"amqp: {title}", least)
    def _(size: int, frames: Callable[[int], bytes] = frames) -> Do:
        received = frames(size)

        def read() -> None:
            split = split_frames(received, 0, len(received), 1 << 30)
            read_transfers(received, split)
            empty_frames(received, split)
            for start, end in list(zip(split.starts.tolist(), split.ends.tolist(), strict=True))[:50]:
                assert performative_code(memoryview(received)[start:end]) is not None
                refused(partial(read_performative, received[start:end]))()

        return read


@many("amqp: frames alike in runs", 9)
def _(size: int) -> Do:
    received = (transfer(b"tag") * 64 + transfer(b"tag", b"xy") * 64) * size
    return lambda: split_frames(received, 0, len(received), 1 << 20)


@many("amqp: parts of a message", 20)
def _(size: int) -> Do:
    parts = list(split_message(b"x" * 100 * size, sender=Sender(0, 0), delivery_id=9, max_frame_bytes=150))

    def read() -> None:
        head = PartHead.of(read_performative(parts[0]))
        assert head is not None
        for part in map(memoryview, parts[1:]):
            assert head.goes_on(part) is not None
            head.following(part)

    return read


ATTACHED = OPENING + encode_frame(0, 0x11, [None, UInt(0), UInt(9), UInt(9)])
ATTACHED += b"".join(
    encode_frame(0, 0x12, [name, UInt(n), n > 1, *[None] * 6, UInt(0)]) for n, name in enumerate("abc")
)
ACCEPTED = b"\x00\x00\x00\x17\x02\x00\x00\x00\x00\x53\x15\xc0\x0a\x05\x41\x52\x07\x40\x41\x00\x53\x24\x45"
OF_LINKS: dict[str, tuple[int, Callable[[int], Iterable[bytes]]]] = {
    "in parts": (4, lambda n: (part for k in range(n) for part in sent(k, 0, b"x" * 1_200))),
    "of two links": (8, lambda n: (part for k in range(4 * n) for part in sent(k, k % 2, b"x"))),
    "in frames of many": (2, lambda n: sent(0, 1, b"x" * 4_000 * n)),
    "between other frames": (
        8,
        lambda n: (p for k in range(n) for p in (*sent(k, 0, b"x"), ACCEPTED, FLOW, b"\0\0\0\x08\2\0\0\0")),
    ),
}
FLOW = encode_frame(0, 0x13, [UInt(0), UInt(9), UInt(0), UInt(9), UInt(1), UInt(0), UInt(9)])


def sent(number: int, handle: int, body: bytes) -> Iterable[bytes]:
    return split_message(memoryview(body), sender=Sender(0, handle), delivery_id=number, max_frame_bytes=512)


for title, (least, of_links) in OF_LINKS.items():

    @many(f"amqp: messages on links, {title}", least)
    def _(size: int, frames: Callable[[int], Iterable[bytes]] = of_links) -> Do:
        received = b"".join(frames(size))

        def read() -> None:
            engine, links = serving(AmqpConfig(max_frame_bytes=512, session_bytes=1 << 30)), []
            for changed in engine.received(ATTACHED):
                if isinstance(changed, Link) and not changed.sends:
                    links.append(changed.incoming)
                    changed.incoming.owner = engine
            for _ in engine.received(received):
                assert len(links) == 2
            assert sum(len(link.take(1 << 30, 1 << 30).ids) for link in links) > 0

        return read


@long("amqp: a frame's text")
def _(size: int) -> Do:
    frame = encode_frame(0, 0x10, ["x" * size])
    return lambda: read_performative(frame).field(0, str, "")


@many("amqp: dispositions", 50)
def _(size: int) -> Do:
    one = b"\x00\x00\x00\x17\x02\x00\x00\x00\x00\x53\x15\xc0\x0a\x05\x41\x52\x07\x40\x41\x00\x53\x24\x45"
    return lambda: [usual_range(found) for _ in range(size) if (found := USUAL_DISPOSITION.fullmatch(one))]


@many("amqp: bytes of a frame of SASL", 1)
def _(size: int) -> Do:
    frame = b"\x00\x53\x40\xc0\x0b\x01\xa3\x08EXTERNAL"
    offer = b"AMQP\x03\x01\x00\x00" + struct.pack(">IBBH", 8 + len(frame), 2, 1, 0) + frame

    def signed_in() -> None:
        server = SaslServer(["ANONYMOUS"], lambda *_: True)
        for byte in b"AMQP\x03\x01\x00\x00" + struct.pack(">IBBH", 500, 2, 1, 0) + b"x" * 4 * size:
            server.receive(bytes((byte,)))
        client = SaslClient(lambda _: SaslLogin("EXTERNAL"))
        for byte in offer:
            client.receive(bytes((byte,)))

    return signed_in


# --- RabbitMQ


def entries(lengths: list[int], before: bytes = b"") -> bytes:
    return b"".join(before + struct.pack(">I", length) + b"x" * length for length in lengths)


LENGTHS: dict[str, tuple[int, Callable[[int], list[int]]]] = {
    "alike": (100, lambda size: [5] * size),
    "of any length": (40, lambda size: [n * 7 % 300 for n in range(size)]),
}
for title, (least, lengths) in LENGTHS.items():

    @many(f"rabbitmq: records {title}", least)
    def _(size: int, lengths: Callable[[int], list[int]] = lengths) -> Do:
        ends = np.cumsum(lengths(size), dtype=np.int64)
        starts, buffer = ends - lengths(size), b"x" * int(ends[-1])
        chunk = encode_chunk(buffer, starts, ends)
        rows = np.arange(0, starts.size, 2)

        def read() -> None:
            records = decode_chunk(chunk, 0, len(chunk))
            selected = encode_selection(records.header, records.buffer, records.starts, records.ends, rows)
            decode_chunk(selected, 0, len(selected))

        return read

    @many(f"rabbitmq: messages {title} that are published", least)
    def _(size: int, lengths: Callable[[int], list[int]] = lengths) -> Do:
        first = b"\x01" + struct.pack(">I", len(lengths(size))) + entries(lengths(size), bytes(8))
        second = b"\x01" + struct.pack(">I", len(lengths(size))) + entries(lengths(size), bytes(8) + b"\x00\x01f")
        return lambda: [
            decode_publish(first, 0, len(first), 1),
            decode_publish(second, 0, len(second), 2),
            list(publish_parts(first, 0, len(first), 1)),
        ]


IN_RUNS: dict[str, tuple[bytes, Callable[[bytes, int], object]]] = {
    "records": (b"", lambda data, count: read_entries(data, 0, len(data), count)),
    "messages": (bytes(8), lambda data, count: read_entries(data, 0, len(data), count, before=8)),
    "filtered messages": (bytes(8) + b"\x00\x01f", lambda data, count: filtered_begins(data, 0, len(data), count)),
}
for title, (before, reads_all) in IN_RUNS.items():

    @many(f"rabbitmq: {title} alike in runs", 9)
    def _(size: int, before: bytes = before, reads_all: Callable[[bytes, int], object] = reads_all) -> Do:
        data = entries([3] * 64 + [4] * 64, before) * size
        return lambda: reads_all(data, 128 * size)


def of_sub_batches(packed: bytes, records: int, size: int) -> bytes:
    """A chunk of sub-batches."""
    data = packed * size
    head = struct.pack(">BBHIqQQIIIB3x", 0x50, 0, size, size * records, 0, 1, 0, 0, len(data), 0, 0)
    return head + data


for kind in Compression:

    @many(f"rabbitmq: sub-batches, {kind.name.lower()}", 3)
    def _(size: int, kind: int = int(kind)) -> Do:
        packed = pack_sub_batch(kind, 2, entries([3, 4]))
        chunk = of_sub_batches(packed, 2, size)
        frame = b"\x01" + struct.pack(">I", size) + (bytes(8) + packed) * size
        return lambda: [
            decode_chunk(chunk, 0, len(chunk), check_crc=False),
            list(publish_parts(frame, 0, len(frame), 1)),
        ]

    @long(f"rabbitmq: a sub-batch, {kind.name.lower()}", 400_000)
    def _(size: int, kind: int = int(kind)) -> Do:
        text = bytes(np.random.default_rng(1).integers(0, 256, 4_000, np.uint8)) * (size // 4_000)
        chunk = of_sub_batches(pack_sub_batch(kind, 1, entries([]) + struct.pack(">I", len(text)) + text), 1, 1)
        return lambda: decode_chunk(chunk, 0, len(chunk), check_crc=False)


@many("rabbitmq: chunks of nothing within a sub-batch", 50)
def _(size: int) -> Do:
    packed = pack_sub_batch(Compression.SNAPPY, 1, entries([3]))
    body = packed[11:] + b"\xfe\x00\x00\x00" * size
    chunk = of_sub_batches(struct.pack(">BHII", 0xA0, 1, 7, len(body)) + body, 1, 1)
    return lambda: decode_chunk(chunk, 0, len(chunk), check_crc=False)


@many("rabbitmq: confirms and errors", 50)
def _(size: int) -> Do:
    ids = np.arange(size, dtype=np.uint64)
    confirm, errors = encode_confirm(1, ids)[8:], encode_publish_error(1, ids, ids.astype(np.uint16))[8:]
    return lambda: [decode_confirm(confirm, 0, len(confirm)), decode_publish_error(errors, 0, len(errors))]


@many("rabbitmq: frames, in pieces", 4)
def _(size: int) -> Do:
    chunk = encode_chunk(b"x", np.zeros(1, np.int64), np.ones(1, np.int64))
    deliver = encode_deliver_head(1, len(chunk)) + chunk
    sent = deliver * size

    def read() -> None:
        frames, found = FrameReader(1 << 20), 0
        for at in range(0, len(sent), 64):
            frames.feed(sent[at : at + 64])
            while (frame := frames.next()) is not None:
                decode_deliver(frame)
                found += 1
        frames.feed(sent)
        first: Frame | None = frames.next()
        while first is not None and (more := frames.next_like(first)) is not None:
            first, found = more, found + 1
        assert found == 2 * size - 1

    return read


@long("rabbitmq: a frame, in pieces", 40_000)
def _(size: int) -> Do:
    frame = struct.pack(">IHH", size + 4, 2, 1) + b"x" * size

    def read() -> None:
        frames = FrameReader(0)
        for at in range(0, len(frame), 20_000):
            frames.feed(frame[at : at + 20_000])
            frames.next()

    return read


COMMANDS: dict[str, Callable[[int], Command]] = {
    "properties": lambda size: connection_commands.PeerProperties({f"name-{n}": "v" for n in range(size)}),
    "streams": lambda size: stream_commands.Metadata(tuple(f"s-{n}" for n in range(size))),
    "numbers": lambda size: stream_commands.StreamStatsAnswer(1, 1, {f"n-{n}": n for n in range(size)}),
}
for title, command in COMMANDS.items():

    @many(f"rabbitmq: {title} of a command", 5)
    def _(size: int, command: Callable[[int], Command] = command) -> Do:
        encoded = command(size).encode()
        _, key, version = struct.unpack_from(">IHH", encoded)
        frame = Frame(key, version, encoded, 8, len(encoded))

        def read() -> Any:
            if isinstance(command(1), stream_commands.Metadata):
                return stream_commands.Metadata.correlation_of(frame), list(stream_commands.Metadata.names_of(frame))
            return decode(frame)

        return lambda: [read(), decode(frame)]


# --- what the log has stored


def stored(values: list[bytes], keys: list[bytes | None] | None = None, **options: Any) -> Do:
    placed = place(encode_records(values, keys, None, StreamConfig(**options), [(b"name", b"value")]), 0, 1)
    buffer = b"".join(content for _, content in placed)

    def read() -> None:
        at, batches = 0, []
        while at < len(buffer):
            header = parse_header(buffer, at)
            verify(buffer, at, header)
            batches.append((at, header))
            at += header.size
        records = decode_batches(buffer, batches)
        assert record_headers(records, 0)
        message_columns_of(records, ("value", "key"))

    return read


STORED: dict[str, tuple[int, Callable[[int], list[bytes]]]] = {
    "alike": (50, lambda size: [section(m.DATA, b"abc")] * size),
    "alike in runs": (2, lambda size: ([section(m.DATA, b"abc")] * 64 + [section(m.DATA, b"abcd")]) * size),
    "of any length": (50, lambda size: [section(m.DATA, b"x" * (n * 7 % 300)) for n in range(size)]),
    "that no reader understands": (1, lambda size: [b"\x00\x00"] * size),
}
for title, (least, values) in STORED.items():

    @many(f"log: records {title}", least)
    def _(size: int, values: Callable[[int], list[bytes]] = values) -> Do:
        return stored(values(size), [b"k"] * len(values(size)))


@long("log: a record")
def _(size: int) -> Do:
    return stored([section(m.DATA, b"x" * size)])


@long("log: a key")
def _(size: int) -> Do:
    return stored([section(m.DATA, b"x")], [b"k" * size])


@many("log: notes of a batch", 100)
def _(size: int) -> Do:
    value = encode_codes(RecordCodes(np.arange(size) % 7, 3, b"t" * size))
    return lambda: decode_codes(value)


# --- filters, whose texts have a limit

for named, reads in {"our own": parse, "AMQP's": parse_amqp_sql, "event streams'": parse_sql}.items():

    @many(f"filter: tests of {named}", 1)
    def _(size: int, reads: Callable[[str], object] = reads) -> Do:
        text = " OR ".join(["a = 'b'"] * size)
        return refused(lambda: reads(text))

    @long(f"filter: a text of {named}", 100)
    def _(size: int, reads: Callable[[str], object] = reads) -> Do:
        return refused(lambda: [reads(f"a = '{'ü' * size}'")])

    @long(f"filter: a name of {named}", 100)
    def _(size: int, reads: Callable[[str], object] = reads) -> Do:
        return refused(lambda: reads(f"{'n' * size} = 'b'"))


@many("filter: tests in protobuf", 1)
def _(size: int) -> Do:
    encoded = to_protobuf(parse(" OR ".join(f"a = '{n}'" for n in range(size))))
    return lambda: [from_protobuf(encoded), refused(lambda: read_filter("a = 1 OR " * size))()]
