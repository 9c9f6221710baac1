"""Structured Streaming connectors for event logs, and an embedded reference log.

Importing this package imports neither Spark nor any protocol: ``spark_streams.log``, ``spark_streams.server`` and
``spark_streams.client`` work without Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Register all formats with a session.

    Spark finds them by itself when the package is installed; sessions that do not look (Spark Connect, Databricks,
    an editable install) need this call once.

    A session that found them already keeps what it found.

    Args:
        spark: the session; it then knows the formats ``amqp-events``, ``rabbitmq-stream`` and ``feedapi``.
    """
    from pyspark.errors import AnalysisException

    from spark_streams.protocols import PROTOCOLS, load

    for protocol in PROTOCOLS.values():
        try:
            spark.dataSource.register(load(protocol.source))
        except AnalysisException as fault:
            # Spark does not let a format that it found by itself be registered over.
            if "DATA_SOURCE_ALREADY_EXISTS" not in str(fault):
                raise
