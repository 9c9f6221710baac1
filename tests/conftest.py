"""Fixtures shared by all tests: the reference log, served on free loopback ports."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

# Spark reads conf/spark-defaults.conf itself, in every session that a test starts, and in processes of their own too.
os.environ.setdefault("SPARK_CONF_DIR", str(Path(__file__).resolve().parents[1] / "conf"))


@pytest.fixture
def log_server(tmp_path: Path) -> Iterator[object]:
    """A ``ServerThread`` over a new reference log, with the default user guest:guest."""
    from spark_streams.log import ReferenceLog
    from spark_streams.server import AmqpConfig, ServerThread

    with ReferenceLog(tmp_path / "log") as log, ServerThread(log, AmqpConfig(port=0)) as server:
        yield server
