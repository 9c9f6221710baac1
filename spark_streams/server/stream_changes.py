"""Creates streams for clients of the doors whose requests name settings of ``StreamConfig``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Final

from spark_streams.errors import NameTaken, StreamExists
from spark_streams.log import ReferenceLog, Stream, StreamConfig
from spark_streams.server.users import ANONYMOUS

SETTINGS: Final = frozenset(each.name for each in fields(StreamConfig))
"""The names of the settings of a stream."""


def read_settings(given: Mapping[str, str], default: StreamConfig) -> StreamConfig:
    """Return the settings of a new stream; a value of digits is a number.

    Args:
        given: the settings by their names, as texts.
        default: the settings that are not given.

    Raises:
        ValueError: a setting has no such value; the text names it.
    """
    settings: dict[str, Any] = {}
    for name in given.keys() & SETTINGS:
        text = given[name]
        settings[name] = int(text) if re.fullmatch("[0-9]{1,18}", text) else text
        if settings[name] is text and not isinstance(getattr(StreamConfig(), name), str):
            raise ValueError(f"{name} is '{text:.40}', expected a number")
    return replace(default, **settings)


def read_partitions(text: str, most: int, name: str = "partitions") -> int:
    """Return a number of partitions, the value of argument ``name``.

    Raises:
        ValueError: the text is no whole number from 1 to ``most``.
    """
    if not re.fullmatch("[0-9]{1,9}", text) or not 1 <= int(text) <= most:
        raise ValueError(f"{name} is '{text:.40}', expected 1 to {most}")
    return int(text)


def maker_of(user: str) -> str | None:
    """Return the user for whom created partitions count; None without one."""
    return None if user == ANONYMOUS else user


def create_stream(
    log: ReferenceLog, name: str, partitions: int | None, given: Mapping[str, str], user: str
) -> tuple[Stream, bool]:
    """Create a stream, unless it exists with as many partitions and the same settings; wait for the disk.

    Args:
        log: the log.
        name: the stream's name.
        partitions: how many partitions; None for one, or for as many as there are.
        given: settings as texts; the other settings are the log's.
        user: who creates it.

    Returns:
        The stream, and whether it was created.

    Raises:
        NameTaken: a partition of another stream has the name, or a partition of this stream would get a taken name.
        StreamExists: the stream is there with other partitions or settings; the text says which.
        ValueError: the name or a setting is invalid.
    """
    config = read_settings(given, log.config.stream)
    try:
        return log.create_stream(name, partitions or 1, config, maker=maker_of(user)), True
    except NameTaken:
        raise  # NameTaken is a StreamExists too
    except StreamExists:
        stream = log.stream(name)
    if partitions not in (None, len(stream.partitions)):
        raise StreamExists(f"is there already with {len(stream.partitions)} partitions, not {partitions}")
    for setting in given.keys() & SETTINGS:
        if getattr(stream.config, setting) != getattr(config, setting):
            raise StreamExists(f"is there already with {setting} {getattr(stream.config, setting)}")
    return stream, False
