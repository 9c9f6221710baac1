"""An engine that serves, as a door has one, and what a peer says first."""

from __future__ import annotations

from spark_streams.server.amqp.config import AmqpConfig
from spark_streams.wire.amqp.engine.engine import Engine, Options
from spark_streams.wire.amqp.performatives import OPEN, encode_frame
from spark_streams.wire.amqp.sasl import AMQP_HEADER

OPENING = AMQP_HEADER + encode_frame(0, OPEN, ["peer"])


def serving(config: AmqpConfig) -> Engine:
    """Return an engine with the settings of a door, which has opened its side."""
    options = Options(
        "door",
        config.max_frame_bytes,
        config.session_bytes,
        max_sessions=config.max_sessions,
        idle_ms=config.idle_timeout_ms,
        serves=True,
        max_message_bytes=config.max_message_bytes,
    )
    engine = Engine(options)
    engine.open()
    return engine
