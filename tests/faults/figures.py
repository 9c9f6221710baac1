"""How long docs/delivery.md says that is tried, as the page has it."""

from __future__ import annotations

import re

from tests.docs.pages import tables
from tests.faults.doors import FORMATS

__all__ = ["cells", "tried_s"]


def cells(begins: str) -> list[str]:
    """The figures of the row that begins so, one for each format."""
    found = [row for table in tables("docs/delivery.md", "Faults on the way") for row in table]
    (row,) = [row for row in found if row[0].startswith(begins)]
    return row[1:]


def tried_s(begins: str, format: str, timeout_s: float) -> tuple[float, float]:
    """Return how long it is tried at least and at most, in seconds, by a figure of the page.

    Pauses are all made after the fault; the page rounds their sum. Of a number of timeouts half is certain: what fell
    silent may have been waited for before.

    Args:
        begins: as ``cells``.
        format: whose figure.
        timeout_s: ``requestTimeout``.
    """
    said = cells(begins)[FORMATS.index(format)]
    timeouts = {"`requestTimeout`": 1, "twice `requestTimeout`": 2}
    if said in timeouts:
        return timeouts[said] * timeout_s / 2, timeouts[said] * timeout_s
    if said == "at once":
        return 0.0, 0.0
    pauses = re.fullmatch(r"(up to )?(\d+) s", said)
    assert pauses is not None, said
    return 0.0 if pauses[1] else 0.9 * float(pauses[2]), float(pauses[2])
