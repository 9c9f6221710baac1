"""Decode many encoded messages to Arrow columns: a whole block at a time, as ``single_message.py`` defines the columns.

A lockstep walk (``wire/amqp/sections.py``) finds the byte ranges and numbers of the wanted columns, from which
``canonical.py`` makes Arrow arrays. The walk marks some messages as irregular; they are decoded one by one and put into
their rows, so the result does not depend on the path. A part of a message that no named column needs is not decoded,
and damage there is not noticed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_streams.errors import LocalProtocolError
from spark_streams.wire.amqp.columns.canonical import (
    BINARY_CODES,
    NULL_CODE,
    TEXT_CODES,
    ByteRange,
    code_set,
    column_of,
    fitting,
)
from spark_streams.wire.amqp.columns.maps import Entries, read_entries
from spark_streams.wire.amqp.columns.properties import PROPERTIES_TYPE, Properties, read_properties
from spark_streams.wire.amqp.columns.single_message import DELIVERY, Overflow, row_columns
from spark_streams.wire.amqp.event_streams import (
    ASSIGNED_KEYS,
    GROUP_KEY,
    NO_TIMESTAMP,
    OFFSET_KEY,
    SOURCE_PARTITION_KEY,
    TARGET_PARTITION_KEY,
    TIMESTAMP_KEY,
)
from spark_streams.wire.amqp.message import (
    AMQP_SEQUENCE,
    AMQP_VALUE,
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
)
from spark_streams.wire.amqp.sections import Extents, Pair, Sections, extents, walk_map, walk_sections
from spark_streams.wire.columnar.byte_view import Mask, PaddedWords, Positions
from spark_streams.wire.columnar.gather import validity

_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
COLUMN_TYPES: Final[dict[str, pa.DataType]] = {
    "value": pa.binary(),
    "key": pa.string(),
    "properties": PROPERTIES_TYPE,
    "application_properties": pa.map_(pa.string(), pa.string()),
    "message_annotations": pa.map_(pa.string(), pa.string()),
    "message": pa.binary(),
    "offset": pa.string(),
    "timestamp": _TIMESTAMP,
    "timestamp_ms": pa.int64(),
    "source_partition": pa.string(),
    "partitions_changed": pa.list_(pa.string()),
}
"""All columns and their Arrow types, which equal those of ``rows.FULL_MESSAGE_SCHEMA``."""

_TEXT_OR_NULL: Final = code_set(NULL_CODE, *TEXT_CODES)
_BINARY: Final = code_set(*BINARY_CODES)
_PLAIN_BODY: Final = code_set(*BINARY_CODES, 0xA1, 0xB1)
_DELIVERY_TEXTS: Final = {
    "offset": OFFSET_KEY,
    "source_partition": SOURCE_PARTITION_KEY,
    "target_partition": TARGET_PARTITION_KEY,
}


@dataclass(frozen=True)
class MessageBlock:
    """Encoded messages in one buffer.

    Args:
        buffer: the bytes; those between messages are not read.
        starts: first byte of each message, inclusive.
        ends: byte after each message, exclusive.
    """

    buffer: bytes | bytearray | memoryview | NDArray[np.uint8]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]


class BlockSections:
    """The bytes of a block, and the places of its messages' sections.

    Args:
        block: the messages.
        last: the code of the last section of interest.

    Attributes:
        n: number of messages.
        words: the bytes from the first message on, which starts at ``origin`` in the block's buffer.
        starts: first byte of each message in ``words``, inclusive; ``ends`` is exclusive.
        sections: what the lockstep walk found.
        irregular: the messages to decode one by one.

    Raises:
        LocalProtocolError: a range is outside the buffer.
    """

    def __init__(self, block: MessageBlock, last: int) -> None:
        starts, ends = np.asarray(block.starts, np.int64), np.asarray(block.ends, np.int64)
        self.n = int(starts.size)
        raw = np.frombuffer(block.buffer, np.uint8)
        if ends.size != self.n or (self.n and not ((starts >= 0) & (starts <= ends) & (ends <= raw.size)).all()):
            raise LocalProtocolError(
                "a block's ranges do not lie in its buffer, or there are not as many ends as starts"
            )
        self.origin = int(starts.min()) if self.n else 0
        self.words = PaddedWords(raw, self.origin, int(ends.max()) if self.n else 0)
        self.starts, self.ends = starts - self.origin, ends - self.origin
        self.sections: Sections = walk_sections(self.words, self.starts, self.ends, last)
        self.irregular: Mask = self.sections.irregular

    def raw(self, row: int) -> bytes:
        """Return one message's bytes."""
        return self.words.bytes[self.starts[row] : self.ends[row]].tobytes()

    def with_section(self, code: int) -> tuple[Positions, Positions, Positions]:
        """Return the rows, value positions and ends of the messages that have a section."""
        value = self.sections.value.get(code)
        if value is None:
            none = np.zeros(0, np.int64)
            return none, none, none
        rows = np.flatnonzero((value >= 0) & ~self.irregular)
        return rows, value[rows], self.sections.end[code][rows]


class Lockstep(BlockSections):
    """One block during decoding: byte ranges and numbers; ``place`` adds the irregular messages."""

    def __init__(self, block: MessageBlock, names: frozenset[str]) -> None:
        super().__init__(block, FOOTER if names - DELIVERY else DELIVERY_ANNOTATIONS)
        self.names = names
        self.texts: dict[str, ByteRange] = {}
        self.instants: dict[str, NDArray[np.int64]] = {}
        self.changed: dict[int, list[str] | None] = {}
        self.maps: dict[str, Entries] = {}
        self.properties: Properties | None = None
        if names & DELIVERY:
            self._read_delivery_annotations()
        for name, code in (
            ("message_annotations", MESSAGE_ANNOTATIONS),
            ("application_properties", APPLICATION_PROPERTIES),
        ):
            if name in names:
                self.maps[name] = read_entries(self.words, *self.with_section(code), self.irregular)
        if names & {"key", "group_key"}:
            self.texts["group_key"] = self._group_key()
        if names & {"key", "properties", "creation_time_ms"}:
            fields = range(13) if "properties" in names else (9, 10)
            self.properties = read_properties(self.words, *self.with_section(PROPERTIES), self.irregular, fields)
            milliseconds, valid = self.properties.numbers(self.words, 9)
            self.instants["creation_time_ms"] = np.where(valid, milliseconds, NO_TIMESTAMP)
        if "key" in names and self.properties is not None:
            first, second = self.texts["group_key"], self.properties.span(self.words, 10)
            use = first.valid
            self.texts["key"] = ByteRange(
                np.where(use, first.start, second.start),
                np.where(use, first.end, second.end),
                use | second.valid,
                np.where(use, first.symbol, second.symbol),
            )
        if "value" in names:
            self._read_body()
        if "message" in names:
            self.texts["message"] = ByteRange(
                self.sections.bare_start, self.ends, np.ones(self.n, np.bool_), np.zeros(self.n, np.bool_)
            )

    def _read_delivery_annotations(self) -> None:
        wanted = {name: key.encode() for name, key in _DELIVERY_TEXTS.items() if name in self.names}
        self.texts.update({name: ByteRange.empty(self.n) for name in wanted})
        timestamps = bool(self.names & {"timestamp", "timestamp_ms"})
        instants = np.full(self.n, NO_TIMESTAMP, np.int64)
        present = np.zeros(self.n, np.bool_)
        for step in walk_map(self.words, *self.with_section(DELIVERY_ANNOTATIONS), self.irregular):
            for name, key in wanted.items():
                self._keep_text(self.texts[name], step, self.words.equal(step.key_start, step.key_end, key))
            if timestamps:
                same = self.words.equal(step.key_start, step.key_end, TIMESTAMP_KEY.encode())
                if same.any():
                    rows, code = step.rows[same], step.code[same]
                    self.irregular[rows[(code != 0x83) & (code != NULL_CODE)]] = True
                    instants[rows] = np.where(code == 0x83, self.words.big(step.start[same]), NO_TIMESTAMP)
                    present[rows] = code == 0x83
            if "partitions_changed" in self.names:
                for key_text in ASSIGNED_KEYS:
                    same = self.words.equal(step.key_start, step.key_end, key_text.encode())
                    self.irregular[step.rows[same]] = True
        self.instants["timestamp_ms"] = instants
        self.present = present

    def _group_key(self) -> ByteRange:
        span = ByteRange.empty(self.n)
        entries = self.maps.get("message_annotations")
        steps: Iterable[Pair]
        if entries is None:
            steps = walk_map(self.words, *self.with_section(MESSAGE_ANNOTATIONS), self.irregular)
        else:
            steps = entries.steps
        for step in steps:
            self._keep_text(span, step, self.words.equal(step.key_start, step.key_end, GROUP_KEY.encode()))
        return span

    def _keep_text(self, span: ByteRange, step: Pair, same: Mask) -> None:
        if not same.any():
            return
        rows, code = step.rows[same], step.code[same]
        self.irregular[rows[~_TEXT_OR_NULL[code]]] = True
        span.keep(rows, Extents(code, step.start[same], step.end[same]))

    def _read_body(self) -> None:
        span = ByteRange.empty(self.n)
        self.texts["value"] = span
        self.irregular |= self.sections.several
        for kind, codes in ((DATA, _BINARY), (AMQP_VALUE, _PLAIN_BODY)):
            rows, value, _ = self.with_section(kind)
            if not rows.size:
                continue
            body = extents(self.words, value)
            plain = codes[body.code]
            self.irregular[rows[~plain]] = True
            span.start[rows], span.end[rows], span.valid[rows] = body.start, body.end, plain
            texts = plain & ~_BINARY[body.code]
            if texts.any():
                # The column is binary, so nothing else would check that a string is UTF-8.
                column_of(
                    self.words, ByteRange(body.start, body.end, texts, np.zeros_like(texts)), pa.string(), "value"
                )
        rows, _, _ = self.with_section(AMQP_SEQUENCE)
        self.irregular[rows] = True

    def place(self, row: int, columns: dict[str, Any]) -> None:
        """Put one message's columns, as ``row_columns`` returns them, into its row."""
        self.sections.bare_start[row] = self.starts[row] + columns["bare_start"]
        for name, span in self.texts.items():
            if name in columns and name != "message":
                span.place(row, columns[name], self.words)
        for name, instants in self.instants.items():
            instant = columns.get(name)
            instants[row] = NO_TIMESTAMP if instant is None else instant
        if "timestamp_ms" in columns:
            self.present[row] = columns["timestamp_ms"] is not None
        elif "timestamp" in columns:
            self.present[row] = columns["timestamp"] is not None
            self.instants["timestamp_ms"][row] = (
                NO_TIMESTAMP if columns["timestamp"] is None else columns["timestamp"] // 1000
            )
        self.changed[row] = columns.get("partitions_changed")
        for name, entries in self.maps.items():
            entries.place(row, columns[name])
        if self.properties is not None and "properties" in self.names:
            self.properties.place(row, columns["properties"])

    def array(self, name: str, overflow: Overflow = "fail") -> pa.Array:
        """Return a finished column; ``overflow`` as for ``decode_columns``."""
        if name in self.maps:
            return self.maps[name].array(self.words, name)
        if name == "properties" and self.properties is not None:
            return self.properties.array(self.words, overflow)
        if name in ("timestamp", "timestamp_ms"):
            instants = self.instants["timestamp_ms"]
            if name == "timestamp_ms":
                return pa.array(instants, mask=~self.present)
            valid = fitting(instants, self.present, TIMESTAMP_KEY, overflow)
            micros = np.where(valid, instants, 0) * 1000
            return pa.Array.from_buffers(_TIMESTAMP, self.n, [validity(valid), pa.py_buffer(micros)])
        if name == "partitions_changed":
            if all(partitions is None for partitions in self.changed.values()):
                return pa.nulls(self.n, COLUMN_TYPES[name])
            return pa.array([self.changed.get(row) for row in range(self.n)], COLUMN_TYPES[name])
        return column_of(self.words, self.texts[name], COLUMN_TYPES[name], name)


def decode_columns(block: MessageBlock, names: Collection[str], *, overflow: Overflow = "fail") -> dict[str, pa.Array]:
    """Decode the named columns of all messages of a block.

    Args:
        block: the messages.
        names: names in ``COLUMN_TYPES``; nothing else is decoded.
        overflow: ``fail`` raises for an instant that does not fit int64 microseconds, ``null`` makes its cell null. An
            instant never wraps.

    Returns:
        Name to array, in the order of ``names``, each with one row for each message.

    Raises:
        RemoteProtocolError: a message is broken in a part that a named column needs. There is no result for the other
            messages of the block either.
        TimestampOverflow: a timestamp does not fit int64 microseconds, and ``overflow`` is ``fail``.
        LocalProtocolError: a name is unknown, or a range is outside the buffer.
    """
    unknown = set(names) - COLUMN_TYPES.keys()
    if unknown:
        raise LocalProtocolError(f"no such column: {', '.join(sorted(unknown))}; there are {', '.join(COLUMN_TYPES)}")
    lockstep = Lockstep(block, frozenset(names))
    for row in np.flatnonzero(lockstep.irregular).tolist():
        lockstep.place(row, row_columns(lockstep.raw(row), names, overflow))
    return {name: lockstep.array(name, overflow) for name in names}
