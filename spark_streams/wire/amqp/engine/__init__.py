"""AMQP connections without I/O and without a clock, for both roles: bytes in, their meaning out."""
