"""The AMQP 1.0 door: serves the log to AMQP clients as an event log node."""
