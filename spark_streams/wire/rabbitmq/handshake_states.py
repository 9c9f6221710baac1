"""The states of a connection before it is open, and the transitions between them; for both roles.

The door (``server/rabbitmq/handshake.py``) and the client (``client/rabbitmq/open.py``) execute this table, and
``docs/state_pictures.py`` draws the picture in ``docs/how-it-works.md`` from it.

Spec: Streams Protocol Reference, "Authentication"; docs/specifications.md, S-21 to S-26.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final


class HandshakeState(Enum):
    """The states of the handshake; a value is the state's name in the picture."""

    CONNECTED = "Connected"
    INTRODUCED = "Introduced"
    AUTHENTICATING = "Authenticating"
    AUTHENTICATED = "Authenticated"
    TUNED = "Tuned"
    OPEN = "Open"
    REFUSED = "Refused"


class HandshakeInput(Enum):
    """A client's command with the server's answer; Tune is the server's command, with the client's answer."""

    PEER_PROPERTIES = "PeerProperties"
    SASL_HANDSHAKE = "SaslHandshake"
    SASL_CHALLENGE = "SaslAuthenticate, answered with a challenge"
    SASL_SUCCESS = "SaslAuthenticate, answered OK"
    SASL_FAILURE = "SaslAuthenticate, answered with an error"
    TUNE = "Tune"
    OPEN = "Open, answered OK"
    OPEN_FAILURE = "Open, answered with an error"


_S, _I = HandshakeState, HandshakeInput

TRANSITIONS: Final[Mapping[tuple[HandshakeState, HandshakeInput], HandshakeState]] = {
    (_S.CONNECTED, _I.PEER_PROPERTIES): _S.INTRODUCED,
    (_S.INTRODUCED, _I.PEER_PROPERTIES): _S.INTRODUCED,
    (_S.INTRODUCED, _I.SASL_HANDSHAKE): _S.AUTHENTICATING,
    (_S.AUTHENTICATING, _I.SASL_HANDSHAKE): _S.AUTHENTICATING,
    (_S.AUTHENTICATING, _I.SASL_CHALLENGE): _S.AUTHENTICATING,
    (_S.AUTHENTICATING, _I.SASL_SUCCESS): _S.AUTHENTICATED,
    (_S.AUTHENTICATING, _I.SASL_FAILURE): _S.REFUSED,
    (_S.AUTHENTICATED, _I.TUNE): _S.TUNED,
    (_S.AUTHENTICATED, _I.OPEN): _S.OPEN,
    (_S.AUTHENTICATED, _I.OPEN_FAILURE): _S.REFUSED,
    (_S.TUNED, _I.OPEN): _S.OPEN,
    (_S.TUNED, _I.OPEN_FAILURE): _S.REFUSED,
}
"""The transitions. An input without a row for the state is a protocol error. Heartbeats change nothing and are no
input.
"""
