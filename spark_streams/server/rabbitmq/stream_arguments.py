"""Converts the arguments of streams, strings on the wire, to settings of the log; ignores unknown ones, as brokers do.

Spec: docs/specifications.md, S-133.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from spark_streams.log import StreamConfig

DEFAULT_FILTER_BYTES: Final = 16
_LOCATORS: Final = frozenset({"client-local", "balanced", "least-leaders", "random", "min-masters"})
"""The leader locators that brokers accept; the last two are old names."""
_AGE: Final = re.compile(r"(\d{1,9})([YMDhms])")
_AGE_MS: Final = {"Y": 365 * 86_400_000, "M": 30 * 86_400_000, "D": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000}
_MAX_SEGMENT_BYTES: Final = 3_000_000_000
"""The largest segment that brokers allow, in bytes."""


def stream_config(arguments: Mapping[str, str], default: StreamConfig) -> StreamConfig:
    """Return the settings that arguments give.

    Raises:
        ValueError: an argument has a value that cannot be used; the message names it.
    """
    settings: dict[str, Any] = {}
    for name, value in known_arguments(arguments).items():
        setting, read = _ARGUMENTS[name]
        found = read(name, value)
        if setting is not None:
            settings[setting] = found
    return replace(default, **settings)


def known_arguments(arguments: Mapping[str, str]) -> dict[str, str]:
    """Return the arguments that the door knows: streams that differ in these are different streams."""
    return {name: value for name, value in arguments.items() if name in _ARGUMENTS}


def filter_bytes(arguments: Mapping[str, str]) -> int:
    """Return the size of the bloom filters of a stream's chunks."""
    return int(arguments.get("stream-filter-size-bytes", DEFAULT_FILTER_BYTES))


def _number(low: int, high: int) -> Callable[[str, str], int]:
    def read(name: str, value: str) -> int:
        if not re.fullmatch(r"\d{1,19}", value) or not low <= int(value) <= high:
            raise ValueError(f"{name} is '{value}', expected a number from {low} to {high}")
        return int(value)

    return read


def _age_ms(name: str, value: str) -> int:
    match = _AGE.fullmatch(value)
    if match is None:
        raise ValueError(f"{name} is '{value}', expected such as 7D: a number and one of Y M D h m s")
    return int(match[1]) * _AGE_MS[match[2]]


def _locator(name: str, value: str) -> None:
    if value not in _LOCATORS:
        raise ValueError(f"{name} is '{value}', expected one of {', '.join(sorted(_LOCATORS))}")


_ARGUMENTS: Final[Mapping[str, tuple[str | None, Callable[[str, str], int | None]]]] = {
    "max-length-bytes": ("retention_max_bytes", _number(0, 2**63 - 1)),
    "max-age": ("retention_max_age_ms", _age_ms),
    "stream-max-segment-size-bytes": ("segment_max_bytes", _number(1, _MAX_SEGMENT_BYTES)),
    "initial-cluster-size": (None, _number(1, 2**31 - 1)),
    "queue-leader-locator": (None, _locator),
    "stream-filter-size-bytes": (None, _number(DEFAULT_FILTER_BYTES, 255)),
}
"""Each known argument: the setting of the log that it gives, None for none, and the function that reads its value."""
