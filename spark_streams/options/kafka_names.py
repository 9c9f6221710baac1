"""Says what the options of Spark's Kafka source and sink are called here: hints for whoever moves a job.

docs/from-kafka.md has the whole list, with those that mean the same and need no hint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from spark_streams.options.names import (
    CONSUMER_GROUP,
    CONSUMER_NAME,
    FILTER,
    MAX_OFFSETS_PER_TRIGGER,
    MIN_PARTITIONS,
    PASSWORD,
    REQUEST_TIMEOUT,
    TLS_CA_FILE,
    TLS_CERT_FILE,
    TLS_KEY_FILE,
    TOKEN,
    URL,
    USERNAME,
)


class Named(Protocol):
    """What the hints need to know of a format: see ``parser.Format``."""

    @property
    def name(self) -> str:
        """The format's name."""

    @property
    def known(self) -> tuple[str, ...]:
        """All names that the format accepts."""

    @property
    def naming(self) -> str:
        """How to name a stream."""

    @property
    def url_example(self) -> str:
        """The text after "give 'url'"."""


def _credentials(form: Named) -> str:
    tokens = f", or a '{TOKEN}'" if TOKEN in form.known else ""
    return f"sign in with '{USERNAME}' and '{PASSWORD}'{tokens}; the scheme of '{URL}' says whether there is TLS"


def _group(form: Named) -> str:
    own = next((name for name in (CONSUMER_GROUP, CONSUMER_NAME) if name in form.known), None)
    exclusive = "" if own is None else f"; '{own}' is to keep others away"
    return f"leave it out, a query needs no group: its checkpoint is its only memory{exclusive}"


def _times(form: Named) -> str:
    return f"'{REQUEST_TIMEOUT}' is how long the peer may be silent, and what may pass is tried again by itself"


_HINTS: Final[Mapping[str, Callable[[Named], str]]] = {
    "subscribe": lambda form: form.naming,
    "topic": lambda form: form.naming,
    "subscribepattern": lambda form: f"there are no patterns here: {form.naming}, and union several",
    "assign": lambda form: f"{form.naming}, and '{FILTER}' with partition = '0' for the rows of one partition",
    "kafka.bootstrap.servers": lambda form: f"give '{URL}', {form.url_example}",
    "kafka.group.id": _group,
    "groupidprefix": _group,
    "kafka.security.protocol": _credentials,
    "includeheaders": lambda form: "leave it out: application properties and annotations are columns of every row",
    "maxrecordsperpartition": lambda form: (
        f"'{MIN_PARTITIONS}' makes more tasks, '{MAX_OFFSETS_PER_TRIGGER}' a smaller micro-batch"
    ),
    "kafkaconsumer.polltimeoutms": _times,
    "fetchoffset.numretries": _times,
    "fetchoffset.retryintervalms": _times,
}
_PREFIXES: Final[Mapping[str, Callable[[Named], str]]] = {
    "kafka.sasl.": _credentials,
    "kafka.ssl.": lambda form: f"give PEM files, '{TLS_CA_FILE}', '{TLS_CERT_FILE}' and '{TLS_KEY_FILE}'",
    "kafka.": lambda form: f"{form.name} speaks no Kafka: leave it out",
}


def kafka_hint(name: str, form: Named) -> str | None:
    """Return what to do in place of an option of Kafka's; None for a name that Kafka's source and sink do not have."""
    lower = name.lower()
    hint = _HINTS.get(lower)
    if hint is None:
        hint = next((found for prefix, found in _PREFIXES.items() if lower.startswith(prefix)), None)
    return None if hint is None else f"is an option of Spark's Kafka source: {hint(form)}"
