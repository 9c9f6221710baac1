"""Names a protocol by the first bytes of an answer.

::

    "AMQP" 0|2|3 1 0 0           AMQP 1.0, and SASL or TLS below it (part 2 §2.2)
    "AMQP" any other four        an older AMQP, such as "AMQP" 0 0 9 1 (AMQP 0-9-1 §4.2.2)
    size(4) 0x8011|0x8012 0 1    RabbitMQ's stream protocol: the answer to PeerProperties or SaslHandshake
    "HTTP/"                      HTTP (RFC 9112 §4)
    0x14…0x16 0x03               a record of TLS (RFC 8446 §5.1): an alert, or the answer to a hello
    "SSH-", "220 ", "220-"       servers that speak first: SSH (RFC 4253 §4.2), SMTP (RFC 5321 §4.2) or FTP
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from spark_streams.protocols import PROTOCOLS, Protocol

STATUS: Final = slice(9, 12)
"""Where an answer of HTTP has its status, as in ``HTTP/1.1 404``."""
_AMQP_HEADER_BYTES: Final = 8


@dataclass(frozen=True)
class Spoken:
    """A protocol that may answer at a port.

    Args:
        title: what people call it.
        name: its entry in ``PROTOCOLS``; None for one that we do not speak.
        todo: what to do instead of reading it; for one that we do not speak.
    """

    title: str
    name: str | None = None
    todo: str = ""

    @property
    def entry(self) -> Protocol | None:
        """Its entry in ``PROTOCOLS``."""
        return None if self.name is None else PROTOCOLS[self.name]


AMQP: Final = Spoken("AMQP 1.0", "amqp")
STREAMS: Final = Spoken("RabbitMQ's stream protocol", "rabbitmq-stream")
HTTP: Final = Spoken("HTTP", "feedapi")
OLD_AMQP: Final = Spoken(
    "AMQP 0-9-1 or older",
    todo="RabbitMQ speaks AMQP 1.0 since version 4, and before with the plugin rabbitmq_amqp1_0; its streams are read "
    "without that by format 'rabbitmq-stream', rabbitmq-stream://host:5552",
)
SSH: Final = Spoken("SSH")
MAIL: Final = Spoken("a mail or FTP server")
TLS: Final = Spoken("TLS")
WEB_SOCKET: Final = Spoken("AMQP 1.0 over WebSockets", "amqp")


def is_served(said: bytes) -> bool:
    """Return whether an answer of HTTP proves a server of HTTP.

    Statuses 400, 3xx, 408, 425, 429 and 5xx do not: so proxies answer for a peer that is not there, and servers of
    HTTPS those who speak without TLS.
    """
    status = said[STATUS]
    return status[:1] == b"2" or (status[:1] == b"4" and status not in (b"400", b"408", b"425", b"429"))


def is_refused(said: bytes) -> bool:
    """Return whether an answer of HTTP is what its servers say to bytes that are no request."""
    return said[STATUS] == b"400"


def recognised(first: bytes) -> Spoken | None:
    """Return the protocol that an answer's first bytes are of; None for one that is not known, or for too few bytes."""
    if first[:4] == b"AMQP" and len(first) >= _AMQP_HEADER_BYTES:
        return AMQP if first[4] in (0, 2, 3) and first[5:8] == b"\x01\0\0" else OLD_AMQP
    if first[4:8] in (b"\x80\x11\0\x01", b"\x80\x12\0\x01"):
        return STREAMS
    starts: Mapping[bytes, Spoken] = {b"HTTP/": HTTP, b"SSH-": SSH, b"220 ": MAIL, b"220-": MAIL}
    starts = {**starts, **{bytes((kind, 3)): TLS for kind in (0x14, 0x15, 0x16)}}
    return next((spoken for start, spoken in starts.items() if first.startswith(start)), None)
