"""Reads a request's head: its arguments, the media type and coding that its client accepts; and defines ``HttpError``.

This module needs no starlette: the code that publishes to a data directory, without a server, raises ``HttpError`` too.

Spec: RFC 9110 §12.5.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl

from spark_streams.wire.feed.fetch_arguments import nearest

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

MAX_ARGUMENTS: Final = 200
CLOSE: Final = {"Connection": "close"}


class HttpError(Exception):
    """A request is refused; the door answers it with a status and a line of text.

    Args:
        status: the HTTP status.
        text: what was wrong, what was expected, what to do; never a secret.
        headers: further headers of the answer.
    """

    def __init__(self, status: int, text: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(status, text, headers)
        self.status_code = status
        self.text = text
        self.headers = headers

    def __str__(self) -> str:
        return self.text

    def answer(self) -> Response:
        """Return the answer."""
        from starlette.responses import PlainTextResponse

        line = "".join(each if each.isprintable() else "?" for each in self.text)
        return PlainTextResponse(line + "\n", self.status_code, self.headers)


def arguments(request: Request) -> list[tuple[str, str]]:
    """Return the name and value of each argument of a request, in their order.

    Raises:
        HttpError: 400, the arguments are no UTF-8, or too many.
    """
    try:
        return parse_qsl(
            request.scope["query_string"].decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=MAX_ARGUMENTS,
        )
    except ValueError as fault:
        raise HttpError(400, f"the query cannot be read: {fault}") from fault


def known_arguments(request: Request, known: Collection[str]) -> dict[str, str]:
    """Return the arguments of a request that takes only some.

    Args:
        request: the request.
        known: the names of the arguments that it takes.

    Raises:
        HttpError: 400, the arguments are no UTF-8 or too many, or an argument is not known or given twice.
    """
    given: dict[str, str] = {}
    for name, value in arguments(request):
        if name not in known:
            meant = nearest(name, known)
            takes = ", ".join(known) or "none"
            hint = f"did you mean {meant}? There is {takes}" if meant else f"there is {takes}"
            raise HttpError(400, f"{request.method} has no argument '{name:.40}' here: {hint}")
        if name in given:
            raise HttpError(400, f"argument {name} is given twice")
        given[name] = value
    return given


def takes_gzip(request: Request) -> bool:
    """Return whether a client accepts gzip, and does not prefer the identity coding (RFC 9110 §12.5.3)."""
    taken = weights(request, "accept-encoding")
    gzip = taken.get("gzip", taken.get("*", 0.0))
    return gzip > 0 and gzip >= taken.get("identity", 0.0)


def weights(request: Request, header: str) -> dict[str, float]:
    """Return the names that a header lists, in lower case, with the weight of each (RFC 9110 §12.4.2)."""
    found: dict[str, float] = {}
    for line in request.headers.getlist(header):
        for each in line.split(","):
            name, *parameters = (part.strip().lower() for part in each.split(";"))
            try:
                found[name] = next((float(part[2:]) for part in parameters if part.startswith("q=")), 1.0)
            except ValueError:
                continue
    return found
