"""Answers other than 200: what a client is told that asks for what cannot be."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import PlainTextResponse, Response

__all__ = ["HttpError"]


class HttpError(Exception):
    """A request is refused.

    Args:
        status: HTTP status.
        text: what was wrong, what was expected, what to do; never a secret.
        headers: further headers of the answer.
    """

    def __init__(self, status: int, text: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, text)
        self.status = status
        self.text = text
        self.headers = headers

    def response(self) -> Response:
        """Return the answer: the text on a line of its own."""
        line = "".join(each if each.isprintable() else "?" for each in self.text)
        return PlainTextResponse(line + "\n", self.status, self.headers)
