"""Option ``--log-window`` of the pytest plugin: the address at which to see the log that a failed test used.

The log outlives the tests, and ends when a key is pressed after pytest's summary. Where standard input is no terminal,
as in a CI, nobody can press one: the addresses are printed, and the log ends with the tests, as without the option. So
do the logs of pytest-xdist's processes, which have no terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from spark_streams.testing.log_process import LogProcess

TITLE: Final = "window of the reference log"
_ENDED: Final = (
    "The log has ended with the tests. It stays up when they are run from a terminal in one process: "
    "pytest --last-failed --log-window, and -n 0 with pytest-xdist"
)


class LogWindow:
    """The option's part in a run.

    Args:
        config: the run's.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._failed: dict[str, str] = {}
        self._ending = ExitStack()
        self._holds = False

    def hold(self, process: LogProcess) -> None:
        """Start the log, and end it after the wait.

        Raises:
            RuntimeError: see ``LogProcess.start``.
        """
        self._config.add_cleanup(self._ending.close)
        self._ending.enter_context(process)
        self._holds = True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Function) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add the addresses to the report of a failure, which pytest-xdist sends from a worker to the main process."""
        report = yield
        given = getattr(item, "funcargs", {})
        process: LogProcess | None = given.get("reference_log_process")
        if report.failed and process is not None and "web" in process.urls:
            streams = getattr(given.get("reference_log"), "created", [])
            addresses = [stream.window for stream in streams] or [process.urls["web"]]
            report.sections.append((TITLE, "\n".join(addresses)))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the addresses of a failure."""
        self._failed.update((report.nodeid, text) for title, text in report.sections if title == TITLE)

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the addresses, and wait for a key while the log is up."""
        if not self._failed:
            return
        terminalreporter.section(TITLE)
        for test, addresses in self._failed.items():
            terminalreporter.write_line(test)
            terminalreporter.write_line("".join(f"  {address}\n" for address in addresses.splitlines()).rstrip())
        if not (self._holds and self._pressed(terminalreporter)):
            terminalreporter.write_line(_ENDED)

    def _pressed(self, terminalreporter: Any) -> bool:
        """Wait for a key; return whether there is a terminal at which one could be pressed."""
        import click  # it is installed, as a log has run, which needs it

        capture = self._config.pluginmanager.getplugin("capturemanager")
        if capture is not None:
            capture.suspend(in_=True)
        try:
            if sys.stdin is None or not sys.stdin.isatty():
                return False
            terminalreporter.write("The log is up until you press a key: ", flush=True)
            with suppress(KeyboardInterrupt, EOFError):
                click.getchar()
            terminalreporter.write_line("")
            return True
        finally:
            if capture is not None:
                capture.resume()
