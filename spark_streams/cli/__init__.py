"""The command ``spark-streams``: what people run."""

from spark_streams.cli.command import main

__all__ = ["main"]
