"""Reads the map of options that Spark passes, and checks its names against those of the format.

Names are compared without regard to case, as Spark's own are. An unknown name is an error that suggests the nearest; a
name of another format, of Kafka's source or of a later version is an error that says so; Spark's own names
(``checkpointLocation`` …) pass; the argument of ``load`` and ``save``, which comes as ``path``, is refused, as it would
be dropped silently.

``RedactedOptions`` holds that map for plans and logs: its ``repr`` shows no secret, and its pickle masks secrets.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from spark_streams.endpoint import Secret, redact_url
from spark_streams.errors import OptionError
from spark_streams.filters.decimals import MAX_INT64
from spark_streams.options.kafka_names import hint_of_others
from spark_streams.options.names import (
    CONNECTION_STRING,
    OF_EVERY_READER,
    OF_SPARK,
    PATH,
    SECRET,
    TABLE_OPTION_PREFIX,
    TABLE_PROVIDER,
    URL,
)
from spark_streams.options.names import Format as Format
from spark_streams.options.values import did_you_mean, short

_OF_TABLES: Final = (
    ". No option at all has come. Spark hands the OPTIONS of CREATE TABLE to no Python source: say them where the "
    "table is used, FROM name WITH (`url` = '…'), or CREATE TEMPORARY VIEW in place of the table"
)


def of_a_table(options: Mapping[str, str]) -> dict[str, str] | None:
    """Return the ``OPTIONS`` of a ``CREATE TABLE`` if Spark has passed the properties of a table; else None.

    Spark passes each option of a table twice, with a prefix and without. An address without its prefixed copy belongs
    to a reader or writer that was given an option named ``provider``.
    """
    names = {name.lower(): name for name in options}
    cut = len(TABLE_OPTION_PREFIX)
    addresses = {URL.lower(), CONNECTION_STRING.lower()} & names.keys()
    if TABLE_PROVIDER not in names or any(TABLE_OPTION_PREFIX + each not in names for each in addresses):
        return None
    return {lower[cut:]: options[name] for lower, name in names.items() if lower.startswith(TABLE_OPTION_PREFIX)}


class OptionReader:
    """The given options, found without regard to case.

    Args:
        options: the options as Spark passes them.
        form: their format.
        reading: True for a reader's options, False for a writer's; None when that is not known yet.

    Raises:
        OptionError: the format, or its readers or writers, do not accept a name, or ``load`` or ``save`` has an
            argument.
    """

    def __init__(self, options: Mapping[str, str], form: Format, *, reading: bool | None = None) -> None:
        self.form = form
        self.reading = reading
        self._values = {name.lower(): value for name, value in options.items()}
        known = {name.lower(): name for name in form.known}
        refused = {name.lower(): name for name in form.refused}
        for name in options:
            lower = name.lower()
            if lower in known or lower in OF_SPARK or lower.startswith(form.prefixes):
                continue
            if lower in refused:
                raise OptionError(refused[lower], form.refused[refused[lower]])
            if (hint := hint_of_others(name, form)) is not None:
                raise OptionError(name, hint)
            close = difflib.get_close_matches(lower, known, n=1, cutoff=0.5)
            nearest = f"did you mean '{known[close[0]]}'?" if close else f"{form.name} knows {', '.join(form.known)}"
            raise OptionError(name, f"{form.name} has no such option; {nearest}")
        if reading is not None and (self.get(PATH) or "").strip():
            # load("orders") and save("orders"): the argument would be dropped silently.
            raise OptionError(PATH, f"load and save take no argument here: {form.naming}")
        if reading is True:
            self.refuse(form.writing, "this is for writing; a source does not take it")
        if reading is False:
            self.refuse((*OF_EVERY_READER, *form.reading), "this is for reading; a sink does not take it")

    def has(self, name: str) -> bool:
        """Return whether the option is given."""
        return self._values.get(name.lower()) is not None

    def get(self, name: str) -> str | None:
        """Return the option's value, or None."""
        return self._values.get(name.lower())

    def starting_with(self, prefix: str) -> dict[str, str]:
        """Return the options whose names begin with a prefix: the rest of the name, in lower case, to the value."""
        return {n[len(prefix) :]: v for n, v in sorted(self._values.items()) if n.startswith(prefix) and v is not None}

    def refuse(self, names: Iterable[str], why: str) -> None:
        """Raise an OptionError for the first of ``names`` that is given."""
        for name in names:
            if self.has(name):
                raise OptionError(name, why)

    def needs(self, name: str, other: str, why: str = "") -> None:
        """Raise an OptionError if option ``name`` is given without option ``other``, which it belongs to."""
        if self.has(name) and not self.has(other):
            raise OptionError(name, f"needs '{other}' beside it{why and ': '}{why}")

    def required(self, name: str, example: str) -> str:
        """Return the option's value; if it is missing or blank, raise an OptionError with ``example``."""
        value = self.get(name)
        if value is None or not value.strip():
            raise OptionError(
                name, f"is required: {example}" if self._values else f"is required: {example}{_OF_TABLES}"
            )
        return value

    def text(self, name: str, expected: str) -> str | None:
        """Return the option's value without blanks around it, None when it is not given; an empty one is an error."""
        value = self.get(name)
        if value is not None and not value.strip():
            raise OptionError(name, f"is empty, expected {expected}")
        return None if value is None else value.strip()

    def one_of(self, *names: str) -> str | None:
        """Return the only one of ``names`` that is given, or None; two of them are an error."""
        there = [name for name in names if self.has(name)]
        if len(there) > 1:
            raise OptionError(there[1], f"cannot be used together with '{there[0]}': give one of them")
        return there[0] if there else None

    def word(self, name: str, *words: str, default: str | None = None) -> str:
        """Return the option's value, one of ``words`` in any case; if not given, ``default`` or the first word."""
        value = (self.get(name) or default or words[0]).strip().lower()
        if value not in words:
            expected = f"neither '{words[0]}' nor '{words[1]}'" if len(words) == 2 else f"none of {', '.join(words)}"
            raise OptionError(name, f"'{value}' is {expected}{did_you_mean(value, words)}")
        return value

    def integer(self, name: str, low: int, unit: str, *, high: int = MAX_INT64) -> int | None:
        """Return the option's whole number, from ``low`` to ``high`` inclusive; None when the option is not given."""
        value = self.get(name)
        if value is None:
            return None
        if not re.fullmatch(r"\s*[+-]?[0-9]{1,20}\s*", value) or not low <= int(value) <= high:
            most = "" if high >= MAX_INT64 else f" and at most {high}"
            raise OptionError(
                name, f"'{short(value)}' cannot be used: expected a whole number, at least {low}{most} ({unit})"
            )
        return int(value)

    def boolean(self, name: str, default: bool) -> bool:
        """Return the option's ``true`` or ``false`` as a bool; ``default`` when the option is not given."""
        value = self.get(name)
        if value is None:
            return default
        if (word := value.strip().lower()) not in ("true", "false"):
            raise OptionError(name, f"'{short(value)}' is neither 'true' nor 'false'")
        return word == "true"


class RedactedOptions(Mapping[str, str]):
    """Options as Spark passes them, safe to print; a pickle of them holds no secret in the clear.

    Args:
        options: name to value.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._values = {name: Secret(value) if name.lower() in SECRET else value for name, value in options.items()}

    def __getitem__(self, name: str) -> str:
        value = self._values[name]
        return value.reveal() if isinstance(value, Secret) else value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        shown = {n: redact_url(self[n]) if n.lower() == URL else str(value) for n, value in self._values.items()}
        return f"RedactedOptions({shown})"
