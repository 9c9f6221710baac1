"""A block of encoded messages: its bytes, and the places of the messages' sections and of the values in them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from spark_streams.errors import LocalProtocolError, RemoteProtocolError
from spark_streams.wire.amqp.message import FOOTER, HEADER, PROPERTIES, section_head
from spark_streams.wire.amqp.sections import Extents, Pair, Sections, walk_items, walk_sections
from spark_streams.wire.columnar.byte_view import Mask, PaddedWords, Positions, Words

_DESCRIPTOR_BYTES: Final = 256
"""More bytes than the descriptor of any section has."""


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

    def raw(self, row: int) -> memoryview:
        """Return one message's bytes, not copied: while Python copies a long one, no other thread runs (ADR 33)."""
        return np.frombuffer(self.buffer, np.uint8)[self.starts[row] : self.ends[row]].data


def chosen(block: MessageBlock, rows: Positions | slice) -> MessageBlock:
    """Return some of a block's messages."""
    return MessageBlock(block.buffer, np.asarray(block.starts)[rows], np.asarray(block.ends)[rows])


def foreign(block: MessageBlock, *, sure: bool = False) -> Mask:
    """Return which messages are no AMQP: they have bytes, and these begin with no section.

    Only their first bytes decide: bytes that begin as a message and go on otherwise are a broken message.

    Args:
        block: the messages.
        sure: whether to leave out those that may begin with another form of a section's descriptor, which the caller
            has to examine one by one.
    """
    starts, ends = np.asarray(block.starts), np.asarray(block.ends)
    head = Words(np.frombuffer(block.buffer, np.uint8)).little(starts)
    code = (head >> np.uint64(16)) & np.uint64(0xFF)
    section = (head & np.uint64(0xFFFF) == 0x5300) & (code >= HEADER) & (code <= FOOTER)
    # A message that is shorter than a section's head shows bytes of its neighbour.
    found: Mask = ~(section & (ends - starts > 2)) & (ends > starts)
    # A descriptor in another form is an ulong or a symbol. Other payloads that begin with 0 are common, as Avro's.
    other = found & np.isin(head & np.uint64(0xFFFF), np.array([0x8000, 0xA300, 0xB300], np.uint64))
    if sure:
        return found & ~other
    for row in np.flatnonzero(other).tolist():
        with suppress(RemoteProtocolError):
            section_head(bytes(block.buffer[starts[row] : min(ends[row], starts[row] + _DESCRIPTOR_BYTES)]), 0)
            found[row] = False
    return found


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

    def present(self, code: int) -> Mask:
        """Return which messages have a section, and are not irregular."""
        value = self.sections.value.get(code)
        return np.zeros(self.n, np.bool_) if value is None else (value >= 0) & ~self.irregular

    def with_section(self, code: int) -> tuple[Positions, Positions, Positions]:
        """Return the rows, value positions and ends of the messages that have a section."""
        rows = np.flatnonzero(self.present(code))
        if not rows.size:
            return rows, rows, rows
        return rows, self.sections.value[code][rows], self.sections.end[code][rows]

    def entries(self, code: int) -> Iterator[Pair]:
        """Walk the entries of a section's maps, or the items of its lists, as ``walk_items`` does."""
        return walk_items(self.words, *self.with_section(code), self.irregular, 1 if code == PROPERTIES else 2)

    def keep_entries(
        self, steps: Iterable[Pair], wanted: Collection[tuple[Extents, bytes, Mask]], *, once: bool = False
    ) -> None:
        """Keep the values at some keys of maps; of a key that occurs twice, the last one.

        Args:
            steps: the entries of the maps.
            wanted: where to keep the values, their key, and the format codes that they may have; a message with
                another one is irregular.
            once: whether a message with one of the keys twice is irregular; it is then decoded one by one, where damage
                anywhere in the section counts.
        """
        for step in steps:
            for values, key, codes in wanted:
                same = self.words.equal(step.key.start, step.key.end, key)
                if same.any():
                    found = step.chosen(same)
                    self.irregular[found.rows[~codes[found.value.code]]] = True
                    if once:
                        # The place of a value is never 0, because its section begins before it.
                        self.irregular[found.rows[values.start[found.rows] > 0]] = True
                    values.keep(found.rows, found.value)
