"""Decode and encode the discovery document: the partitions of a feed, and the options that it offers.

::

    {"partitions": [{"id": "0", "closed": true, "lastCursor": "f1ce"},
                    {"id": "1", "startsAfterPartition": "0"},
                    {"id": "3", "cursorFromPartitions": ["2"]}],
     "token": "…"  (v2b),  "stream": true, "exactlyOnce": true, "filters": ["subject"]}

A feed may add ``"filterFields": {"subject": "/subject"}``, an extension of ours: the parts that its filters compare
exactly (ADR 18). Our log adds ``"settings"``, those of its stream by their names.

Ids and references are strings in the documents and numbers in the Go library; the decoder accepts both (C-14, F-3), and
also ``startsAfterParent`` and ``splitFromAncestors``, the other spellings of the overview (F-1, F-2).

Spec: feedapi-spec SPEC.md, "Discovery call"; docs/specifications.md, P-01 to P-12.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from spark_streams.errors import LocalProtocolError, ProtocolError, RemoteProtocolError
from spark_streams.redaction import quoted
from spark_streams.wire.feed.strict_json import load_json, shown

MAX_PARTITION_ID: Final = 32767
"""The highest partition id, inclusive: ids are 16-bit integers that are not negative."""
_ID: Final = re.compile(r"0|[1-9][0-9]{0,4}")


@dataclass(frozen=True)
class FeedPartition:
    """One partition of a feed.

    Args:
        id: 0 to ``MAX_PARTITION_ID``, inclusive.
        closed: whether the feed will never add an event to it.
        last_cursor: the last cursor at the time of the poll; closed partitions have one, others may.
        starts_after: the closed partition whose events come before those of this one (method 1).
        cursor_from: partitions, no longer in the list, whose cursors are valid here (method 2), in any order.
        filters: filters that only this partition offers, besides the feed's (F-4).
    """

    id: int
    closed: bool = False
    last_cursor: str | None = None
    starts_after: int | None = None
    cursor_from: tuple[int, ...] = ()
    filters: tuple[str, ...] = ()


@dataclass(frozen=True)
class Discovery:
    """A feed's answer to a GET without arguments.

    Args:
        partitions: in the order of the answer; there may be none (F-15).
        token: v2b's token, which every fetch must repeat and which may be empty; None means v2a.
        stream: whether the feed offers argument ``stream`` (v2a).
        exactly_once: whether the feed never repeats an event.
        filters: names of the ``filter-<name>`` arguments that the feed offers (v2a).
        filter_fields: names of filters to the part that each compares for equality as text: ``key``, the member of an
            event's line, or a JSON pointer into the event (v2a, an extension); other values are skipped.
        settings: what the feed keeps and how (an extension); None where it does not tell.
    """

    partitions: tuple[FeedPartition, ...]
    token: str | None = None
    stream: bool = False
    exactly_once: bool = False
    filters: tuple[str, ...] = ()
    filter_fields: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str | int | None] | None = None


_Id = int | float | str
_Flag = bool | dict[str, Any] | None


class _Partition(msgspec.Struct, rename="camel", omit_defaults=True):
    """A partition as a document has it; null counts as missing, and an object of a flag as true."""

    id: _Id
    closed: _Flag = None
    last_cursor: str | None = None
    starts_after_partition: _Id | None = None
    cursor_from_partitions: Sequence[_Id] | None = None
    filters: list[str] | None = None
    starts_after_parent: _Id | None = None
    split_from_ancestors: Sequence[_Id] | None = None


class _Document(msgspec.Struct, rename="camel", omit_defaults=True):
    partitions: list[_Partition] | None  # Go writes an empty list as null
    token: str | None = None
    stream: _Flag = None
    filters: list[str] | None = None
    filter_fields: Any = None
    exactly_once: _Flag = None
    settings: Any = None


def decode_discovery(body: bytes) -> Discovery:
    """Read a discovery document.

    Raises:
        RemoteProtocolError: it is no JSON object with ``partitions``; an id is missing, repeated or out of range; a
            reference is no id; ``startsAfterPartition`` names no closed partition of the list (P-06) or comes together
            with ``cursorFromPartitions`` (P-07); two spellings of one member disagree; ``cursorFromPartitions`` names
            a partition that is still listed (P-08).
    """
    document = load_json(body, "discovery document")
    if not isinstance(document, dict) or "partitions" not in document:
        raise RemoteProtocolError(
            f"discovery document: expected a JSON object with 'partitions', got {shown(body)}: is the url a feed's?"
        )
    try:
        told = msgspec.convert(document, _Document)
    except msgspec.ValidationError as fault:
        raise RemoteProtocolError(f"discovery document: {fault}") from None
    discovery = Discovery(
        tuple(_partition(each) for each in told.partitions or ()),
        told.token,
        _flag(told.stream),
        _flag(told.exactly_once),
        tuple(told.filters or ()),
        _fields(told.filter_fields),
        _settings(told.settings),
    )
    _check(discovery, RemoteProtocolError)
    return discovery


def encode_discovery(discovery: Discovery, *, numbers: bool = False) -> bytes:
    """Write a discovery document, without a newline.

    Args:
        discovery: the content; ``stream`` and ``filters`` are left out under v2b, which does not have them.
        numbers: whether to write references as numbers, as the Go library writes and needs; ``id`` is always a string.

    Raises:
        LocalProtocolError: ``discovery`` breaks a rule that ``decode_discovery`` checks, or a closed partition has no
            ``last_cursor`` (P-05).
    """
    _check(discovery, LocalProtocolError)

    def reference(partition: int) -> int | str:
        return partition if numbers else str(partition)

    listed = []
    for each in discovery.partitions:
        if each.closed and each.last_cursor is None:
            raise LocalProtocolError(f"closed partition {each.id} has no last cursor")
        after = None if each.starts_after is None else reference(each.starts_after)
        ancestors = [reference(parent) for parent in each.cursor_from] or None
        filters = list(each.filters) or None
        listed.append(_Partition(str(each.id), each.closed or None, each.last_cursor, after, ancestors, filters))
    settings = None if discovery.settings is None else dict(discovery.settings)
    document = _Document(listed, discovery.token, exactly_once=discovery.exactly_once, settings=settings)
    if discovery.token is None:
        document.stream, document.filters = discovery.stream, list(discovery.filters)
        document.filter_fields = dict(discovery.filter_fields) or None
    return msgspec.json.encode(document)


def _partition(told: _Partition) -> FeedPartition:
    number = _id(told.id, "'id' of a partition")
    where = f"partition {number}"
    both = "'startsAfterPartition' and 'startsAfterParent'"
    after = _either(where, both, told.starts_after_partition, told.starts_after_parent)
    both = "'cursorFromPartitions' and 'splitFromAncestors'"
    ancestors = _either(where, both, told.cursor_from_partitions, told.split_from_ancestors)
    return FeedPartition(
        number,
        _flag(told.closed),
        told.last_cursor or None,
        None if after is None else _id(after, f"{where}: 'startsAfterPartition'"),
        tuple(_id(ancestor, f"{where}: an item of 'cursorFromPartitions'") for ancestor in ancestors or ()),
        tuple(told.filters or ()),
    )


def _flag(told: _Flag) -> bool:
    return told is not None and told is not False


def _settings(value: object) -> dict[str, str | int | None] | None:
    """Return settings; None for a member of this name with another meaning."""
    if not isinstance(value, dict) or not all(isinstance(each, str | int | None) for each in value.values()):
        return None
    return value


def _either(where: str, names: str, first: Any, second: Any) -> Any:
    """Return a member that the specification spells in two ways; null counts as missing."""
    if first is None or second is None:
        return second if first is None else first
    if json.dumps(first).replace('"', "") != json.dumps(second).replace('"', ""):  # "0" and 0 are equal
        raise RemoteProtocolError(f"{where}: {names} disagree: {quoted(first, 50)} and {quoted(second, 50)}")
    return first


def _id(value: object, what: str) -> int:
    if isinstance(value, str) and _ID.fullmatch(value):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_PARTITION_ID:
        raise RemoteProtocolError(
            f"{what} is {quoted(value, 50)}: expected an integer from 0 to {MAX_PARTITION_ID}, as a string or a number"
        )
    return value


def _fields(value: object) -> dict[str, str]:
    """Return the parts that filters compare; in another feed this member may be anything, and is then ignored."""
    if not isinstance(value, dict):
        return {}
    return {name: part for name, part in value.items() if isinstance(part, str) and (part == "key" or part[:1] == "/")}


def _check(discovery: Discovery, error: type[ProtocolError]) -> None:
    """Raise ``error`` unless the partitions agree with each other."""
    closed = {partition.id: partition.closed for partition in discovery.partitions}
    if len(closed) != len(discovery.partitions):
        twice = Counter(partition.id for partition in discovery.partitions).most_common(1)[0][0]
        raise error(f"discovery document: partition {twice} is listed twice")
    for partition in discovery.partitions:
        where = f"discovery document: partition {partition.id}"
        if not 0 <= partition.id <= MAX_PARTITION_ID:
            raise error(f"{where}: ids go from 0 to {MAX_PARTITION_ID}")
        if partition.starts_after is not None:
            if partition.cursor_from:
                raise error(f"{where}: has both 'startsAfterPartition' and 'cursorFromPartitions'")
            if not closed.get(partition.starts_after, False):
                raise error(f"{where}: starts after partition {partition.starts_after}, which is not listed as closed")
        for ancestor in partition.cursor_from:
            if ancestor in closed:
                raise error(f"{where}: takes cursors from partition {ancestor}, which is still listed")
