"""The three dialects of feeds and the names that each of them uses, and the lines that are published to our door.

=============  =========================  ==========================  ==========================
..             v1 (ZeroEventHub)          v2a (FeedAPI of 2023)       v2b (FeedAPI, today's)
=============  =========================  ==========================  ==========================
discovery      none                       base, no arguments          base, no arguments
fetch          base                       base                        base + ``/events``
recognised by  ``n``                      ``partition``               ``token``
event member   ``data``                   ``event``                   ``data``
page size      ``pagesizehint``           ``pageSizeHint``            ``pagesizehint``
=============  =========================  ==========================  ==========================

Spec: feedapi-spec SPEC.md of 2023-05 (v2a) and of 2025-05 (v2b), zeroeventhub SPEC.md (v1);
docs/specifications.md, F-29, F-30.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

NDJSON: Final = "application/x-ndjson"
"""The media type of lines of JSON; it does not tell their dialect."""
ZEH: Final = "application/zeh-"
"""The prefix of the media types of ZeroEventHub's versions (zeroeventhub SPEC.md, "Content type", 691d843)."""
ZEH_V1: Final = f"{ZEH}v1"
"""The media type of version 1; clients should request it, servers may answer NDJSON."""


class Dialect(Enum):
    """A version of the protocol; the value is its name in option ``dialect``.

    ``PUBLISHED`` are the lines of a request that publishes, an extension of this project's server: events alone, in
    either member, and nothing that would not be stored.
    """

    V1 = "v1"
    V2A = "v2a"
    V2B = "v2b"
    PUBLISHED = "published"

    @property
    def event_key(self) -> str:
        """The member of a line that holds an event."""
        return "event" if self in (Dialect.V2A, Dialect.PUBLISHED) else "data"

    @property
    def other_event_key(self) -> str:
        """The member of an event in the other dialects; accepted where ``event_key`` and a cursor are missing."""
        return "data" if self.event_key == "event" else "event"
