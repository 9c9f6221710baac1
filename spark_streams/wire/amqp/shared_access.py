"""Signs and checks the tokens by which Event Hubs grants access: shared access signatures.

::

    SharedAccessSignature sr=<uri>&sig=<signature>&se=<expiry>&skn=<rule>

``signature`` is the HMAC-SHA256, by the rule's key, of the encoded uri, a newline and the expiry; all parts are
percent-encoded as in forms. A token covers everything below its uri, compared without case.

Spec: docs/specifications.md, H-1, H-2.
"""

from __future__ import annotations

import base64
import hmac
from hashlib import sha256
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, quote_plus, urlsplit

from spark_streams.errors import LocalProtocolError

_SCHEME: Final = "SharedAccessSignature "


class SharedAccessSignature(NamedTuple):
    """A token.

    Args:
        uri: what it grants access to, such as ``sb://host/hub``.
        rule: the name of the rule that has the key.
        expires_s: when it runs out, in seconds since the epoch.
        signature: as the token has it, in base64.
    """

    uri: str
    rule: str
    expires_s: int
    signature: str

    def __repr__(self) -> str:
        return f"SharedAccessSignature({self.uri!r}, {self.rule!r}, {self.expires_s})"  # a signature is a secret

    @classmethod
    def signed(cls, uri: str, rule: str, key: str, expires_s: int) -> SharedAccessSignature:
        """Return a token of our own."""
        return cls(uri, rule, expires_s, _signature(uri, key, expires_s))

    @classmethod
    def parsed(cls, text: str) -> SharedAccessSignature:
        """Return the token in a text; whether it is signed right is not checked.

        Raises:
            LocalProtocolError: the text is no such token; the message has nothing of it.
        """
        parts = dict(parse_qsl(text.removeprefix(_SCHEME))) if text.startswith(_SCHEME) else {}
        missing = [name for name in ("sr", "sig", "se", "skn") if not parts.get(name)]
        if missing or not (parts["se"].isascii() and parts["se"].isdigit()):
            what = f"without {', '.join(missing)}" if missing else "with an expiry 'se' that is no number"
            raise LocalProtocolError(f"expected 'SharedAccessSignature sr=…&sig=…&se=…&skn=…', got a text {what}")
        return cls(parts["sr"], parts["skn"], int(parts["se"]), parts["sig"])

    @property
    def text(self) -> str:
        """The token as it is sent."""
        encoded = (quote_plus(each) for each in (self.uri, self.signature, str(self.expires_s), self.rule))
        return _SCHEME + "sr={}&sig={}&se={}&skn={}".format(*encoded)

    def is_signed_by(self, key: str) -> bool:
        """Return whether a key has made the signature, in a time that does not depend on the signature."""
        return hmac.compare_digest(self.signature.encode(), _signature(self.uri, key, self.expires_s).encode())

    def covers(self, address: str) -> bool:
        """Return whether the token grants access to an address of the namespace, such as ``hub/Partitions/0``."""
        granted, wanted = ([part for part in urlsplit(f"//h/{each}").path.lower().split("/") if part]
                           for each in (urlsplit(self.uri).path, address))  # fmt: skip
        return wanted[: len(granted)] == granted


def _signature(uri: str, key: str, expires_s: int) -> str:
    signed = f"{quote_plus(uri)}\n{expires_s}".encode()
    return base64.b64encode(hmac.new(key.encode(), signed, sha256).digest()).decode()
