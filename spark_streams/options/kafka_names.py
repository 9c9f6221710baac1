"""Maps options of Spark's Kafka source and of azure-event-hubs-spark to advice, for users who move a job.

docs/from-kafka.md and docs/from-azure-event-hubs-spark.md have the whole lists, including the options that mean the
same here and need no advice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Final

from spark_streams.options.names import (
    CONNECTION_STRING,
    CONSUMER_GROUP,
    CONSUMER_NAME,
    ENDING_OFFSETS,
    ENDING_TIMESTAMP,
    EPOCH,
    FILTER,
    MAX_OFFSETS_PER_TRIGGER,
    MIN_PARTITIONS,
    PASSWORD,
    REQUEST_TIMEOUT,
    STARTING_OFFSETS,
    STARTING_TIMESTAMP,
    STREAM,
    TLS_CA_FILE,
    TLS_CERT_FILE,
    TLS_KEY_FILE,
    TOKEN,
    TOKEN_PROVIDER,
    URL,
    USERNAME,
    Format,
)


def _credentials(form: Format) -> str:
    tokens = f", or a '{TOKEN}'" if TOKEN in form.known else ""
    return f"sign in with '{USERNAME}' and '{PASSWORD}'{tokens}; the scheme of '{URL}' says whether there is TLS"


def _group(form: Format) -> str:
    own = next((name for name in (CONSUMER_GROUP, CONSUMER_NAME) if name in form.known), None)
    exclusive = "" if own is None else f"; '{own}' is to keep others away"
    return f"leave it out, a query needs no group: its checkpoint is its only memory{exclusive}"


_HINTS: Final[Mapping[str, Callable[[Format], str]]] = {
    "subscribe|topic": lambda form: form.naming,
    "subscribepattern": lambda form: f"there are no patterns here: {form.naming}, and union several",
    "assign": lambda form: (
        f"{form.naming}, and '{FILTER}' with partition = '{next(iter(json.loads(form.offsets_example)))}' for the rows "
        "of one partition"
    ),
    r"kafka\.bootstrap\.servers": lambda form: f"give '{URL}', {form.url_example}",
    r"kafka\.group\.id|groupidprefix": _group,
    r"kafka\.(security\.protocol|sasl\..*)": _credentials,
    r"kafka\.ssl\..*": lambda form: f"give PEM files, '{TLS_CA_FILE}', '{TLS_CERT_FILE}' and '{TLS_KEY_FILE}'",
    r"kafka\..*": lambda form: f"{form.name} speaks no Kafka: leave it out",
    "includeheaders": lambda form: "leave it out: application properties and annotations are columns of every row",
    "maxrecordsperpartition": lambda form: (
        f"'{MIN_PARTITIONS}' makes more tasks, '{MAX_OFFSETS_PER_TRIGGER}' a smaller micro-batch"
    ),
    r"kafkaconsumer\.polltimeoutms|fetchoffset\.(numretries|retryintervalms)": lambda form: (
        f"'{REQUEST_TIMEOUT}' is how long the peer may be silent, and what may pass is tried again by itself"
    ),
}
"""Pattern of option names of Spark's Kafka source, in lower case, to the advice; the first full match counts."""
_HUBS: Final[Mapping[str, str]] = {
    "connectionstring": f"give '{CONNECTION_STRING}', as the portal shows it; the hub is its EntityPath, or '{STREAM}'",
    "consumergroup": f"give '{CONSUMER_GROUP}'",
    "startingposition": f"give '{STARTING_OFFSETS}', such as earliest, or '{STARTING_TIMESTAMP}'",
    "endingposition": f"give '{ENDING_OFFSETS}', or '{ENDING_TIMESTAMP}'",
    "timeout|silent": f"'{REQUEST_TIMEOUT}' is how many milliseconds the service may be silent",
    "slow|throttling|acceptable": f"leave it out: '{MIN_PARTITIONS}' has several tasks read a partition",
    "max": f"'{MAX_OFFSETS_PER_TRIGGER}' is the limit of a micro-batch, for all partitions together",
    "exclusive": f"'{EPOCH}' makes the reader exclusive; without it others may read beside it",
    "aadauth": f"give '{TOKEN_PROVIDER}', a function that returns a token",
    "": "leave it out, there is nothing to set in its place",
}
"""Pattern in an option name of azure-event-hubs-spark, in lower case, to the advice; the first that is found counts."""
_WITHOUT_PREFIX: Final = ("maxeventspertrigger", "usesimulatedclient", "partitionpreferredlocationstrategy")


def hint_of_others(name: str, form: Format) -> str | None:
    """Return the advice for an option of another connector; None for a name that no other connector has."""
    lower = name.lower()
    if lower.startswith("eventhubs.") or lower in _WITHOUT_PREFIX:
        hints = _HUBS if CONNECTION_STRING in form.known else {"": "amqp-events is the format for Event Hubs"}
        what = next(hint for part, hint in hints.items() if re.search(part, lower))
        return f"is an option of azure-event-hubs-spark: {what}"
    hint = next((found for names, found in _HINTS.items() if re.fullmatch(names, lower)), None)
    return None if hint is None else f"is an option of Spark's Kafka source: {hint(form)}"
