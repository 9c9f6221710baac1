"""Holds the Structured Streaming connectors for event logs, and an embedded reference log.

An import of this package imports neither Spark nor any protocol: ``spark_streams.log``, ``spark_streams.server`` and
``spark_streams.client`` work without Spark.

Python that is started in a checkout, or Spark's workers whose folder it is, imports this package from there. Its
sources and sinks, which an installed package has inside, lie beside it then, and are found there.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]

_FOLDER = os.path.dirname(os.path.abspath(__file__))
_BESIDE = os.path.dirname(_FOLDER)


class _CheckoutFinder:
    """Finds the two packages that a checkout has beside this one, and nothing else there."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in ("spark_streams.sources", "spark_streams.sinks"):
            return None
        return PathFinder.find_spec(name, [_BESIDE])


def _is_checkout() -> bool:
    """Return whether the folder beside is that of our repository: another may have a folder ``sources``, too."""
    if os.path.isdir(os.path.join(_FOLDER, "sources")):
        return False
    try:
        with open(os.path.join(_BESIDE, "pyproject.toml"), encoding="utf-8") as project:
            return 'name = "spark-streams"\n' in project
    except OSError:
        return False


if _is_checkout():
    sys.meta_path.append(_CheckoutFinder)


def register(spark: SparkSession) -> None:
    """Register all formats with a session.

    Spark finds the formats by itself when the package is installed; sessions that do not look for them (Spark Connect,
    Databricks, an editable install) need this call once.

    A session that has found the formats already keeps them.

    Args:
        spark: the session; it then knows the formats ``amqp-events``, ``rabbitmq-stream`` and ``feedapi``.

    Raises:
        SparkStreamsError: Spark runs on this machine and starts another Python than this one, which does not have the
            package; the text says what to set. With a cluster it is a warning, as only the cluster knows.
    """
    from pyspark.errors import AnalysisException

    from spark_streams.protocols import PROTOCOLS, load

    found = True
    for protocol in PROTOCOLS.values():
        try:
            spark.dataSource.register(load(protocol.source))
            found = False
        except AnalysisException as fault:
            # Spark refuses to register a format again that it has found by itself.
            if "DATA_SOURCE_ALREADY_EXISTS" not in str(fault):
                raise
    if not found:
        from spark_streams.spark.session_python import check

        check(spark)
