"""Settings of the log's window."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Final

from spark_streams.server.http.config import HttpConfig

_SOURCE: Final = re.compile(r"[^\s;,'\"]+")
"""The text between two blanks of a Content-Security-Policy: no source has these characters (CSP 3 §2.3.1)."""


@dataclass(frozen=True)
class WebConfig(HttpConfig):
    """Settings of the window: those of ``HttpConfig``, and these.

    Args:
        monitors: users who see every user's connections, readers, writers, groups and stored offsets; other users with
            permissions see their own. Users whom no permissions limit see all anyway.
        frame_ancestors: sites that may show the page in a frame, as in a policy of content security, such as
            ``http://localhost:*`` for a notebook's; by default none may.
        session_ms: how long a sign-in lasts.
        max_sessions: the most sign-ins at a time; a further one ends the oldest of the user with the most.
        max_watchers: the most pages that get live figures at a time; a further one takes the oldest place of the
            user with the most. The page that loses its place keeps its figures, and asks again after a minute.
        page_rows: the most rows of a table on one page; the others are on further pages.
        shown_bytes: the most bytes of an event's body that are shown; the others are on request.
    """

    protocol: ClassVar = "web"
    positive: ClassVar = (
        "session_ms", "max_sessions", "max_watchers", "page_rows", "shown_bytes", "bodies_bytes", *HttpConfig.positive,
    )  # fmt: skip

    port: int = 8090
    max_body_bytes: int = 1 << 20
    bodies_bytes: int = 32 << 20
    monitors: frozenset[str] = frozenset()
    frame_ancestors: frozenset[str] = frozenset()
    session_ms: int = 12 * 3_600_000
    max_sessions: int = 1_000
    max_watchers: int = 64
    page_rows: int = 100
    shown_bytes: int = 64 << 10

    def __post_init__(self) -> None:
        super().__post_init__()
        for source in self.frame_ancestors:
            if not _SOURCE.fullmatch(source):
                raise ValueError(f"frame_ancestors has {source!r}, expected a site such as 'http://localhost:*'")

    @property
    def answer_headers(self) -> dict[str, str]:
        """The headers of every answer.

        Everything is loaded from the log's window itself, no script or style stands in a page, and no form goes
        elsewhere (CSP 3). No other site may show a page in a frame, unless ``frame_ancestors`` names it.
        """
        framed = " ".join(["'self'", *sorted(self.frame_ancestors)]) if self.frame_ancestors else "'none'"
        return {
            **super().answer_headers,
            "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
            f"connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors {framed}",
            "Referrer-Policy": "same-origin",  # with no-referrer a form would come from the origin "null"
            "Cross-Origin-Opener-Policy": "same-origin",
            "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
            "Cache-Control": "no-store",
            # for browsers that know no frame-ancestors
            **({} if self.frame_ancestors else {"X-Frame-Options": "DENY"}),
        }
