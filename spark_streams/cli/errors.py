"""Error reports of the command line: an expected error becomes one line on stderr and an exit code."""

from __future__ import annotations

from collections.abc import Mapping
from types import FrameType
from typing import Any, Final, NoReturn

import click

from spark_streams.errors import OptionError, SparkStreamsError
from spark_streams.protocols import load

FAILED: Final = 1
"""Exit code: the command failed; the line on stderr says why."""
USAGE: Final = 2
"""Exit code: the command line or a configuration file is wrong; the command did nothing."""
INTERRUPTED: Final = 130
"""Exit code: Ctrl-C stopped the command, as shells report it (128 + SIGINT)."""


class ErrorReportingGroup(click.Group):
    """A group of commands that reports expected errors in one line, without a traceback.

    Unexpected errors keep their traceback, as they are defects. The group imports a command's module on its first use,
    so that no command waits for the imports of all.

    Args:
        lazy: further commands of the group: name to ``module:attribute``.
    """

    def __init__(self, *arguments: Any, lazy: Mapping[str, str] | None = None, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._lazy = dict(lazy or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, sorted."""
        return sorted({*super().list_commands(ctx), *self._lazy})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of that name, None where there is none."""
        if cmd_name in self._lazy:
            self.add_command(load(self._lazy.pop(cmd_name)), cmd_name)
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the named command.

        Raises:
            click.ClickException: an expected error occurred; the exception has its exit code.
        """
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise  # the reader of our output has gone, and click ends without a message
        except (SparkStreamsError, OSError) as fault:
            raise _Failure(fault) from fault
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)


def exit_on_signal(number: int, frame: FrameType | None) -> NoReturn:
    """Handle a signal: exit with the code that shells report for it, so that what is temporary is removed."""
    raise SystemExit(128 + number)


class _Failure(click.ClickException):
    """One line on stderr, and an exit code."""

    def __init__(self, fault: Exception) -> None:
        super().__init__(" ".join(str(fault).split("\n")))
        # click declares it for the class, and reads it off the instance
        self.exit_code = USAGE if isinstance(fault, OptionError) else FAILED  # type: ignore[misc]
