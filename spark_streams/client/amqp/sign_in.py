"""Signs in on a new connection, by SASL, and provides the tokens that are handed over afterwards.

==================================  ==========================================================================
what the endpoint has               how the client signs in
==================================  ==========================================================================
user and password                   PLAIN; ANONYMOUS and our own signatures at an Event Hubs without PLAIN
a token, at an Event Hubs           ANONYMOUS, and the token for each hub (``token_grants.py``)
a token, at any other peer          PLAIN, with the token as password: RabbitMQ's OAuth 2
a client certificate, or nothing    EXTERNAL, or ANONYMOUS
==================================  ==========================================================================

Spec: AMQP 1.0 part 5 §5.3 (SASL); docs/specifications.md, H-1, H-2.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from spark_streams.client.retry import Deadline
from spark_streams.client.tcp import lost, tls_fault
from spark_streams.client.tls import NO_EXTERNAL, STRANGERS_CERTIFICATE
from spark_streams.client.what_answers import known_right, silent_close_fault, wrong_port
from spark_streams.endpoint import Endpoint
from spark_streams.errors import AuthenticationFailed, LocalProtocolError, OptionError, RemoteProtocolError
from spark_streams.redaction import remember
from spark_streams.secrets import FreshSecret
from spark_streams.wire.amqp.cbs import SIGNATURE_TYPE, Token, audience
from spark_streams.wire.amqp.dialects import Dialect, Seen, dialect_of
from spark_streams.wire.amqp.dialects.event_hubs import CBS_MECHANISM
from spark_streams.wire.amqp.sasl import SASL_HEADER, SaslClient, SaslLogin
from spark_streams.wire.amqp.shared_access import SharedAccessSignature

VALIDITY_S: Final = 3_600
"""Seconds for which a signature of our own is valid, like those of the service's own clients."""
SIGN_IN_FRAME_BYTES: Final = 8_192
"""The largest frame that RabbitMQ takes before it knows who signs in, seen at 4.3.6; the specification asks for 512."""
_READ_BYTES: Final = 4 << 10
_ANYBODY: Final = "token"
"""The user's name beside a token: RabbitMQ takes any that is not empty."""


class SignedIn(NamedTuple):
    """What a SASL handshake has shown.

    Args:
        leftover: bytes that the peer has sent after SASL.
        mechanisms: the mechanisms that the peer offers.
        tokens: the tokens that are to be handed over before other links; None if there is none.
    """

    leftover: bytes
    mechanisms: tuple[str, ...]
    tokens: TokenSource | None


def sign_in(
    socket: Any, endpoint: Endpoint, server_name: str, deadline: Deadline, dialect: Dialect | None = None
) -> SignedIn:
    """Sign in on a socket, which does not block afterwards.

    Args:
        socket: connected; it blocks during the handshake.
        endpoint: the peer, with credentials.
        server_name: the name that the peer is called by.
        deadline: how long it may take.
        dialect: the peer's, where that is known; None to go by the mechanisms that it offers and by its name.

    Raises:
        AuthenticationFailed: the peer did not accept the credentials, or does not support them.
        OptionError: a password or token cannot be read, or the dialect has no tokens.
        ConnectFailed, ConnectionLost, DeadlineExceeded, RemoteProtocolError: as for a ``Connection``.
    """
    chosen = _Choice(endpoint, server_name, dialect, deadline)
    sasl = SaslClient(chosen, server_name)
    what = f"{endpoint.address}: no answer to the SASL handshake: is it an AMQP port, and is option "
    what += f"'{endpoint.option}' right"
    heard = written = b""
    try:
        socket.settimeout(deadline.left_s(what))
        socket.sendall(sasl.start())
        while not sasl.done:
            socket.settimeout(deadline.left_s(what))
            answer = bytes(socket.recv(_READ_BYTES))
            if not answer:
                raise ConnectionError("the peer closed it during the SASL handshake")  # the error is made below
            if len(heard) < len(SASL_HEADER):
                heard += answer
                is_sasl = SASL_HEADER.startswith(heard[: len(SASL_HEADER)])
                if not is_sasl and (wrong := wrong_port(endpoint, heard)) is not None:
                    raise wrong
            written = sasl.receive(answer)
            socket.sendall(written)
        socket.setblocking(False)
    except TimeoutError as fault:
        deadline.left_s(what)  # raises; with time left, the network itself gave up (ETIMEDOUT)
        raise lost(endpoint, fault) from fault
    except AuthenticationFailed as fault:
        raise AuthenticationFailed(
            fault.condition, f"{fault.description}: {chosen.advice}", f"signing in at {endpoint.address}"
        ) from fault
    except RemoteProtocolError as fault:
        raise RemoteProtocolError(f"{endpoint.address}: {fault}") from fault
    except (ConnectionError, ssl.SSLEOFError) as fault:
        if len(written) > SIGN_IN_FRAME_BYTES:
            raise AuthenticationFailed(
                "closed",
                f"the peer closed the connection at a frame of {len(written)} bytes with user and password; RabbitMQ "
                f"takes {SIGN_IN_FRAME_BYTES} there: {chosen.advice}, or have fewer scopes or groups in the token",
                f"signing in at {endpoint.address}",
            ) from fault
        # The peer of a WebSocket has answered already, in its handshake.
        is_silent = not heard and endpoint.transport == "tcp"
        raise (silent_close_fault(endpoint) if is_silent else lost(endpoint, fault)) from fault
    except ssl.SSLError as fault:
        raise tls_fault(fault, endpoint) from fault
    known_right(endpoint)
    return SignedIn(sasl.leftover, sasl.offered, chosen.tokens)


def credential_options(endpoint: Endpoint) -> str:
    """Return the options that have the endpoint's credentials, for messages."""
    secret = endpoint.password if endpoint.token is None else endpoint.token
    if isinstance(secret, FreshSecret):
        return f"option '{secret.option}'"
    if endpoint.option != "url":
        return f"option '{endpoint.option}'" if endpoint.token is None else f"options '{endpoint.option}' and 'token'"
    return "options 'username' and 'password'" if endpoint.token is None else "option 'token'"


class _Choice:
    """Chooses the login by the mechanisms that a peer offers.

    It restarts the deadline: a function that gives a secret may take long, which is not the peer's fault.
    """

    def __init__(self, endpoint: Endpoint, host: str, dialect: Dialect | None, deadline: Deadline) -> None:
        self._endpoint = endpoint
        self._host = host
        self._dialect = dialect
        self._deadline = deadline
        self.tokens: TokenSource | None = None
        self.advice = f"check {credential_options(endpoint)}"

    def __call__(self, offered: tuple[str, ...]) -> SaslLogin:
        endpoint = self._endpoint
        dialect = self._dialect or dialect_of(Seen(mechanisms=offered, host=self._host))
        takes_cbs = dialect is not None and dialect.tokens == "cbs"
        if endpoint.token is not None:
            if takes_cbs or (token := endpoint.token.reveal()).startswith("SharedAccessSignature "):
                return self._anonymous(offered)
            if self._dialect is not None and self._dialect.tokens is None:
                raise OptionError(
                    _token_option(endpoint),
                    f"peers of dialect '{self._dialect.name}' take no tokens: give 'username' and 'password'",
                )
            self.advice += "; of the peers without '$cbs' only RabbitMQ takes tokens (OAuth 2)"
            return self._plain(_ANYBODY, token)
        if endpoint.username is None:
            if endpoint.tls is None or endpoint.tls.cert_file is None:
                return SaslLogin("ANONYMOUS")
            self.advice = STRANGERS_CERTIFICATE if "EXTERNAL" in offered else NO_EXTERNAL
            return SaslLogin("EXTERNAL")
        if takes_cbs and "PLAIN" not in offered:
            return self._anonymous(offered)
        return self._plain(endpoint.username, "" if endpoint.password is None else endpoint.password.reveal())

    def _plain(self, user: str, password: str) -> SaslLogin:
        self._deadline.restart()
        remember(password, user)
        return SaslLogin.plain(user, password)

    def _anonymous(self, offered: tuple[str, ...]) -> SaslLogin:
        self._deadline.restart()
        self.tokens = TokenSource(self._endpoint, self._host)
        return SaslLogin("ANONYMOUS" if "ANONYMOUS" in offered or CBS_MECHANISM not in offered else CBS_MECHANISM)


def _token_option(endpoint: Endpoint) -> str:
    secret = endpoint.token
    if isinstance(secret, FreshSecret):
        return secret.option
    return "token" if endpoint.option == "url" else endpoint.option


class TokenSource:
    """Provides the tokens for hubs: the user's, read anew each time, or signatures made with the rule's key.

    Args:
        endpoint: the namespace, with a token, or with rule and key as user and password.
        host: the name that the namespace is called by.
        clock: the seconds since the epoch.
    """

    def __init__(self, endpoint: Endpoint, host: str, clock: Callable[[], float] = time.time) -> None:
        self.endpoint = endpoint
        self.host = host
        self.clock = clock

    def token(self, hub: str) -> Token:
        """Return a token for a hub.

        Raises:
            AuthenticationFailed: the user's token has expired, or is for another hub.
            OptionError: the user's token cannot be read, or is malformed.
        """
        endpoint = self.endpoint
        if endpoint.token is None:
            key = "" if endpoint.password is None else endpoint.password.reveal()
            rule = endpoint.username or ""
            remember(key, rule)
            token = Token.signed(audience(self.host, hub), rule, key, int(self.clock()) + VALIDITY_S)
            remember(token.text)
            return token
        text = endpoint.token.reveal()
        remember(text)
        try:
            token = Token.read(text)
        except LocalProtocolError as fault:
            raise OptionError(_token_option(endpoint), str(fault)) from None
        if token.kind == SIGNATURE_TYPE:
            signature = SharedAccessSignature.parsed(text)
            remember(signature.signature)
            _, path = signature.resource or ("", "")  # if the token is not understood, the peer reports it
            if not f"{hub}/".lower().startswith(f"{path}/".lstrip("/").lower()):
                raise self.refused(hub, f"the signature is for '{signature.uri}'")
        if token.expires_s is not None and token.expires_s <= self.clock():
            raise self.refused(hub, "the token has expired")
        return token

    def refused(self, hub: str, reason: str) -> AuthenticationFailed:
        """Return the error for a token that is of no use, or that the peer has refused."""
        return AuthenticationFailed(
            "amqp:unauthorized-access",
            f"{reason}: check {credential_options(self.endpoint)}",
            f"signing in for '{hub}' at {self.endpoint.address}",
        )
