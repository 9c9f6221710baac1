"""MurmurHash3 of 128 bits over UTF-16: rstream's own strategy, and mmh3, which it calls, on whatever keys."""

from __future__ import annotations

import asyncio

import mmh3
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rstream.superstream import HashRoutingMurmurStrategy

from spark_streams.errors import LocalProtocolError
from spark_streams.wire.rabbitmq.hashes import murmur3_128_modulo


class Partitions:
    """What rstream's strategy asks for, of a super stream with so many partitions."""

    def __init__(self, count: int) -> None:
        self._names = [str(n) for n in range(count)]

    async def partitions(self) -> list[str]:
        return self._names


def by_rstream(keys: list[str], count: int) -> list[int]:
    async def key(message: str) -> str:
        return message

    async def routed() -> list[int]:
        strategy = HashRoutingMurmurStrategy(key)
        return [int((await strategy.route(each, Partitions(count)))[0]) for each in keys]  # type: ignore[arg-type]

    return asyncio.run(routed())


@settings(deadline=None)
@given(
    keys=st.lists(st.text(max_size=40)), count=st.integers(1, 300), before=st.integers(0, 3), after=st.integers(0, 3)
)
def test_like_rstream(keys: list[str], count: int, before: int, after: int) -> None:
    whole = pa.array(["é" * n for n in range(before)] + keys + ["a"] * after, pa.string())
    found = murmur3_128_modulo(whole[before : before + len(keys)], count)
    assert found.tolist() == by_rstream(keys, count)


@settings(deadline=None)
@given(keys=st.lists(st.text(max_size=40), min_size=1), count=st.integers(1, 2**32 - 1))
def test_all_128_bits_count(keys: list[str], count: int) -> None:
    whole = [int.from_bytes(mmh3.hash_bytes(key.encode("utf-16"), 104_729), "little") for key in keys]
    assert murmur3_128_modulo(pa.array(keys), count).tolist() == [number % count for number in whole]


def test_long_keys_among_short_ones() -> None:
    keys = ["ab" * n for n in (1, 0, 300, 0, 1_000, 2)] + ["🌞" * 700, "", "0123456"]
    assert murmur3_128_modulo(pa.array(keys), 97).tolist() == by_rstream(keys, 97)


def test_long_keys_among_many_short_ones() -> None:
    keys = ["k" * (n % 50) for n in range(500)] + ["long 🌞" * 10 * n for n in range(60)]
    assert murmur3_128_modulo(pa.array(keys), 97).tolist() == by_rstream(keys, 97)


def test_what_has_no_hash() -> None:
    assert murmur3_128_modulo(pa.array([], pa.string()), 3).size == 0
    with pytest.raises(LocalProtocolError, match="1 of 2 keys are null"):
        murmur3_128_modulo(pa.array(["a", None]), 3)
    with pytest.raises(LocalProtocolError, match="key 2 of 3 is not UTF-8"):
        murmur3_128_modulo(pa.array([b"a", b"", b"\xff"]).view(pa.string()), 3)
