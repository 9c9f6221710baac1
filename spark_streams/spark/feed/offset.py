"""The offset of a feed in Spark's checkpoint: its cursors and the other state between micro-batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from spark_streams.client.feed.pushdown import FeedFilter
from spark_streams.client.feed.range_reader import BEGINNING
from spark_streams.errors import CheckpointError
from spark_streams.options.feedapi import FORMAT
from spark_streams.position import CHECKPOINT_VERSION, require_format


@dataclass(frozen=True)
class FeedOffset:
    """Where a micro-batch of a feed ends.

    Args:
        stream: the feed's name.
        cursors: partition id to the cursor after which reading continues.
        spool: id of the query's spool.
        batch: number of the micro-batch that ends here, from 1 on; 0 for the start of a query.
        filters: names and values of the filters to which the cursors belong.
        finished: ids of closed partitions that were read to their end.
        ancestors: ids of partitions that left the feed, to their cursors, oldest first: partitions that descend from
            them may still appear, and start there.
        begins: ids of partitions whose first micro-batch this is, to the cursors after which they start.
        pushed: the part of the query's filter that the feed checks; the cursors belong to it as to ``filters``.
        searching: ids of partitions without a first matching event so far, to the expression that it must match; also
            ids of partitions that left, whose descendants continue to search.
        found: ids of partitions whose first matching event is in this micro-batch, to the expression.
        run: id of the run of the query that planned the micro-batch, which tells its manifest from that of another
            query that has a copy of the checkpoint; empty for the start of a query.
    """

    stream: str
    cursors: Mapping[int, str]
    spool: str
    batch: int = 0
    filters: Mapping[str, str] = field(default_factory=dict)
    finished: frozenset[int] = frozenset()
    ancestors: Mapping[int, str] = field(default_factory=dict)
    begins: Mapping[int, str] = field(default_factory=dict)
    pushed: Mapping[str, FeedFilter] = field(default_factory=dict)
    searching: Mapping[int, str] = field(default_factory=dict)
    found: Mapping[int, str] = field(default_factory=dict)
    run: str = ""

    @property
    def manifest(self) -> str:
        """Name of the micro-batch's manifest in the spool."""
        return f"batch-{self.batch:020d}-{self.run}.json"

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object, whose ``partitions`` have the form of all formats' checkpoints."""
        out: dict[str, Any] = {
            "version": CHECKPOINT_VERSION,
            "format": FORMAT.name,
            "stream": self.stream,
            "partitions": _positions(self.cursors),
            "spool": self.spool,
            "batch": self.batch,
            "filters": dict(sorted(self.filters.items())),
        }
        unless_empty = {
            "finished": sorted(self.finished),
            "ancestors": [[p, cursor] for p, cursor in self.ancestors.items()],
            "begins": _positions(self.begins),
            "pushed": {name: asdict(self.pushed[name]) for name in sorted(self.pushed)},
            "searching": {str(p): self.searching[p] for p in sorted(self.searching)},
            "found": {str(p): self.found[p] for p in sorted(self.found)},
            "run": self.run,
        }
        return {**out, **{key: value for key, value in unless_empty.items() if value}}

    @classmethod
    def from_json(cls, value: Mapping[str, Any], stream: str, filters: Mapping[str, str]) -> FeedOffset:
        """Read what ``to_json`` wrote.

        Args:
            value: the JSON object.
            stream: the feed's name in the options.
            filters: the filters in the options.

        Raises:
            CheckpointError: the object has another version or format, is no checkpoint of a feed, or belongs to another
                feed or other filters.
        """
        require_format(value, FORMAT.name)
        try:
            read = cls(
                str(value["stream"]),
                {int(p): _cursor(c) for p, c in value["partitions"].items()},
                str(value["spool"]),
                int(value["batch"]),
                {str(n): str(v) for n, v in value["filters"].items()},
                frozenset(int(p) for p in value.get("finished", ())),
                {int(p): str(c) for p, c in value.get("ancestors", ())},
                {int(p): _cursor(c) for p, c in value.get("begins", {}).items()},
                {str(n): FeedFilter(**each) for n, each in value.get("pushed", {}).items()},
                {int(p): str(text) for p, text in value.get("searching", {}).items()},
                {int(p): str(text) for p, text in value.get("found", {}).items()},
                str(value.get("run", "")),
            )
        except (KeyError, TypeError, AttributeError, ValueError) as fault:
            raise CheckpointError(f"not a checkpoint of a feed: {fault!r}") from fault
        if read.stream != stream:
            raise CheckpointError(
                f"the checkpoint is of feed '{read.stream}', but the options name '{stream}': use another "
                "checkpointLocation for another feed, or option 'stream' to keep the name when the address has changed"
            )
        if dict(read.filters) != dict(filters):
            raise CheckpointError(
                f"the checkpoint's cursors belong to {_shown(read.filters)}, but the options have {_shown(filters)}: "
                "cursors are valid for the identical filters only (FeedAPI, 'filter-*'); go back to the old ones, or "
                "start again with another checkpointLocation"
            )
        return read


def _positions(cursors: Mapping[int, str]) -> dict[str, str | dict[str, str]]:
    return {str(p): "earliest" if cursors[p] == BEGINNING else {"after": cursors[p]} for p in sorted(cursors)}


def _cursor(value: object) -> str:
    if value == "earliest":
        return BEGINNING
    if isinstance(value, Mapping) and len(value) == 1 and isinstance(value.get("after"), str):
        return str(value["after"])
    raise ValueError(f"{value!r} is no position of a feed")


def _shown(filters: Mapping[str, str]) -> str:
    return ", ".join(f"filter-{n}={v}" for n, v in sorted(filters.items())) or "no filters"
