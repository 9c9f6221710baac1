"""``spark-streams log split``: more partitions for a stream that has outgrown one of them."""

from __future__ import annotations

from pathlib import Path

import click

from spark_streams.errors import OptionError
from spark_streams.log import ReferenceLog

__all__ = ["split"]

_EPILOG = """\b
Without --history the partition is closed: it keeps its events and takes no more,
and the new ones start after it. With --history its events are redistributed onto
the new ones, by their keys, and it is gone; FeedAPI cursors of it stay valid.
Events of one key are always on one open partition.

\b
The server alone may touch its directory: while it runs, ask its FeedAPI door,
POST /NAME/partitions/PARTITION/split?into=N&history=true

\b
Examples:
  spark-streams log split --data-dir ./data orders 0
  spark-streams log split --data-dir ./data orders 0 --into 4 --history
"""


@click.command(epilog=_EPILOG)
@click.argument("name")
@click.argument("partition")
@click.option("--into", type=click.IntRange(2), default=2, show_default=True, help="How many take its place.")
@click.option("--history", is_flag=True, help="Redistribute its events too.")
@click.option(
    "--data-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    required=True,
    help="Where the log lives; it must not be served.",
)
def split(name: str, partition: str, into: int, history: bool, data_dir: Path) -> None:
    """Split PARTITION of the stream NAME into several."""
    if not (data_dir / "lock").exists():
        raise OptionError("--data-dir", f"{data_dir} holds no log: `spark-streams log create` makes one")
    with ReferenceLog(data_dir) as log:
        before = set(log.stream(name).partitions)
        try:
            stream = log.split_partition(name, partition, into, history=history)
        except ValueError as fault:
            raise OptionError("PARTITION", f"partition '{partition}' of '{name}' cannot be split: {fault}") from fault
        new = [number for number in stream.partitions if number not in before]
    became = "redistributed onto" if history else "closed, followed by"
    click.echo(f"{name}: partition {partition} {became} {', '.join(new)}")
