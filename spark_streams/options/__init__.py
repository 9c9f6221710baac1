"""Options as Spark hands them over -> frozen dataclasses, one module a format; ``names`` spells each option's name.

What all formats take is read by ``peer``, ``positions`` and ``source``. A format has a module of its own, which
describes in a ``Format`` what else it takes, and has its parsers: ``amqp_events`` and ``rabbitmq_stream``.
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
