"""What the end-to-end tests share; their Spark session is that of the whole run (tests/conftest.py)."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def rate_limits() -> bool:
    """Whether this Spark lets a Python source limit a batch: since 4.2 it tells it where the batch starts."""
    import pyspark

    return tuple(int(number) for number in pyspark.__version__.split(".")[:2]) >= (4, 2)


@pytest.fixture(scope="session")
def streams_of_feeds(rate_limits: bool) -> None:
    """For tests that read a feed as a stream."""
    if not rate_limits:
        pytest.skip("streams of feeds need Spark 4.2")
