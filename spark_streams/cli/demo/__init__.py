"""``spark-streams demo``: a log, a streaming query over it, and what happened, in a session that leaves nothing."""

from spark_streams.cli.demo.session import run_demo

__all__ = ["run_demo"]
