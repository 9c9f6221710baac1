"""Reads the options for RabbitMQ's filter values, by which a broker leaves out chunks of a stream."""

from __future__ import annotations

import re
from typing import Final

from spark_streams.errors import OptionError
from spark_streams.options.common import SourceOptions
from spark_streams.options.names import FILTER, FILTER_VALUE_FROM, FILTER_VALUES, MATCH_UNFILTERED
from spark_streams.options.parser import OptionReader
from spark_streams.options.values import words_list
from spark_streams.position import Matching

VALUE_FROM: Final = re.compile(
    r"key|(?:application_properties|message_annotations)\..+|properties\.(?:message_id|to|subject|reply_to|"
    r"correlation_id|content_type|content_encoding|group_id|reply_to_group_id)",
    re.DOTALL,
)
"""The parts of a message that may hold a RabbitMQ filter value."""


def _may_push(common: SourceOptions) -> bool:
    """Return whether some expression may require filter values."""
    places = (common.starting.everywhere, *common.starting.each.values())
    return common.filter is not None or common.pushdown or any(isinstance(place, Matching) for place in places)


def read_filter_values(given: OptionReader, common: SourceOptions) -> tuple[tuple[str, ...], bool, str | None]:
    """Return the filter values, whether messages without one match too, and where messages have theirs."""
    text = given.get(FILTER_VALUES)
    taken_from = given.text(FILTER_VALUE_FROM, "such as application_properties.region")
    if taken_from is not None and not VALUE_FROM.fullmatch(taken_from):
        raise OptionError(
            FILTER_VALUE_FROM,
            f"'{taken_from}' is no part of a message that a filter value can be compared with, expected 'key', "
            "'application_properties.<name>', 'message_annotations.<name>' or 'properties.<field>' with a text field "
            "such as properties.subject",
        )
    by_expression = text is None and _may_push(common)
    unfiltered = given.boolean(MATCH_UNFILTERED, by_expression and taken_from is not None)
    if text is None:
        if not by_expression and (taken_from is not None or unfiltered):
            option = FILTER_VALUE_FROM if taken_from is not None else MATCH_UNFILTERED
            raise OptionError(
                option, f"needs '{FILTER_VALUES}' or '{FILTER}' beside it: all messages are read without them"
            )
        if unfiltered and taken_from is None:
            raise OptionError(
                MATCH_UNFILTERED,
                f"needs '{FILTER_VALUE_FROM}' beside it: without it the broker is asked for no filter value, and sends "
                "messages without one too",
            )
        return (), unfiltered, taken_from
    values = words_list(FILTER_VALUES, text)
    if taken_from is None:
        raise OptionError(
            FILTER_VALUES,
            f"needs '{FILTER_VALUE_FROM}' beside it, which says where messages have what their filter value was taken "
            "from: the broker leaves out whole chunks only, and the rest is compared here",
        )
    return values, unfiltered, taken_from
