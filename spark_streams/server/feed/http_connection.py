"""One HTTP connection: uvicorn's, without what a peer could make it stumble over."""

from __future__ import annotations

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["HttpConnection"]


class HttpConnection(H11Protocol):
    """A connection whose peer may send what it likes, at any time."""

    def data_received(self, data: bytes) -> None:
        """Take bytes; those that come after the end, which uvicorn would complain of in its log, are dropped."""
        if not self.transport.is_closing():
            super().data_received(data)

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are no HTTP, if there is room for an answer, and close.

        Bytes that break off a request body, or follow the last request, come when its answer may be under way: h11 then
        refuses a second one, and refuses the application's after this one.
        """
        answered = self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE)
        if self.cycle is not None and not self.cycle.response_complete:
            # The application is told that its client has gone, and what it sends is dropped.
            answered = answered or self.cycle.response_started
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if answered:
            self.transport.close()
        else:
            super().send_400_response(msg)
