"""Holds the Structured Streaming connectors for event logs, and an embedded reference log.

An import of this package imports neither Spark nor any protocol: ``spark_streams.log``, ``spark_streams.server`` and
``spark_streams.client`` work without Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Register all formats with a session.

    Spark finds the formats by itself when the package is installed; sessions that do not look for them (Spark Connect,
    Databricks, an editable install) need this call once.

    A session that has found the formats already keeps them.

    Args:
        spark: the session; it then knows the formats ``amqp-events``, ``rabbitmq-stream`` and ``feedapi``.
    """
    from pyspark.errors import AnalysisException

    from spark_streams.protocols import PROTOCOLS, load

    for protocol in PROTOCOLS.values():
        try:
            spark.dataSource.register(load(protocol.source))
        except AnalysisException as fault:
            # Spark refuses to register a format again that it has found by itself.
            if "DATA_SOURCE_ALREADY_EXISTS" not in str(fault):
                raise
