"""The pytest plugin with fixtures ``reference_log`` and ``spark``; it imports and starts nothing before a test asks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_streams.testing import LogProcess, StreamFactory

_LOG_WINDOW: Final = "spark-streams-log-window"
"""The name of the plugin of ``--log-window``."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the plugin's options to pytest's command line, and its settings to pytest's configuration file."""
    group = parser.getgroup("spark-streams", "Spark and the reference log of spark-streams")
    group.addoption(
        "--reference-log-dir",
        metavar="DIR",
        help="keep the data of fixture reference_log in this folder, to look into it after the run "
        "(spark-streams inspect --data-dir DIR); by default it is temporary",
    )
    group.addoption(
        "--reference-log-timeout",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="how long the reference log may take to start, and to stop (default: %(default)s)",
    )
    group.addoption(
        "--log-window",
        action="store_true",
        help="when a test with fixture reference_log fails, say where the log shows its streams, and keep the log up "
        "until a key is pressed",
    )
    group.addoption(
        "--spark-streams-conf",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of fixture spark's session, such as spark.master=local[4]; may be repeated, and takes "
        "precedence over spark_streams_conf of the file",
    )
    parser.addini("reference_log_arguments", "further arguments of `spark-streams log serve`", type="args", default=[])
    words = "settings of fixture spark's session, a NAME=VALUE a line"
    parser.addini("spark_streams_conf", words, type="linelist", default=[])


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugin of ``--log-window``, in the processes of pytest-xdist too."""
    if config.getoption("--log-window"):
        from spark_streams.testing.log_window import LogWindow

        config.pluginmanager.register(LogWindow(config), _LOG_WINDOW)


@pytest.fixture(scope="session")
def reference_log_process(pytestconfig: pytest.Config) -> Iterator[LogProcess]:
    """Run the reference log in its own process, one for the whole run: ``spark_streams.testing.LogProcess``."""
    from spark_streams.errors import PackageMissing
    from spark_streams.testing import LogProcess

    given = pytestconfig.getoption("--reference-log-dir")
    # Each process of pytest-xdist has a log of its own.
    folder = None if given is None else Path(given) / os.environ.get("PYTEST_XDIST_WORKER", "")
    arguments = pytestconfig.getini("reference_log_arguments")
    try:
        process = LogProcess(folder, arguments, timeout_s=pytestconfig.getoption("--reference-log-timeout"))
    except PackageMissing as fault:
        pytest.fail(f"fixture 'reference_log': {fault}", pytrace=False)
    window = pytestconfig.pluginmanager.get_plugin(_LOG_WINDOW)
    if window is not None:
        window.hold(process)  # and ends it after the summary
        yield process
    else:
        with process:
            yield process


@pytest.fixture
def reference_log(reference_log_process: LogProcess) -> StreamFactory:
    """Make streams that no other test uses: ``reference_log.create("orders", partitions=2)``."""
    from spark_streams.testing import StreamFactory

    return StreamFactory(reference_log_process)


@pytest.fixture(scope="session")
def spark(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Return the run's Spark: two cores, no web server, our formats, workers of this Python, temporary tables.

    A Spark that is running already is taken with its settings, gets our formats, and goes on after the run.
    """
    if find_spec("pyspark") is None:
        pytest.fail("fixture 'spark' needs pyspark: pip install 'spark-streams[spark]'", pytrace=False)
    from spark_streams.testing.spark_session import read_settings, spark_until

    try:
        of_the_file = pytestconfig.getini("spark_streams_conf")
        given = read_settings((*of_the_file, *pytestconfig.getoption("--spark-streams-conf")))
    except ValueError as fault:
        raise pytest.UsageError(str(fault)) from None
    with ExitStack() as ending:
        yield spark_until(ending, {"spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")), **given})
