"""Signs requests to a feed with a bearer token, with a user's name and password, or not at all."""

from __future__ import annotations

from collections.abc import Callable

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
        self._secret: str | None = None
        self._sign: Callable[[requests.PreparedRequest], requests.PreparedRequest] = _nothing
        if self._fresh is None:
            self._use(None if secret is None else secret.reveal())

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
        self._use(secret)
        return True

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Sign a request, and remember the secret, so that no message shows it."""
        remember(self._secret or "", self._endpoint.username if self._endpoint.token is None else None)
        return self._sign(request)

    def _use(self, secret: str | None) -> None:
        self._secret = secret
        if self._endpoint.token is not None:
            self._sign = _Bearer(secret or "")
        elif self._endpoint.username is not None:
            self._sign = requests.auth.HTTPBasicAuth(self._endpoint.username.encode(), (secret or "").encode())


class _Bearer(requests.auth.AuthBase):
    """Sends a bearer token (RFC 6750)."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._token}"
        return request


def _nothing(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request
