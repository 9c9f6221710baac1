"""What a job of so many rows cost: rows a second, and CPU time a row of each kind of process."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.bench.harness.formats import Format
from tests.bench.harness.measure import Run


def cost(run: Run, form: Format, rows: int, job: Callable[[], None]) -> dict[str, float]:
    """Run a job; ``CPU`` is that of the JVM and Python, without the server's."""
    with run.cpu(form) as used:
        begun = time.perf_counter()
        job()
        took = time.perf_counter() - begun
    each = {kind: seconds / rows * 1e6 for kind, seconds in used.items()}
    return {
        "k rows/s": rows / took / 1_000,
        "CPU, µs/row": each["JVM"] + each["Python"],
        "CPU of Python, µs/row": each["Python"],
        "CPU of server, µs/row": each["server"],
    }
