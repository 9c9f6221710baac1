"""Strings found eight bytes at a time, beside a search byte by byte."""

from __future__ import annotations

import random

import numpy as np
import pytest

from spark_streams.wire.columnar.byte_view import Words
from spark_streams.wire.feed.plain_strings import string_end, string_start

ENDERS = {0x22, 0x5C, *range(0x20)}


def end_of(raw: bytes, start: int, limit: int) -> int:
    at = next((at for at in range(start, limit) if raw[at] in ENDERS), -1)
    return at if at >= 0 and raw[at] == 0x22 else -1


def start_of(raw: bytes, end: int, limit: int) -> int:
    at = next((at for at in range(end - 1, limit - 1, -1) if raw[at] in ENDERS), -1)
    return at + 1 if at >= 0 and raw[at] == 0x22 else -1


@pytest.mark.parametrize("plain", [b"abc", b"a" * 20, "é\U0001f600 a!#[]\x7f".encode()])
def test_where_plain_strings_begin_and_end(plain: bytes) -> None:
    chance = random.Random(1)
    raw = b"".join(chance.choices([plain, b'"', b"\\", b"\n", b"x"], [8, 3, 1, 1, 4], k=200))
    pairs = [sorted(chance.sample(range(len(raw)), 2)) for _ in range(500)]
    pairs += [[0, at] for at in range(40)] + [[at, len(raw) - 1] for at in range(len(raw) - 40, len(raw))]
    low, high = np.array(pairs, np.int64).T
    content = Words(np.frombuffer(raw, np.uint8))
    ends, starts = string_end(content, low, high).tolist(), string_start(content, high, low).tolist()
    assert ends == [end_of(raw, *pair) for pair in pairs] and any(at >= 0 for at in ends)
    assert starts == [start_of(raw, high, low) for low, high in pairs] and any(at >= 0 for at in starts)
