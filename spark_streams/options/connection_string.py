"""Reads an Event Hubs connection string: where the namespace is, who signs in with which key, and the hub.

::

    Endpoint=sb://<host>[:port]/[<hub>];SharedAccessKeyName=<rule>;SharedAccessKey=<key>[;EntityPath=<hub>]
    Endpoint=sb://<host>[:port]/;SharedAccessSignature=SharedAccessSignature sr=…&sig=…&se=…&skn=…[;EntityPath=<hub>]
    …;UseDevelopmentEmulator=true         plain AMQP

The names are taken in any case and order. Without a key and a signature, other options have the credentials. Error
messages show no part of the text but the hub: in a malformed text any part may be the key.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final, NamedTuple

from spark_streams.endpoint import AMQP_SCHEMES, Endpoint, Secret, parse_url
from spark_streams.errors import OptionError
from spark_streams.options.names import CONNECTION_STRING, STREAM
from spark_streams.options.parser import OptionReader

_PLAIN, _SECURE = sorted(AMQP_SCHEMES)
_ENDPOINT: Final = "Endpoint"
_RULE: Final = "SharedAccessKeyName"
_KEY: Final = "SharedAccessKey"
_SIGNATURE: Final = "SharedAccessSignature"
_HUB: Final = "EntityPath"
_EMULATOR: Final = "UseDevelopmentEmulator"
_NAMES: Final = {name.lower(): name for name in (_ENDPOINT, _RULE, _KEY, _SIGNATURE, _HUB, _EMULATOR)}
_ADDRESS: Final = re.compile(
    r"sb://(\[[^\[\]/@,]+\](?::[0-9]+)?|[^\[\]/@,?#\s:]+(?::[0-9]+)?)(?:/(?P<path>[^?#\s]*))?", re.IGNORECASE
)
_BEGINS: Final = re.compile(rf"(?:^|;)\s*(?:{_ENDPOINT}|HostName)\s*=", re.IGNORECASE)
"""How a connection string begins; those of an IoT Hub and of its devices have a HostName."""
_SIGNED: Final = re.compile(r"SharedAccessSignature (?=.*\bsr=)(?=.*\bsig=)(?=.*\bse=[0-9]+\b)(?=.*\bskn=)\S+")
EXAMPLE: Final = "Endpoint=sb://<namespace>.servicebus.windows.net/;SharedAccessKeyName=<rule>;SharedAccessKey=<key>"


class ConnectionString(NamedTuple):
    """What a connection string says.

    Args:
        endpoint: the namespace, with the rule as user name and its key as password, or the signature as token; an
            emulator's has no TLS.
        hub: the hub; None where the connection string names none.
    """

    endpoint: Endpoint
    hub: str | None


def is_connection_string(text: str) -> bool:
    """Return whether a text that may be a url is meant as a connection string."""
    return bool(_BEGINS.search(text))


def parse_connection_string(text: str) -> ConnectionString:
    """Read a connection string.

    Raises:
        OptionError: it is malformed; the message says which part is wrong without showing any part.
    """
    parts = _parts(text)
    if _ENDPOINT not in parts:
        raise _fault(f"has no {_ENDPOINT}, expected such as {EXAMPLE}")
    address = _ADDRESS.fullmatch(parts[_ENDPOINT])
    # Strings written for azure-event-hubs-spark name the hub in the path, too.
    if address is None or address["path"] not in (None, "", parts.get(_HUB)):
        raise _fault(f"{_ENDPOINT} is no address such as sb://<namespace>.servicebus.windows.net/ (the hub is {_HUB})")
    if (_RULE in parts) != (_KEY in parts):
        there, missing = (_RULE, _KEY) if _RULE in parts else (_KEY, _RULE)
        raise _fault(f"has {there} and no {missing}: copy all of it")
    if _KEY in parts and _SIGNATURE in parts:
        raise _fault(f"has {_KEY} and {_SIGNATURE}: expected one of them")
    if _SIGNATURE in parts and not _SIGNED.fullmatch(parts[_SIGNATURE]):
        raise _fault(f"{_SIGNATURE} is no 'SharedAccessSignature sr=…&sig=…&se=…&skn=…'")
    emulator = parts.get(_EMULATOR, "false").lower()
    if emulator not in ("true", "false"):
        raise _fault(f"{_EMULATOR} is neither 'true' nor 'false'")
    scheme = _PLAIN if emulator == "true" else _SECURE
    endpoint = parse_url(f"{scheme}://{address[1]}", schemes=AMQP_SCHEMES, option=CONNECTION_STRING)
    if _KEY in parts:
        endpoint = endpoint.with_credentials(parts[_RULE], Secret(parts[_KEY]))
    if _SIGNATURE in parts:
        endpoint = endpoint.with_token(Secret(parts[_SIGNATURE]))
    return ConnectionString(replace(endpoint, option=CONNECTION_STRING), parts.get(_HUB))


def stream_of(given: OptionReader) -> str | None:
    """Return the hub that option ``stream`` or the connection string names; None where neither names one.

    Raises:
        OptionError: they name two different hubs.
    """
    named = given.text(STREAM, given.form.stream_example)
    text = given.get(CONNECTION_STRING)
    hub = None if text is None else parse_connection_string(text).hub
    if named is not None and hub is not None and named.lower() != hub.lower():
        raise OptionError(STREAM, f"'{named}' is another hub than '{hub}', which '{CONNECTION_STRING}' is for")
    return named if hub is None else hub


def _parts(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for number, part in enumerate(text.strip().split(";"), 1):
        if not part.strip():
            continue  # many strings end with a semicolon
        before, sign, value = part.partition("=")
        if before.strip().lower() == "hostname":
            raise _fault(
                "is that of an IoT Hub (HostName=…), which is read at its Event Hub-compatible endpoint: copy the one "
                "that begins with Endpoint=sb:// from the IoT Hub's page 'Built-in endpoints' in Azure's portal"
            )
        name = _NAMES.get(before.strip().lower())
        if name is None or not sign:
            known = ", ".join(_NAMES.values())
            raise _fault(f"part {number} is no name=value with one of the names {known}; parts are separated by ';'")
        if name in found:
            raise _fault(f"has {name} twice")
        if not value.strip():
            raise _fault(f"{name} is empty")
        found[name] = value.strip()
    return found


def _fault(problem: str) -> OptionError:
    return OptionError(CONNECTION_STRING, problem)
