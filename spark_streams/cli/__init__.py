"""The command ``spark-streams``, with its subcommands for the reference log, any peer, filters and the demo."""

from spark_streams.cli.command import main, run

__all__ = ["main", "run"]
