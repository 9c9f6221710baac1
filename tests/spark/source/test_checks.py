"""What is left of the range of a batch, and what of it is lost."""

from __future__ import annotations

import pytest

from spark_streams.client.log_client import Bounds, StreamDescription
from spark_streams.position import After, Checkpoint
from spark_streams.spark.source.checks import retained_spans


def digits(offset: int) -> str:
    return f"{offset:020d}"


@pytest.mark.parametrize(
    ("latest", "words"),
    [
        (
            10,
            f"the partition holds events from '{digits(0)}' to '{digits(10)}': the log was created again, ",
        ),
        (30, f"the partition ended at offset '{digits(10)}' when the batch was planned: the log was restored from an "),
    ],
    ids=["of an older copy", "by a node that was behind"],
)
def test_an_end_before_the_beginning_says_why(latest: int, words: str) -> None:
    """Before Spark 4.2 an end is decided without knowing the beginning: of an older copy, too."""
    begin, stop = (Checkpoint("amqp-events", "s", {"0": After(digits(offset))}, "i") for offset in (24, 10))
    now = StreamDescription("s", "i", {"0": Bounds(digits(0), digits(latest))})
    _, (loss,) = retained_spans(begin, stop, now, replayed=False)
    assert loss.partition == "0"
    assert str(loss.available).startswith(words)
    assert retained_spans(begin, stop, now, replayed=True) == ({}, [])


@pytest.mark.parametrize(("latest", "asked"), [(5, f"after '{digits(10)}'"), (15, f"up to offset '{digits(24)}'")])
def test_a_log_that_ends_before_the_batch_has_lost_one_stretch_of_it(latest: int, asked: str) -> None:
    begin, stop = (Checkpoint("amqp-events", "s", {"0": After(digits(offset))}, "i") for offset in (10, 24))
    now = StreamDescription("s", "i", {"0": Bounds(digits(0), digits(latest))})
    spans, (loss,) = retained_spans(begin, stop, now, replayed=False)
    assert loss.asked == asked
    assert spans == ({} if latest == 5 else {"0": (After(digits(10)), digits(15))})
