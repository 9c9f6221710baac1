"""Makes the client's TLS contexts, and the advice when TLS fails, in the same words for all protocols."""

from __future__ import annotations

import ssl
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

from spark_streams.endpoint import Tls
from spark_streams.errors import OptionError
from spark_streams.protocols import Protocol

NO_EXTERNAL: Final = (
    "it lets nobody in by a certificate, option 'tls.certFile' (SASL EXTERNAL): give a user and password too, or have "
    "it take certificates"
)
"""For a client that has a certificate and no user, at a peer that wants a user."""
STRANGERS_CERTIFICATE: Final = (
    "the peer trusts the certificate of option 'tls.certFile', and lets in no user of the name in it: have the user "
    "created there, or take the certificate of another one"
)
"""For a client that has signed in with its certificate, and was refused."""
_CLOCK: Final = "and check the clock of this machine"
_ALERTS: Final = {
    "CERTIFICATE_REQUIRED": "it asks for a client certificate: set options 'tls.certFile' and 'tls.keyFile'",
    # TLS 1.2 sends this in place of CERTIFICATE_REQUIRED.
    "HANDSHAKE_FAILURE": "it may ask for a client certificate, options 'tls.certFile' and 'tls.keyFile', or speak "
    "other versions of TLS",
    "UNKNOWN_CA": "it does not trust the authority of our certificate: option 'tls.certFile' needs one of an authority "
    "that it takes, with the certificates in between",
    "CERTIFICATE_EXPIRED": "our certificate has expired: option 'tls.certFile' needs a new one",
    "CERTIFICATE_REVOKED": "our certificate was revoked: option 'tls.certFile' needs a new one",
    "BAD_CERTIFICATE": "it does not take our certificate, option 'tls.certFile'",
    "UNSUPPORTED_CERTIFICATE": "it does not take our certificate, option 'tls.certFile': is it one for clients",
    "CERTIFICATE_UNKNOWN": "it does not take our certificate, option 'tls.certFile'",
}
"""The alert that a peer sends before it closes (RFC 8446 §6.2), as OpenSSL spells it, to what to do."""
_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST")


def tls_context(tls: Tls) -> ssl.SSLContext:
    """Return the context for a connection: it uses TLS 1.2 or later, and always checks the peer's certificate.

    Raises:
        OptionError: a file does not exist, or cannot be used.
    """
    for option, file in (("tls.caFile", tls.ca_file), ("tls.certFile", tls.cert_file), ("tls.keyFile", tls.key_file)):
        if file is not None and not Path(file).is_file():
            raise OptionError(option, f"there is no file '{file}', expected a PEM file on every machine of the cluster")
    try:
        context = ssl.create_default_context(cafile=tls.ca_file)
    except (ssl.SSLError, OSError) as fault:
        raise OptionError("tls.caFile", f"'{tls.ca_file}' cannot be used: {fault}; expected a PEM file") from fault
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = tls.verify_hostname
    if tls.cert_file is not None:
        try:
            context.load_cert_chain(tls.cert_file, tls.key_file, partial(_refuse_encrypted, tls))
        except (ssl.SSLError, OSError) as fault:
            raise OptionError(
                "tls.certFile", f"'{tls.cert_file}' and its key cannot be used: {fault}; expected PEM files"
            ) from fault
    return context


def _refuse_encrypted(tls: Tls) -> NoReturn:
    """Fail where OpenSSL wants the passphrase of a key: without this it would ask on the terminal, and wait."""
    option, file = ("tls.certFile", tls.cert_file) if tls.key_file is None else ("tls.keyFile", tls.key_file)
    raise OptionError(
        option,
        f"the key in '{file}' is encrypted, and a task has nobody to ask for its passphrase: take one that is not "
        "(openssl pkey -in KEY -out NEW), in a file that only its user can read",
    )


def certificate_hint(tls: Tls) -> str:
    """Return what to check, to follow "if it", where a peer with TLS silently closes the connection.

    Servers of Python's asyncio do that to clients whose certificate they do not trust, or that show none.
    """
    hint = "wants a client certificate, check options 'tls.certFile' and 'tls.keyFile'"
    return hint if tls.cert_file is None else f"{hint}: is ours signed by an authority that it trusts"


def is_no_tls(fault: BaseException) -> bool:
    """Return whether the peer sent something other than TLS, as a port without TLS does."""
    return isinstance(fault, ssl.SSLError) and fault.reason in _NO_TLS


def plain_port_advice(reason: str, protocol: Protocol, option: str = "url") -> str:
    """Return what to do when TLS does not work: perhaps the port is a plain one.

    Args:
        reason: what happened.
        protocol: what was to be spoken there.
        option: the option that names the peer.
    """
    if_plain = f"TLS does not work there ({reason}): if it is a plain port"
    if option != "url":
        return f"{if_plain}, say UseDevelopmentEmulator=true in '{option}'"
    other = f"write {protocol.scheme}:// instead of {protocol.tls_scheme}:// in option 'url'"
    return f"{if_plain}, {other}, without 'tls.' options"


def certificate_advice(fault: BaseException, where: str) -> str | None:
    """Return why one side does not accept the other's certificate, and what to do; None for another reason.

    With TLS 1.3 the client learns only when it reads the first answer that the peer does not accept its certificate.

    Args:
        fault: any error.
        where: the peer, as ``host:port``.
    """
    if isinstance(fault, ssl.SSLCertVerificationError):
        return _unverified(fault.verify_message or str(fault), where)
    if not isinstance(fault, ssl.SSLError):
        return None
    text = (fault.reason or str(fault)).upper().replace(" ", "_")
    found = next((todo for name, todo in _ALERTS.items() if name in text), None)
    return None if found is None else f"the peer refused our side of TLS ({text.lower().replace('_', ' ')}): {found}"


def _unverified(reason: str, where: str) -> str:
    if "ostname mismatch" in reason or "IP address mismatch" in reason:
        todo = f"dial a name that it holds, or set option 'tls.verifyHostname' to 'false' if you trust {where}"
    elif "has expired" in reason:
        todo = f"whoever runs {where} has to renew it; {_CLOCK[4:]}"
    elif "not yet valid" in reason:
        todo = f"wait until it is, {_CLOCK}"
    else:
        todo = "set option 'tls.caFile' to the PEM file of the authority that signed it"
    return f"its certificate does not verify: {reason}: {todo}"
