"""Turns a broker's response codes into our errors; every message names the code and what to do.

Each code has its own error: a missing permission or a failed authentication never reads as "does not exist", or the
other way round.

Spec: Streams Protocol Reference, "Response Codes"; docs/specifications.md, S-151, S-152.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

from spark_streams.endpoint import Endpoint
from spark_streams.errors import AuthenticationFailed, NotFound, PeerError, Refused, SparkStreamsError
from spark_streams.redaction import safe_text
from spark_streams.wire.rabbitmq.consumer_commands import QueryOffset, ResolveOffsetSpec, Subscribe
from spark_streams.wire.rabbitmq.frames import Request, ResponseCode, code_name
from spark_streams.wire.rabbitmq.publish_decode import DeclarePublisher, QueryPublisherSequence
from spark_streams.wire.rabbitmq.stream_commands import (
    Create,
    CreateSuperStream,
    Delete,
    DeleteSuperStream,
    StreamStats,
)

_T = TypeVar("_T")

DEFAULT_LOGIN: Final = ("guest", "guest")
"""User and password for an endpoint that names none, as in other clients."""
_READ: Final = (Subscribe.KEY, QueryOffset.KEY, ResolveOffsetSpec.KEY, StreamStats.KEY)
_CONFIGURE: Final = (Create.KEY, Delete.KEY, CreateSuperStream.KEY, DeleteSuperStream.KEY)
_NEEDED: Final[Mapping[int, str]] = {
    **dict.fromkeys(_READ, "needs permission 'read' for it"),
    QueryPublisherSequence.KEY: "needs permission 'read' for it beside 'write', to write no row twice",
    DeclarePublisher.KEY: "needs permission 'write' for it",
    **dict.fromkeys(_CONFIGURE, "needs permission 'configure' for it"),
}
_ANY: Final = "has no permission for it: 'read' is for reading, 'write' for writing"
"""For the other commands any permission is enough."""
_AUTHENTICATION: Final = frozenset(code for code in ResponseCode if code.name.startswith(("SASL", "AUTHENTICATION")))
_TRANSIENT: Final = frozenset({ResponseCode.STREAM_NOT_AVAILABLE, ResponseCode.INTERNAL_ERROR})
_ADVICE: Final[Mapping[int, str]] = {
    ResponseCode.STREAM_DOES_NOT_EXIST: "check option 'stream' or 'superStream'",
    ResponseCode.STREAM_NOT_AVAILABLE: "it has no leader or member that can be reached now",
    ResponseCode.AUTHENTICATION_FAILURE: "check 'username' and 'password'",
    ResponseCode.SASL_AUTHENTICATION_FAILURE_LOOPBACK: "the broker lets this user in from its own machine only",
    ResponseCode.VIRTUAL_HOST_ACCESS_FAILURE: "check the virtual host, the path of option 'url', and the user's "
    "permission for it",
    ResponseCode.ACCESS_REFUSED: "the user has no permission for it",
    ResponseCode.INTERNAL_ERROR: "the broker could not do it, and its own log says why; where its disk is full, make "
    "room there and start the query again",
}


def advice(code: int) -> str:
    """Return what a user can do about a code, an empty text for a code without advice."""
    return _ADVICE.get(code, "")


def refusal(code: int, what: str, reason: str | None = None) -> PeerError:
    """Return the error for a code other than OK.

    Args:
        code: the broker's code.
        what: what we were doing, such as ``stream 'orders': subscribe``.
        reason: the reason, or what to do; None for the advice on the code.
    """
    kind: type[PeerError] = AuthenticationFailed if code in _AUTHENTICATION else Refused
    if code == ResponseCode.STREAM_DOES_NOT_EXIST:
        kind = NotFound
    fault = kind(code_name(code), reason or advice(code), what)
    fault.retriable = code in _TRANSIENT
    return fault


def refused(code: int, asked: type[Request], what: str, endpoint: Endpoint) -> PeerError:
    """Return the error for a code other than OK; for a missing permission it says which one, and who lacks it.

    Args:
        code: the broker's code.
        asked: the command that it answers.
        what: as for ``refusal``.
        endpoint: the broker, with the user.
    """
    reason = None
    if code == ResponseCode.ACCESS_REFUSED:
        lacks = _NEEDED.get(asked.KEY, _ANY)
        reason = f"{user_of(endpoint)} {lacks} (virtual host '{safe_text(endpoint.vhost)}')"
    return refusal(code, what, reason)


def user_of(endpoint: Endpoint) -> str:
    """Return the user of an endpoint as messages name it."""
    if signs_in_by_certificate(endpoint):
        return "the user that the certificate of option 'tls.certFile' names"
    return f"user '{DEFAULT_LOGIN[0] if endpoint.username is None else endpoint.username}'"


def signs_in_by_certificate(endpoint: Endpoint) -> bool:
    """Return whether the client signs in with its certificate, as it has one and no user."""
    return endpoint.username is None and endpoint.tls is not None and endpoint.tls.cert_file is not None


def is_unavailable(fault: SparkStreamsError) -> bool:
    """Return whether the broker answered that the stream has no member there, or no reachable one now."""
    return isinstance(fault, Refused) and fault.condition == code_name(ResponseCode.STREAM_NOT_AVAILABLE)


def close_fault(code: int, reason: str, endpoint: Endpoint) -> SparkStreamsError:
    """Return the error for a connection that the broker closed."""
    what, reason = f"{endpoint.address}: the broker closed the connection", safe_text(reason)
    fault = refusal(code, what) if code != ResponseCode.OK else Refused("OK", reason, what)
    if isinstance(fault, Refused):
        refused = Refused(fault.condition, reason, what)
        # A broker that shuts down, or an operator, closes so: the broker may accept another connection.
        refused.retriable = code in (ResponseCode.OK, *_TRANSIENT)
        return refused
    return fault


def present(found: _T | PeerError) -> _T:
    """Return what was found; raise the error that is there in its place."""
    if isinstance(found, PeerError):
        raise found
    return found
