"""How much credit a reader grants for the chunks that it has seen."""

from __future__ import annotations

from spark_streams.client.rabbitmq.subscription import BYTES_AHEAD, FIRST_CREDIT, LARGEST_WINDOW, CreditWindow

ENDLESS = 10**9


def outstanding(window: CreditWindow, chunks: int, chunk_bytes: int, records: int, left: int = FIRST_CREDIT) -> int:
    """Return the chunks under way once so many have come, with ``left`` under way at first."""
    for _ in range(chunks):
        left += window.consumed(chunk_bytes, records, ENDLESS) - 1
    return left


def test_a_few_small_chunks_earn_no_credit_for_many_large_ones() -> None:
    window = CreditWindow()
    left = outstanding(window, 3, 100, 1)
    assert FIRST_CREDIT <= left <= FIRST_CREDIT + 3
    left = outstanding(window, 100, 1 << 20, 5_000, left)
    assert FIRST_CREDIT // 2 < left <= 2 * FIRST_CREDIT


def test_a_stream_of_small_chunks_earns_much() -> None:
    assert outstanding(CreditWindow(), 3 * LARGEST_WINDOW, 100, 1) > LARGEST_WINDOW // 2
    some = outstanding(CreditWindow(), LARGEST_WINDOW, BYTES_AHEAD // 100, 50)
    assert 70 <= some <= 100
