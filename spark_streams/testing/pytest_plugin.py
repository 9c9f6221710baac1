"""The pytest plugin with fixture ``reference_log``; it starts and imports nothing before a test uses the fixture."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from spark_streams.testing import LogProcess, StreamFactory


@pytest.fixture(scope="session")
def reference_log_process() -> Iterator[LogProcess]:
    """Run the reference log in its own process, one for the whole run: ``spark_streams.testing.LogProcess``."""
    from spark_streams.testing import LogProcess

    with LogProcess() as process:
        yield process


@pytest.fixture
def reference_log(reference_log_process: LogProcess) -> StreamFactory:
    """Make streams that no other test uses: ``reference_log.create("orders", partitions=2)``."""
    from spark_streams.testing import StreamFactory

    return StreamFactory(reference_log_process)
