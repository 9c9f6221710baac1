"""Offsets that named consumers store: in the log's state store, for each creation of a stream.

Spec: notes, section 11.
"""

from __future__ import annotations

import json
from typing import Final

from spark_streams.log import ReferenceLog
from spark_streams.server.rabbit.topology import Served

__all__ = ["StoredOffsets"]

NAMESPACE: Final = "rabbitmq-offsets"


class StoredOffsets:
    """All stored offsets.

    Args:
        log: the log.
    """

    def __init__(self, log: ReferenceLog) -> None:
        self._log = log

    def store(self, served: Served, reference: str, offset: int) -> None:
        """Remember an offset; it survives kill -9 when this returns."""
        self._log.state.put(NAMESPACE, _key(served, reference), b"%d" % offset)

    def query(self, served: Served, reference: str) -> int | None:
        """Return what was stored last, None when nothing was."""
        stored = self._log.state.get(NAMESPACE, _key(served, reference))
        return None if stored is None else int(stored)

    def forget(self, incarnation: str) -> None:
        """Remove what was stored about a stream that is gone."""
        for key, _ in self._log.state.items(NAMESPACE):
            if json.loads(key)[0].startswith(f"{incarnation}/"):
                self._log.state.delete(NAMESPACE, key)


def _key(served: Served, reference: str) -> str:
    return json.dumps([served.key, reference])
