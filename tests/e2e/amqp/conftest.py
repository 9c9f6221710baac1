"""A query that ends with its test, and why one has failed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException

from spark_streams.testing import KeptQuery

WAIT_S = 120


@pytest.fixture
def query(tmp_path: Path) -> Iterator[KeptQuery]:
    """A query that ends with the test."""
    with KeptQuery(tmp_path, "q", timeout_s=WAIT_S) as made:
        yield made


def failure(query: KeptQuery) -> str:
    """Wait until the query fails; returns why."""
    with pytest.raises(PySparkException) as caught:
        query.running.awaitTermination(WAIT_S)
    return str(caught.value)
