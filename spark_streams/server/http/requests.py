"""Reads a request's head: its arguments, the media type and coding that its client accepts; and defines ``HttpError``.

Spec: RFC 9110 §12.5; zeroeventhub SPEC.md, "Content type and version selection" (691d843).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import Request

from spark_streams.wire.feed.dialect import NDJSON, ZEH, ZEH_V1, Dialect
from spark_streams.wire.feed.fetch_arguments import nearest

MAX_ARGUMENTS: Final = 200
_ANY: Final = ("application/*", "*/*")


class HttpError(HTTPException):
    """A request is refused; the door answers it with a status and a line of text.

    Args:
        status: the HTTP status.
        text: what was wrong, what was expected, what to do; never a secret.
        headers: further headers of the answer.
    """

    def __init__(self, status: int, text: str, headers: dict[str, str] | None = None) -> None:
        line = "".join(each if each.isprintable() else "?" for each in text)
        super().__init__(status, line + "\n", headers)
        self.text = text

    def __str__(self) -> str:
        return self.text


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


def page_type(request: Request, dialect: Dialect) -> str:
    """Return the media type of a page: version 1's own where the client prefers it, else NDJSON.

    Args:
        request: its header ``Accept`` counts, for version 1 only.
        dialect: the dialect of the fetch.

    Raises:
        HttpError: 406, the fetch is of version 1, and the client accepts other versions only.
    """
    if dialect is not Dialect.V1:
        return NDJSON
    weights = _weights(request, "accept")
    version_1 = weights.get(ZEH_V1, 0.0)
    if version_1 > 0 and version_1 >= weights.get(NDJSON, 0.0):
        return ZEH_V1
    taken = {name for name, weight in weights.items() if weight > 0}
    if any(name.startswith(ZEH) for name in taken) and not taken & {ZEH_V1, NDJSON, *_ANY}:
        raise HttpError(406, f"the feed speaks version 1 of ZeroEventHub: expected {ZEH_V1} or {NDJSON} in Accept")
    return NDJSON


def takes_gzip(request: Request) -> bool:
    """Return whether a client accepts gzip, and does not prefer the identity coding (RFC 9110 §12.5.3)."""
    weights = _weights(request, "accept-encoding")
    gzip = weights.get("gzip", weights.get("*", 0.0))
    return gzip > 0 and gzip >= weights.get("identity", 0.0)


def _weights(request: Request, header: str) -> dict[str, float]:
    """Return the names that a header lists, in lower case, with the weight of each (RFC 9110 §12.4.2)."""
    weights: dict[str, float] = {}
    for line in request.headers.getlist(header):
        for each in line.split(","):
            name, *parameters = (part.strip().lower() for part in each.split(";"))
            try:
                weights[name] = next((float(part[2:]) for part in parameters if part.startswith("q=")), 1.0)
            except ValueError:
                continue
    return weights
