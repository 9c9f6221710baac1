"""Reads the options for RabbitMQ's filter values, which let a broker skip chunks of a stream."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from spark_streams.errors import OptionError
from spark_streams.options.common import SourceOptions, read_source
from spark_streams.options.names import FILTER, FILTER_VALUE_FROM, FILTER_VALUES, MATCH_UNFILTERED, STREAM
from spark_streams.options.parser import OptionReader
from spark_streams.options.values import words_list
from spark_streams.position import Matching

VALUE_FROM: Final = re.compile(
    r"key|(?:application_properties|message_annotations)\..+|properties\.(?:message_id|to|subject|reply_to|"
    r"correlation_id|content_type|content_encoding|group_id|reply_to_group_id)",
    re.DOTALL,
)
"""The parts of a message that may hold a RabbitMQ filter value."""


@dataclass(frozen=True)
class ValuedSourceOptions(SourceOptions):
    """What readers of RabbitMQ have in common, whatever its protocol.

    Args:
        super_stream: whether ``stream`` names a super stream, so that its partitions are read.
        filter_values: read only messages with one of these filter values; empty for all messages.
        match_unfiltered: whether messages without a filter value are considered too: with ``filter_values`` they are
            read, with ``filter`` those that match are. By default only with ``filter`` alone, as its rows must not
            depend on whether publishers set filter values.
        filter_value_from: the part of a message that its publisher takes the filter value from: ``key``,
            ``application_properties.<name>``, ``message_annotations.<name>`` or ``properties.<field>``; None where it
            is not known, so that the broker is asked for no filter value.
    """

    super_stream: bool = False
    filter_values: tuple[str, ...] = ()
    match_unfiltered: bool = False
    filter_value_from: str | None = None


Valued = TypeVar("Valued", bound=ValuedSourceOptions)


def read_valued(
    given: OptionReader, named: tuple[str | None, bool], kind: type[Valued], *, streaming: bool | None
) -> Valued:
    """Read the options of every format's reader, and those that all readers of RabbitMQ have.

    Args:
        given: the user's options.
        named: the name of the stream (None where there is none yet), and whether it is a super stream.
        kind: as for ``read_source``.
        streaming: as for ``read_source``.

    Raises:
        OptionError: a value is bad, options contradict each other, or a reader has no stream.
    """
    name, super_stream = named
    if name is None and given.reading:
        given.required(STREAM, given.form.stream_example)
    common = read_source(given, name or "", kind, streaming=streaming)
    text = given.get(FILTER_VALUES)
    taken_from = given.text(FILTER_VALUE_FROM, "such as application_properties.region")
    if taken_from is not None and not VALUE_FROM.fullmatch(taken_from):
        raise OptionError(
            FILTER_VALUE_FROM,
            f"'{taken_from}' is no part of a message that a filter value can be compared with, expected 'key', "
            "'application_properties.<name>', 'message_annotations.<name>' or 'properties.<field>' with a text field "
            "such as properties.subject",
        )
    starts = (common.starting.everywhere, *common.starting.each.values())
    may_push = common.filter is not None or common.pushdown or any(isinstance(each, Matching) for each in starts)
    by_expression = text is None and may_push
    unfiltered = given.boolean(MATCH_UNFILTERED, by_expression and taken_from is not None)
    values = () if text is None else words_list(FILTER_VALUES, text)
    if values and taken_from is None:
        raise OptionError(
            FILTER_VALUES,
            f"needs '{FILTER_VALUE_FROM}' beside it, which says where messages have what their filter value was taken "
            "from: the broker leaves out whole chunks only, and the rest is compared here",
        )
    if not values and not by_expression and (taken_from is not None or unfiltered):
        option = FILTER_VALUE_FROM if taken_from is not None else MATCH_UNFILTERED
        raise OptionError(
            option, f"needs '{FILTER_VALUES}' or '{FILTER}' beside it: all messages are read without them"
        )
    if not values and unfiltered and taken_from is None:
        raise OptionError(
            MATCH_UNFILTERED,
            f"needs '{FILTER_VALUE_FROM}' beside it: without it the broker is asked for no filter value, and sends "
            "messages without one too",
        )
    return replace(
        common,
        super_stream=super_stream,
        filter_values=values,
        match_unfiltered=unfiltered,
        filter_value_from=taken_from,
    )
