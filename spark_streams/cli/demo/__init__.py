"""Command ``spark-streams demo``, which runs a log and a streaming query, reports, and leaves nothing behind."""

from spark_streams.cli.demo.session import run_demo

__all__ = ["run_demo"]
