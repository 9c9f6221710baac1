"""The command ``spark-streams``, with its subcommands for the reference log, any peer, filters and the demo."""

import sys
from typing import TYPE_CHECKING, Any

from spark_streams.errors import PackageMissing
from spark_streams.protocols import check_packages

if TYPE_CHECKING:
    from spark_streams.cli.command import main

__all__ = ["main", "run"]


def run() -> None:
    """Run the command as a process of its own, which ends with the command."""
    try:
        check_packages("the command spark-streams")
    except PackageMissing as fault:
        sys.exit(f"Error: {fault}")
    from spark_streams.cli.command import run as command

    command()


def __getattr__(name: str) -> Any:
    """Return ``main``, click's command, which is imported only when it is used: the base package has no click."""
    if name != "main":
        raise AttributeError(f"module {__name__} has no attribute {name}")
    from spark_streams.cli.command import main

    return main
