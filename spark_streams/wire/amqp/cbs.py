"""The messages by which a client hands its tokens to Event Hubs, after it has opened the connection ("CBS").

::

    request to $cbs    properties              message-id, reply-to
                       application properties  operation "put-token", type, name (the audience), expiration
                       amqp-value              the token, a string
    reply              properties              correlation-id: the request's message-id
                       application properties  status-code (200 and 202: taken), status-description

The audience is the uri that the token is for. The service accepts a token for everything below it.

Spec: docs/specifications.md, H-1, H-2.
"""

from __future__ import annotations

import base64
from typing import Final, NamedTuple

import msgspec

from spark_streams.errors import RemoteProtocolError
from spark_streams.wire.amqp.management import encode_message
from spark_streams.wire.amqp.message import APPLICATION_PROPERTIES, PROPERTIES, decode_sections
from spark_streams.wire.amqp.shared_access import SharedAccessSignature
from spark_streams.wire.amqp.values import Timestamp

PUT_TOKEN: Final = "put-token"
SIGNATURE_TYPE: Final = "servicebus.windows.net:sastoken"
JWT_TYPE: Final = "jwt"
TAKEN: Final = (200, 202)
_SIGNATURE: Final = "SharedAccessSignature "
_MAX_SECONDS: Final = 1 << 40
"""Seconds since the epoch beyond which a token's expiry is nonsense."""


class _Claims(msgspec.Struct):
    """What is read of a JWT."""

    exp: int | float | None = None


_CLAIMS: Final = msgspec.json.Decoder(_Claims)


class Token(NamedTuple):
    """A token that a client hands over.

    Args:
        text: the token itself.
        kind: ``SIGNATURE_TYPE`` or ``JWT_TYPE``.
        expires_s: when it runs out, in seconds since the epoch; None where the token does not say it.
    """

    text: str
    kind: str
    expires_s: int | None = None

    def __repr__(self) -> str:
        return f"Token({self.kind!r}, {self.expires_s})"

    @classmethod
    def signed(cls, uri: str, rule: str, key: str, expires_s: int) -> Token:
        """Return a shared access signature of our own."""
        return cls(SharedAccessSignature.signed(uri, rule, key, expires_s).text, SIGNATURE_TYPE, expires_s)

    @classmethod
    def read(cls, text: str) -> Token:
        """Return a token that was made elsewhere: a shared access signature, or a JWT.

        Raises:
            LocalProtocolError: it begins as a shared access signature, and is none; the message does not quote it.
        """
        if text.startswith(_SIGNATURE):
            return cls(text, SIGNATURE_TYPE, SharedAccessSignature.parsed(text).expires_s)
        return cls(text, JWT_TYPE, _jwt_expiry_s(text))


class Reply(NamedTuple):
    """The peer's answer about a token.

    Args:
        request: the message-id of the request.
        status: 200 or 202 for a token that it has taken; else as in HTTP, 401 for one that it does not accept.
        description: its text; empty for none.
    """

    request: str
    status: int
    description: str


def audience(host: str, address: str = "") -> str:
    """Return the uri of a namespace, or of an address in it such as ``hub`` or ``hub/Partitions/0``."""
    return f"sb://{host}/{address}"


def encode_put_token(token: Token, name: str, message_id: str, reply_to: str) -> bytes:
    """Return the message that hands a token over.

    Args:
        token: the token.
        name: the audience.
        message_id: the request's id, which the reply has.
        reply_to: the target address of the link that receives the reply.
    """
    said: dict[str, object] = {"operation": PUT_TOKEN, "type": token.kind, "name": name}
    if token.expires_s is not None:
        said["expiration"] = Timestamp(1_000 * token.expires_s)
    return encode_message([message_id, None, None, None, reply_to], said, token.text)


def decode_reply(message: bytes) -> Reply:
    """Read a peer's answer.

    Raises:
        RemoteProtocolError: it is no message, or has no status.
    """
    sections = dict(decode_sections(message))
    properties, said = sections.get(PROPERTIES) or [], sections.get(APPLICATION_PROPERTIES)
    names = said if isinstance(said, dict) else {}
    # Some write the names with an underscore, or as statusCode.
    told = {str(key).replace("-", "").replace("_", "").lower(): value for key, value in names.items()}
    status, description = told.get("statuscode"), told.get("statusdescription")
    if not isinstance(status, int):
        raise RemoteProtocolError("'$cbs': an answer without 'status-code'")
    request = properties[5] if len(properties) > 5 else None
    return Reply(str(request), int(status), description if isinstance(description, str) else "")


def _jwt_expiry_s(text: str) -> int | None:
    """Return the claim ``exp`` of a JWT, whose signature only the peer can check; None for any other text."""
    parts = text.split(".")
    if len(parts) != 3:
        return None
    try:
        expiry = _CLAIMS.decode(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))).exp
    except (ValueError, RecursionError, msgspec.MsgspecError):
        return None
    return int(expiry) if expiry is not None and 0 <= expiry < _MAX_SECONDS else None
