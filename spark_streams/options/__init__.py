"""Parses the options that Spark passes into frozen dataclasses, with one module for each format.

``names`` has the name of each option. ``connection``, ``positions`` and ``common`` read the options of all formats. A
format has a module of its own, with a ``Format`` that describes its further options, and with its parsers:
``amqp_events``, ``rabbitmq_stream`` and ``feedapi``.
"""

from spark_streams.options.amqp_events import parse_sink_options, parse_source, validate
from spark_streams.options.common import SinkOptions, SourceOptions
from spark_streams.options.names import MAX_OFFSETS_PER_TRIGGER, MAX_TRIGGER_DELAY, MIN_OFFSETS_PER_TRIGGER
from spark_streams.options.parser import RedactedOptions
from spark_streams.options.positions import PositionRange
from spark_streams.options.rabbitmq_stream import (
    RabbitSinkOptions,
    RabbitSourceOptions,
    parse_rabbit_sink,
    parse_rabbit_source,
    validate_rabbit,
)

__all__ = [
    "MAX_OFFSETS_PER_TRIGGER",
    "MAX_TRIGGER_DELAY",
    "MIN_OFFSETS_PER_TRIGGER",
    "PositionRange",
    "RabbitSinkOptions",
    "RabbitSourceOptions",
    "RedactedOptions",
    "SinkOptions",
    "SourceOptions",
    "parse_rabbit_sink",
    "parse_rabbit_source",
    "parse_sink_options",
    "parse_source",
    "validate",
    "validate_rabbit",
]
