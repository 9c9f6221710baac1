"""MurmurHash3: fixed hashes, and mmh3, another implementation, on whatever keys."""

from __future__ import annotations

import mmh3
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_streams.errors import LocalProtocolError
from spark_streams.wire.rabbitmq import hashes
from spark_streams.wire.rabbitmq.hashes import SEED, murmur3_32

VECTORS = {
    "": 3329588566,
    "hello": 1321743225,
    "brave": 3825276426,
    "new": 2970740106,
    "world": 2453398188,
    "0": 2929165565,
    "1": 2446297838,
    "customer-42": 80594573,
    "é": 2922484690,
}
BYTES = [pa.binary(), pa.large_binary()]


def expected(keys: list[bytes], seed: int = SEED) -> list[int]:
    return [mmh3.hash(key, seed, signed=False) for key in keys]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_the_notes_vectors(kind: pa.DataType) -> None:
    found = murmur3_32(pa.array(list(VECTORS), kind))
    assert found.dtype == np.uint32
    assert found.tolist() == list(VECTORS.values())
    assert [int(murmur3_32(pa.array([key], kind))[0]) for key in VECTORS] == list(VECTORS.values())
    partitions = murmur3_32(pa.array(["customer-42"]))
    assert (int(partitions[0] % 3), int(partitions[0] % 5)) == (2, 3)


@settings(deadline=None)
@given(keys=st.lists(st.binary(max_size=70)), before=st.integers(0, 3), after=st.integers(0, 3))
def test_like_mmh3(keys: list[bytes], before: int, after: int) -> None:
    for kind in BYTES:
        whole = pa.array([b"b" * n for n in range(before)] + keys + [b"a"] * after, kind)
        assert murmur3_32(whole[before : before + len(keys)]).tolist() == expected(keys)


@settings(deadline=None)
@given(key=st.text(max_size=40), seed=st.integers(0, 2**32 - 1))
def test_any_seed_and_text(key: str, seed: int) -> None:
    assert murmur3_32(pa.array([key, key + "x"]), seed).tolist() == expected([key.encode(), (key + "x").encode()], seed)


@pytest.mark.parametrize("kind", BYTES)
def test_long_keys_among_short_ones(kind: pa.DataType) -> None:
    keys = [bytes(range(256)) * n for n in (1, 0, 3, 0, 1100, 2)] + [b"x", b"", b"0123456789"]
    assert murmur3_32(pa.array(keys, kind)).tolist() == expected(keys)


def test_long_keys_among_many_short_ones() -> None:
    keys = [b"k" * (n % 50) for n in range(500)] + [bytes(range(256)) * n for n in range(60)]
    assert murmur3_32(pa.array(keys, pa.binary())).tolist() == expected(keys)


def test_a_long_key_takes_no_numpy_call_for_each_of_its_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    rotated = hashes.rotated
    monkeypatch.setattr(hashes, "rotated", lambda words, bits: calls.append(bits) or rotated(words, bits))
    key = b"long" * 100_000
    assert murmur3_32(pa.array([b"short"] * 100 + [key], pa.binary()))[-1:].tolist() == expected([key])
    assert len(calls) < 10


def test_empty() -> None:
    assert murmur3_32(pa.array([], pa.string())).size == 0
    assert murmur3_32(pa.array(["x", "y"])[1:1]).size == 0
    assert murmur3_32(pa.array(["", ""])).tolist() == expected([b"", b""])


def test_what_has_no_hash() -> None:
    with pytest.raises(LocalProtocolError, match="1 of 2 keys are null"):
        murmur3_32(pa.array(["a", None]))
    with pytest.raises(LocalProtocolError, match="int64"):
        murmur3_32(pa.array([1]))
