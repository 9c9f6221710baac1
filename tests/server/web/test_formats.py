"""How numbers, bytes and times are written."""

from __future__ import annotations

import pytest

from spark_streams.log.format.record_batch import NO_TIMESTAMP
from spark_streams.server.web.formats import hexadecimal, number, seconds, size, time


@pytest.mark.parametrize(
    ("count", "text"),
    [(None, "–"), (0, "0"), (999, "999"), (1_234_567, "1 234 567"), (0.25, "0.2"), (1e6, "1 000 000")],
)
def test_numbers(count: float | None, text: str) -> None:
    assert number(count).replace("\N{NARROW NO-BREAK SPACE}", " ") == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(None, "–"), (0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (10 << 20, "10.0 MiB"), (1 << 70, "1048576.0 PiB")],
)
def test_bytes(count: int | None, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (None, "–"),
        (NO_TIMESTAMP, "–"),
        (-386_380_800_000, "1957-10-04 00:00:00.000Z"),
        (-1, "1969-12-31 23:59:59.999Z"),
        (2**60, f"{2**60} ms"),
        (-(2**60), f"-{2**60} ms"),
    ],
)
def test_times(ms: int | None, text: str) -> None:
    assert time(ms) == text
    assert seconds(ms) == (text.partition(".")[0] + "Z" if "." in text else text)


def test_hexadecimal_is_what_hexdump_prints() -> None:
    # printf 'spark-streams \x00\xff\x7f!' | hexdump -C
    assert hexadecimal(b"spark-streams \x00\xff\x7f!") == (
        "00000000  73 70 61 72 6b 2d 73 74  72 65 61 6d 73 20 00 ff  |spark-streams ..|\n"
        "00000010  7f 21                                             |.!|"
    )
    assert hexadecimal(b"") == ""
