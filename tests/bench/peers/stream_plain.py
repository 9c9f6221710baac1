"""A stream of a feed (``availableNow``), whose driver fetches, beside one whose tasks fetch, on a plain client.

python -m tests.bench.peers.stream_plain [--rows N] [--rounds N]
"""

from __future__ import annotations

from tests.bench.harness.formats import Format
from tests.bench.harness.measure import Measure, Run, main
from tests.bench.harness.targets import ratio
from tests.bench.peers import read_stream
from tests.bench.peers.read_plain import rows_of

NAME = "stream read, plain clients"


def one(run: Run, form: Format) -> dict[str, float]:
    """Read a stream, from a new checkpoint."""
    return read_stream.read(run, form, rows_of(run, form))


def prepare(run: Run, form: Format) -> None:
    one(run, form)


MEASURE = Measure(
    NAME,
    ("feedapi", "plain-feed"),
    one,
    prepare,
    streaming=True,
    targets=(ratio(NAME, "feedapi", "plain-feed", "k rows/s", at_least=3),),
)

if __name__ == "__main__":
    main(MEASURE)
