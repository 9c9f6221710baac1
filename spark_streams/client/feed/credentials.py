"""Signs requests to a feed with a bearer token, with a user's name and password, or not at all."""

from __future__ import annotations

import requests

from spark_streams.endpoint import Endpoint
from spark_streams.errors import OptionError
from spark_streams.redaction import remember
from spark_streams.secrets import FreshSecret


class Credentials(requests.auth.AuthBase):
    """Signs requests with the current credentials of one feed.

    Args:
        endpoint: the feed's endpoint; its token or password may be a ``FreshSecret``.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        secret = endpoint.token if endpoint.token is not None else endpoint.password
        self._fresh = secret if isinstance(secret, FreshSecret) else None
        self._stamp: object = None
        self._secret = None if secret is None or self._fresh is not None else secret.reveal()

    def refresh(self) -> None:
        """Read the secret if it has not been read yet, or may have changed.

        Raises:
            OptionError: the secret cannot be read, or no header can carry it.
        """
        if self._fresh is not None and (self._secret is None or self._stamp != self._fresh.stamp()):
            self.renew()

    def renew(self) -> bool:
        """Read the secret; return whether it has changed.

        Raises:
            OptionError: the secret cannot be read, or no header can carry it.
        """
        if self._fresh is None:
            return False
        stamp = self._fresh.stamp()  # before the secret: a secret written in between is read again later
        secret = self._fresh.reveal()
        self._stamp = stamp
        if self._secret == secret:
            return False
        if self._endpoint.token is not None and not (secret.isascii() and secret.isprintable()):
            raise OptionError(
                self._fresh.option,
                f"'{self._fresh.source}' gives characters that no HTTP header can carry, expected printable ASCII",
            )
        self._secret = secret
        return True

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Sign a request, and remember the secret, so that no message shows it."""
        endpoint, secret = self._endpoint, self._secret or ""
        remember(secret, endpoint.username if endpoint.token is None else None)
        if endpoint.token is not None:
            request.headers["Authorization"] = f"Bearer {secret}"  # RFC 6750
        elif endpoint.username is not None:
            requests.auth.HTTPBasicAuth(endpoint.username.encode(), secret.encode())(request)
        return request
