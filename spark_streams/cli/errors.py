"""Error reports of the command line: an expected error becomes one line on stderr and an exit code."""

from __future__ import annotations

import re
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
    """Handle a signal: exit with the code that shells report for it, so that temporary files are removed."""
    raise SystemExit(128 + number)


_OF_THE_COMMAND_LINE: Final = {
    **{argument: argument for argument in ("URL", "FROM", "TO", "STREAM", "PARTITION")},
    "url": "URL",
    "connectionString": "URL",
    "stream": "the stream's name",
    "superStream": "the stream's name",
    "username": "the user in URL",
    "password": "its password",
    "passwordFile": "--password-file",
    "token": "--token",
    "tokenFile": "--token-file",
    "tls.caFile": "--tls-ca",
    "tls.certFile": "--tls-cert",
    "tls.keyFile": "--tls-key",
    "dialect": "--dialect",
    "partitions": "--partitions",
}
"""Spark's options, and the command's arguments, to their equivalents on the command line."""
_PHRASES: Final = (
    ("set option 'tls.verifyHostname' to 'false'", "give --tls-any-host"),
    ("; raise option 'requestTimeout' if they are slow", ""),
    (": raise option 'requestTimeout' if they are slow", ""),
    ("; raise option 'requestTimeout' if it is slow", ""),
    ("the time of option 'requestTimeout'", "the time for an answer"),
    ("option 'requestTimeout'", "the time for an answer"),
    (" with format 'amqp-events'", ""),
    (" with format 'rabbitmq-stream'", ""),
    (" with format 'feedapi'", ""),
    ("without 'tls.' options", "without --tls-ca and the like"),
)
"""Whole phrases about Spark's options that have no equivalent on the command line, to their replacements."""
_NAMED: Final = re.compile(r"options? '([\w.]+)'(?:( and | or )'([\w.]+)')?")


def in_words_of_the_command_line(text: str) -> str:
    """Return an error's text with the command's own arguments in place of Spark's options."""
    for phrase, words in _PHRASES:
        text = text.replace(phrase, words)

    def renamed(found: re.Match[str]) -> str:
        names = [name for name in (found[1], found[3]) if name]
        if any(name not in _OF_THE_COMMAND_LINE for name in names):
            return found[0]
        return (found[2] or "").join(dict.fromkeys(_OF_THE_COMMAND_LINE[name] for name in names))

    return _NAMED.sub(renamed, text)


def fault_line(fault: Exception) -> str:
    """Return an error's text as one line, in the terms of the command line."""
    return in_words_of_the_command_line(" ".join(str(fault).split("\n")))


class _Failure(click.ClickException):
    """One line on stderr, and an exit code."""

    def __init__(self, fault: Exception) -> None:
        super().__init__(fault_line(fault))
        # click declares it for the class, and reads it off the instance
        self.exit_code = USAGE if isinstance(fault, OptionError) else FAILED  # type: ignore[misc]
