"""The main command ``spark-streams``, and its group ``log``."""

from __future__ import annotations

import logging
import sys
from importlib.abc import MetaPathFinder

import click

from spark_streams.cli.errors import ErrorReportingGroup

_EPILOG = """\b
Examples:
  spark-streams log serve --data-dir ./data --stream orders:4
  echo hello | spark-streams log append amqp://guest:guest@localhost:5672 orders
  spark-streams tail amqp://guest:guest@localhost:5672#orders --from earliest
  spark-streams copy amqp://guest:guest@localhost:5672#orders http://localhost:8080/copies
  spark-streams demo

\b
Exit codes:
  0    done; a server that was asked to stop has stopped cleanly
  1    it could not be done; one line on stderr says why
  2    the command line or a configuration file is wrong; nothing was done
  130  stopped by Ctrl-C
"""


_COMMANDS = {
    "copy": "spark_streams.cli.peers.copy:copy",
    "demo": "spark_streams.cli.demo:demo",
    "filter": "spark_streams.cli.filter:filter_group",
    "inspect": "spark_streams.cli.peers.inspect:inspect",
    "tail": "spark_streams.cli.tail:tail",
}


@click.group(
    cls=ErrorReportingGroup, lazy=_COMMANDS, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.option("-v", "--verbose", count=True, help="Say more on stderr; twice: everything.")
@click.version_option(package_name="spark-streams", message="spark-streams %(version)s")
def main(verbose: int) -> None:
    """Event logs for Spark: a small durable log to read and write, and a demonstration.

    The connectors themselves need no command: in Spark it is spark.readStream.format("amqp-events"), or
    "rabbitmq-stream", or "feedapi". The log has a door for each of them.
    """
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]
    logging.basicConfig(level=level, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("urllib3").setLevel(logging.INFO)  # DEBUG logs whole addresses, and a query may have a secret


class _WithoutPandas(MetaPathFinder):
    """Hides pandas: PyArrow would import it, which takes a third of the log's start."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("a command has no pandas", name=name)


def run() -> None:
    """Run the command as a process of its own, which ends with it."""
    if "demo" not in sys.argv:  # the demo runs Spark, which needs pandas
        sys.meta_path.insert(0, _WithoutPandas())
    main()


_LOG_EPILOG = """\b
Where the log is:
  A served log is named by the url of one of its doors, whichever door its events
  came through; append wants that of the AMQP door, amqp://[user:password@]host[:port].
  Where the url has no credentials, SPARK_STREAMS_USERNAME and SPARK_STREAMS_PASSWORD
  are taken from the environment, so that no password shows in a list of processes.
  A log that is not being served is named by --data-dir.

\b
Creating streams:
  before serving   spark-streams log create --data-dir DIR NAME:PARTITIONS
  while serving    spark-streams log create URL NAME:PARTITIONS
"""


_LOG_COMMANDS = {
    "append": "spark_streams.cli.log.append:append",
    "create": "spark_streams.cli.log.streams:create",
    "delete": "spark_streams.cli.log.streams:delete",
    "serve": "spark_streams.cli.log.serve:serve",
    "split": "spark_streams.cli.log.streams:split",
}


@main.group(cls=ErrorReportingGroup, lazy=_LOG_COMMANDS, epilog=_LOG_EPILOG)
def log() -> None:
    """Serve the reference log, and create, write, split and delete its streams."""
