"""Signs and checks the tokens by which Event Hubs grants access: shared access signatures.

::

    SharedAccessSignature sr=<uri>&sig=<signature>&se=<expiry>&skn=<rule>

``signature`` is the HMAC-SHA256, by the rule's key, of the encoded uri, a newline and the expiry; all parts are
percent-encoded. Programs encode differently (``%2f``, ``%20``), so what is signed is the text as it stands in the
token. A token covers its uri and what lies below it in the namespace.

Spec: docs/specifications.md, H-1, H-2.
"""

from __future__ import annotations

import base64
import hmac
import re
from hashlib import sha256
from typing import Final, NamedTuple
from urllib.parse import quote_plus, unquote_plus

from spark_streams.errors import LocalProtocolError

_SCHEME: Final = "SharedAccessSignature "
_PARTS: Final = ("sr", "sig", "se", "skn")
_MOST_DIGITS: Final = 15
"""Digits of an expiry, which is also used as a float."""
_URI: Final = re.compile(r"(?is)([a-z][a-z0-9+.-]*://)?([\w.-]+|\[[\w:.]+\])(?::[0-9]+)?(?:/([^/].*)?)?")
_NAMESPACE: Final = re.compile(
    r"(?i)[\w-]+\.servicebus\.(windows\.net|usgovcloudapi\.net|chinacloudapi\.cn|cloudapi\.de)"
)
"""The names of the hosts of Azure's namespaces, and of no others."""
_BARE_HOST: Final = re.compile(r"localhost\.?|\[.*|.*\w\.\w.*", re.IGNORECASE)
"""Names that can only be a host's: a single word may be a hub's as well."""


class SharedAccessSignature(NamedTuple):
    """A token.

    Args:
        uri: what it grants access to, such as ``sb://host/hub``.
        rule: the name of the rule that has the key.
        expires_s: when it runs out, in seconds since the epoch.
        signature: as the token has it, in base64.
        signed_text: what was signed.
    """

    uri: str
    rule: str
    expires_s: int
    signature: str
    signed_text: str

    def __repr__(self) -> str:
        return f"SharedAccessSignature({self.uri!r}, {self.rule!r}, {self.expires_s})"  # a signature is a secret

    @classmethod
    def signed(cls, uri: str, rule: str, key: str, expires_s: int) -> SharedAccessSignature:
        """Return a token of our own."""
        text = f"{quote_plus(uri)}\n{expires_s}"
        return cls(uri, rule, expires_s, _signature(text, key), text)

    @classmethod
    def parsed(cls, text: str) -> SharedAccessSignature:
        """Return the token in a text; its signature is not verified.

        Raises:
            LocalProtocolError: the text is no such token; the message does not quote it.
        """
        encoded: dict[str, str] = {}
        if text.startswith(_SCHEME):
            encoded = {name: value for name, _, value in (p.partition("=") for p in text[len(_SCHEME) :].split("&"))}
        parts = {name: unquote_plus(encoded.get(name, "")) for name in _PARTS}
        missing = [name for name, value in parts.items() if not value]
        what = f"without {', '.join(missing)}" if missing else ""
        if not what and not (parts["se"].isascii() and parts["se"].isdigit() and len(parts["se"]) <= _MOST_DIGITS):
            what = "with an expiry 'se' that is no number of seconds"
        if what:
            raise LocalProtocolError(f"expected 'SharedAccessSignature sr=…&sig=…&se=…&skn=…', got a text {what}")
        signed_text = f"{encoded['sr']}\n{encoded['se']}"
        return cls(parts["sr"], parts["skn"], int(parts["se"]), parts["sig"], signed_text)

    @property
    def text(self) -> str:
        """The token as it is sent."""
        uri, _, expiry = self.signed_text.partition("\n")
        return f"{_SCHEME}sr={uri}&sig={quote_plus(self.signature)}&se={expiry}&skn={quote_plus(self.rule)}"

    def is_signed_by(self, key: str) -> bool:
        """Return whether a key has made the signature, in a time that does not depend on the signature."""
        return hmac.compare_digest(self.signature.encode(), _signature(self.signed_text, key).encode())

    @property
    def resource(self) -> tuple[str, str] | None:
        """The host, and the path below it, such as ``hub/Partitions/0``; without a path it is the whole namespace.

        The host is empty where it can only be a host: between a scheme and a path (``sb://log/hub``), or one of Azure's
        (``ns.servicebus.windows.net``). Otherwise the caller has to check that it is the door's own, as it may be the
        name of a hub whose host was left out. None where the uri is not understood.
        """
        match = _URI.fullmatch(self.uri)
        scheme, host, path = match.groups(default="") if match is not None else ("", "", "")
        if not ((scheme and path) or _NAMESPACE.fullmatch(host)):
            return (host.strip("[]"), path.rstrip("/")) if _BARE_HOST.fullmatch(host) else None
        return "", path.rstrip("/")


def _signature(text: str, key: str) -> str:
    return base64.b64encode(hmac.new(key.encode(), text.encode(), sha256).digest()).decode()
