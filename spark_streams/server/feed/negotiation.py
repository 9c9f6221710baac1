"""What a client would rather be sent: which media type, which coding.

Spec: RFC 9110 §12.5; zeroeventhub SPEC.md, "Content type and version selection" (691d843).
"""

from __future__ import annotations

from typing import Final

from starlette.requests import Request

from spark_streams.server.feed.http_errors import HttpError
from spark_streams.wire.feed.dialect import NDJSON, ZEH, ZEH_V1, Dialect

__all__ = ["page_type", "takes_gzip"]

_ANY: Final = ("application/*", "*/*")


def page_type(request: Request, dialect: Dialect) -> str:
    """Return the media type of a page: version 1's own where it is asked for, else NDJSON, as for the other dialects.

    Raises:
        Refusal: version 1 was fetched, and other versions of it are all that the client takes.
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
    """Return whether a client takes gzip, and would not rather have the bytes as they are (RFC 9110 §12.5.3)."""
    weights = _weights(request, "accept-encoding")
    gzip = weights.get("gzip", weights.get("*", 0.0))
    return gzip > 0 and gzip >= weights.get("identity", 0.0)


def _weights(request: Request, header: str) -> dict[str, float]:
    """Return what a header lists, in lower case, with the weight of each (RFC 9110 §12.4.2)."""
    weights: dict[str, float] = {}
    for line in request.headers.getlist(header):
        for each in line.split(","):
            name, *parameters = (part.strip().lower() for part in each.split(";"))
            try:
                weights[name] = next((float(part[2:]) for part in parameters if part.startswith("q=")), 1.0)
            except ValueError:
                continue
    return weights
