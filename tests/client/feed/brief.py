"""A feed of version 1 that ends with an empty body: it answers no checkpoint where it has no event."""

from __future__ import annotations

import json

from tests.client.feed.scripted import Reply, Request, Scripted


class BriefFeed(Scripted):
    """A feed of one partition; event ``n`` is ``{"n": n}``, its cursor ``cN``.

    Args:
        events: how many there are.
        page: events in a response.
    """

    def __init__(self, events: int, page: int = 2) -> None:
        super().__init__(self._respond)
        self.events = events
        self.page = page

    def _respond(self, asked: Request) -> Reply:
        if "n" not in asked:
            return Reply(b"handshake error: partition count missing", 400, "text/plain")
        cursor = asked["cursor0"]
        first = {"_first": 0, "_last": self.events}.get(cursor)
        first = int(cursor[1:]) + 1 if first is None else first
        lines = [
            line
            for n in range(first, min(first + self.page, self.events))
            for line in ({"partition": 0, "data": {"n": n}}, {"partition": 0, "cursor": f"c{n}"})
        ]
        return Reply("".join(json.dumps(line) + "\n" for line in lines).encode())
