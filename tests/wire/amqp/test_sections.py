"""The walk over the sections of many messages, beside that over one: what the one refuses, the other leaves to it."""

from __future__ import annotations

import numpy as np
import pytest

from spark_streams.errors import RemoteProtocolError
from spark_streams.wire.amqp.message import FOOTER, HEADER, split_sections
from spark_streams.wire.amqp.sections import walk_sections
from spark_streams.wire.columnar.byte_view import PaddedWords

VALUES = [
    b"\x45",
    b"\xc1\x01\x00",
    b"\xc1\x01\x00",
    b"\x45",
    b"\xc1\x01\x00",
    b"\xa0\x01x",
    b"\x45",
    b"\x40",
    b"\xc1\x01\x00",
]
"""What each section holds, from the header to the footer."""
CODES = range(HEADER, FOOTER + 1)


def section(code: int, value: bytes | None = None) -> bytes:
    return b"\x00\x53" + bytes([code]) + (VALUES[code - HEADER] if value is None else value)


def test_every_pair_of_sections_and_every_value_in_each() -> None:
    messages = [section(one) + section(other) for one in CODES for other in CODES]
    messages += [section(code, value) for code in CODES for value in VALUES]
    messages += [section(code)[:-1] for code in CODES] + [section(code) + b"x" for code in CODES]
    ends = np.array([len(each) for each in messages]).cumsum()
    starts = ends - np.array([len(each) for each in messages])
    found = walk_sections(PaddedWords(np.frombuffer(b"".join(messages), np.uint8), 0, int(ends[-1])), starts, ends)
    for at, message in enumerate(messages):
        try:
            expected = {each.code: each.value + int(starts[at]) for each in split_sections(message)}
        except RemoteProtocolError:
            assert found.irregular[at], message.hex()
        else:
            assert not found.irregular[at], message.hex()
            assert {code: int(value[at]) for code, value in found.value.items() if value[at] >= 0} == expected


def test_beyond_the_last_section_asked_for_nothing_is_looked_at() -> None:
    for last in CODES[:-1]:
        for codes in ([last], [HEADER, last]) if last > HEADER else ([last],):
            raw = b"".join(map(section, codes)) + b"\xff is no section"
            assert [each.code for each in split_sections(raw, last)] == codes
            with pytest.raises(RemoteProtocolError, match="expected a section"):
                split_sections(raw)
